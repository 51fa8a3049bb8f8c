"""The command groups of the command line, one module each: its arguments, and what they call."""
