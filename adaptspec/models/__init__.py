"""Loading and running one model: runners, caches, sampling."""
