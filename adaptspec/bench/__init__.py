"""Benchmarks: speed against peers and fixed depths, and exactness. Run `python -m adaptspec.bench`."""
