"""Drafters, which propose tokens for the target to verify."""
