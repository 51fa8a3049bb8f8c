"""Learned state: what it belongs to, and how the states of replicas add. Its file is tested in tests/files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.language.library import shipped_policies
from adaptspec.control.language.loader import build_policy, load_policy_spec, parse_policy_spec
from adaptspec.control.learned_state import (
    LearnedState,
    PolicyState,
    joined,
    merged,
    renumbered,
    signature,
    to_bytes,
)
from adaptspec.control.tasks import MAX_ADDED, TASKS, TaskNames
from adaptspec.errors import StateError
from tests.control.helpers import GOODPUT, STATIC, table
from tests.policies.world import HEADER


def same(a: LearnedState, b: LearnedState) -> bool:
    """Equal, arrays bit for bit."""
    return (a.pair, a.policies.keys()) == (b.pair, b.policies.keys()) and all(
        a.policies[name].signature == b.policies[name].signature
        and a.policies[name].arrays.keys() == b.policies[name].arrays.keys()
        and all(
            x.shape == b.policies[name].arrays[key].shape and np.array_equal(x, b.policies[name].arrays[key])
            for key, x in a.policies[name].arrays.items()
        )
        for name in a.policies
    )


def example() -> LearnedState:
    return LearnedState("pair", {"p": PolicyState("s", {"n": np.array([[1.5, 2.0], [0.0, 1e-9]])})})


def sign(text: str) -> str:
    return signature(parse_policy_spec(text))


def test_a_signature_tells_arms_apart_and_not_settings() -> None:
    """Learned counts survive the tuning of a number, and nothing that gives them another meaning."""
    base = sign(GOODPUT)
    assert base == sign(GOODPUT.replace("m: goodput}", "m: goodput, prior: {acceptance: 0.7, weight: 4}}"))
    assert base == sign(GOODPUT.replace("{name: tested}", "{name: renamed}"))
    different = {
        base,
        sign(GOODPUT + "  tiers: [0, 1, 3]\n"),
        sign(GOODPUT + "  drafters: [ngram]\n"),
        sign(GOODPUT + "  verification: {method: rejection}\n"),
        sign(STATIC % 3),
        sign(HEADER + "  choose: {algorithm: batch-table, schedule: [[1, 4, 3]]}\n"),
        sign(HEADER + "  choose: {algorithm: batch-table, schedule: [[1, 4, 2]]}\n"),
    }
    assert len(different) == 7


def test_states_of_replicas_add() -> None:
    """Counts add; a policy only one replica served is kept; order does not matter."""
    one, two = example(), LearnedState("pair", {**example().policies, "q": PolicyState("t", {"m": np.ones(3)})})
    whole = merged([one, two])
    assert to_bytes(whole) == to_bytes(merged([two, one]))
    assert whole.policies["p"].arrays["n"].tolist() == [[3.0, 4.0], [0.0, 2e-9]]
    assert whole.policies["q"].arrays["m"].sum() == 3.0
    assert example().policies["p"].arrays["n"][0, 0] == one.policies["p"].arrays["n"][0, 0]


@pytest.mark.parametrize(
    "other",
    [
        LearnedState("other pair", example().policies),
        LearnedState("pair", {"p": PolicyState("other arms", example().policies["p"].arrays)}),
        LearnedState("pair", {"p": PolicyState("s", {"n": np.ones(4)})}),
        LearnedState("pair", {"p": PolicyState("s", {"m": np.ones((2, 2))})}),
    ],
)
def test_states_that_do_not_belong_together_are_not_added(other: LearnedState) -> None:
    """Sums of different things are nothing."""
    with pytest.raises(StateError, match=r"different models|other arms"):
        merged([example(), other])
    with pytest.raises(StateError, match="none"):
        merged([])


FIRST = 1 + len(TASKS)  # the number of the first task of users' own
SIZE = FIRST + MAX_ADDED


def met(tasks: tuple[str, ...], counts: dict[str, float]) -> LearnedState:
    """What an engine has learned that met `tasks` in this order, and other requests."""
    numbers = {"other": 0, "code": 1 + TASKS.index("code")} | {name: FIRST + at for at, name in enumerate(tasks)}
    acceptance, sums = np.zeros((1 + SIZE, 2, 3)), np.zeros((SIZE, 1, 2, 6))
    for name, count in counts.items():
        acceptance[1 + numbers[name]] = sums[numbers[name]] = count
        acceptance[0] += count
    arrays = {
        "acceptance": acceptance,
        "@when-1/sums.task": sums,
        "sums.all": np.full((1, 1, 2, 6), acceptance[0, 0, 0]),
    }
    if "named" in tasks:  # by the policy, which has a rule for it
        arrays[f"@stop-of-task-{numbers['named']}/threshold"] = np.full(3, counts["named"])
    return LearnedState("pair", {"p": PolicyState("s", arrays)}, tasks)


TRAFFIC = st.tuples(
    st.lists(st.sampled_from("abcdef"), unique=True).flatmap(lambda some: st.permutations([*some, "named"])).map(tuple),
    st.lists(st.integers(0, 99), min_size=9, max_size=9),
)


@given(TRAFFIC, TRAFFIC)
def test_tasks_are_added_by_their_names(
    one: tuple[tuple[str, ...], list[int]], two: tuple[tuple[str, ...], list[int]]
) -> None:
    """Two replicas' states in one are that of an engine that had the traffic of both, whoever met more tasks, and in
    whatever order.
    """
    counts = [dict(zip((*tasks, "other", "code"), map(float, each), strict=False)) for tasks, each in (one, two)]
    tasks = joined(one[0], two[0])
    both = {name: sum(each.get(name, 0.0) for each in counts) for name in {**counts[0], **counts[1]}}
    expected = met(tasks, both)
    found = merged([met(one[0], counts[0]), met(two[0], counts[1])])
    assert found.tasks == expected.tasks
    assert same(found, expected)


def test_tasks_that_find_no_number_count_as_any_other() -> None:
    """As their requests would have; those that may find one later are left out until then."""
    full = tuple(f"u{number}" for number in range(MAX_ADDED))
    state = met(("a", "b"), {"other": 1.0, "a": 2.0, "b": 4.0})
    acceptance = renumbered(state, full).policies["p"].arrays["acceptance"]
    assert [acceptance[1, 0, 0], acceptance[0, 0, 0], acceptance[1 + FIRST :].sum()] == [7.0, 7.0, 0.0]
    fewer = renumbered(state, ("b",)).policies["p"].arrays["acceptance"]
    assert [fewer[1 + at, 0, 0] for at in (0, FIRST, FIRST + 1)] == [1.0, 4.0, 0.0]
    assert len(merged([state, met(full, {})]).tasks) == MAX_ADDED


def test_what_is_no_table_of_tasks_is_left_as_it_is() -> None:
    """A file may say anything: what does not fit is refused when a policy is to go on from it."""
    state = LearnedState("pair", {"p": PolicyState("s", {"acceptance": np.ones((2, 3))})}, tuple(map(str, range(99))))
    assert renumbered(state, ("7",)).policies["p"].arrays["acceptance"].tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("path", shipped_policies(), ids=lambda path: path.stem)
def test_all_tables_of_tasks_are_known_as_such(path: Path) -> None:
    """And nothing else is: what a policy learns by task has a row for each, which goes where its task goes."""
    task_names = TaskNames()
    learned = build_policy(load_policy_spec(path), table(), 4, task_names).learned()
    assert task_names.size == SIZE
    ones = {key: np.ones_like(array) for key, array in learned.items()}
    moved = renumbered(LearnedState("pair", {"p": PolicyState("s", ones)}, ("own",)), ()).policies["p"].arrays
    for key, array in ones.items():
        assert array.shape[:1] in ((SIZE,), (SIZE + 1,)) or np.array_equal(moved[key], array), key
        assert array.shape[:1] not in ((SIZE,), (SIZE + 1,)) or not np.array_equal(moved[key], array), key
