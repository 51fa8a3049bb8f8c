"""llama.cpp as a shared library: where it is found, the functions and structures that are used, and their check.

Its C interface has no stable layout: structures are passed by value and grow between versions. So the defaults that the
library itself fills in are compared with those of the layout below when it is loaded, before any structure is passed to
it; a library that differs is refused by name. (Layout: include/llama.h of llama.cpp, October 2026.)
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from ctypes import c_bool, c_char_p, c_float, c_int32, c_size_t, c_uint8, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from adaptspec.errors import ModelError

VARIABLE = "ADAPTSPEC_LLAMA_LIBRARY"
FLOAT16, BFLOAT16 = 1, 30  # llama.cpp's numbers of types of cached keys and values (ggml_type)
_SPARE = 512  # bytes behind a structure, for fields of later versions: they keep the defaults that the library sets
_log = logging.getLogger(__name__)
_ERROR = 4  # of ggml_log_level


class ModelParams(ctypes.Structure):
    """`llama_model_params`."""

    _fields_ = (
        ("devices", c_void_p),
        ("buffer_overrides", c_void_p),
        ("gpu_layers", c_int32),
        ("split_mode", c_int32),
        ("load_mode", c_int32),
        ("lazy_mode", c_int32),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress", c_void_p),
        ("progress_data", c_void_p),
        ("overrides", c_void_p),
        ("vocabulary_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_buffers", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
        ("spare", c_uint8 * _SPARE),
    )


class ContextParams(ctypes.Structure):
    """`llama_context_params`."""

    _fields_ = (
        ("context", c_uint32),
        ("batch", c_uint32),
        ("micro_batch", c_uint32),
        ("sequences", c_uint32),
        ("recurrent_sequences", c_uint32),
        ("outputs", c_uint32),
        ("outputs_per_sequence", c_uint32),
        ("threads", c_int32),
        ("threads_batch", c_int32),
        ("context_type", c_int32),
        ("rope_scaling", c_int32),
        ("pooling", c_int32),
        ("attention", c_int32),
        ("flash_attention", c_int32),
        ("rope_base", c_float),
        ("rope_scale", c_float),
        ("yarn_extrapolation", c_float),
        ("yarn_attention", c_float),
        ("yarn_fast", c_float),
        ("yarn_slow", c_float),
        ("yarn_context", c_uint32),
        ("defragment", c_float),
        ("evaluated", c_void_p),
        ("evaluated_data", c_void_p),
        ("key_type", c_int32),
        ("value_type", c_int32),
        ("expert_cache", c_size_t),
        ("abort", c_void_p),
        ("abort_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_cache", c_bool),
        ("no_timings", c_bool),
        ("offload_operations", c_bool),
        ("full_windows", c_bool),
        ("unified", c_bool),
        ("samplers", c_void_p),
        ("sampler_count", c_size_t),
        ("other", c_void_p),
        ("spare", c_uint8 * _SPARE),
    )


class TokenBatch(ctypes.Structure):
    """`llama_batch`: arrays of `tokens` entries each."""

    _fields_ = (
        ("tokens", c_int32),
        ("token", c_void_p),
        ("embedding", c_void_p),
        ("position", c_void_p),
        ("sequence_counts", c_void_p),
        ("sequences", c_void_p),
        ("wanted", c_void_p),
    )


_MODEL_DEFAULTS: Mapping[str, object] = {
    "devices": None,
    "gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "tensor_split": None,
    "progress": None,
    "overrides": None,
    "vocabulary_only": False,
    "use_extra_buffers": True,
    "no_alloc": False,
}
_CONTEXT_DEFAULTS: Mapping[str, object] = {
    "context": 512,
    "batch": 2048,
    "micro_batch": 512,
    "sequences": 1,
    "outputs_per_sequence": 1,
    "rope_scaling": -1,
    "pooling": -1,
    "attention": -1,
    "flash_attention": -1,
    "rope_base": 0.0,
    "yarn_extrapolation": -1.0,
    "yarn_context": 0,
    "evaluated": None,
    "key_type": 1,
    "value_type": 1,
    "abort": None,
    "embeddings": False,
    "offload_cache": True,
    "full_windows": True,
    "unified": False,
    "samplers": None,
    "other": None,
}
# Results and arguments of the functions that are called.
_FUNCTIONS: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (c_void_p, c_void_p)),
    "llama_model_default_params": (ModelParams, ()),
    "llama_context_default_params": (ContextParams, ()),
    "llama_model_load_from_file": (c_void_p, (c_char_p, ModelParams)),
    "llama_model_free": (None, (c_void_p,)),
    "llama_init_from_model": (c_void_p, (c_void_p, ContextParams)),
    "llama_free": (None, (c_void_p,)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
    "llama_model_has_encoder": (c_bool, (c_void_p,)),
    "llama_model_is_recurrent": (c_bool, (c_void_p,)),
    "llama_model_is_hybrid": (c_bool, (c_void_p,)),
    "llama_model_is_diffusion": (c_bool, (c_void_p,)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_memory_seq_rm": (c_bool, (c_void_p, c_int32, c_int32, c_int32)),
    "llama_state_seq_get_size": (c_size_t, (c_void_p, c_int32)),
    "llama_state_seq_get_data": (c_size_t, (c_void_p, c_void_p, c_size_t, c_int32)),
    "llama_state_seq_set_data": (c_size_t, (c_void_p, c_void_p, c_size_t, c_int32)),
    "llama_decode": (c_int32, (c_void_p, TokenBatch)),
    "llama_get_logits": (ctypes.POINTER(c_float), (c_void_p,)),
    "llama_set_n_threads": (None, (c_void_p, c_int32, c_int32)),
}
_LOG_CALLBACK = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


class LlamaLibrary:
    """The functions of one loaded library, as attributes of their names; what it logs goes to `adaptspec`'s log."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError: it cannot be loaded, or is of a version whose layout is not known."""
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise ModelError(f"llama.cpp's library {path} cannot be loaded: {error}") from error
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._library, name, None)
            if function is None:
                raise ModelError(f"{self} has no function {name}; {_ADVICE}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self._check("llama_model_default_params", _MODEL_DEFAULTS)
        self._check("llama_context_default_params", _CONTEXT_DEFAULTS)
        self._error: str | None = None
        self._lock = threading.Lock()
        self._callback = _LOG_CALLBACK(self._logged)  # kept as long as the library may call it
        self.llama_log_set(ctypes.cast(self._callback, c_void_p), None)
        self.llama_backend_init()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __str__(self) -> str:
        version = getattr(self._library, "llama_version", None)
        if version is None:
            return f"llama.cpp in {self.path}"
        version.restype = c_char_p
        return f"llama.cpp {version().decode(errors='replace')} in {self.path}"

    def reason(self) -> str:
        """The first error that it has logged since the last call of this, or that there is none."""
        with self._lock:
            found, self._error = self._error, None
        return found or "it says no reason"

    def defaults(self, function: str) -> ctypes.Structure:
        """What the library sets in a structure by itself."""
        found: ctypes.Structure = getattr(self, function)()
        return found

    def _check(self, function: str, defaults: Mapping[str, object]) -> None:
        found = self.defaults(function)
        for name, expected in defaults.items():
            if getattr(found, name) != expected:
                raise ModelError(
                    f"{self} has another layout of its structures than is known ({function}: {name} is "
                    f"{getattr(found, name)}, not {expected}); {_ADVICE}"
                )

    def _logged(self, level: int, text: bytes, _: object) -> None:
        line = text.decode(errors="replace").strip()
        if level == _ERROR:
            with self._lock:
                self._error = self._error or line
        if line:
            _log.debug("llama.cpp: %s", line)


_ADVICE = f"install another version of xllamacpp, or name a library by the variable {VARIABLE}"


@cache
def load_library() -> LlamaLibrary:
    """llama.cpp's library: the one that ADAPTSPEC_LLAMA_LIBRARY names, or that of xllamacpp.

    Raises ModelError: there is none, or none that is known.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise ModelError(f"{VARIABLE} is {named}, where there is no file; name llama.cpp's shared library")
        return LlamaLibrary(Path(named))
    path = next(_installed(), None)
    if path is None:
        raise ModelError(
            "GGUF files are read by llama.cpp's library, and none is installed: pip install xllamacpp, or name a "
            f"library by the variable {VARIABLE}"
        )
    return LlamaLibrary(path)


def _installed() -> Iterator[Path]:
    """Libraries in packages of this environment. None is imported: their extension modules export the C interface."""
    spec = importlib.util.find_spec("xllamacpp")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(one for one in Path(folder).glob("xllamacpp*") if one.suffix in (".so", ".dylib", ".pyd"))
