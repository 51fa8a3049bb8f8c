"""The policy language: YAML read with lines and columns, validated, and built."""
