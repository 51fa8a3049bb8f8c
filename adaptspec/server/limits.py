"""Bounds of the server: what a client may ask for, and how long it may take.

Sizes are bytes or counts, times are seconds. Prompts are bounded by the model's context, running requests by the
engine's rows, and waiting requests by `--max-waiting`.
"""

from __future__ import annotations

# Streams and the engine
QUIET_SECONDS = 5.0  # of a stream without a token before it sends its headers and a comment
COMMENT_SECONDS = 15.0  # between further comments while there is no token
HANG_SECONDS = 4.0  # without progress of a busy engine, at least, before its requests end with an error

# Bodies
BODY_BYTES = 4 * 2**20  # compressed bodies are refused
BODY_SECONDS = 30.0
JSON_DEPTH = 64  # objects and lists within each other
JSON_PARTS = 2**15  # objects, lists and names of fields in one body
JSON_ITEMS = 2**18  # commas in one body: the entries of all lists and objects, token ids included
NUMBER_DIGITS = 400  # of an integer; Python cannot print integers of more than 4,300 digits

# Fields
NAME_CHARACTERS = 256
MESSAGES = 4096  # of a conversation, or items of a response's input
TOOLS = 128  # also calls in one message
PROMPTS = 128  # of one completions request
TOKENS = 2**16  # of one request to /detokenize
CHOICES = 16  # n
OUTPUT_TOKENS = 2**20  # of one answer, where the context has room for more
STOP_STRINGS = 16
STOP_CHARACTERS = 1024  # of each stop string
STOP_TOKENS = 256
LOGIT_BIAS = 1024  # entries
LOGPROBS = 20  # alternatives per token
PROMPT_LOGPROBS = 2**20  # of all prompts of a request, alternatives and choices counted
METADATA = 16  # entries, as at OpenAI
STRUCTURED_CHOICES = 4096
POLICIES = 64  # served at once, with those that were sent to the admin routes

# Work
TEXT_BYTES_PER_TOKEN = 64  # of a text to encode, for each token of the context
SPARE_TEXT_BYTES = 20_000  # of any text in addition: long runs of spaces matter where the context is short
TEMPLATE_SECONDS = 2.0  # for the model's chat template
GRAMMAR_SECONDS = 10.0  # for a schema or tools to be compiled
GRAMMAR_BYTES = 2**30  # of compiled grammars that waiting and running requests hold; further requests get 429
SCHEMA_LITERAL_BYTES = 4096  # of each constant, enum value or name in a schema, and each text that a pattern repeats
SCHEMA_MULTIPLES = 10_000  # the product of all multipleOf in a schema that hold for one number
SCHEMA_MIN_LENGTH = 1024  # minLength next to a pattern or format


def text_bytes(context: int) -> int:
    """The longest text in bytes that may fit into a context of so many tokens; longer ones are not encoded."""
    return TEXT_BYTES_PER_TOKEN * context + SPARE_TEXT_BYTES
