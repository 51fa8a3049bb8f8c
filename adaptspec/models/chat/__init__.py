"""Chat templates of models: what they can write, and conversations as they write them."""
