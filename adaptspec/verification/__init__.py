"""Verification: which drafted tokens are kept."""
