"""AdaptSpec: an adaptive speculation control plane for serving language models."""

__version__ = "0.1.0"
