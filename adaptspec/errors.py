"""Every error AdaptSpec raises on purpose. Each message says what to do next."""

from __future__ import annotations

import errno


class AdaptSpecError(Exception):
    """Root of the tree: catch this to catch everything AdaptSpec raises on purpose."""


class ConfigError(AdaptSpecError):
    """A setting or command-line value that cannot be used."""


class PolicyError(ConfigError):
    """A policy file that cannot be used. `str()` starts with `file:line:column:` where known."""


class ModelError(AdaptSpecError):
    """A model directory that cannot be loaded."""


class PairError(ModelError):
    """A target and a draft that cannot work together (their tokenizers differ, and one does not spell its text)."""


class RequestError(AdaptSpecError):
    """A request that cannot be served. `param` names the field at fault, in the client's words."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownModelError(RequestError):
    """A request that names a model or a policy that is not served here."""


class PromptTooLongError(RequestError):
    """The prompt, or the prompt and the answer asked for, do not fit into the model's context."""


def context_overflow(context: int, reason: str) -> str:
    """The message of a PromptTooLongError: clients recognise it by its words, and shorten the conversation.

    It begins as OpenAI's does, for which LiteLLM looks (`ExceptionCheckers` in exception_mapping_utils.py), and ends
    with the code of the error, for which LangChain looks in the text (`_handle_openai_bad_request`).
    """
    return f"This model's maximum context length is {context} tokens. However, {reason} (context_length_exceeded)"


class OverloadedError(RequestError):
    """The queue is full; the same request may be sent again later."""


class DrainingError(OverloadedError):
    """The server is shutting down: it takes no new requests, and may give up on those in flight."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down; send the request again later")


class EngineError(AdaptSpecError):
    """The engine failed while serving; requests in flight end with this error."""


class EngineStoppedError(EngineError):
    """The engine takes no more work."""


class CorpusError(AdaptSpecError):
    """A training corpus that cannot be read."""


class TapeError(AdaptSpecError):
    """A tape of recorded requests that cannot be read, or that lacks what it is asked for."""


class StateError(AdaptSpecError):
    """Learned state that cannot be used: damaged, of other models, or of a policy with other arms."""


class JournalError(AdaptSpecError):
    """A journal that cannot be read."""


class FileError(AdaptSpecError, OSError):
    """A file that is neither read nor written: it is no regular file, or too large, as its `strerror` says."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(errno.EINVAL, reason, str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}; give a regular file of usual size"


class ServerError(AdaptSpecError):
    """A server, asked as a client, that does not answer as one."""
