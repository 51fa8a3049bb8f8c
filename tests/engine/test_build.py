"""Putting an engine together: what is chosen when left out, and errors that say what to do."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from adaptspec.config import EngineConfig
from adaptspec.control.cost_model import CostModel
from adaptspec.drafting.cross_tokenizer import CrossTokenizerDrafter
from adaptspec.engine.build import assemble, build
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.load_models import load_models
from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ConfigError, ModelError, PolicyError
from adaptspec.request import SamplingParams, SpeculationParams
from tests.conftest import MakeModel, tiny_tokenizer
from tests.drafting.spellings import gpt2_like, write_model
from tests.engine.policies import COSTS

SMALL = EngineLimits(max_rows=2)
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def policy_file(path: Path, name: str, choose: str, more: str = "") -> str:
    path.write_text(
        f"apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {{name: '{name}'}}\n"
        f"spec: {{choose: {choose}{more}}}\n"
    )
    return str(path)


def test_a_pair_and_its_shipped_policies(target_path: Path, draft_path: Path) -> None:
    """All shipped policies can be asked for by name, and every one gives the same greedy text."""
    engine = Engine.from_config(EngineConfig(model=str(target_path), draft=str(draft_path), max_num_seqs=2))
    assert engine.core.controller.default == "goodput"
    assert {"off", "static-3", "goodput-ngram", "sglang-ema", "vllm-batch-table"} <= set(
        engine.core.controller.policies
    )
    outputs = {
        policy: engine.generate(["Hello there"], GREEDY, SpeculationParams(policy=policy))[0].tokens
        for policy in engine.core.controller.policies
    }
    assert len(set(outputs.values())) == 1, outputs


def test_routes_of_a_policy_that_is_not_the_default_are_noted(
    target_path: Path, draft_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They never count."""
    when = ", when: [{task: code, use: off}]"
    names = ("main", "other")
    files = tuple(policy_file(tmp_path / f"{name}.yaml", name, "goodput", when) for name in names)
    Engine.from_config(EngineConfig(model=str(target_path), draft=str(draft_path), policy=files, max_num_seqs=2))
    noted = [record.message for record in caplog.records if "counts only in the default policy" in record.message]
    assert [note.split(": ")[0] for note in noted] == [f"{files[1]}:4:25"]


def test_the_thread_that_loads_ends_with_loading(target_path: Path, draft_path: Path) -> None:
    """While it lives its OpenMP workers count, and with more threads than cores the engine's sleep at every barrier."""
    config, loading = (
        EngineConfig(model=str(target_path), draft=str(draft_path), max_num_seqs=2),
        set[threading.Thread](),
    )
    build(config, costs=CostModel(COSTS), progress=lambda _: loading.add(threading.current_thread()))
    assert [thread.name.rpartition("_")[0] for thread in loading] == ["adaptspec-load"]

    def broken(_: str) -> None:
        loading.add(threading.current_thread())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        build(config, progress=broken)
    assert len(loading) == 2
    assert not any(thread.is_alive() for thread in loading)


def test_without_a_draft_model_lookup_is_the_default(target_path: Path) -> None:
    """Left out, the draft of a model of one's own is none, and policies that need one are not offered."""
    engine = Engine.from_config(EngineConfig(model=str(target_path), max_num_seqs=2))
    assert engine.core.controller.default == "goodput-ngram"
    assert "goodput" not in engine.core.controller.policies
    assert "off" in engine.core.controller.policies
    assert len(engine.generate(["Hello"], GREEDY)[0].tokens) == 12


def test_a_draft_of_another_tokenizer_is_as_good_as_any(target_path: Path, tmp_path: Path) -> None:
    """It has the name that policies know; a tokenizer with more tokens than its model has is refused."""
    tokenizer = gpt2_like(300)
    built = build(
        EngineConfig(model=str(target_path), draft=str(write_model(tmp_path / "other", tokenizer)), max_num_seqs=2)
    )
    assert isinstance(built.drafters[0], CrossTokenizerDrafter)
    assert built.drafters[0].name == "draft-model"
    tokenizer.add_tokens(["hello"])
    tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match="other: the tokenizer has token id 300, the model only 300"):
        build(EngineConfig(model=str(target_path), draft=str(tmp_path / "other"), max_num_seqs=2))


def test_a_draft_that_is_no_model_is_refused_before_the_target_is_read(target_path: Path, tmp_path: Path) -> None:
    """Reading a large target may take minutes. This one cannot be read at all."""
    damaged, draft = copytree(target_path, tmp_path / "damaged"), tmp_path / "draft.gguf"
    (damaged / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        build(EngineConfig(model=str(damaged), max_num_seqs=2))
    draft.touch()
    with pytest.raises(ModelError, match=r"draft\.gguf is no whole GGUF file"):
        build(EngineConfig(model=str(damaged), draft=str(draft), max_num_seqs=2))
    empty = copytree(target_path, tmp_path / "empty")
    (empty / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=f"{empty} holds no model.safetensors"):
        build(EngineConfig(model=str(damaged), draft=str(empty), max_num_seqs=2))


def test_a_deep_policy_drafts_as_deep_as_it_says(target_path: Path, tmp_path: Path) -> None:
    """The engine makes room for the deepest policy it serves; the target as its own draft gets all of it accepted."""
    file = policy_file(tmp_path / "deep.yaml", "deep", "{algorithm: static, depth: 12}")
    engine = Engine.from_config(
        EngineConfig(model=str(target_path), draft=str(target_path), policy=(file,), max_num_seqs=2)
    )
    done = engine.generate(["Hello"], SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True))[0]
    assert len(done.stats.acceptance_histogram) == 13
    assert done.stats.acceptance_histogram[12] > 0


def test_two_files_of_one_name_are_refused(target_path: Path, tmp_path: Path) -> None:
    """Which of the two would a request get? The error names both files; one file given twice is one policy."""
    first = policy_file(tmp_path / "first.yaml", "mine", "{algorithm: static, depth: 0}")
    second = policy_file(tmp_path / "second.yaml", "mine", "{algorithm: static, depth: 0}")
    with pytest.raises(ConfigError, match=r"first\.yaml and .*second\.yaml .* called mine"):
        build(EngineConfig(model=str(target_path), policy=(first, second), max_num_seqs=2))
    built = build(EngineConfig(model=str(target_path), policy=(first, first), max_num_seqs=2))
    assert [spec.name for spec in built.specs].count("mine") == 1
    specs = [built.specs[0], built.specs[0]]
    with pytest.raises(ConfigError, match="two policies are called mine"):
        assemble(built.target, built.drafters, built.tokenizer, specs=specs, costs=built.costs, limits=SMALL)


def test_a_configured_policy_replaces_the_shipped_one_of_its_name(target_path: Path, tmp_path: Path) -> None:
    """A file called `off` is the `off` of this engine, unless the shipped one is asked for as well."""
    file = policy_file(tmp_path / "off.yaml", "off", "{algorithm: static, depth: 2}", ", drafters: [ngram]")
    built = build(EngineConfig(model=str(target_path), policy=(file,), max_num_seqs=2))
    assert built.specs[0].drafts
    assert [spec.name for spec in built.specs].count("off") == 1
    with pytest.raises(ConfigError, match="both hold a policy called off"):
        build(EngineConfig(model=str(target_path), policy=(file, "off"), max_num_seqs=2))


def test_policies_are_checked_before_models_are_loaded(tmp_path: Path) -> None:
    """A typo fails at once, not after minutes of loading and measuring. The models here are not even there."""
    config = EngineConfig(model=str(tmp_path / "nowhere"), draft=str(tmp_path / "nowhere"))
    with pytest.raises(PolicyError, match="did you mean goodput"):
        build(replace(config, policy=("goodputt",)))
    tasks = ", tasks: {chatt: {stop: {rule: none}}}"
    with pytest.raises(PolicyError, match="did you mean"):
        build(replace(config, policy=(policy_file(tmp_path / "p.yaml", "p", "{algorithm: goodput}", tasks),)))
    with pytest.raises(ConfigError, match="--draft"):
        build(replace(config, draft=None, policy=("slo",)))


def test_a_draft_of_a_shorter_context_serves_as_far_as_it_reaches(target_path: Path, make_model: MakeModel) -> None:
    """--max-model-len is the target's: a draft that holds less keeps its limit, one that holds more is cut to it."""
    short = make_model("llama", seed=1, num_hidden_layers=1, max_position_embeddings=64)
    engine_config = EngineConfig(
        model=str(target_path), draft=str(short), policy=("static-3",), max_model_len=200, max_num_seqs=2
    )
    engine = Engine.from_config(engine_config)
    assert engine.core.inputs.info.context == 200
    done = engine.generate(["Hello"], SamplingParams(max_tokens=120, temperature=0.0, ignore_eos=True))[0]
    assert len(done.tokens) == 120
    assert done.stats.drafted > 0
    built = build(EngineConfig(model=str(short), draft=str(target_path), max_model_len=32, max_num_seqs=2))
    contexts = [built.target.info.context, *(d.runner.info.context for d in built.drafters if hasattr(d, "runner"))]
    assert contexts == [32, 32]


def test_target_and_draft_share_the_memory(target_path: Path, draft_path: Path) -> None:
    """Caches are sized once, when both models' weights are loaded, and together keep to what there is."""
    asked: list[torch.device] = []

    def free_bytes(device: torch.device) -> int:
        asked.append(device)
        return 100 * (2 + 1) * 2 * 2 * 8 * 4  # 100 tokens in 2 + 1 layers

    config = EngineConfig(model=str(target_path), draft=str(draft_path), device="cpu", max_num_seqs=2)
    runners = load_models(config, 7, free_bytes=free_bytes)
    assert asked == [torch.device("cpu")]
    for runner in runners:
        assert runner is not None
        assert runner.info.context == 50
        assert runner.reserve(0, 50)
        assert runner.reserve(1, 50)
        assert not runner.reserve(2, 1)


def test_the_shortest_context_serves(target_path: Path, draft_path: Path) -> None:
    """--max-model-len 16, and a cache for one such row: it profiles, serves and drafts."""
    config = EngineConfig(
        model=str(target_path),
        draft=str(draft_path),
        policy=("static-3",),
        max_model_len=16,
        cache_tokens=16,
        max_num_seqs=4,
    )
    done = Engine.from_config(config).generate(["Hi"] * 3, SamplingParams(max_tokens=10, temperature=0.0))
    assert len({completion.tokens for completion in done}) == 1
    assert done[0].stats.drafted > 0


def test_a_canary_alone_leaves_the_default_what_it_is(target_path: Path, tmp_path: Path) -> None:
    """The first live policy asked for is the default; with none of them live, what would be without them."""
    more = ", drafters: [ngram], rollout: {mode: canary, percent: 9}"
    canary = policy_file(tmp_path / "c.yaml", "new", "{algorithm: static, depth: 2}", more)
    built = build(EngineConfig(model=str(target_path), policy=(canary,), max_num_seqs=2))
    assert built.core.controller.default == "goodput-ngram"
    assert "new" in built.core.controller.policies
    assert built.files["new"] == Path(canary)
    assert built.files.keys() == {spec.name for spec in built.specs}
    assert built.pair == built.target.info.fingerprint
    built = build(EngineConfig(model=str(target_path), policy=(canary, "off"), max_num_seqs=2))
    assert built.core.controller.default == "off"
    parts = (built.target, built.drafters, built.tokenizer)
    with pytest.raises(ConfigError, match="no policy is live"):
        assemble(*parts, specs=built.specs[:1], costs=built.costs, limits=SMALL)


def test_canaries_that_want_too_much_are_refused_before_models_are_loaded(tmp_path: Path) -> None:
    """At once, not after minutes."""
    body = ", drafters: [ngram], rollout: {mode: canary, percent: 60}"
    both = [policy_file(tmp_path / f"{n}.yaml", n, "{algorithm: static, depth: 2}", body) for n in ("a", "b")]
    with pytest.raises(ConfigError, match="120 percent"):
        build(EngineConfig(model=str(tmp_path / "nowhere"), policy=tuple(both)))


def test_what_needs_another_model_is_refused(tmp_path: Path) -> None:
    other = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=60, eos_token_id=1)
    AutoModelForCausalLM.from_config(other).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="only Llama-like models can draft for themselves; use a draft model"):
        build(EngineConfig(model=str(tmp_path), draft="quantized:int8", device="cpu"))
