"""OpenAI's API: what requests and answers are, and the handlers that run them."""
