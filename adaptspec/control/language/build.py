"""Policies of YAML: read and validated with line and column, then built."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from adaptspec.control.algorithms.algorithm import Parts
from adaptspec.control.algorithms.goodput import Goodput, GoodputSettings
from adaptspec.control.composed_policy import ComposedPolicy
from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.library import find_policy, shipped_policies, unknown_policy
from adaptspec.control.language.schema import Uses
from adaptspec.control.language.spec import PolicySpec, TaskSpec, schema
from adaptspec.control.language.spec_errors import problems_of
from adaptspec.control.language.yaml_source import Problem, Source, parse_yaml, policy_error, read_yaml
from adaptspec.control.limits import BatchLimits, DepthLimits, TierLimits
from adaptspec.control.policy import Policy
from adaptspec.control.tasks import OTHER, Labels
from adaptspec.control.tree_limits import TreeLimits
from adaptspec.drafters import DRAFTERS, default_drafters
from adaptspec.errors import PolicyError

Find = Callable[[str], PolicySpec]
_schema = functools.cache(schema)


def found_next_to(folder: Path) -> Find:
    """For the policies that a file in `folder` names: shipped ones, and files by their paths from there."""

    def find(name: str) -> PolicySpec:
        return load_policy_spec(find_policy(name, folder), find=_found_no_further)

    return find


def found_among(served: Mapping[str, PolicySpec]) -> Find:
    """For a policy that somebody sends: it may name what is served and what ships, but no files of this machine."""

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


def load_policy_spec(
    path: str | Path,
    labels: Labels | None = None,
    here: Sequence[str] | None = None,
    find: Find | None = None,
) -> PolicySpec:
    """Read a policy file. `labels` and the drafters that are `here`, where given, are what it will run with.

    A policy that names no drafters gets those that are `here`; without `here` that stays open. `find` gives the
    policies that it names (default: `found_next_to` the file). Raises PolicyError: `file:line:column: path: what is
    wrong`, a line for each thing that is.
    """
    return _validate(read_yaml(Path(path)), labels, here, find or found_next_to(Path(path).parent))


def parse_policy_spec(
    text: str,
    name: str = "<policy>",
    labels: Labels | None = None,
    here: Sequence[str] | None = None,
    find: Find | None = None,
) -> PolicySpec:
    """The same for text; `name` stands for the file in errors, and policies are found from the current directory."""
    return _validate(parse_yaml(text, name), labels, here, find or found_next_to(Path()))


def build_policy(spec: PolicySpec, cost: CostModel, max_rows: int, labels: Labels | None = None) -> Policy:
    """The policy a spec describes, without those that its `when:` uses.

    `labels` are the controller's: names that are new to them are added. Where the spec leaves its drafters open, it is
    built for a server that has every drafter. Raises PolicyError if it names more tasks than there is room for, or its
    arms do not fit.
    """
    spec = spec.with_drafters(tuple(DRAFTERS))
    body, labels = spec.spec, labels or Labels()
    parts = Parts(
        cost=cost,
        max_rows=max_rows,
        tasks=labels.tasks.size,
        tiers=spec.tiers,
        drafters=spec.drafters,
        stops=body.stop.rule != "none",
        max_width=body.max_width,
        labels=labels,
    )
    algorithm = body.choose.build(parts)
    overrides = {_task(spec, name, labels): task for name, task in body.tasks.items()}
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
        depth_limits=_depth_limits(spec, overrides, parts.tasks) if algorithm.max_depth else None,
        tier_limits=_tier_limits(overrides, parts.tasks, algorithm.max_depth),
        task_stops={task: stop.build() for task, stop in stops.items()},
        values=values,
        draft_temperature=None if body.draft_temperature is None else body.draft_temperature.ends,
        tree_limits=TreeLimits(body.max_width, body.max_nodes) if body.max_width > 1 else None,
    )


def _depth_limits(spec: PolicySpec, overrides: Mapping[int, TaskSpec], tasks: int) -> DepthLimits | None:
    guard = spec.spec.guard
    bounds = BatchLimits.model_construct(
        max_batch_size=guard.max_batch_size, depth_by_batch_size=guard.depth_by_batch_size
    )
    bound = {task: override.deepest for task, override in overrides.items() if override.deepest is not None}
    return DepthLimits(bounds, bound, tasks) if bound or bounds != BatchLimits() else None


def _tier_limits(overrides: Mapping[int, TaskSpec], tasks: int, deepest: int) -> TierLimits | None:
    own = {task: override.tiers for task, override in overrides.items() if override.tiers is not None}
    return TierLimits(own, tasks, deepest) if own else None


def _task(spec: PolicySpec, name: str, labels: Labels) -> int:
    number = labels.tasks.add(name)
    if not number and name != OTHER:
        raise PolicyError(f"policy {spec.name!r}: spec.tasks.{name}: {_no_room(labels)}")
    return number


def _no_room(labels: Labels) -> str:
    own = labels.tasks.own
    return (
        f"there is no room for one more task: requests and policies have named {len(own)} of their own already "
        f"({', '.join(own[:5])}{' ...' if len(own) > 5 else ''}); write {OTHER!r}, or start anew without them"
    )


def _not_here(drafter: str, spec: PolicySpec, here: Sequence[str]) -> str:
    """What is wrong, which drafters there are, and what to write."""
    usable = spec.spec.choose.default_drafters(default_drafters(here))
    instead = f"write `drafters: [{', '.join(usable)}]` or leave `drafters` out" if usable else "leave `drafters` out"
    model = "; or start it with a draft model (--draft DIR)" if DRAFTERS[drafter].needs_draft else ""
    return (
        f"drafts with {drafter}, which this server does not have; this server has: {', '.join(here) or 'none'}; "
        f"{instead}{model}"
    )


def _missing(spec: PolicySpec, here: Sequence[str]) -> Iterator[Problem]:
    """The drafters that it or a policy that it uses names, and that are not `here`."""
    for name, where in spec.needed.items():
        if name not in here:
            yield spec.source.problem(where, _not_here(name, spec, here))
    for where, used in spec.uses():
        other = spec.used[used]
        for name in other.needed:
            if name not in here:
                yield spec.source.problem(where, f"{used} {_not_here(name, other, here)}")
                break


def _found_no_further(name: str) -> PolicySpec:
    raise PolicyError(f"another policy uses this one, so it cannot use {name!r}: name that one there")


def _validate(source: Source, labels: Labels | None, here: Sequence[str] | None, find: Find) -> PolicySpec:
    if not isinstance(source.data, dict):
        raise source.error((), "a policy is a mapping with apiVersion, kind, metadata and spec")
    try:
        spec = PolicySpec.model_validate(source.data, context=Uses(find, source))
    except ValidationError as error:
        raise policy_error(problems_of(source, error, _schema())) from error
    own = [] if labels is None else [name for name in spec.spec.tasks if name not in labels.tasks]
    if labels is not None and len(own) > labels.tasks.left:
        where = ("spec", "tasks", own[labels.tasks.left])
        raise source.error(where, _no_room(labels), at_key=True)
    problems = [source.problem(where, said) for where, said in spec.clashes()]
    if here is not None:
        problems += _missing(spec, here)
    if problems:
        raise policy_error(problems)
    return spec if here is None else spec.with_drafters(here)
