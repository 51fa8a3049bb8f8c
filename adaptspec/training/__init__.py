"""Training: drafters for a target on its own answers, counts of a corpus, and detectors of tasks."""
