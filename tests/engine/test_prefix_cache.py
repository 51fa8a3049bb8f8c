"""The prefix cache: reused tokens are those of the request's text and scope, and each row has one request."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.prefix_cache import Mode, PrefixCache, Scope, scope_of
from adaptspec.engine.scheduler import share_prefill
from adaptspec.errors import EngineError
from adaptspec.request import Request, SamplingParams
from adaptspec.results import Completion, FinishReason
from tests.exactness import dictated
from tests.exactness.harness import Case, Notes, answers, assert_same, plain
from tests.exactness.worlds import World, table
from tests.fakes import TableRunner

PROMPT = tuple(2 + (7 * place + place // 5) % 20 for place in range(40))
GREEDY = SamplingParams(8, temperature=0.0, ignore_eos=True)


# --- rows -------------------------------------------------------------------------------------------------------


class Blocks:
    """Caches of a few blocks of four tokens, each token with the scope that it was written for."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.rows: dict[int, list[tuple[int, Scope | None]]] = {}
        self.held: dict[int, int] = {}  # blocks
        self.evict: Callable[[], bool] = bool

    def share_of(self, rows: Collection[int]) -> float:
        return sum(self.held.get(row, 0) for row in rows) / self.blocks

    def reserve(self, row: int, length: int) -> bool:
        needed = -(-length // 4)
        while sum(self.held.values()) + needed - self.held.get(row, 0) > self.blocks:
            if not self.evict():
                return False
        self.held[row] = max(needed, self.held.get(row, 0))
        return True

    def length(self, row: int) -> int:
        return len(self.rows.get(row, []))

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        assert source == target or not self.length(target), "a row in use is overwritten"
        if source != target and not self.reserve(target, length):
            return 0
        self.rows[target] = self.rows[source][:length]
        return len(self.rows[target])

    def free(self, row: int) -> None:
        self.rows.pop(row, None)
        self.held.pop(row, None)

    def write(self, row: int, tokens: list[int], scope: Scope | None) -> None:
        assert 4 * self.held[row] >= self.length(row) + len(tokens)
        self.rows.setdefault(row, []).extend((token, scope) for token in tokens)


@dataclass
class Asking:
    """The part of a request that the prefix cache uses."""

    tokens: list[int]
    prefix_scope: Scope | None
    row: int | None = None
    cached: int = field(default=0)


SCOPES = st.sampled_from([None, ("a", None), ("b", None), ("a", "salt")])
TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=14)  # of two letters: most have a beginning in common


class Rows(RuleBasedStateMachine):
    """Requests arrive, read, fail and leave, while rows and memory are short."""

    @initialize(rows=st.integers(1, 5), blocks=st.integers(5, 20))
    def start(self, rows: int, blocks: int) -> None:
        self.count, self.caches = rows, Blocks(blocks)
        self.prefixes = PrefixCache(self.caches, rows)
        self.running: list[Asking] = []

    @precondition(lambda self: self.prefixes.has_row)
    @rule(tokens=TEXTS, scope=SCOPES)
    def come(self, tokens: list[int], scope: Scope | None) -> None:
        asking = Asking(tokens, scope)
        acquired = self.prefixes.acquire(asking, self.running)
        if acquired is not None:
            asking.row, asking.cached = acquired
            assert asking.cached == self.caches.length(acquired.row) < len(tokens)
            self.running.append(asking)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.integers(1, 6))
    def read(self, data: st.DataObject, more: int) -> None:
        one = data.draw(st.sampled_from(self.running))
        assert one.row is not None
        held = self.caches.length(one.row)
        self.caches.write(one.row, one.tokens[held : held + more], one.prefix_scope)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), failed=st.booleans(), cut=st.integers(0, 2))
    def leave(self, data: st.DataObject, failed: bool, cut: int) -> None:
        one = data.draw(st.sampled_from(self.running))
        self.running = [other for other in self.running if other is not one]
        row, one.row = one.row, None
        assert row is not None
        if failed:
            self.prefixes.drop(row)
            assert not self.caches.length(row)
        else:
            del one.tokens[len(one.tokens) - min(cut, len(one.tokens) - 1) :]  # a stop string takes tokens back
            self.prefixes.retain(row, one)

    @precondition(lambda self: self.prefixes.has_row)
    @rule(clear=st.booleans())
    def work_between_requests(self, clear: bool) -> None:
        """A pass in a row that holds nothing, where there is memory for it."""
        used = {one.row for one in self.running}
        with suppress(EngineError), self.prefixes.spare_row() as row:
            assert row not in used
            assert not self.caches.length(row)
            self.caches.write(row, [7], None)
        if clear:
            self.prefixes.clear()
            assert {row for row, held in self.caches.rows.items() if held} <= used

    @invariant()
    def texts_are_their_own(self) -> None:
        """Rows hold the text of their request, written for its scope, and no row has two requests."""
        rows = [one.row for one in self.running]
        assert len(set(rows)) == len(rows)
        for one in self.running:
            assert one.row is not None
            held = self.caches.rows.get(one.row, [])
            assert [token for token, _ in held] == one.tokens[: len(held)]
            assert all(scope == one.prefix_scope for _, scope in held)

    def teardown(self) -> None:
        for one in self.running:
            assert one.row is not None
            self.prefixes.retain(one.row, one)
        self.prefixes.clear()
        assert not any(self.caches.rows.values())
        assert not any(self.caches.held.values())
        for _ in range(self.count):
            assert self.prefixes.acquire(Asking([0], None), []) is not None
        assert not self.prefixes.has_row


TestRows = Rows.TestCase
TestRows.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)


@given(tokens=TEXTS, others=st.lists(TEXTS, max_size=4))
def test_as_much_is_reused_as_any_row_has(tokens: list[int], others: list[list[int]]) -> None:
    """Rows that ended and one that runs, none of which is short of memory."""
    caches = Blocks(100)
    prefixes = PrefixCache(caches, 8)
    running = []
    for other in others:
        asking = Asking(other, ("a", None))
        acquired = prefixes.acquire(asking, [])
        assert acquired is not None
        asking.row = acquired.row
        caches.write(acquired.row, other[acquired.cached :], ("a", None))
        running = [asking]
        if other is not others[-1]:
            prefixes.retain(acquired.row, asking)
    common = [
        next((i for i in range(len(tokens) - 1) if tokens[: i + 1] != other[: i + 1]), len(tokens) - 1)
        for other in others
    ]
    acquired = prefixes.acquire(Asking(tokens, ("a", None)), running)
    assert acquired is not None
    assert acquired.cached == max(common, default=0)


def test_the_row_that_was_used_last_stays() -> None:
    """Three texts in two rows: the third takes the row of the first, and a text that came again is the latest."""
    caches = Blocks(100)
    prefixes = PrefixCache(caches, 2)

    def serve(letter: int) -> int:
        asking = Asking([letter] * 40, ("a", None))
        acquired = prefixes.acquire(asking, [])
        assert acquired is not None
        caches.write(acquired.row, asking.tokens[acquired.cached :], ("a", None))
        prefixes.retain(acquired.row, asking)
        return acquired.cached

    assert [serve(letter) for letter in (0, 1, 0, 2, 0, 1)] == [0, 0, 39, 0, 39, 0]
    assert prefixes.stats.evictions == 2


def test_a_row_is_not_evicted_for_its_own_copy() -> None:
    """There is no memory for both: the request gets the row itself, although others lose its end."""
    caches = Blocks(11)
    prefixes = PrefixCache(caches, 4)
    idle = Asking([0] * 30, ("a", None))
    acquired = prefixes.acquire(idle, [])
    assert acquired is not None
    caches.write(acquired.row, idle.tokens, ("a", None))
    prefixes.retain(acquired.row, idle)
    assert prefixes.acquire(Asking([0] * 20 + [1] * 4, ("a", None)), []) == (acquired.row, 20)
    assert not prefixes.stats.evictions


# --- in an engine -----------------------------------------------------------------------------------------------


def engine(
    world: World, depths: str = "3", mode: Mode = "key", *, rows: int = 4, notes: Notes | None = None
) -> EngineCore:
    limits = EngineLimits(rows, prefill_tokens=8, max_depth=7, prefix_cache=mode)
    return world.engine([dictated.policy(Case(depths=depths).policy)], limits, [notes] if notes else [])


def one_after_another(core: EngineCore, asked: list[Request]) -> list[Completion]:
    return [answers(core, [request])[request.id] for request in asked]


ASKED = Request("first", PROMPT, GREEDY, key="a")
AGAIN = replace(ASKED, id="again")
WHOLE = len(PROMPT) - 1  # the last token is read: the answer begins behind it


@pytest.mark.parametrize(
    ("again", "mode", "cached"),
    [
        (AGAIN, "key", WHOLE),
        (AGAIN, "shared", WHOLE),
        (AGAIN, "off", 0),
        (replace(AGAIN, key="b"), "key", 0),
        (replace(AGAIN, key=None), "key", 0),
        (replace(AGAIN, key="b"), "shared", WHOLE),
        (replace(AGAIN, cache_salt="salt"), "key", 0),
        (replace(AGAIN, cache_salt="salt"), "shared", 0),
        (replace(AGAIN, prefix_cache=False), "key", 0),
        (replace(AGAIN, sampling=replace(GREEDY, prompt_logprobs=0)), "key", 0),
        (replace(AGAIN, prompt=(*PROMPT[:25], 3, 3, *PROMPT[27:])), "key", 25),
        (replace(AGAIN, prompt=PROMPT[:10]), "key", 9),
    ],
)
def test_only_requests_of_one_scope_reuse_a_prefix(again: Request, mode: Mode, cached: int) -> None:
    """The answer is that of an engine without a cache; tokens that were reused are not read."""
    world = table("draft-model")
    core = engine(world, mode=mode)
    one_after_another(core, [ASKED])
    assert isinstance(world.target, TableRunner)
    before = world.target.fed
    (done,) = one_after_another(core, [again])
    read = world.target.fed - before
    assert done.cached_tokens == cached
    assert_same(done, plain(world, again))
    assert read >= len(again.prompt) - cached
    assert read <= len(again.prompt) - cached + 4 * GREEDY.max_tokens
    stats = core.scheduler.prefixes.stats
    assert stats.hits == cached
    assert stats.queried == sum(len(one.prompt) for one in (ASKED, again) if scope_of(one, mode) is not None)


def test_a_prompt_that_many_ask_at_once_is_read_once() -> None:
    """They wait for the first of them; another prompt passes them meanwhile."""
    world, notes = table("draft-model"), Notes()
    core = engine(world, "0", rows=16, notes=notes)
    asked = [replace(ASKED, id=f"r{i}") for i in range(8)]
    asked.append(replace(ASKED, id="other", prompt=(9, 9, 9, 4, 4, 4)))
    done = answers(core, asked)
    assert sum(one.prefill_tokens for one in notes.records) == len(PROMPT) + 7 + 6
    assert [done[f"r{i}"].cached_tokens for i in range(8)] == [0, *[WHOLE] * 7]
    assert done["other"].timings.first_token < done["r1"].timings.first_token  # type: ignore[operator]
    for request in asked:
        assert_same(done[request.id], plain(world, request))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_speculation_costs_no_hit(seed: int) -> None:
    """Chats with turns in any order reuse the same tokens and get the same texts, whatever is drafted."""
    chats = {chat: [*PROMPT[: 12 + chat % 3], 2 + chat] for chat in range(6)}
    cores = [engine(table("draft-model"), depths, rows=3) for depths in ("0", "3", "any")]
    for turn in range(12):
        chat = (seed // (turn + 1) + turn * 5) % 6
        found = []
        for core in cores:
            sampling = SamplingParams(5, temperature=0.8 * (chat % 2), seed=seed, ignore_eos=True)
            request = Request(f"{turn}", tuple(chats[chat]), sampling)
            (done,) = one_after_another(core, [request])
            found.append((done.tokens, done.cached_tokens))
        assert found[0] == found[1] == found[2]
        chats[chat] = [*chats[chat], *found[0][0], 2 + turn][-80:]
    hits = {core.scheduler.prefixes.stats.hits for core in cores}
    assert len(hits) == 1


def test_a_draft_model_reuses_what_it_has_read() -> None:
    """The second turn of a chat drafts from its first round on, and its draft model reads nothing twice."""
    world, notes = table("draft-model"), Notes()
    core = engine(world, notes=notes)
    (first,) = one_after_another(core, [ASKED])
    assert first.stats.drafted
    seen = len(notes.records)
    one_after_another(core, [replace(AGAIN, prompt=(*PROMPT, *first.tokens, 5, 6, 7))])
    later = [record for record in notes.records[seen:] if len(record.rows)]
    assert later[0].drafted[0] > 0
    assert sum(record.caught_up for record in later) <= 4


def test_a_request_that_failed_leaves_nothing() -> None:
    world = table("draft-model")
    core = engine(world)
    core.add(replace(ASKED, sampling=replace(GREEDY, max_tokens=40)))
    for _ in range(8):
        core.step()
    core.recover(MemoryError("a pass has failed"))
    core.abort_all(FinishReason.ABORT, "gone")
    (done,) = one_after_another(core, [AGAIN])
    assert done.cached_tokens == 0


# --- prompt tokens of rounds --------------------------------------------------------------------------------------


@given(
    prompts=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=8),
    budget=st.integers(1, 100),
)
def test_prompts_share_a_round(prompts: list[tuple[int, int]], budget: int) -> None:
    """All of the budget is used; the oldest gets half, and no prompt waits for one that has more tokens left until a
    request can go on.
    """
    missing, urgent = [left for left, _ in prompts], [min(pair) for pair in prompts]
    shares = share_prefill(missing, budget, urgent)
    assert sum(shares) == min(budget, sum(missing))
    assert all(0 <= share <= left for share, left in zip(shares, missing, strict=True))
    assert shares[0] >= min(missing[0], -(-budget // 2))
    for i, j in ((i, j) for i in range(1, len(missing)) for j in range(1, len(missing))):
        assert not (urgent[i] < urgent[j] and shares[j] and shares[i] < urgent[i])


def test_a_prompt_that_another_waits_for_is_read_as_soon_as_that_one_would_be() -> None:
    """The oldest prompt is long, and so is the second, whose beginning a short one shares."""
    core = engine(table("draft-model"), "0")
    core.add(Request("oldest", (3, *PROMPT, *PROMPT), GREEDY))
    core.step()
    core.add(Request("second", (*PROMPT, *PROMPT), GREEDY))
    core.step()
    core.add(Request("short", PROMPT[:17], GREEDY))
    firsts: dict[str, int] = {}
    for number in range(1, 60):
        for delta in core.step():
            firsts.setdefault(delta.request_id, number)
    assert firsts["short"] <= 1 + -(-16 // 4)
    assert firsts["short"] < firsts["second"]


class Failing(Blocks):
    """Caches of which a call fails."""

    fails = ""

    def _fail(self, name: str) -> None:
        if self.fails == name:
            raise MemoryError(name)

    def reserve(self, row: int, length: int) -> bool:
        self._fail("reserve")
        return super().reserve(row, length)

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        self._fail("copy")
        return super().copy_prefix(source, target, length)

    def free(self, row: int) -> None:
        self._fail("free")
        super().free(row)


@pytest.mark.parametrize("fails", ["reserve", "copy", "free"])
def test_no_row_is_lost_to_an_error(fails: str) -> None:
    """A copy that fails is read instead; other errors are the request's, and the next ones have all rows."""
    caches = Failing(100)
    prefixes = PrefixCache(caches, 3)
    for letter in range(3):
        asking = Asking([letter] * 20, ("a", None))
        acquired = prefixes.acquire(asking, [])
        assert acquired is not None
        caches.write(acquired.row, asking.tokens, ("a", None))
        prefixes.retain(acquired.row, asking)
    caches.fails = fails
    asking = Asking([1] * 10 + [5] * 10, ("a", None))
    if fails == "copy":
        acquired = prefixes.acquire(asking, [])
        assert acquired is not None
        assert (acquired.cached, caches.length(acquired.row)) == (0, 0)
        prefixes.drop(acquired.row)
    else:
        with pytest.raises(MemoryError):
            prefixes.acquire(asking, [])
    caches.fails = ""
    running = []
    for letter in range(3):
        asking = Asking([7 + letter] * 5, None)
        acquired = prefixes.acquire(asking, running)
        assert acquired is not None
        assert not caches.length(acquired.row)
        asking.row = acquired.row
        running.append(asking)
    assert len({one.row for one in running}) == 3
    assert not prefixes.has_row


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    """It has its first token after one round, and the long one takes at most twice as many as alone."""
    core = engine(table("draft-model"), "0")
    long = Request("long", tuple(2 + place % 20 for place in range(64)), GREEDY)
    core.add(long)
    core.step()
    core.add(Request("short", (21, 3, 4), GREEDY))
    firsts: dict[str, int] = {}
    for number in range(1, 20):
        for delta in core.step():
            firsts.setdefault(delta.request_id, number)
    assert firsts["short"] == 1
    assert firsts["long"] <= 2 * (64 // 8)
