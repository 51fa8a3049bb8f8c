"""Heads of random weights, as the library `speculators` saves them, and what it computes with them (see `make.py`)."""
