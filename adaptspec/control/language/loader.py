"""Policies of YAML: read and validated with line and column, then built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from adaptspec.control.algorithms.algorithm import Parts
from adaptspec.control.algorithms.goodput import Goodput, GoodputSettings
from adaptspec.control.algorithms.registry import INSTALLED
from adaptspec.control.composed_policy import ComposedPolicy
from adaptspec.control.cost_model import CostModel
from adaptspec.control.cost_profile import CostProfile
from adaptspec.control.language.library import find_policy, shipped_policies, unknown_policy
from adaptspec.control.language.schema import ReadContext, validate
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.language.yaml_source import Problem, Source, parse_yaml, policy_error, read_yaml
from adaptspec.control.limits import TaskLimits
from adaptspec.control.policy import Policy
from adaptspec.control.tasks import OTHER, TaskNames
from adaptspec.control.tree_limits import TreeLimits
from adaptspec.drafters import DRAFTERS, default_drafters
from adaptspec.errors import PolicyError

Find = Callable[[str], PolicySpec]


def found_next_to(folder: Path) -> Find:
    """Finds the policies that a file in `folder` names: shipped ones, and files by their paths from there."""

    def find(name: str) -> PolicySpec:
        return load_policy_spec(find_policy(name, folder), find=_found_no_further)

    return find


def found_among(served: Mapping[str, PolicySpec]) -> Find:
    """Finds the policies that a client's policy names: served and shipped ones, no files of this machine."""

    def find(name: str) -> PolicySpec:
        if name in served:
            if served[name].used:
                raise PolicyError(f"{name} uses {', '.join(served[name].used)}, so no other policy can use it")
            return served[name]
        shipped = {path.stem: path for path in shipped_policies()}
        if name in shipped:
            return load_policy_spec(shipped[name], find=_found_no_further)
        known = list(dict.fromkeys([*served, *shipped]))
        there = "a policy that is sent uses others by their names, no files; here are: "
        raise unknown_policy(name, known, f"{there}{', '.join(known)}; or serve the file first (--policy FILE)")

    return find


def _found_no_further(name: str) -> PolicySpec:
    raise PolicyError(f"another policy uses this one, so it cannot use {name!r}: name that one there")


def load_policy_spec(
    path: str | Path,
    task_names: TaskNames | None = None,
    available: Sequence[str] | None = None,
    find: Find | None = None,
) -> PolicySpec:
    """Read a policy file.

    `task_names` and the `available` drafters, where given, are those that it will run with. A policy that names no
    drafters gets the available ones; without `available` that stays open. `find` returns the policies that it names
    (default: `found_next_to` the file). Raises PolicyError: `file:line:column: path: message`, a line per problem.
    """
    return spec_of_source(read_yaml(Path(path)), task_names, available, find or found_next_to(Path(path).parent))


def parse_policy_spec(
    text: str,
    name: str = "<policy>",
    task_names: TaskNames | None = None,
    available: Sequence[str] | None = None,
    find: Find | None = None,
) -> PolicySpec:
    """`load_policy_spec` of a text; errors call it `name`, and policies are found from the current directory."""
    return spec_of_source(parse_yaml(text, name), task_names, available, find)


def spec_of_source(
    source: Source,
    task_names: TaskNames | None = None,
    available: Sequence[str] | None = None,
    find: Find | None = None,
) -> PolicySpec:
    """`load_policy_spec` of data already parsed, which may have been changed since."""
    if not isinstance(source.data, dict):
        raise source.error((), "a policy is a mapping with apiVersion, kind, metadata and spec")
    context = ReadContext(find or found_next_to(Path()), source)
    spec = validate(PolicySpec, source.data, source, context, INSTALLED.failed)
    new_tasks = [] if task_names is None else [name for name in spec.spec.tasks if name not in task_names]
    if task_names is not None and len(new_tasks) > task_names.room:
        raise source.error(("spec", "tasks", new_tasks[task_names.room]), _no_room(task_names), at_key=True)
    problems = spec.clashes()
    if available is not None:
        problems += _missing_drafters(spec, available)
    if problems:
        raise policy_error(problems)
    return spec if available is None else spec.with_drafters(available)


def _missing_drafters(spec: PolicySpec, available: Sequence[str]) -> Iterator[Problem]:
    """Drafters that the policy or one that it uses names, and that are not available."""
    for name, where in spec.needed.items():
        if name not in available:
            yield spec.source.problem(where, _not_available(name, spec, available))
    for number, when in enumerate(spec.spec.when):
        used = spec.used[when.use]
        missing = next((name for name in used.needed if name not in available), None)
        if missing is not None:
            message = f"{when.use} {_not_available(missing, used, available)}"
            yield spec.source.problem(("spec", "when", number, "use"), message)


def _not_available(drafter: str, spec: PolicySpec, available: Sequence[str]) -> str:
    usable = spec.spec.choose.default_drafters(default_drafters(available))
    instead = f"write `drafters: [{', '.join(usable)}]` or leave `drafters` out" if usable else "leave `drafters` out"
    model = "; or start it with a draft model (--draft DIR)" if DRAFTERS[drafter].needs_draft else ""
    return (
        f"drafts with {drafter}, which this server does not have; this server has: {', '.join(available) or 'none'}; "
        f"{instead}{model}"
    )


def build_policy(spec: PolicySpec, cost: CostModel, max_rows: int, task_names: TaskNames | None = None) -> Policy:
    """The policy a spec describes, without those that its `when:` uses.

    `task_names` are the controller's: new names are added to them. Where the spec leaves its drafters open, it is built
    for a server that has every drafter. Raises PolicyError if it names more tasks than there is room for, or its arms
    do not fit.
    """
    spec = spec.with_drafters(tuple(DRAFTERS))
    body, task_names = spec.spec, task_names or TaskNames()
    parts = Parts(
        cost=cost,
        max_rows=max_rows,
        tasks=task_names.size,
        tiers=spec.tiers,
        drafters=spec.drafters,
        stops=body.stop.rule != "none",
        max_width=body.max_width,
    )
    algorithm = body.choose.build(parts)
    overrides = {_task(spec, name, task_names): task for name, task in body.tasks.items()}
    allowed = {task: override.depths for task, override in overrides.items() if override.depths is not None}
    stops = {task: override.stop for task, override in overrides.items() if override.stop is not None}
    weighs = "marginal-goodput" in {body.stop.rule, *(stop.rule for stop in stops.values())}
    values = None
    if weighs and algorithm.max_depth and not body.choose.has_value:
        depths = tuple(range(1, 1 + algorithm.max_depth))
        settings = GoodputSettings(depths, spec.drafters, max_width=body.max_width)
        values = Goodput(cost, max_rows, parts.tasks, settings)
    return ComposedPolicy(
        algorithm,
        spec.drafters,
        stop=body.stop.build(),
        guard=body.guard.build(cost) if algorithm.max_depth else None,
        batch_limits=body.guard if body.guard.binds else None,
        task_limits=TaskLimits(allowed, parts.tasks, algorithm.max_depth) if allowed else None,
        task_stops={task: stop.build() for task, stop in stops.items()},
        values=values,
        draft_temperature=None if body.draft_temperature is None else body.draft_temperature.ends,
        tree_limits=TreeLimits(body.max_width, body.max_nodes) if body.max_width > 1 else None,
    )


def build_for_checks(spec: PolicySpec, max_rows: int = 1, task_names: TaskNames | None = None) -> Policy:
    """`build_policy` with arbitrary costs: whether a policy can be built, and its depth, do not depend on costs."""
    return build_policy(spec, CostModel(CostProfile((1,), (1,), ((1.0,),))), max_rows, task_names)


def _task(spec: PolicySpec, name: str, task_names: TaskNames) -> int:
    number = task_names.add(name)
    if not number and name != OTHER:
        raise PolicyError(f"policy {spec.name!r}: spec.tasks.{name}: {_no_room(task_names)}")
    return number


def _no_room(task_names: TaskNames) -> str:
    added = task_names.added
    return (
        f"there is no room for one more task: requests and policies have named {len(added)} of their own already "
        f"({', '.join(added[:5])}{' ...' if len(added) > 5 else ''}); write {OTHER!r}, or start anew without them"
    )
