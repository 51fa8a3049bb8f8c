"""What another engine can do as a host of policies, and how a policy is restricted to that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adaptspec.control.algorithms.algorithm import lowered
from adaptspec.control.algorithms.bandit import BanditSpec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.language.yaml_source import Problem, policy_error
from adaptspec.control.limits import DEEPEST
from adaptspec.control.stopping import NoStopSpec

# The drafter of a host in policies, whatever its method: it costs steps, and states nothing before it has drafted.
DRAFTER = "draft-model"


@dataclass(frozen=True)
class Host:
    """What an engine lets a control plane decide, and what it reports of rounds.

    `drafters`: the engine's method by its name in policies, such as {"draft-model": "eagle3"}; no other can draft.
    `deepest`: tokens of a draft at most; `tiers`: the only depths it has, None: any up to that. `requests`: requests
    are known by their ids, so that each may have a policy, a task and a depth; else all of a batch verify alike.
    `verification`: the engine's name for its method, which is lossless. `ahead`: drafts are drawn at the end of a step
    and verified in the next. `lag`: decisions whose outcome is not known when the next is made.

    In all of them the batch drafts as deep as its deepest row, the draft reads along at depth 0 at the price of a first
    token, and drafts are chains that go to their depth, at the host's own temperature.
    """

    name: str
    drafters: Mapping[str, str]
    deepest: int
    tiers: tuple[int, ...] | None = None
    requests: bool = True
    verification: str = "rejection sampling"
    ahead: bool = True
    lag: int = 1

    @property
    def depths(self) -> tuple[int, ...]:
        """Those that it has, 0 first."""
        every = range(1, self.deepest + 1) if self.tiers is None else self.tiers
        return (0, *sorted({depth for depth in every if 0 < depth <= self.deepest}))


# Before an engine is started: its method, depths and lag are known then.
VLLM = Host("vLLM", {DRAFTER: "draft_model"}, DEEPEST)
SGLANG = Host(
    "SGLang",
    {DRAFTER: "eagle"},
    DEEPEST,
    requests=False,
    verification="target-only sampling",
    ahead=False,
)
# Methods without a model, and their drafters in policies; all other methods are draft models to a policy.
_MODEL_FREE = {"ngram": "ngram"}


def drafters_of(method: str) -> Mapping[str, str]:
    """`Host.drafters` of a host that drafts with a method."""
    return {_MODEL_FREE.get(method.lower(), DRAFTER): method}


def narrow(spec: PolicySpec, host: Host) -> tuple[PolicySpec, Sequence[Problem]]:
    """A policy as a host can follow it, and a note for each thing that is left out: `file:line:column: path: what`.

    Raises PolicyError where the text would be another one than the policy asks for, or nothing would be left to do.
    """
    work = _Narrowing(spec, host)
    work.verification()
    work.requests()
    if spec.drafts:
        work.drafters()
        work.depths()
    work.drafts()
    if work.refused:
        raise policy_error(work.refused)
    used: dict[str, PolicySpec] = {}
    notes = set(work.notes)
    for case in work.body.when:
        used[case.use], others = narrow(spec.used[case.use], host)
        notes.update(others)
    return spec.with_body(work.body, used), sorted(notes)


class _Narrowing:
    """One policy while it is narrowed: its `body` so far, notes, and reasons to refuse it."""

    def __init__(self, spec: PolicySpec, host: Host) -> None:
        self.spec, self.host, self.body = spec, host, spec.spec
        self.notes: list[Problem] = []
        self.refused: list[Problem] = []
        unseen = f"{host.name} does not report confidence while it drafts"
        self._no_stops = f"{unseen}: the stop rule is left out, drafts go to their depth"

    def verification(self) -> None:
        """Lossless methods all keep the target's distribution; a lossy one would write other text than asked for."""
        method, where, name = self.body.verification, ("spec", "verification"), self.host.name
        if getattr(method, "lossy", False):
            message = f"{method.method} is lossy, and {name} verifies by {self.host.verification}, which is lossless: "
            self._refuse(where, f"{message}its text would be another one; give verification {{method: coupled}}")
        elif self._written(where):
            message = f"{name} verifies by its own {self.host.verification}, lossless in distribution; {method.method}"
            self._note(where, f"{message} is not used")

    def requests(self) -> None:
        """Leave out what depends on facts about requests that a host does not report."""
        host, batches = self.host, "which requests are in a batch"
        kept = []
        for number, case in enumerate(self.body.when):
            needs_requests = case.prompt_tokens is not None or case.task is not None
            if needs_requests and not host.requests:
                missing = batches
            elif case.api_key is not None:
                missing = "API keys of requests"
            else:
                kept.append(case)
                continue
            self._note(("spec", "when", number), f"{host.name} does not report {missing}; the entry is left out")
        if len(kept) < len(self.body.when):
            self._set(when=kept)
        if self.body.tasks and not host.requests:
            self._note(("spec", "tasks"), f"{host.name} does not report {batches}; tasks are left out")
            self._set(tasks={})

    def drafters(self) -> None:
        """A host drafts with one method; policies have another name for it."""
        host, where = self.host, ("spec", "drafters")
        methods = ", ".join(f"{name} ({method})" for name, method in host.drafters.items()) or "nothing"
        named = self.spec.drafters if self._written(where) else tuple(host.drafters)
        kept = next((name for name in named if name in host.drafters), None)
        if kept is None:
            message = f"drafts with {', '.join(named) or 'a draft model'}, which {host.name} does not have here"
            self._refuse(where, f"{message}; it drafts with {methods}: name that, or choose another policy")
            return
        for number, name in enumerate(named):
            if name != kept:
                self._note((*where, number), f"{name} is left out: {host.name} drafts with {methods}")
        self._set(drafters=[DRAFTER])
        choose, at = self.body.choose, ("spec", "choose", "arms")
        if isinstance(choose, BanditSpec) and choose.arms is not None:
            arms = {}
            for number, arm in enumerate(choose.arms):
                if arm.drafter not in (None, kept):
                    self._note((*at, number), f"the arm is left out: {host.name} drafts with {methods}")
                    continue
                if arm.stop is not None:
                    self._note((*at, number, "stop"), self._no_stops)
                plain = arm.model_copy(update={"drafter": None, "stop": None})
                arms[repr(plain)] = plain  # each once
            if not arms:
                self._refuse(at, f"no arm is left: {host.name} drafts with {methods}")
            self._set(choose=choose.model_copy(update={"arms": list(arms.values())}))

    def depths(self) -> None:
        """Depths that the host does not have become the next lower ones."""
        spec, depths, choose = self.spec, self.host.depths, self.body.choose
        room = f"up to {depths[-1]}" if depths[-1] == len(depths) - 1 else " or ".join(map(str, depths[1:]))
        short = f"{self.host.name} drafts {room} tokens here"
        cut = f"{short}: deeper drafts are cut to that"
        kept = choose.kept_to(depths)
        if kept != choose:
            self._note(("spec", "choose"), cut)
        self._set(choose=kept)
        if not choose.takes_tiers:
            return
        tiers = tuple(sorted({lowered(tier, depths) for tier in spec.tiers} - {0})) or depths[1:2]
        if tiers != spec.tiers:
            where = next((w for w in (("spec", "tiers"), ("spec", "max-depth")) if self._written(w)), ("spec",))
            self._note(where, f"{short}: its depths become {', '.join(map(str, tiers))}")
            self._set(tiers=[0, *tiers], max_depth=None)
        for name, task in self.body.tasks.items():
            if task.tiers is not None and not set(task.tiers) <= {0, *tiers}:
                self._note(("spec", "tasks", name, "tiers"), cut)
                self._set_task(name, tiers=sorted({lowered(tier, (0, *tiers)) for tier in task.tiers}))

    def drafts(self) -> None:
        """Leave out what a host's drafts cannot do: end early, branch, have a temperature, differ by row."""
        name = self.host.name
        if self.body.stop.rule != "none":
            if self._written(("spec", "stop")):
                self._note(("spec", "stop"), self._no_stops)
            self._set(stop=NoStopSpec(rule="none"))
        for task, override in self.body.tasks.items():
            if override.stop is not None:
                self._note(("spec", "tasks", task, "stop"), self._no_stops)
                self._set_task(task, stop=None)
        if self.body.draft_temperature is not None:
            self._note(("spec", "draft-temperature"), f"{name} draws drafts at its own temperature; it is left out")
            self._set(draft_temperature=None)
        if self.body.max_width > 1:
            self._note(("spec", "max-width"), f"drafts are chains inside {name}; it is left out")
            self._set(max_width=1)
        if not self.host.requests and self.spec.drafts:
            message = f"{name} has one depth for the whole batch: the deepest of its requests' depths"
            self._note(("spec", "choose"), message)

    def _set(self, **changes: Any) -> None:
        self.body = self.body.model_copy(update=changes)

    def _set_task(self, name: str, **changes: Any) -> None:
        tasks = self.body.tasks
        self._set(tasks=tasks | {name: tasks[name].model_copy(update=changes)})

    def _written(self, where: tuple[object, ...]) -> bool:
        return where in self.spec.source.values

    def _note(self, where: Sequence[object], message: str) -> None:
        self.notes.append(self.spec.source.problem(where, message))

    def _refuse(self, where: Sequence[object], message: str) -> None:
        self.refused.append(self.spec.source.problem(where, message))
