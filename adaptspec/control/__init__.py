"""The control plane: what decides how much to speculate. Numbers in, depths out."""
