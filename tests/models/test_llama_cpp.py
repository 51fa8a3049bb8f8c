"""GGUF models by llama.cpp: bits of logits depend on the text alone, and nothing is lost after an error."""

from __future__ import annotations

import ctypes.util
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adaptspec.bench.doctor import doctor_drafts
from adaptspec.config import EngineConfig
from adaptspec.control.cost_model import CostModel
from adaptspec.engine.build import build
from adaptspec.errors import ConfigError, EngineError, ModelError
from adaptspec.models.gguf import GgufHeader, read_header
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.llama_cpp import LlamaModel
from adaptspec.models.llama_library import VARIABLE, LlamaLibrary, load_library
from adaptspec.models.loading import load_model
from adaptspec.models.runner import Packed, Runner
from adaptspec.models.tokenization import load_tokenizer
from tests.conftest import TINY_VOCAB, MakeModel
from tests.engine.policies import COSTS
from tests.models.tiny_gguf import write_gguf, write_mamba

WIDE = {"hidden_size": 64, "intermediate_size": 64}  # quantized weights lie in blocks of 32
CONTEXT, ROWS = 256, 3
TEXT = tuple(np.random.default_rng(0).integers(4, 250, CONTEXT).tolist())
OTHER = tuple(reversed(TEXT))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizers of GGUF files are kept in the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_model: MakeModel) -> Path:
    """A model in several types of weights."""
    made = tmp_path_factory.mktemp("gguf")
    for kind in ("F32", "Q8_0", "Q4_0", "Q4_1"):
        write_gguf(make_model("llama", **WIDE), made / f"{kind}.gguf", kind)
    return made


def runner(path: Path, rows: int = ROWS, context: int = CONTEXT) -> Runner:
    return load_model(str(path)).runner(CacheLimits(rows, context=context))


@pytest.fixture(scope="module")
def quantized(folder: Path) -> Runner:
    return runner(folder / "Q8_0.gguf")


def read(model: Runner, parts: Sequence[tuple[int, Sequence[int]]]) -> torch.Tensor:
    """Logits after all tokens of a pass of these rows and tokens."""
    rows, tokens = zip(*parts, strict=True)
    counts = np.array([len(part) for part in tokens])
    for row, part in parts:
        assert model.reserve(row, model.length(row) + len(part))
    return model.forward(Packed(np.array(rows), counts, np.concatenate(tokens).astype(np.int64), counts)).logits


def one_by_one(model: Runner, tokens: Sequence[int], row: int = 0) -> torch.Tensor:
    model.free(row)
    found = torch.cat([read(model, [(row, [token])]) for token in tokens])
    model.free(row)
    return found


def test_logits_are_those_of_the_torch_decoder(folder: Path, make_model: MakeModel) -> None:
    """Of the same weights in float32; llama.cpp holds keys and values in bfloat16."""
    mine = load_model(str(make_model("llama", **WIDE))).runner(CacheLimits(1, context=CONTEXT))
    found, expected = (read(one, [(0, TEXT[:60])]) for one in (runner(folder / "F32.gguf"), mine))
    assert (found - expected).abs().max() < 0.1 * expected.std()
    assert (found.argmax(1) == expected.argmax(1)).float().mean() > 0.9


def test_a_failed_pass_changes_nothing(quantized: Runner) -> None:
    """A token that the model does not have: the rows go on as if the pass had not been."""
    expected = one_by_one(quantized, TEXT[:30])
    read(quantized, [(0, TEXT[:20]), (1, OTHER[:9])])
    with pytest.raises(EngineError, match=r"llama\.cpp failed with status -1"):
        read(quantized, [(0, TEXT[20:25]), (1, [10**6])])
    assert (quantized.length(0), quantized.length(1)) == (20, 9)
    assert torch.equal(read(quantized, [(0, TEXT[20:30])]), expected[20:])
    for row in (0, 1):
        quantized.free(row)


def test_rows_beyond_the_cache_wait(quantized: Runner) -> None:
    """Each has a stream of its own, whatever its number."""
    for row in (7, 0, 3):
        assert quantized.reserve(row, 1)
    assert not quantized.reserve(5, 1)
    quantized.free(0)
    assert quantized.reserve(5, 1)
    for row in (7, 5, 3):
        quantized.free(row)
    assert quantized.free_memory == 1.0


def test_a_cache_takes_memory_once_it_is_used(tmp_path: Path, make_model: MakeModel) -> None:
    """Sixteen rows of eight thousand tokens of a small model would take gigabytes."""
    path = write_gguf(make_model("llama", **WIDE, max_position_embeddings=8192), tmp_path / "m.gguf")
    rows, context, model = 64, 8192, load_model(str(path))
    assert (size := rows * context * read_header(path).bytes_per_token) > 2**25
    before = _resident()
    made = model.runner(CacheLimits(rows, context=context))
    assert _resident() - before < size / 2
    for row in range(3):
        assert torch.equal(one_by_one(made, TEXT[:40], row), one_by_one(runner(path), TEXT[:40]))


def _resident() -> int:
    """Bytes of this process's memory without files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) * 1024


def test_a_tokenizer_is_made_of_a_file_once(folder: Path, make_model: MakeModel, tmp_path: Path) -> None:
    """It writes what that of the directory writes, with the same template, from the cache too."""
    path, expected = str(folder / "Q8_0.gguf"), load_tokenizer(str(make_model("llama", **WIDE)))
    for _ in range(2):
        found = load_tokenizer(path)
        assert len(found) == TINY_VOCAB, "transformers adds a token behind those of the file"
        assert found.encode("h\u00e9llo <|end|>") == expected.encode("h\u00e9llo <|end|>")
        assert (found.chat_template, found.eos_token) == (expected.chat_template, expected.eos_token)
    assert len(list((tmp_path / "cache" / "adaptspec" / "tokenizers").iterdir())) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "bfloat16"}, "in the numbers that it is written in: leave --dtype out"),
        ({"device": "cuda"}, r"is run by llama\.cpp: leave --device out; --gpu-layers N"),
        ({"draft": "first-layers:1"}, "only Llama-like models can draft for themselves"),
    ],
)
def test_settings_that_llama_cpp_does_not_have_are_refused(folder: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(EngineConfig(model=str(folder / "Q8_0.gguf"), max_model_len=CONTEXT, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [(), ("all",)])
def test_a_file_drafts_nothing_of_itself(folder: Path, given: tuple[str, ...]) -> None:
    """A doctor tries lookup alone then."""
    assert doctor_drafts(EngineConfig(model=str(folder / "Q8_0.gguf")), given) == []


def test_layers_on_a_gpu_are_for_gguf_files(folder: Path, make_model: MakeModel) -> None:
    """A draft of another kind may be beside one."""
    with pytest.raises(ConfigError, match="--gpu-layers is for GGUF files"):
        build(EngineConfig(model=str(make_model("llama")), gpu_layers=4))
    pair = EngineConfig(
        model=str(folder / "Q8_0.gguf"), draft=str(make_model("llama", **WIDE)), max_model_len=CONTEXT, gpu_layers=4
    )
    assert build(pair, costs=CostModel(COSTS)).target.info.dtype == "q8_0"


def test_what_llama_cpp_does_not_load_is_refused_in_its_words(folder: Path, tmp_path: Path) -> None:
    path, content = tmp_path / "odd.gguf", (folder / "Q8_0.gguf").read_bytes()
    path.write_bytes(content.replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"))
    with pytest.raises(ModelError, match=r"odd\.gguf: llama\.cpp .* does not load it \(.*attn_q.*\)"):
        runner(path)
    path.write_bytes(content.replace(b"llama", b"lambs"))
    with pytest.raises(ModelError, match=r"does not load it \(.*unknown model architecture: 'lambs'\)"):
        load_library_model(path)


def test_recurrent_models_are_refused(tmp_path: Path, make_model: MakeModel) -> None:
    """A draft that is rejected could not be taken back."""
    path = write_mamba(make_model("llama"), tmp_path / "m.gguf")
    with pytest.raises(ModelError, match=r"m\.gguf \(mamba\) cannot be served: its states cannot be taken back"):
        runner(path)


def load_library_model(path: Path) -> None:
    LlamaModel(load_library(), GgufHeader(path, {"general.architecture": "lambs"}, {}))


@pytest.mark.parametrize("named", ["nothing", "text", "libc"])
def test_libraries_that_are_not_llama_cpp_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    path, message = tmp_path / "lib.so", "where there is no file; name llama.cpp's shared library"
    if named == "text":
        path.write_text("no library")
        message = r"llama\.cpp's library .*lib\.so cannot be loaded"
    if named == "libc":
        found = next(Path("/lib").rglob(str(ctypes.util.find_library("c"))))
        shutil.copy(found, path)
        message = r"lib\.so has no function llama_backend_init; install another version of xllamacpp"
    monkeypatch.setenv(VARIABLE, str(path))
    load_library.cache_clear()
    try:
        with pytest.raises(ModelError, match=message):
            load_library()
    finally:
        load_library.cache_clear()


def test_a_library_of_another_layout_is_refused() -> None:
    """Structures are passed by value: a field that has moved would set another one."""
    path = load_library().path

    class Later(LlamaLibrary):
        """One whose structures begin with a field that is not known here."""

        def defaults(self, function: str) -> ctypes.Structure:
            found = super().defaults(function)
            ctypes.memmove(ctypes.byref(found, 4), ctypes.byref(found), ctypes.sizeof(found) - 4)
            return found

    with pytest.raises(ModelError, match=r"llama\.cpp .* has another layout of its structures than is known"):
        Later(path)


def test_passes_keep_to_the_size_up_to_which_bits_are_equal(folder: Path) -> None:
    """Of float32 files the bits of wider passes differ: a prompt is then read in passes of that size."""
    model = runner(folder / "F32.gguf", rows=1)
    expected = one_by_one(model, TEXT[:40])
    assert not torch.equal(read(model, [(0, TEXT[:40])]), expected)
    model.free(0)
    model.info = replace(model.info, equal_passes=1)
    assert torch.equal(read(model, [(0, TEXT[:40])]), expected)
