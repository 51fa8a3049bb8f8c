"""Policies from other engines' configuration files, one module per engine."""
