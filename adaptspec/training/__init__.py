"""Training: the recipe for a target and a draft that share a tokenizer, its report and its model card."""
