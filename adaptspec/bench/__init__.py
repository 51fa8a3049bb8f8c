"""Benchmarks: speed against peers and fixed depths, and exactness. Run `adaptspec bench`."""
