"""Heads: small networks that draft from the target's own states."""
