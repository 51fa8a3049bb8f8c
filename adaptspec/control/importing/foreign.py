"""What importing has in common: reading another engine's JSON with located errors, writing a policy file.

Knows the policy language as text; what an engine's fields mean is the affair of its module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from adaptspec.control.spec import API_VERSION, parse_policy_spec
from adaptspec.control.spec_errors import problems_of
from adaptspec.control.yaml_source import Source, parse_yaml, policy_error, read_text

F = TypeVar("F", bound="Foreign")


class Foreign(BaseModel):
    """A mapping of another engine's configuration, in its own names. An unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


@dataclass(frozen=True)
class Imported:
    """What became of a configuration: the policy's `spec`, and what to tell whoever reads the file."""

    name: str
    description: str
    spec: Mapping[str, Any]
    remarks: Sequence[str]


def read_foreign(path: Path) -> Source:
    """A JSON file with its places.

    Raises:
        PolicyError: it is not JSON, or no mapping; says where.
    """
    # JSON is YAML but for tabs, which JSON has between values only.
    source = parse_yaml(read_text(path).replace("\t", " "), str(path))
    if not isinstance(source.data, dict):
        raise source.error((), "a mapping is needed here, as the engine reads it")
    return source


def validated(model: type[F], data: object, source: Source) -> F:
    """`data`, taken from `source`, as a `model`.

    Raises:
        PolicyError: a line for each thing that is wrong with it.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise policy_error(problems_of(source, error, model.model_json_schema())) from error


def policy_text(imported: Imported) -> str:
    """The policy file, which is known to be valid."""
    body = {
        "apiVersion": API_VERSION,
        "kind": "SpeculationPolicy",
        "metadata": {"name": imported.name, "description": imported.description},
        "spec": dict(imported.spec),
    }
    header = ["yaml-language-server: $schema=./policy.schema.json", *imported.remarks]
    written = yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=110)
    text = "".join(f"# {line}\n" for line in header) + written
    parse_policy_spec(text, imported.name)
    return text
