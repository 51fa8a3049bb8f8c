"""Drafters: whatever proposes tokens, one file each."""
