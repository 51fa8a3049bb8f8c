"""Sinks: what becomes of the records the engine leaves behind. Knows no HTTP and no tensors."""
