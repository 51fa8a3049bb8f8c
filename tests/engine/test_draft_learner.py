"""Training between requests: what is remembered of rounds, when updates serve, and that no text depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.draft_student import Student, Window
from adaptspec.drafting.drafter import Drafter
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine import draft_learner
from adaptspec.engine.core import EngineCore
from adaptspec.engine.draft_learner import DraftLearner, Lesson, fell, likeliest, rose
from adaptspec.engine.engine_config import BUNDLED, model_place
from adaptspec.models.decoder import Decoder
from adaptspec.models.tokenization import load_tokenizer
from adaptspec.request import Request, SamplingParams, SpeculationParams
from tests.conftest import TINY_VOCAB, tiny_tokenizer
from tests.engine.branching import Branched, Shape
from tests.engine.conftest import Dictated, Notes, make_core, run
from tests.fakes import TableRunner
from tests.models.packing import load_runner

GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
SUBJECTS = (
    *("a small fox", "the moon", "two old friends", "a broken clock", "my garden", "rain", "a lost dog", "the sea"),
    *("birds", "a train to Paris", "bread", "a brave girl", "winter", "the market", "a red car", "music"),
    *("a secret door", "school", "the blue house", "a long walk", "cakes", "a robot", "the king", "summer"),
)
_TOKENIZER = tiny_tokenizer()


class Pupil:
    """A student that learns nothing: `gain` is what each held-out answer is said to have gained."""

    window, vocab_size = 32, 24

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain
        self.kept: Mapping[str, torch.Tensor] = {}
        self.calls: list[str] = []
        self.windows: list[Window] = []
        self.broken = ""

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            self.calls.append(name)
            if name == self.broken:
                raise RuntimeError("no memory")
            if name == "learn":
                self.windows.append(given[0])
            if name == "gained":
                return self.gain + 0.1 * (len(self.calls) % 2)
            return {"new": torch.zeros(1)} if name == "copied" else "new weights"

        return call


class Swapping(TableRunner):
    """A draft model that tells which weights it has."""

    weights: Any = "first weights"

    def adopt(self, weights: Any) -> Any:
        former, self.weights = self.weights, weights
        return former


def served(
    policy: Dictated, drafters: list[Drafter], learner: DraftLearner, target: TableRunner | None = None
) -> tuple[EngineCore, Notes]:
    notes = Notes()
    core = make_core(
        _TOKENIZER, target or TableRunner(context=512), drafters, {"p": (policy, "coupled")}, sinks=[notes]
    )
    core.executor.witness = learner  # type: ignore[attr-defined]
    return core, notes


def learning(pupil: Pupil, depth: int = 3) -> tuple[EngineCore, DraftLearner, Swapping]:
    draft = Swapping(seed=1, blend=0.5, context=512)
    learner = DraftLearner(draft, pupil)  # type: ignore[arg-type]
    core, _ = served(Dictated(("draft-model",), lambda n, size: [depth] * size), [DraftModelDrafter(draft)], learner)
    return core, learner, draft


def ask(core: EngineCore, count: int, first: int = 0, prompt: int = 2) -> None:
    run(core, [Request(f"r{first + i}", (prompt, 3, 2 + (first + i) % 20), GREEDY) for i in range(count)])


def work(learner: DraftLearner) -> int:
    """All there is to do now; how many pieces it came in."""
    pieces = 0
    while learner.work():
        pieces += 1
        assert pieces < 10_000
    return pieces


@settings(max_examples=30)
@given(
    prompts=st.lists(st.lists(st.integers(2, 23), min_size=1, max_size=20), min_size=1, max_size=6),
    depths=st.lists(st.integers(0, 7), min_size=1, max_size=40),
    shape=st.sampled_from([None, Shape(width=3, nodes=12), Shape(width=3, nodes=12, union=True)]),
    temperature=st.sampled_from([0.0, 0.9]),
)
def test_notes_are_what_became_of_the_draft_models_own_tokens(
    prompts: list[list[int]], depths: list[int], shape: Shape | None, temperature: float
) -> None:
    """Accounting: tried and accepted are those of the rounds' records, on main chains; what the target said stands
    where it said something else; tokens that a lookup found are none of the draft model's."""
    target, draft = TableRunner(context=512), Swapping(seed=1, blend=0.8, context=512)
    drafters: list[Drafter] = [DraftModelDrafter(draft), NgramDrafter(longest=2, shortest=1)]
    choose = lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)]  # noqa: E731
    names = ("draft-model", "ngram")
    policy = Dictated(names, choose) if shape is None else Branched(names, choose, shape)
    learner = DraftLearner(draft, Pupil())  # type: ignore[arg-type]
    core, notes = served(policy, drafters, learner, target)
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=1, ignore_eos=True)
    added: list[Any] = []
    learner._add = added.append  # type: ignore[method-assign]
    done = run(core, [Request(f"r{i}", tuple(prompt), params) for i, prompt in enumerate(prompts)])
    tried = dict.fromkeys(done, 0)
    accepted = dict.fromkeys(done, 0)
    for record in notes.records:
        for i, name in enumerate(record.request_ids):
            chain = int(record.chain[i])
            path = list(range(int(record.accepted[i])))
            if record.branches is not None:
                path = [place for place in record.branches.path[i].tolist() if place >= 0]
            ran = sum(n == place < chain for n, place in enumerate(path))
            own = ~np.isnan(record.entropy[i, : min(ran + 1, chain)])
            tried[name] += int(own.sum())
            accepted[name] += int(own[:ran].sum())
    found = {one.sequence.request.id: one for one in added}
    assert {name: one.tried for name, one in found.items()} == {name: n for name, n in tried.items() if n}
    assert {name: one.accepted for name, one in found.items()} == {name: accepted[name] for name in found}
    for name, one in found.items():
        lesson, text = one.lesson(), [*prompts[int(name[1:])], *done[name].tokens]
        assert lesson.tokens.tolist() == text
        assert len(lesson.places) <= one.tried - one.accepted
        assert (np.diff(lesson.places) > 0).all()
        for place, ids, logprobs in zip(lesson.places, lesson.ids, lesson.logprobs, strict=True):
            scores = target.logits(text[:place]).log_softmax(-1)
            torch.testing.assert_close(torch.from_numpy(logprobs), scores[torch.from_numpy(ids).long()])
            first = ids[logprobs.argmax()]
            assert first == scores.argmax()
            if temperature == 0.0 and place < len(text):
                assert first == text[place]


def test_an_update_waits_for_enough_and_then_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained before there is something to train on and something to judge by; then once, not for ever."""
    monkeypatch.setattr(draft_learner, "FRESH", 20)
    pupil = Pupil()
    core, learner, draft = learning(pupil)
    ask(core, 20)
    assert work(learner) == 0
    assert pupil.calls == []
    ask(core, 20, first=20)
    assert learner.stats.rejections > 20
    pieces = work(learner)
    assert pupil.calls.count("learn") == draft_learner.STEPS * draft_learner.BATCH
    assert pupil.calls.count("step") == draft_learner.STEPS
    assert pieces >= draft_learner.STEPS * (draft_learner.BATCH + 1)
    assert draft.weights == "new weights"
    assert work(learner) == 0


def test_windows_are_of_the_texts_and_end_with_a_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learned at a place is what the target said there."""
    monkeypatch.setattr(draft_learner, "FRESH", 20)
    pupil = Pupil()
    core, learner, _ = learning(pupil)
    ask(core, 40)
    work(learner)
    target = TableRunner(context=512)
    for window in pupil.windows:
        assert len(window.tokens) <= pupil.window
        assert window.places[-1] == len(window.tokens) - 1
        best = window.ids.gather(1, window.logprobs.argmax(1, keepdim=True))
        for place, token in zip(window.places.tolist(), best, strict=True):
            if place:  # the fake looks two tokens back
                assert token == target.logits(window.tokens[: place + 1].tolist()).argmax()


def test_an_update_that_guesses_no_more_never_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next one waits for twice as much: training that does not help must not go on and on."""
    monkeypatch.setattr(draft_learner, "FRESH", 20)
    pupil = Pupil(gain=-0.5)
    core, learner, draft = learning(pupil)
    asked, waits = 0, []
    for _ in range(3):
        before = asked
        while not work(learner):
            ask(core, 1, first=asked)
            asked += 1
        waits.append(asked - before)
        assert draft.weights == "first weights"
    assert learner.stats.dropped == 3
    assert learner._needed == 8 * 20
    assert waits[2] > 1.5 * waits[1]


def test_what_is_accepted_less_is_undone_between_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The former weights serve again, also under load without a gap, and training begins from them."""
    monkeypatch.setattr(draft_learner, "FRESH", 20)
    pupil = Pupil()
    core, learner, draft = learning(pupil)
    ask(core, 40)
    work(learner)
    assert draft.weights == "new weights"
    draft._table = TableRunner(seed=7)._table  # what the new ones draft is of no use
    ask(core, 40, first=40)
    assert (draft.weights, learner.stats.undone, learner.stats.kept) == ("first weights", 1, 0)
    assert pupil.kept == {}
    assert learner._needed == 40


def test_no_update_is_kept_without_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejections enough may have come by the time that one is undone, and what was accepted before it is forgotten
    then: the next one waits for requests to be compared with."""
    monkeypatch.setattr(draft_learner, "FRESH", 20)
    core, learner, draft = learning(Pupil())
    ask(core, 40)
    work(learner)
    good, draft._table = draft._table, TableRunner(seed=7)._table
    ask(core, 40, first=40)
    assert learner.stats.undone == 1
    assert learner._fresh >= learner._needed
    assert work(learner) == 0
    draft._table = good
    ask(core, draft_learner.FEWEST, first=80)
    assert work(learner) > 0
    assert (draft.weights, learner.stats.kept) == ("new weights", 0)
    draft._table = TableRunner(seed=7)._table
    ask(core, draft_learner.FEWEST, first=100)
    assert (draft.weights, learner.stats.undone, learner.stats.kept) == ("first weights", 2, 0)


def test_requests_that_bad_weights_drafted_for_judge_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that run when an update is undone: with them as its 'before' a worse one could pass for as good. They are
    learned from all the same."""
    monkeypatch.setattr(draft_learner, "FRESH", 20)
    core, learner, draft = learning(Pupil())
    ask(core, 38)
    work(learner)
    good, draft._table = draft._table, TableRunner(seed=7)._table
    adopt, running = draft.adopt, list[str]()

    def undone(weights: Any) -> Any:
        draft._table = good
        running.extend(notes.sequence.request.id for notes in learner._open.values())
        return adopt(weights)

    monkeypatch.setattr(draft, "adopt", undone)
    ask(core, 60, first=38)
    assert (draft.weights, learner.stats.undone, learner._seen) == ("first weights", 1, 98)
    assert running
    assert len(learner._served) == 60 - 38 - len(running)


def test_what_is_accepted_as_often_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_learner, "FRESH", 20)
    pupil = Pupil()
    core, learner, draft = learning(pupil)
    ask(core, 40)
    work(learner)
    ask(core, 40, first=40)
    assert (draft.weights, learner.stats.undone, learner.stats.kept) == ("new weights", 0, 1)
    assert set(pupil.kept) == {"new"}
    assert learner._needed == 20
    assert work(learner) > 0


@settings(max_examples=40)
@given(
    most=st.integers(500, 60_000),
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    prompts=st.lists(st.lists(st.integers(2, 23), min_size=1, max_size=40), min_size=12, max_size=12),
    depths=st.lists(st.integers(0, 7), min_size=1, max_size=20),
)
def test_memory_is_bounded_at_any_moment(
    most: int, counts: list[int], prompts: list[list[int]], depths: list[int]
) -> None:
    """Notes of what runs, texts to learn from and texts to judge by together; the figures are of what is held."""
    pupil = Pupil()
    draft = Swapping(seed=1, blend=0.5, context=512)
    learner = DraftLearner(draft, pupil)  # type: ignore[arg-type]
    seen: list[tuple[int, int]] = []

    class Watch(Notes):
        def emit(self, record: Any) -> None:
            held = sum(one.size for one in learner._lessons) + sum(one.size for one in learner._open.values())
            seen.append((held + sum(tokens.nbytes for tokens, _ in learner._held_out), learner.stats.size))
            seen.append((sum(len(one.places) for one in learner._lessons), learner.stats.rejections))

    choose = lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)]  # noqa: E731
    policy, targets = {"p": (Dictated(("draft-model",), choose), "coupled")}, TableRunner(context=512)
    core = make_core(_TOKENIZER, targets, [DraftModelDrafter(draft)], policy, sinks=[Watch()])
    core.executor.witness = learner  # type: ignore[attr-defined]
    asked = 0
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("MOST_BYTES", most), ("FRESH", 4), ("FEWEST", 1), ("STEPS", 2), ("HELD_OUT", 3)):
            patch.setattr(draft_learner, name, value)
        for count in counts:
            some = [Request(f"r{asked + i}", tuple(prompts[i]), GREEDY) for i in range(count)]
            asked += count
            run(core, some)
            for _ in range(7):  # in the middle of an update the next ones come
                learner.work()
        assert seen
        assert all(held == told <= most for held, told in seen)
        assert not learner._failed
        assert not learner._open


def test_an_update_whose_texts_gave_way_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes of what runs may need all the room; learning goes on with what they become."""
    monkeypatch.setattr(draft_learner, "FRESH", 20)
    core, learner, draft = learning(Pupil())
    ask(core, 40)
    assert learner.work()
    monkeypatch.setattr(draft_learner, "MOST_BYTES", 0)
    assert not learner._has_room(1)
    work(learner)
    assert (learner.stats.rejections, learner._failed, draft.weights) == (0, False, "first weights")
    monkeypatch.setattr(draft_learner, "MOST_BYTES", 20_000)
    ask(core, 40, first=40)
    assert work(learner) > 0


def test_the_oldest_texts_give_way_to_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_learner, "MOST_BYTES", 20_000)
    core, learner, _ = learning(Pupil())
    ask(core, 60)
    held: list[Lesson] = list(learner._lessons)
    assert 10_000 < learner.stats.size <= 20_000
    assert held[-1].tokens[2] == 2 + 58 % 20
    assert len(held) < 30


@pytest.mark.parametrize("broken", ["learn", "gained", "served", "begin"])
def test_training_that_fails_ends_and_serving_goes_on(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_learner, "FRESH", 20)
    pupil = Pupil()
    pupil.broken = broken
    core, learner, draft = learning(pupil)
    ask(core, 40)
    work(learner)
    ask(core, 4, first=40)
    assert draft.weights == "first weights"
    assert not learner.work()


def test_notes_that_cannot_be_taken_fail_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a trial the weights that have proved themselves come back. No text is held any more."""
    monkeypatch.setattr(draft_learner, "FRESH", 20)
    core, learner, draft = learning(Pupil())
    ask(core, 40)
    work(learner)
    assert draft.weights == "new weights"
    learner._note = None  # type: ignore[assignment,method-assign]
    assert learner.stats.size > 0
    ask(core, 4, first=40)
    assert draft.weights == "first weights"
    assert (learner.stats.rejections, learner.stats.size) == (0, 0)
    assert not any((learner._open, learner._lessons, learner._held_out, learner._trial))


def test_requests_that_draft_nothing_say_nothing() -> None:
    core, learner, _ = learning(Pupil(), depth=0)
    ask(core, 4)
    assert (learner.stats.rejections, len(learner._served)) == (0, 0)


def test_judgements_err_as_seldom_as_they_say() -> None:
    """Without any difference at most one in twenty updates is taken for better, or for worse; a real one is seen."""
    random = np.random.default_rng(0)
    tasks = [("p", name) for name in ("code", "story", "chat")]

    def rates(count: int, shift: float) -> list[tuple[tuple[str, str | None], float]]:
        kinds = random.integers(3, size=count)
        return [(tasks[kind], random.normal(0.3 + 0.3 * kind + shift, 0.1)) for kind in kinds]

    def judged(count: int, gain: float, drop: float) -> Any:
        each = range(count)
        better = np.mean([rose(random.normal(gain, 3, 16).tolist()) for _ in each])
        return np.array([better, np.mean([fell(rates(40, drop), rates(40, 0)) for _ in each])])

    false = judged(2000, 0.0, 0.0)
    assert (false < 0.065).all()
    assert (false > 0.03).all()
    assert (judged(200, 2.0, 0.1) > 0.75).all()


def test_the_likeliest_tokens_have_their_shares() -> None:
    """Also where there are few tokens, or a model rules most of them out; nothing else is held with them."""
    scores = torch.from_numpy(np.random.default_rng(0).normal(0, 3, 200).astype(np.float32))
    ids, logprobs = likeliest(scores)
    shares = scores.log_softmax(0).numpy()
    assert sorted(ids) == sorted(np.argsort(scores.numpy())[-draft_learner.TOP :])
    np.testing.assert_allclose(logprobs, shares[ids], rtol=1e-5)
    assert all(part.base is None or part.base.nbytes == part.nbytes for part in (ids, logprobs))
    assert ids.nbytes + logprobs.nbytes == 128
    ids, logprobs = likeliest(scores[:5])
    assert sorted(ids) == [0, 1, 2, 3, 4]
    assert np.exp(logprobs).sum() == pytest.approx(1.0)
    scores[3:] = -torch.inf
    ids, logprobs = likeliest(scores)
    assert {0, 1, 2} <= set(ids.tolist())
    assert np.isfinite(logprobs).all()
    assert np.exp(logprobs).sum() == pytest.approx(1.0)


def test_other_traffic_is_no_fall() -> None:
    """Harder tasks came after the swap: that says nothing of the weights. Nor does a single request."""
    easy, hard = [(("p", "json"), 0.9 + 0.01 * i) for i in range(4)], [(("p", "rag"), 0.3 + 0.01 * i) for i in range(4)]
    assert not fell(easy, hard)
    assert not fell(easy + hard[:2], hard)
    assert not fell([(("p", None), 0.9)], [(("p", None), 0.1)])
    assert not rose([5.0])
    assert fell(easy * 2, [(kind, rate - 0.2) for kind, rate in easy])
    assert fell([(("p", None), 0.9)] * 2, [(("p", None), 0.8)] * 2)


class SwapsAtRandom:
    """A witness that gives the draft other weights whenever it likes, between any two rounds."""

    def __init__(self, runner: Decoder, choices: list[Any], when: list[int]) -> None:
        self._runner, self._choices, self._when, self._round = runner, choices, when, 0

    def judged(self, *_: Any) -> None:
        which = self._when[self._round % len(self._when)]
        self._round += 1
        self._runner.adopt(self._choices[which])

    def left(self, row: int) -> None:
        pass


@pytest.fixture(scope="module")
def pair(target_path: Path, draft_path: Path) -> tuple[Decoder, Decoder, list[Any]]:
    """A target, its draft, and weights that the draft may have: its own, noise, and such as are no numbers."""
    target, draft = (load_runner(place, max_rows=4) for place in (target_path, draft_path))
    assert isinstance(target, Decoder)
    assert isinstance(draft, Decoder)
    student = Student(draft_path, "float32")
    own = student.copied()
    noise = {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in own.items()}
    nothing = {name: tensor * torch.nan for name, tensor in own.items()}
    return target, draft, [student.served(tensors) for tensors in (own, noise, nothing)]


@settings(max_examples=25)
@given(
    prompts=st.lists(st.lists(st.integers(4, TINY_VOCAB - 1), min_size=1, max_size=12), min_size=1, max_size=4),
    when=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    depths=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    how=st.tuples(st.sampled_from([0.0, 0.8]), st.sampled_from([1, 3])),
)
def test_no_text_depends_on_the_drafts_weights(
    pair: tuple[Decoder, Decoder, list[Any]],
    prompts: list[list[int]],
    when: list[int],
    depths: list[int],
    how: tuple[float, int],
) -> None:
    """Exactness: whatever weights come between any two rounds, broken ones too, tokens are those of plain decoding."""
    target, draft, choices = pair
    temperature, width = how
    params = [SamplingParams(max_tokens=12, temperature=temperature, seed=i) for i in range(len(prompts))]
    plain = SpeculationParams(max_depth=0)
    texts = []
    for speculation in (plain, SpeculationParams()):
        choose = lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)]  # noqa: E731
        policy = Branched(("draft-model",), choose, Shape(width=width, nodes=12))
        core = make_core(_TOKENIZER, target, [DraftModelDrafter(draft)], {"p": (policy, "coupled")})  # type: ignore[arg-type]
        core.executor.witness = SwapsAtRandom(draft, choices, when)  # type: ignore[attr-defined]
        requests = [
            Request(f"r{i}", tuple(prompt), own, speculation)
            for i, (prompt, own) in enumerate(zip(prompts, params, strict=True))
        ]
        texts.append({name: one.tokens for name, one in run(core, requests).items()})
    assert texts[0] == texts[1]


@pytest.mark.whole
def test_a_damaged_draft_is_mended_while_serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way with a real pair: noise is added to the draft's weights, and training between requests has more of
    its drafts accepted; the texts are those that are served without any training."""
    place = Path(model_place(BUNDLED, "draft"))
    for path in place.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    random = torch.Generator().manual_seed(0)
    noisy = {
        name: one + 0.5 * one.float().std() * torch.randn(one.shape, generator=random) if one.ndim == 2 else one
        for name, one in load_file(place / "model.safetensors").items()
    }
    save_file(noisy, tmp_path / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr(draft_learner, "STEPS", 16)
    tokenizer = load_tokenizer(place)
    asked = ("Tell me a story about {}.", "Write an email to a friend about {}.", "Make a CSV table of {}.")
    prompts = [one.format(what) for what in SUBJECTS for one in asked]

    def serve(*, train: bool) -> tuple[list[float], list[tuple[int, ...]], DraftLearner]:
        target, draft = (load_runner(one, max_rows=4) for one in (model_place(BUNDLED, "target"), tmp_path))
        assert isinstance(draft, Decoder)
        learner = DraftLearner(draft, Student(tmp_path, "float32"))
        policy = Dictated(("draft-model",), lambda n, size: [3] * size)
        core, notes = served(policy, [DraftModelDrafter(draft)], learner, target)  # type: ignore[arg-type]
        texts, rates = [], []
        for part in range(2):
            for i in range(36 * part, 36 * part + 36):
                done = run(
                    core, [Request(f"r{i}", tuple(tokenizer.encode(prompts[i])), replace(GREEDY, max_tokens=48))]
                )
                texts.append(done[f"r{i}"].tokens)
                if train:
                    work(learner)
            accepted, drafted = (sum(int(getattr(r, f).sum()) for r in notes.records) for f in ("accepted", "drafted"))
            rates.append(accepted / drafted)
            notes.records.clear()
        return rates, texts, learner

    plain, texts, _ = serve(train=False)
    trained, same, learner = serve(train=True)
    assert texts == same
    assert learner.stats.undone == 0
    assert trained[1] > 1.5 * plain[1]
