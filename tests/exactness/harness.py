"""Whether speculation changes an answer: one case is run with drafts, and each of its requests alone without any."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from adaptspec.control.language.spec import PolicySpec
from adaptspec.decision import Decision
from adaptspec.drafting.prediction import Prediction
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.executor import LaunchedRound, VerifiedRound
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.engine.scheduler import Batch
from adaptspec.models.runner import Packed, Runner
from adaptspec.request import Grammar, Request, SamplingParams, SpeculationParams
from adaptspec.results import Completion, Delta, FinishReason, TokenLogprob
from adaptspec.rounds import RoundRecord
from tests.exactness import dictated
from tests.exactness.drafters import DRAFTERS
from tests.exactness.worlds import ROUNDING, ROWS, World, Worlds

TOKENS = 20  # that a request asks for
SEEDS = 3  # of requests, until one has a drafted token accepted
MANY = 40  # drafted tokens of which some are sure to be wrong
GRAMMARS = {
    "schema": Grammar(json.dumps({"type": "array", "items": {"enum": ["aa", "ab"]}, "minItems": 2, "maxItems": 5})),
    "lark": Grammar('start: /(ab|ba){8,16}/ ("c" | "d")', "lark"),
}
OFF = dictated.policy("choose: {algorithm: dictated, depths: [0]}")


@dataclass(frozen=True)
class Script:
    """How requests come and go, and what happens to rounds.

    `late`: so many rounds lie between two requests. `abort`: the first request is aborted after so many rounds.
    `short`: the cache has room for few rows. `fails`: the pass of the target that fails once. `overlaps`: a round runs
    while the text of the last one is read.
    """

    requests: int = 4
    rows: int = ROWS
    late: int = 0
    abort: int = 0
    tokens: int = TOKENS
    short: bool = False
    fails: int = 0
    overlaps: bool = False


SCRIPTS: Mapping[str, Script] = {
    "alone": Script(requests=3, rows=1),
    "batch": Script(),
    "churn": Script(requests=7, rows=3, late=2, abort=6),
    "preempted": Script(requests=6, tokens=32, short=True),
    "failing": Script(fails=3),
    "overlapped": Script(requests=5, overlaps=True, abort=9),
}
SHAPES = ("chain", "comb", "beam", "union")
ANY = (0, 1, 2, 3, 5, 7)  # depths that change by row and round


@dataclass(frozen=True)
class Case:
    """One combination of features.

    `depths` is a number or "any". `chunk`: tokens of prompts that a round reads. `prefix` "hit": the same prompts were
    served before, and the engine keeps what it has cached of them. `width` and `nodes` are the most of
    drafts that branch. `learns`: an algorithm learns from the rounds.
    """

    runtime: str = "table"
    drafter: str = "draft-model"
    shape: str = "chain"
    method: str = "coupled"
    request: str = "plain"
    temperature: float = 0.0
    script: str = "batch"
    depths: str = "any"
    chunk: int = 8
    prefix: str = "none"
    width: int = 4
    nodes: int = 16
    seed: int = 0
    learns: bool = False

    @property
    def id(self) -> str:
        """The features by their names, such as eagle3-comb-coupled-schema-greedy-preempted-any-8-lean."""
        heat = "drawn" if self.temperature else "greedy"
        parts = [self.drafter, self.shape, self.method, self.request, heat, self.script, self.depths, str(self.chunk)]
        return "-".join([*parts, self.runtime])

    @property
    def policy(self) -> str:
        """The body of the policy."""
        kind = DRAFTERS[self.drafter]
        choose = {
            "algorithm": "dictated",
            "seed": self.seed,
            "depths": ANY if self.depths == "any" else [int(self.depths)],
            "learns": self.learns,
            "beam": self.shape == "beam",
            "union": self.shape == "union",
        }
        drafters = [kind.policy, kind.united] if self.shape == "union" else [kind.policy]
        body = {"choose": choose, "drafters": drafters, "verification": {"method": self.method}}
        if self.shape != "chain":
            body |= {"max-width": self.width, "max-nodes": self.nodes}
        return json.dumps(body | {"history": ("none", "key", "server")[self.seed % 3]})

    @property
    def drafts(self) -> bool:
        return self.depths != "0"

    @property
    def agrees(self) -> bool:
        """Whether drafts are sure to be accepted at times: others agree by chance, where few tokens are likely."""
        return DRAFTERS[self.drafter].agrees or self.request in FEW


class Notes:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []
        self.completions: dict[str, Completion] = {}
        self.ended: list[str] = []

    def started(self, request: Request) -> None:
        pass

    def emit(self, record: RoundRecord) -> None:
        self.records.append(record)

    def finished(self, request: Request, completion: Completion) -> None:
        self.ended.append(request.id)
        self.completions[request.id] = completion


@dataclass
class Run:
    """What became of a case."""

    core: EngineCore
    asked: list[Request]
    deltas: list[Delta]
    notes: Notes

    @property
    def done(self) -> dict[str, Completion]:
        return self.notes.completions


# -- requests -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asking:
    """What a kind of request is made from: one that asks for nothing else."""

    request: Request
    world: World

    def params(self, **changes: Any) -> Request:
        return replace(self.request, sampling=replace(self.request.sampling, **changes))

    def plain(self) -> Request:
        return self.request

    def penalties(self) -> Request:
        return self.params(frequency_penalty=0.5, presence_penalty=0.4, repetition_penalty=1.2)

    def truncated(self) -> Request:
        return self.params(top_k=20, top_p=0.8, min_p=0.02)

    def bias(self) -> Request:
        return self.params(logit_bias=dict.fromkeys((*self.world.few, 1), 12.0), min_tokens=8, ignore_eos=False)

    def schema(self) -> Request:
        return self.params(grammar=GRAMMARS["schema"], ignore_eos=False)

    def lark(self) -> Request:
        return self.params(grammar=GRAMMARS["lark"], ignore_eos=False)

    def logprobs(self) -> Request:
        return self.params(logprobs=2, prompt_logprobs=1)

    def stop(self) -> Request:
        """Something that the answer has in its middle: two characters of its text, or one of its tokens."""
        answer = plain(self.world, self.request)
        middle = answer.text[len(answer.text) // 2 :]
        readable = [middle[i : i + 2] for i in range(len(middle) - 1) if "\ufffd" not in middle[i : i + 2]]
        if readable and self.request.sampling.seed:
            return self.params(stop=("\x00 never", readable[0]))
        return self.params(stop_token_ids=(answer.tokens[len(answer.tokens) // 2],), min_tokens=2)

    def no_depth(self) -> Request:
        return replace(self.request, speculation=SpeculationParams(max_depth=0))

    def context_limit(self) -> Request:
        """Room for a few tokens behind the prompt, which is asked to be exceeded."""
        number = self.request.sampling.seed or 0
        longest = self.world.prompt(number, self.world.target.info.context - 9 - number)
        return replace(self.params(max_tokens=500), prompt=longest)


KINDS: Mapping[str, Callable[[Asking], Request]] = {
    "plain": Asking.plain,
    "penalties": Asking.penalties,
    "truncated": Asking.truncated,
    "bias": Asking.bias,
    "schema": Asking.schema,
    "lark": Asking.lark,
    "logprobs": Asking.logprobs,
    "stop": Asking.stop,
    "no-depth": Asking.no_depth,
    "context-limit": Asking.context_limit,
}
FEW = ("bias", "schema", "lark")  # kinds of requests that leave a target few tokens


def requests(case: Case, world: World, script: Script) -> list[Request]:
    """Those of a case. Every third asks for nothing, at another temperature where the method keeps drawn texts."""
    asked = []
    for number in range(script.requests):
        other = number % 3 == 2
        temperature = 0.8 - case.temperature if other and case.method == "coupled" else case.temperature
        sampling = SamplingParams(script.tokens, temperature=temperature, seed=number, ignore_eos=True)
        prompt = world.prompt(number + 10 * case.seed, 10 + 3 * (number % 8))
        base = Request(f"r{number}", prompt, sampling, key="ab"[number % 2])
        request = base if other else KINDS[case.request](Asking(base, world))
        if case.drafter == "prediction":
            request = replace(request, prediction=_nearly(plain(world, request).tokens))
        asked.append(request)
    if case.drafter == "counts" or case.prefix == "hit":  # which go by what was served before
        asked += [replace(request, id=f"again-{request.id}") for request in asked]
    return asked


def _nearly(tokens: Sequence[int]) -> tuple[int, ...]:
    """A prediction of which every fifth token is wrong."""
    return tuple(4 + (token - 3) % 16 if i % 5 == 4 else token for i, token in enumerate(tokens))


OVERLAPPING = ("gpu-on-cpu", "ranks", "pretend", "cuda")  # runtimes whose rounds overlap anyway


# -- running ------------------------------------------------------------------------------------------------------


class Overlapping(ModelExecutor):
    """Has run the whole round when it is launched: what follows happens while it would still be running."""

    overlaps = True

    def launch(self, batch: Batch, decision: Decision) -> LaunchedRound:
        launched = super().launch(batch, decision)
        self._verified = super().finish(launched)
        return launched

    def finish(self, launched: LaunchedRound) -> VerifiedRound:
        return self._verified._replace(seconds=(1e-3, 1e-3))


class FailsOnce:
    """A runner of which one pass fails."""

    def __init__(self, runner: Runner, at: int) -> None:
        self._runner, self._left = runner, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def forward(self, packed: Packed) -> Any:
        self._left -= 1
        if self._left == 0:
            raise MemoryError("no memory for this pass")
        return self._runner.forward(packed)


def drive(core: EngineCore, asked: Sequence[Request], script: Script) -> list[Delta]:
    """Add the requests, run until all have ended, and recover from rounds that fail."""
    waiting, deltas, rounds = list(asked), [], 0
    while waiting or not core.idle:
        while waiting and (not script.late or rounds >= script.late * (len(asked) - len(waiting)) or core.idle):
            core.check(waiting[0])
            core.add(waiting.pop(0))
        try:
            deltas += core.step()
        except MemoryError as error:
            deltas += core.recover(error)
        rounds += 1
        if rounds == script.abort:
            deltas += core.abort(asked[0].id)
        assert rounds < 3000, "it never comes to an end"
    return deltas


def answers(core: EngineCore, asked: Sequence[Request]) -> dict[str, Completion]:
    """The answers to requests that come at once, by request."""
    ended = [delta.completion for delta in drive(core, asked, Script()) if delta.completion is not None]
    return {one.request_id: one for one in ended}


def plain(world: World, request: Request) -> Completion:
    """The answer to a request alone, without drafts, whose prompt is read at once."""
    alone = replace(request, id="alone", speculation=SpeculationParams(), prediction=())
    if repr(alone) not in world.answers:
        limits = EngineLimits(max_rows=1, prefill_tokens=512, prefix_cache="off")
        core = replace(world, drafters=()).engine([OFF], limits)
        world.answers[repr(alone)] = answers(core, [alone])["alone"]
    return world.answers[repr(alone)]


def run(case: Case, world: World, script: Script) -> Run:
    """The case as it is served."""
    return serve(case, world, script, requests(case, world, script))


def serve(
    case: Case, world: World, script: Script, asked: Sequence[Request], policies: Sequence[PolicySpec] = ()
) -> Run:
    """The requests as a case drafts for them, or as these policies do."""
    notes = Notes()
    target: Any = FailsOnce(world.target, script.fails) if script.fails else world.target
    overlaps = script.overlaps and case.runtime not in OVERLAPPING
    core = world.engine(
        policies or [dictated.policy(case.policy)],
        EngineLimits(script.rows, case.chunk, 7, prefix_cache="key" if case.prefix == "hit" else "off"),
        sinks=[notes],
        executor=Overlapping(target, world.drafters) if overlaps else None,
        target=target,
    )
    deltas = drive(core, asked, script)
    core.scheduler.prefixes.clear()  # other engines use the same caches
    return Run(core, asked, deltas, notes)


# -- what must hold -----------------------------------------------------------------------------------------------


def check(case: Case, worlds: Worlds) -> Run:
    """Run a case and hold it to plain decoding.

    A drafter that agrees by chance alone may do so with none of a few texts: then others are asked for.
    """
    script = SCRIPTS[case.script]
    world = worlds.of(case.runtime, case.drafter, short=script.short)
    for seed in range(case.seed, case.seed + SEEDS):
        result = run(replace(case, seed=seed), world, script)
        hold(result, world, script)
        assert all(one.error is None for one in result.done.values())
        assert_drafted(case, result)
        assert not script.short or result.core.scheduler.preemptions
        if any(one.stats.accepted for one in result.done.values()) or not (case.drafts and case.agrees):
            return result
        assert not DRAFTERS[case.drafter].agrees
    raise AssertionError("no drafted token was accepted, whatever was asked for")


def hold(result: Run, world: World, script: Script) -> None:
    """Hold answers to plain decoding, records to answers, and caches to what is left in them."""
    assert sorted(result.notes.ended) == sorted(request.id for request in result.asked)
    for request in result.asked:
        own, its = result.done[request.id], plain(world, request)
        if own.finish in (FinishReason.ABORT, FinishReason.ERROR):
            assert own.tokens == its.tokens[: len(own.tokens)]
        else:
            assert_same(own, its, world.rounding)
        assert max(own.tokens, default=0) < len(world.tokenizer), "padding of a vocabulary is written"
        assert not any(text in own.text for text in request.sampling.stop if not request.sampling.min_tokens)
        followed = Prediction(request.prediction, len(request.prompt))
        followed.read([*request.prompt, *own.tokens], len(request.prompt) + len(own.tokens))
        assert (own.prediction_accepted, own.prediction_rejected) == (followed.accepted, followed.rejected)
        assert_streamed(own, [delta for delta in result.deltas if delta.request_id == request.id])
    ends = {one.id: min(len(one.prompt) + one.sampling.max_tokens, world.target.info.context) for one in result.asked}
    for record in result.notes.records:  # of a draft all tokens and one more may be kept
        assert (record.context + record.depths < [ends[name] for name in record.request_ids]).all()
    assert_accounts(result, whole=not (script.short or script.fails or script.abort))
    assert result.core.idle
    cached = sum(one.cached_tokens for one in result.done.values())
    assert cached == result.core.scheduler.prefixes.stats.hits
    assert world.is_empty


def assert_plain_answers_agree(worlds: Worlds, runtime: str, kind: str) -> None:
    """Hold plain answers of a runtime to those of the usual one, for requests of a kind."""
    usual, other = (worlds.of(name, "draft-model") for name in ("lean", runtime))
    for temperature in (0.0, 0.8):
        for request in requests(Case(request=kind, temperature=temperature), usual, SCRIPTS["batch"]):
            assert_same(plain(other, request), plain(usual, request), ROUNDING)


def assert_same(own: Completion, its: Completion, rounding: float = 0.0) -> None:
    """Tokens, text, end, and log-probabilities: bit for bit, or but for this rounding."""
    assert (own.tokens, own.text, own.finish) == (its.tokens, its.text, its.finish)
    assert_scored(own.logprobs, its.logprobs, rounding)
    assert_scored(own.prompt_logprobs, its.prompt_logprobs, rounding)


def assert_scored(own: Sequence[TokenLogprob], its: Sequence[TokenLogprob], rounding: float) -> None:
    assert [one.token for one in own] == [one.token for one in its]
    assert [one.logprob for one in own] == pytest.approx([one.logprob for one in its], abs=rounding, rel=0.0)
    for mine, other in zip(own, its, strict=True):
        assert [value for _, value in mine.top] == pytest.approx(
            [value for _, value in other.top], abs=rounding, rel=0.0
        )


def assert_streamed(own: Completion, deltas: Sequence[Delta]) -> None:
    """The pieces that a client got add up to its answer."""
    assert "".join(delta.text for delta in deltas) == own.text
    assert sum((delta.tokens for delta in deltas), ()) == own.tokens
    assert sum((delta.logprobs for delta in deltas), ()) == own.logprobs
    assert sum((delta.prompt_logprobs for delta in deltas), ()) == own.prompt_logprobs


def assert_accounts(result: Run, *, whole: bool) -> None:
    """Records of rounds add up to what requests got. `whole`: no request was read twice or left early."""
    records, done = result.notes.records, result.done
    emitted = dict.fromkeys(done, 0)
    for record in records:
        assert (record.accepted <= record.drafted).all()
        assert (record.drafted <= np.maximum(record.depths, record.nodes)).all()
        assert (record.emitted <= record.accepted + 1).all()
        assert (record.emitted >= 1).all()
        assert (record.chain <= record.nodes).all()
        for name, count in zip(record.request_ids, record.emitted.tolist(), strict=True):
            emitted[name] += count
    for name, one in done.items():
        rest = max(len(one.tokens) - 1, 0)  # the first token comes from reading the prompt, as do those after a return
        assert emitted[name] == rest if whole else emitted[name] <= rest
        assert sum(one.stats.accepted_per_position) == one.stats.accepted
        assert sum(n * count for n, count in enumerate(one.stats.acceptance_histogram)) == one.stats.accepted
        assert sum(one.stats.acceptance_histogram) == one.stats.draft_rounds
    if whole:
        stats = [one.stats for one in done.values()]
        assert sum(one.drafted for one in stats) == sum(int(record.drafted.sum()) for record in records)
        kept = (np.minimum(record.accepted, record.emitted).sum() for record in records)
        assert sum(one.accepted for one in stats) == sum(map(int, kept))


def assert_drafted(case: Case, result: Run) -> None:
    """What the case is about has happened: drafts were made, some of their tokens accepted and some rejected."""
    stats = [one.stats for one in result.done.values()]
    drafted, accepted = sum(one.nodes for one in stats), sum(one.accepted for one in stats)
    assert bool(drafted) == case.drafts
    # A schema may leave one token at each place of a text: then any draft is right.
    assert drafted > accepted or drafted < MANY or DRAFTERS[case.drafter].copies or case.request == "schema"
    records = result.notes.records
    if case.shape != "chain":
        assert all(record.nodes.max(initial=0) <= max(case.nodes, 0) for record in records)
        branched = any((record.nodes > record.drafted).any() for record in records)
        assert branched or not (case.drafts and DRAFTERS[case.drafter].runs_model and case.nodes > case.width > 1)
    masked = case.request in GRAMMARS and case.runtime in OVERLAPPING  # a device masks the first drafted token only
    if DRAFTERS[case.drafter].copies and case.shape == "chain" and not masked:  # but for what ends an answer or a round
        assert drafted - accepted <= 7 * len(stats) * (1 + bool(SCRIPTS[case.script].fails))
    if case.request == "no-depth":
        assert not any(result.done[one.id].stats.drafted for one in result.asked if one.speculation.max_depth == 0)
