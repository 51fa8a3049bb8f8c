"""The HTTP server: OpenAI's wire format on one side, `Request` and `Completion` on the other."""
