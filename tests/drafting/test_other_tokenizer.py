"""Draft models of other tokenizers: text stays plain decoding's, acceptance is what reference loops count."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.generation import candidate_generator as reference

from adaptspec.bench.teacher_forcing import Judge
from adaptspec.control.cost import CostTable
from adaptspec.drafting import other_tokenizer
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob, Loaded, ModelDrafter
from adaptspec.drafting.other_tokenizer import OwnTokensDrafter, SharedTokensDrafter, TextDrafter, make
from adaptspec.engine.assembly import build
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.engine.profiler import Stopwatch, measure
from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ConfigError, PairError
from adaptspec.models.processors import SamplingRow
from adaptspec.models.sampling import SamplingBatch
from adaptspec.models.tokenization import Spelling, load_tokenizer
from adaptspec.request import Request, SamplingParams
from adaptspec.types import Completion
from adaptspec.verification import METHODS
from tests.drafting.spellings import (
    ALL,
    DRAFT,
    SPELLINGS,
    TARGET,
    respelled_draft,
    translated_draft,
    word_piece,
    write_model,
)
from tests.engine.policies import COSTS, static
from tests.exactness import dictated
from tests.exactness.harness import Case, Notes, answers
from tests.exactness.worlds import World
from tests.fakes import TableRunner, array
from tests.models.packing import load_runner

PROMPTS = (
    "Once upon a time, in a village by the sea, there was",
    "<|user|>\nTell me of caf\u00e9s \U0001f600 \u4f60\u597d.<|end|>\n<|assistant|>\n",
    "def add(a, b):\n    return",
    "The",
)
GREEDY = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
PLAIN = Case(depths="0")
WAYS = {"shared": 0.0, "text": ALL}  # how much must be written alike for tokens to be shared


class Pair:
    """A target and a draft model of another tokenizer."""

    drafter: ModelDrafter

    def __init__(self, target: Path, draft: Path, *, cache_tokens: tuple[int, int] | None = None) -> None:
        """`cache_tokens` is room for so many in the caches of the target and of the draft."""
        room = cache_tokens or (None, None)
        self.target, own = (
            load_runner(str(path), device="cpu", max_rows=4, cache_tokens=most, block_size=8 if most else None)
            for path, most in zip((target, draft), room, strict=True)
        )
        self.tokenizer, other = load_tokenizer(str(target)), load_tokenizer(str(draft))
        self.drafter = make(
            Loaded(self.target, own, self.target.info.eos_token_ids, tokenizers=(self.tokenizer, other))
        )
        self.notes = Notes()

    @property
    def through_text(self) -> bool:
        return isinstance(self.drafter, TextDrafter)

    def core(self, case: Case) -> EngineCore:
        """An engine that drafts as a case says."""
        self.notes = Notes()
        world = World(self.target, [self.drafter], self.tokenizer)
        limits = EngineLimits(max_rows=4, prefill_tokens=16, max_depth=7)
        return world.engine([dictated.policy(case.policy)], limits, [self.notes])

    def accepted(self) -> list[int]:
        """Accepted tokens by round of one request alone, those of its prompt left out."""
        return [int(record.accepted[0]) for record in self.notes.records if len(record.accepted)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module")
def drafts(folder: Path) -> dict[str, Path]:
    """Random models of each spelling, and the bundled draft with other ids, of all its tokens and of fewer."""
    made = {name: write_model(folder / name, spell(), seed=3, num_hidden_layers=1) for name, spell in SPELLINGS.items()}
    made |= {"moved": respelled_draft(folder / "moved"), "fewer": respelled_draft(folder / "fewer", lost=0.3)}
    return made | {"translated": translated_draft(folder / "translated")}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(other_tokenizer, "_ALIKE", WAYS[request.param])
    return str(request.param)


def asked(pair: Pair, *params: SamplingParams) -> list[Request]:
    texts = [tuple(pair.tokenizer.encode(text, add_special_tokens=False)) for text in PROMPTS]
    return [Request(f"r{i}", texts[i % len(texts)], replace(one, seed=i)) for i, one in enumerate(params)]


def texts(done: dict[str, Completion]) -> dict[str, tuple[int, ...]]:
    return {name: one.tokens for name, one in done.items()}


@pytest.mark.parametrize(
    ("name", "target"),
    [*((name, "words") for name in (*SPELLINGS, "moved", "fewer")), ("gpt2", "bytes"), ("moved", "bytes")],
)
def test_text_is_plain_decodings(drafts: dict[str, Path], target_path: Path, way: str, name: str, target: str) -> None:
    """Greedy and seeded, alone and beside others, with branches; a target of bytes writes what is no UTF-8."""
    pair = Pair(TARGET if target == "words" else target_path, drafts[name])
    assert pair.through_text == (way == "text")
    drawn = replace(GREEDY, temperature=0.8)
    for params in ((GREEDY,), (drawn,), (GREEDY, drawn, replace(drawn, top_p=0.9, frequency_penalty=0.5), GREEDY)):
        requests = asked(pair, *params)
        plain = answers(pair.core(PLAIN), requests)
        for shape in ("chain", "comb"):
            done = answers(pair.core(Case(shape=shape)), requests)
            assert texts(done) == texts(plain)
        assert sum(int(record.drafted.sum()) for record in pair.notes.records) > 10


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_other_ids_cost_no_acceptance(drafts: dict[str, Path], temperature: float) -> None:
    """Round by round, what the same weights have accepted in the target's own tokens: branches, noise and all."""
    same, moved = Pair(TARGET, DRAFT), Pair(TARGET, drafts["moved"])
    assert type(same.drafter) is DraftModelDrafter
    for shape in ("chain", "comb"):
        requests = asked(same, *[replace(GREEDY, temperature=temperature)] * 4)
        both = []
        for pair in (same, moved):
            done = answers(pair.core(Case(shape=shape)), requests)
            both.append((done, [(r.drafted.tolist(), r.accepted.tolist()) for r in pair.notes.records]))
        assert {key: one.tokens for key, one in both[0][0].items()} == {
            key: one.tokens for key, one in both[1][0].items()
        }
        assert both[0][1] == both[1][1]
        assert sum(sum(accepted) for _, accepted in both[0][1]) > 20


@pytest.mark.whole
def test_the_noise_of_the_same_text_goes_through_text(drafts: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn drafts are accepted as often as in the target's own tokens; the likeliest text, or noise of one's own,
    would lose a third of that.
    """
    rates = []
    for alike in WAYS.values():
        monkeypatch.setattr(other_tokenizer, "_ALIKE", alike)
        pair = Pair(TARGET, drafts["moved"])
        drawn = replace(GREEDY, temperature=0.8, max_tokens=60)
        answers(pair.core(Case(depths="3")), asked(pair, *[drawn] * 8))
        accepted, drafted = (
            sum(int(getattr(r, name).sum()) for r in pair.notes.records) for name in ("accepted", "drafted")
        )
        rates.append(accepted / drafted)
    assert rates[1] > 0.95 * rates[0] > 0.3


class Reference:
    """Drafting through text as one would write it down: all of it is written anew each time, no cache is kept."""

    def __init__(self, draft: Path) -> None:
        self._its, self._own = load_tokenizer(str(TARGET)), load_tokenizer(str(draft))
        self._target, self._draft = model(TARGET), model(draft)

    def accepted(self, text: list[int], depth: int, tokens: int) -> list[int]:
        """By round, until so many tokens are written; `text` is written on."""
        found, end = [], len(text) + tokens
        while len(text) < end:
            said = self._its.decode(text)
            own = self._own.encode(said)
            drafted = list(own)
            for _ in range(min(depth, ceil(depth * len(own) / len(text)))):
                drafted.append(self._likeliest(self._draft, drafted)[-1])
            again = self._its(said + self._own.decode(drafted[len(own) :]), return_offsets_mapping=True)
            starts = [start for start, _ in again["offset_mapping"]]
            proposed = again["input_ids"][starts.index(len(said)) :] if len(said) in starts else []
            own_choices = self._likeliest(self._target, text + proposed[:depth])[len(text) - 1 :]
            kept = 0
            while kept < min(depth, len(proposed)) and proposed[kept] == own_choices[kept]:
                kept += 1
            found.append(kept)
            text += own_choices[: kept + 1]
        return found

    @torch.inference_mode()
    def _likeliest(self, model: PreTrainedModel, tokens: list[int]) -> list[int]:
        found: list[int] = model(torch.tensor([tokens])).logits[0].argmax(1).tolist()
        return found


def model(folder: Path) -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return loaded


# Longer than the windows of transformers' generator, which takes shorter ones for something else.
STORIES = (
    "Once upon a time, in a village by the sea, there was",
    "One day, a bird saw a big tree. The bird",
)


def greedily(pair: Pair, story: str, depth: int = 4) -> tuple[list[int], list[int], list[int]]:
    """The prompt and the first token, which is not drafted; the others; how many were accepted in each round."""
    prompt = pair.tokenizer.encode(story, add_special_tokens=False)
    request = Request("r", tuple(prompt), SamplingParams(max_tokens=40, temperature=0.0))
    done = answers(pair.core(Case(depths=str(depth))), [request])["r"]
    assert len(done.tokens) == 40, "a text that ends is another matter"
    return [*prompt, done.tokens[0]], list(done.tokens[1:]), pair.accepted()


@pytest.mark.parametrize("name", ["moved", "translated", pytest.param("fewer", marks=pytest.mark.whole)])
def test_acceptance_through_text_is_what_a_plain_loop_counts(
    drafts: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A cache that is taken back, and a window that is written anew, change nothing."""
    monkeypatch.setattr(other_tokenizer, "_ALIKE", ALL)
    pair, plain = Pair(TARGET, drafts[name]), Reference(drafts[name])
    for story in STORIES:
        text, rest, accepted = greedily(pair, story)
        begin = list(text)
        its = plain.accepted(text, 4, len(rest))
        assert text[: len(begin) + len(rest)] == begin + rest
        assert accepted[:-2] == its[: len(accepted) - 2], "the last ones end with the request"


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, way) for name in ("moved", "translated") for way in WAYS),
        ("fewer", "shared"),
        pytest.param("fewer", "text", marks=pytest.mark.whole),
    ],
)
def test_acceptance_is_that_of_transformers(
    drafts: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    """Round by round that of its generators for other tokenizers, where those find their place in the text again.

    In shared tokens both begin with the prompt as it is read here: where some of its tokens are not the draft's, the
    library writes all of it anew, which of the same tokens makes others.
    """
    monkeypatch.setattr(other_tokenizer, "_ALIKE", WAYS[how])
    pair, target = Pair(TARGET, drafts[name]), model(TARGET)
    for story in STORIES:
        text, rest, accepted = greedily(pair, story)
        rounds = _candidates(pair, drafts[name], how, text)
        its = []
        ids = torch.tensor([text])
        while ids.shape[1] < len(text) + len(rest):
            candidates = rounds.send(ids) if its else _begun(rounds, ids)
            with torch.inference_mode():
                own = target(candidates).logits[0, ids.shape[1] - 1 :].argmax(1)
            drafted = candidates[0, ids.shape[1] :]
            its.append(int((drafted == own[: len(drafted)]).int().cumprod(0).sum()))
            ids = torch.cat([ids, own[None, : its[-1] + 1]], dim=1)
        assert accepted[:-2] == its[: len(accepted) - 2]
        assert sum(its) > 4


def _candidates(pair: Pair, draft: Path, how: str, text: list[int]) -> Any:
    """A generator of transformers: it is sent a text and gives one that begins with it."""
    ids, assistant = torch.tensor([text]), model(draft)
    settings = assistant.generation_config
    settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = 4, "constant"
    settings.assistant_confidence_threshold, settings.eos_token_id = 0.0, None
    tokenizers = pair.tokenizer, load_tokenizer(str(draft))
    given: dict[str, Any] = {
        "input_ids": ids,
        "assistant_model": assistant,
        "generation_config": GenerationConfig(max_length=256, min_length=0, do_sample=False),
        "model_kwargs": {"attention_mask": torch.ones_like(ids)},
        "logits_processor": LogitsProcessorList(),
        "target_tokenizer": tokenizers[0],
        "assistant_tokenizer": tokenizers[1],
    }
    if how == "text":
        generator = reference.AssistedCandidateGeneratorDifferentTokenizers(**given)
    else:
        translator = reference.AssistantToTargetTranslator(*tokenizers, pair.target.info.vocab_size, assistant)
        own = _read(pair, text)
        given["model_kwargs"] = {"attention_mask": torch.ones(1, len(own), dtype=torch.long)}
        generator = reference.UniversalSpeculativeDecodingGenerator(**given, atm_translator=translator)
        generator._prev_assistant_ids = torch.tensor([_read(pair, text[:-1])])
        generator._target_seq_len_with_candidates = len(text) - 1

    def rounds() -> Iterator[torch.Tensor]:
        ids = yield torch.empty(0)
        while True:
            ids = yield generator.get_candidates(ids)[0]

    return rounds()


def _read(pair: Pair, text: list[int]) -> list[int]:
    """A text in tokens of the draft, as it is read where tokens are shared."""
    drafter: Any = pair.drafter
    own = [int(drafter.runner._ids[token]) for token in drafter._follow(0, text)]
    drafter.free(0)
    return own


def _begun(rounds: Any, ids: torch.Tensor) -> torch.Tensor:
    next(rounds)
    first: torch.Tensor = rounds.send(ids)
    return first


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_drafts_through_text(
    drafts: dict[str, Path], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Greedy text stays. Where noise is not shared the draft is a function of the text, as point masses must be."""
    monkeypatch.setattr(other_tokenizer, "_ALIKE", ALL)
    pair = Pair(TARGET, drafts["moved"])
    requests = asked(pair, GREEDY, GREEDY)
    plain = answers(pair.core(PLAIN), requests)
    if not getattr(METHODS[method], "lossy", False):
        done = answers(pair.core(Case(method=method)), requests)
        assert texts(done) == texts(plain)
    tokens, found = list(requests[0].prompt), []
    for seed in (1, 2):
        rows = [SamplingRow(replace(GREEDY, temperature=0.9), seed, tokens, len(tokens), (1,))]
        sampling = SamplingBatch(rows, pair.target.info.vocab_size, pair.target.device)
        job = DraftJob(array(0), [tokens], array(5), sampling, shares_noise=False, keep_distribution=True)
        draft = pair.drafter.propose(job)
        pair.drafter.free(0)
        assert draft.distribution is None
        found.append(draft.tokens[0, : draft.counts[0]].tolist())
    assert found[0] == found[1]
    assert len(found[0]) > 2


def whole_text(pieces: list[bytes]) -> str:
    """What the bytes say, less a character of which a part is missing."""
    text = b"".join(pieces).decode("utf-8", "replace")
    return text.rstrip("\ufffd") if text.endswith("\ufffd") else text


@settings(max_examples=30)
@given(
    text=st.text(st.characters(codec="utf-8"), max_size=30),
    cuts=st.lists(st.integers(1, 4), min_size=1, max_size=9),
)
@pytest.mark.parametrize("name", ["gpt2", "metaspace"])
def test_what_was_read_says_what_was_written(
    drafts: dict[str, Path], readers: dict[tuple[str, str], Any], name: str, text: str, cuts: list[int]
) -> None:
    """Whatever the text and wherever rounds end: in the middle of a character nothing is lost, nothing comes twice."""
    for how in WAYS:
        pair = readers[name, how]
        drafter, tokens = pair.drafter, pair.tokenizer.encode(text, add_special_tokens=False)
        at = 0
        drafter.free(0)
        while at < len(tokens):
            at += cuts[at % len(cuts)]
            own = list(drafter._follow(0, tokens[:at]))
            said = drafter._its.spelled(tokens[:at])
            if how == "shared":
                heard = drafter._own.spelled([drafter.runner._ids[token] for token in own])
                assert heard.removeprefix(b"<s>") == said
            else:
                heard = drafter._own.text(own).removeprefix("<s>").removeprefix(drafter._own.space)
                assert heard == whole_text([said])


class Repeats(TableRunner):
    """A runner that finds one token likeliest after any text."""

    def __init__(self, vocabulary: int, token: int) -> None:
        super().__init__(vocab=2)
        self.info = replace(self.info, vocab_size=vocabulary)
        self._likeliest = torch.eye(vocabulary)[token]

    def logits(self, tokens: list[int]) -> torch.Tensor:
        return self._likeliest


def test_a_draft_begins_within_a_character(tokenizer: PreTrainedTokenizerFast) -> None:
    """The target has written the first of two bytes, which are one token of the draft: it goes on with the second."""
    first, second = (bytes_to_unicode()[byte] for byte in "\u00e9".encode())
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), first + second]
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, [(first, second)]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    runner = Repeats(len(letters), len(letters) - 1)
    its = Spelling(tokenizer, replace(runner.info, vocab_size=len(tokenizer)))
    own = Spelling(PreTrainedTokenizerFast(tokenizer_object=backend), runner.info)
    drafter = TextDrafter(DraftModelDrafter(runner), its, own, "through text")
    written = tokenizer.encode("caf\u00e9\u00e9")
    tokens = written[:4]
    sampling = SamplingBatch([SamplingRow(GREEDY, 0, tokens, 3, (1,))], len(tokenizer), runner.device)
    draft = drafter.propose(DraftJob(array(0), [tokens], array(3), sampling))
    assert draft.tokens[0, : draft.counts[0]].tolist() == written[4:7]


@pytest.fixture(scope="module")
def readers(drafts: dict[str, Path], target_path: Path) -> dict[tuple[str, str], Any]:
    """By spelling and way, pairs with a target that writes bytes."""
    made: dict[tuple[str, str], Any] = {}
    for name, (how, alike) in itertools.product(("gpt2", "metaspace"), WAYS.items()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(other_tokenizer, "_ALIKE", alike)
            made[name, how] = Pair(target_path, drafts[name])
    return made


def test_a_text_ends_in_either_tokenizer(drafts: dict[str, Path], way: str) -> None:
    """The draft's own end of a text is drafted as the target's."""
    pair = Pair(TARGET, drafts["moved"])
    prompt = pair.tokenizer.encode("<|user|>\nCalculate 18 + 24.<|end|>\n<|assistant|>\n", add_special_tokens=False)
    request = Request("r", tuple(prompt), SamplingParams(max_tokens=100, temperature=0.0))
    text = [*prompt, *answers(pair.core(PLAIN), [request])["r"].tokens]
    assert text[-1] == pair.tokenizer.eos_token_id
    rows = [SamplingRow(GREEDY, 0, text[:-2], len(prompt), (1,))]
    job = DraftJob(
        array(0), [text[:-2]], array(6), SamplingBatch(rows, pair.target.info.vocab_size, pair.target.device)
    )
    draft = pair.drafter.propose(job)
    pair.drafter.free(0)
    assert draft.tokens[0, : draft.counts[0]].tolist() == text[-2:], "and ends there"


@settings(max_examples=6)
@given(data=st.data(), room=st.tuples(st.integers(90, 200), st.integers(60, 200)))
def test_nothing_is_left_behind(
    drafts: dict[str, Path],
    target_path: Path,
    readers: dict[tuple[str, str], Any],
    data: st.DataObject,
    room: tuple[int, int],
) -> None:
    """Many requests, some of which are dropped, through caches in which they give way to each other: texts stay, rows
    and caches are empty in the end.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(other_tokenizer, "_ALIKE", data.draw(st.sampled_from(sorted(WAYS.values()))))
        pair = Pair(target_path, drafts["gpt2"], cache_tokens=room)
    requests = [replace(one, id=f"{i}") for i, one in enumerate(asked(pair, *[GREEDY] * 8))]
    plain = answers(readers["gpt2", "text"].core(PLAIN), requests)
    core = pair.core(Case())
    for request in requests:
        core.add(request)
    doomed = data.draw(st.dictionaries(st.integers(1, 40), st.sampled_from(requests[4:]), max_size=3))
    rounds, done = 0, {}
    while not core.idle:
        for delta in core.step():
            if delta.completion is not None:
                done[delta.request_id] = delta.completion
        rounds += 1
        if rounds in doomed:
            core.abort(doomed[rounds].id)
        for row, text in pair.drafter._rows.items():  # type: ignore[attr-defined]
            assert pair.drafter.runner.length(row) <= len(text.own)
    for key, one in done.items():
        assert one.tokens == plain[key].tokens[: len(one.tokens)]
    assert all(done[request.id].tokens == plain[request.id].tokens for request in requests[:4])
    assert isinstance(pair.drafter, OwnTokensDrafter)
    assert not pair.drafter._rows
    assert not pair.drafter._inner._fed
    assert pair.drafter.runner.free_memory == pair.target.free_memory == 1.0


def test_passes_are_measured_with_what_translating_takes(drafts: dict[str, Path], way: str) -> None:
    """As those of any draft model: a cost for each step, and rows that are free again."""
    pair = Pair(TARGET, drafts["moved"])
    profile = measure(pair.target, [pair.drafter], 4, Stopwatch(pair.target.device, 0.5))
    assert min(profile.drafters["draft-model"].step_seconds) > 0.0
    assert pair.drafter.runner.free_memory == 1.0
    assert pair.drafter.cache_gap(0, 40) == 38


def test_a_pair_is_told_apart_by_its_tokenizers(drafts: dict[str, Path]) -> None:
    """In words, for the line that serve prints."""
    assert Pair(TARGET, DRAFT).drafter.way == "in the target's own tokens"
    moved, gpt2 = Pair(TARGET, drafts["moved"]).drafter, Pair(TARGET, drafts["gpt2"]).drafter
    assert isinstance(moved, SharedTokensDrafter)
    assert moved.way == "in the 4096 tokens of both tokenizers (which write 100% of a text alike)"
    assert isinstance(gpt2, TextDrafter)
    assert "through text (the two tokenizers write only" in gpt2.way


def test_a_tokenizer_whose_tokens_spell_no_text_is_refused(folder: Path) -> None:
    place = write_model(folder / "pieces", word_piece(), eos_token_id=None)
    with pytest.raises(PairError, match=r"pieces: its tokens .* goes only with models of the same tokenizer"):
        Pair(TARGET, place)


def test_a_tape_needs_the_targets_own_tokens(drafts: dict[str, Path]) -> None:
    pair = Pair(TARGET, drafts["moved"])
    with pytest.raises(ConfigError, match="moved has another tokenizer than the target"):
        Judge(pair.target, [pair.drafter])


def test_a_policy_and_the_folder_are_all_that_is_needed(drafts: dict[str, Path], tmp_path: Path) -> None:
    """A policy that names draft-model, whatever its tokens are."""
    place = tmp_path / "deep.yaml"
    place.write_text(static("deep", 3))
    built = build(EngineConfig(draft=str(drafts["moved"]), policies=(str(place),)), costs=lambda *_: CostTable(COSTS))
    done = Engine(built.core, built.tokenizer).generate([PROMPTS[0]], GREEDY)[0]
    assert done.stats.accepted > 5
