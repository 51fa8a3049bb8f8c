"""What another engine can do as a host of policies, and how a policy is restricted to that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adaptspec.control.algorithms.algorithm import lowered
from adaptspec.control.algorithms.bandit import BanditSpec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.language.yaml_source import Problem, policy_error
from adaptspec.control.limits import DEEPEST
from adaptspec.control.stopping import NoStopSpec

# What policies call whatever a host drafts with: it costs steps, and says nothing before it has drafted.
DRAFTER = "draft-model"


@dataclass(frozen=True)
class Host:
    """What an engine lets a control plane decide, and what it reports of rounds.

    `drafters`: its own method by the name that policies have for it, such as {"draft-model": "eagle3"}; what is not
    there cannot draft. `deepest`: tokens of a draft at most; `tiers`: the only depths it has, None: any up to that.
    `requests`: requests are known by their ids, so that each may have a policy, a task and a depth; else all of a batch
    verify alike. `verification`: the engine's name for its method, which is lossless. `ahead`: drafts are drawn at the
    end of a step and verified in the next. `lag`: decisions whose outcome is not known when the next is made.

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
# What hosts call methods without a model, and what policies do; all others are draft models to a policy.
_MODEL_FREE = {"ngram": "ngram"}
_REQUESTS = "which requests are in a batch"


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
    notes: list[Problem] = []
    for case in work.body.get("when", spec.spec.when):
        used[case.use], others = narrow(spec.used[case.use], host)
        notes += others
    return spec.changed(work.body, used), sorted({*notes, *work.notes})


@dataclass
class _Narrowing:
    """One policy on its way: `body` are the values of `spec` that are others now."""

    spec: PolicySpec
    host: Host
    body: dict[str, Any] = field(default_factory=dict)
    notes: list[Problem] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)

    def verification(self) -> None:
        """Lossless methods all keep the target's distribution; a lossy one would write other text than asked for."""
        method, where, name = self.spec.verification, ("spec", "verification"), self.host.name
        if getattr(method, "lossy", False):
            said = f"{method.method} is lossy, and {name} verifies by {self.host.verification}, which is lossless: "
            self._refuse(where, f"{said}its text would be another one; give verification {{method: coupled}}")
        elif self._written(where):
            said = f"{name} verifies by its own {self.host.verification}, lossless in distribution; {method.method}"
            self._note(where, f"{said} is not used")

    def drafters(self) -> None:
        """A host drafts with one method; what policies call it is not how it drafts."""
        host, spec, where = self.host, self.spec, ("spec", "drafters")
        here = ", ".join(f"{name} ({method})" for name, method in host.drafters.items()) or "nothing"
        named = list(spec.drafters) if self._written(where) else list(host.drafters)
        kept = [name for name in named if name in host.drafters][:1]
        if not kept:
            said = f"drafts with {', '.join(named) or 'a draft model'}, which {host.name} does not have here"
            self._refuse(where, f"{said}; it drafts with {here}: name that, or choose another policy")
        for number, name in enumerate(named):
            if kept and name not in kept:
                self._note((*where, number), f"{name} is left out: {host.name} drafts with {here}")
        self.body["drafters"] = [DRAFTER]
        choose, at = spec.spec.choose, ("spec", "choose", "arms")
        if kept and isinstance(choose, BanditSpec) and choose.arms is not None:
            arms = []
            for number, arm in enumerate(choose.arms):
                if arm.drafter in (None, *kept):
                    arms.append(arm.model_copy(update={"drafter": None}))
                else:
                    self._note((*at, number), f"the arm is left out: {host.name} drafts with {here}")
            if not arms:
                self._refuse(at, f"no arm is left: {host.name} drafts with {here}")
            self.body["choose"] = choose.model_copy(update={"arms": arms})

    def depths(self) -> None:
        """Depths that the host does not have become the next lower ones."""
        spec, depths = self.spec, self.host.depths
        room = f"up to {depths[-1]}" if depths[-1] == len(depths) - 1 else " or ".join(map(str, depths[1:]))
        short = f"{self.host.name} drafts {room} tokens here"
        choose = self.body.get("choose", spec.spec.choose)
        own = choose.kept_to(depths)
        if own != choose:
            self._note(("spec", "choose"), f"{short}: deeper drafts are cut to that")
        self.body["choose"] = own
        if choose.takes_tiers:
            tiers = tuple(sorted({lowered(tier, depths) for tier in spec.tiers} - {0})) or depths[1:2]
            if tiers != spec.tiers:
                where = next((w for w in (("spec", "tiers"), ("spec", "max-depth")) if self._written(w)), ("spec",))
                self._note(where, f"{short}: its depths become {', '.join(map(str, tiers))}")
                self.body |= {"tiers": [0, *tiers], "max_depth": None}
            for name, task in self.body.get("tasks", spec.spec.tasks).items():
                if task.tiers is not None and not set(task.tiers) <= {0, *tiers}:
                    self._note(("spec", "tasks", name, "tiers"), f"{short}: deeper drafts are cut to that")
                    self._task(name, tiers=sorted({lowered(tier, (0, *tiers)) for tier in task.tiers}))

    def drafts(self) -> None:
        """Leave out what a host's drafts cannot do: end early, branch, be drawn at another temperature."""
        spec, body, name = self.spec, self.spec.spec, self.host.name
        unseen = (
            f"{name} does not report confidence while it drafts: the stop rule is left out, drafts go to their depth"
        )
        if body.stop.rule != "none":
            if self._written(("spec", "stop")):
                self._note(("spec", "stop"), unseen)
            self.body["stop"] = NoStopSpec(rule="none")
        for task, one in self.body.get("tasks", body.tasks).items():
            if one.stop is not None:
                self._note(("spec", "tasks", task, "stop"), unseen)
                self._task(task, stop=None)
        choose = self.body.get("choose", body.choose)
        arms = (isinstance(choose, BanditSpec) and choose.arms) or []
        for number, arm in enumerate(arms):
            if arm.stop is not None:
                self._note(("spec", "choose", "arms", number, "stop"), unseen)
        if any(arm.stop for arm in arms):
            plain = [arm.model_copy(update={"stop": None}) for arm in arms]
            self.body["choose"] = choose.model_copy(update={"arms": list({repr(a): a for a in plain}.values())})
        if body.draft_temperature is not None:
            self._note(("spec", "draft-temperature"), f"{name} draws drafts at its own temperature; it is left out")
            self.body["draft_temperature"] = None
        if body.max_width > 1:
            self._note(("spec", "max-width"), f"drafts are chains inside {name}; it is left out")
            self.body["max_width"] = 1
        if not self.host.requests and spec.drafts:
            self._note(
                ("spec", "choose"), f"{name} has one depth for the whole batch: the deepest of its requests' depths"
            )

    def requests(self) -> None:
        """Leave out what depends on facts about requests that a host does not report."""
        body, host = self.spec.spec, self.host
        for number, case in enumerate(body.when):
            missing = "API keys of requests" if case.api_key is not None else ""
            if (case.prompt_tokens is not None or case.task is not None) and not host.requests:
                missing = _REQUESTS
            if missing:
                self._note(("spec", "when", number), f"{host.name} does not report {missing}; the entry is left out")
                kept = self.body.get("when", body.when)
                self.body["when"] = [one for one in kept if one is not case]
        if body.tasks and not host.requests:
            self._note(("spec", "tasks"), f"{host.name} does not report {_REQUESTS}; tasks are left out")
            self.body["tasks"] = {}

    def _task(self, name: str, **changed: Any) -> None:
        tasks = self.body.get("tasks", self.spec.spec.tasks)
        self.body["tasks"] = tasks | {name: tasks[name].model_copy(update=changed)}

    def _written(self, where: tuple[object, ...]) -> bool:
        return where in self.spec.source.values

    def _note(self, where: Sequence[object], message: str) -> None:
        self.notes.append(self.spec.source.problem(where, message))

    def _refuse(self, where: Sequence[object], message: str) -> None:
        self.refused.append(self.spec.source.problem(where, message))
