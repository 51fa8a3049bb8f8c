"""The reference of the policy language as Markdown: every field of the JSON Schema with its type, default and meaning.

`python -m tests.policy_reference` writes it into a checkout's policies/REFERENCE.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from adaptspec.control.language.spec import schema

REFERENCE = Path(__file__).parents[1] / "policies" / "REFERENCE.md"
HEAD = (
    "<!-- Written by python -m tests.policy_reference -->\n\n# Fields of a policy\n\n"
    "[README.md](README.md) has recipes. Where no default stands, a field that is absent changes nothing.\n"
)
Schema = Mapping[str, Any]
SHORT = (
    "If all other keys have defaults, write the name instead of the mapping: `choose: goodput` is\n"
    "`choose: {algorithm: goodput}`, `stop: none` is `stop: {rule: none}`, and `never-slower: on` is\n"
    "`never-slower: {}`. `never-slower: off` leaves that guard out."
)


def reference(body: Schema) -> str:
    """Sections for the file and all that may stand in it, each part where it is first met."""
    lines = [HEAD, SHORT]
    waiting: list[tuple[str, Schema]] = [("", body)]
    met = {id(body)}
    while waiting:
        path, part = waiting.pop(0)
        title = f"`{path}`" if path else "The file"
        lines += ["", f'## <a id="{part["title"]}"></a>{title}', "", part["description"]]
        fields = part.get("properties", {})
        lines += ["", "| field | what | default | meaning |", "|---|---|---|---|"] if fields else []
        for key, field in fields.items():
            default = "must be given" if key in part.get("required", ()) else _default(field)
            lines.append(f"| `{key}` | {_what(field)} | {default} | {field.get('description', '')} |")
            for where, name in _parts(field, f"{path}.{key}".lstrip(".")):
                if id(body["$defs"][name]) not in met:
                    met.add(id(body["$defs"][name]))
                    waiting.append((where, body["$defs"][name]))
    return "\n".join(lines) + "\n"


def _default(field: Schema) -> str:
    value = field.get("default")
    return "" if value in (None, "") else f"`{_flow(value)}`"


def _parts(field: Schema, path: str) -> Iterator[tuple[str, str]]:
    """What a field may hold that has a section of its own: the section's path, and its name in the schema."""
    if "$ref" in field:
        yield path, _name(field)
    elif "discriminator" in field:
        key = field["discriminator"]["propertyName"]
        for word, ref in field["discriminator"]["mapping"].items():
            yield f"{path}: {{{key}: {word}}}", _name({"$ref": ref})
    for option in field.get("anyOf", ()):
        yield from _parts(option, path)
    if "items" in field:
        yield from _parts(field["items"], f"{path}[]")
    if isinstance(field.get("additionalProperties"), dict):
        yield from _parts(field["additionalProperties"], f"{path}.NAME")


def _what(field: Schema) -> str:
    """The type of a field in words."""
    if "anyOf" in field:
        said = " or ".join(_what(option) for option in field["anyOf"] if option.get("type") != "null")
    elif "enum" in field or "const" in field:
        said = ", ".join(f"`{_flow(value)}`" for value in field.get("enum", [field.get("const")]))
    elif "$ref" in field:
        said = f"[a mapping](#{_name(field)})"
    elif "discriminator" in field:
        words = field["discriminator"]["mapping"].items()
        said = "one of " + ", ".join(f"[{word}](#{_name({'$ref': ref})})" for word, ref in words)
        short = sorted(word for option in field["oneOf"] for word in option.get("enum", ()))
        said += f", or one word: {', '.join(f'`{word}`' for word in short)}" if short else ""
    elif field["type"] == "array":
        said = f"list of: {_what(field['items'])}"
    elif field["type"] == "object":
        said = f"names, each with {_what(field['additionalProperties'])}"
    else:
        said = {"string": "text", "boolean": "true or false"}.get(field["type"], f"{field['type']}{_bounds(field)}")
    return said


def _bounds(field: Schema) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    said = [f"{word} {field[key]:g}" for key, word in words.items() if key in field]
    return f", {', '.join(said)}" if said else ""


def _name(field: Schema) -> str:
    name: str = field["$ref"].rpartition("/")[2]
    return name


def _flow(value: object) -> str:
    """A value as YAML in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(own)}" for key, own in value.items() if own is not None) + "}"
    return value if isinstance(value, str) else json.dumps(value).replace('"', "")


if __name__ == "__main__":
    REFERENCE.write_text(reference(schema()), encoding="utf-8")
