"""The policy language: YAML read with places, validated, and built."""
