"""Replay: what policies would have earned on recorded traffic, and how far from the best possible that is."""
