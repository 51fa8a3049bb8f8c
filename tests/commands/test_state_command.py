"""`adaptspec state`: what was learned can be looked at, and added up over replicas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adaptspec.cli import main
from adaptspec.commands.state_command import merged
from adaptspec.control.state import FILE, LearnedState, PolicyState, StateStore, from_bytes, read_state, to_bytes
from adaptspec.errors import StateError


def replica(folder: Path, value: float, pair: str = "pair") -> Path:
    store = StateStore(folder, pair)
    store.save({"goodput": PolicyState("s", {"acceptance": np.full((2, 3), value)})})
    store.close()
    return folder


def test_states_of_replicas_are_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Directories or files; the result is a state that a server can start from."""
    one, two = replica(tmp_path / "one", 1.5), replica(tmp_path / "two", 2.0)
    out = tmp_path / "new" / FILE
    out.parent.mkdir()
    assert main(["state", "merge", str(one), str(two / FILE), "-o", str(out)]) == 0
    assert read_state(out).policies["goodput"].arrays["acceptance"].tolist() == [[3.5] * 3] * 2
    store = StateStore(out.parent, "pair")
    assert store.load() is not None
    store.close()
    capsys.readouterr()
    assert main(["state", "show", str(out.parent)]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("goodput", "acceptance", "2 x 3", "21.0", "pair"))


def test_errors_name_the_file_and_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, one line."""
    one = replica(tmp_path / "one", 1.0)
    foreign = tmp_path / "foreign.json"
    foreign.write_bytes(to_bytes(LearnedState("llama", {})))
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    for arguments, hint in [
        (["show", str(tmp_path / "nowhere")], "cannot be read"),
        (["show", str(broken)], "broken.json: it is no learned state"),
        (["merge", str(one), str(foreign), "-o", str(tmp_path / "out")], "different models"),
        (["merge", str(one), "-o", str(tmp_path / "no" / "such" / "folder")], "choose another file"),
    ]:
        assert main(["state", *arguments]) == 2
        assert hint in capsys.readouterr().err


def example() -> LearnedState:
    return LearnedState("pair", {"p": PolicyState("s", {"n": np.array([[1.5, 2.0], [0.0, 1e-9]])})})


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


def test_replicas_that_met_tasks_in_other_orders_are_not_added() -> None:
    """Counts of tasks go by number: a replica that met more of them may be added, one that met others may not."""
    fewer, more, others = (replace(example(), tasks=tasks) for tasks in (("a",), ("a", "b"), ("b",)))
    assert merged([fewer, more]).tasks == ("a", "b")
    assert from_bytes(to_bytes(more)).tasks == ("a", "b")
    with pytest.raises(StateError, match="different orders"):
        merged([more, others])
