"""What an answer must be, in the words of other servers: vLLM, SGLang and llama.cpp.

vLLM's `structured_outputs` and its older `guided_*` fields, SGLang's `regex`, `ebnf` and `json_schema`, and llama.cpp's
`grammar` and `json_schema` all mean one of five constraints. A request may have one of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from adaptspec.errors import RequestError
from adaptspec.models.grammars import MAX_CHARACTERS
from adaptspec.request import Grammar
from adaptspec.server import limits
from adaptspec.server.api.body import check_depth, check_structure, read_document
from adaptspec.server.api.constraints.grammar_text import lark_of
from adaptspec.server.api.constraints.response_format import (
    SCHEMA_PATH,
    FormatField,
    GrammarFormat,
    RegexFormat,
    TextFormat,
    grammar_of,
)
from adaptspec.server.api.fields import AtMost, Only, RequestBody, Warnings, WireModel, quoted
from adaptspec.server.api.schemas.bounds import spelled_out
from adaptspec.server.api.schemas.rewriting import rewrite
from adaptspec.server.api.schemas.schema_words import Origin

Kind = Literal["choice", "regex", "json", "grammar", "json_object"]
Choices = Annotated[list[str], Field(min_length=1, fail_fast=True), AtMost(limits.STRUCTURED_CHOICES)]


class StructuredOutputs(WireModel):
    """vLLM's object: one of its fields says what the answer must be.

    `choice`: one of these texts. `regex`: the whole answer matches it; it has no look-around. `json`: fits this schema,
    which may be JSON text. `grammar`: in Lark or GBNF. `json_object`: any JSON object.
    """

    choice: Choices | None = None
    regex: str | None = None
    schema_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    grammar: str | None = None
    json_object: bool | None = None

    # Hints to other compilers; values that would change the answer are refused.
    disable_fallback: Annotated[Any, Only(False, True)] = None
    disable_additional_properties: Annotated[Any, Only(False, True)] = None
    disable_any_whitespace: Annotated[Any, Only(False)] = None
    whitespace_pattern: Annotated[Any, Only()] = None
    structural_tag: Annotated[Any, Only()] = None


@dataclass(frozen=True)
class Asked:
    """One constraint as it came: the field, for messages, and what it says."""

    param: str
    kind: Kind
    value: Any


# Fields at the top of a body, and the constraint that each means.
FIELDS: Mapping[str, Kind] = {
    "guided_choice": "choice",
    "guided_regex": "regex",
    "guided_json": "json",
    "guided_grammar": "grammar",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
    "json_schema": "json",
}
_PARTS: Mapping[str, tuple[str, Kind]] = {
    "choice": ("choice", "choice"),
    "regex": ("regex", "regex"),
    "schema_": ("json", "json"),
    "grammar": ("grammar", "grammar"),
    "json_object": ("json_object", "json_object"),
}


class ConstraintFields(FormatField, RequestBody):
    """What an answer must be, in OpenAI's words (`response_format`) or in others; a request may have one of these."""

    structured_outputs: StructuredOutputs | None = None
    guided_choice: Choices | None = None
    guided_regex: str | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar_: Annotated[str | None, Field(alias="grammar")] = None
    json_schema: dict[str, Any] | str | None = None

    schema_path: ClassVar[str] = SCHEMA_PATH  # of the schema in `response_format`, for messages

    @property
    def asked(self) -> Asked | None:
        """The constraint of a request; None where it has none of these. Raises RequestError for several."""
        found = [
            Asked(name, kind, value)
            for name, kind in FIELDS.items()
            if (value := getattr(self, "grammar_" if name == "grammar" else name)) is not None
        ]
        inside = self.structured_outputs
        found += [
            Asked(f"structured_outputs.{name}", kind, value)
            for field, (name, kind) in _PARTS.items()
            if inside is not None and (value := getattr(inside, field)) is not None and value is not False
        ]
        if len(found) > 1:
            first, second = found[0].param, found[1].param
            raise RequestError(f"{first} and {second} both say what the answer must be; send one of them", second)
        wanted = self.response_format
        if found and wanted is not None and not isinstance(wanted, TextFormat):
            param = found[0].param
            raise RequestError(f"{param} and response_format cannot both say what to write; send one of them", param)
        if isinstance(wanted, RegexFormat):
            return Asked("response_format.pattern", "regex", wanted.pattern)
        if isinstance(wanted, GrammarFormat):
            return Asked("response_format.grammar", "grammar", wanted.grammar)
        return found[0] if found else None

    def constraint(self) -> Grammar | None:
        """The grammar of what these fields ask for; None where any text will do. Words left out go to `warnings`.

        Raises RequestError, with the field at fault, if it cannot be read, is not valid or is too much.
        """
        return constraint_grammar(self.asked, self.warnings) or grammar_of(
            self.response_format, self.warnings, self.schema_path
        )

    @model_validator(mode="after")
    def _check_one_constraint(self) -> ConstraintFields:
        _ = self.asked
        return self


def constraint_grammar(asked: Asked | None, warnings: Warnings | None = None) -> Grammar | None:
    """The grammar of a constraint. `warnings` get the words of a schema that are left out.

    Raises RequestError, with its field, if it cannot be read or is too much.
    """
    if asked is None:
        return None
    param, value = asked.param, asked.value
    if asked.kind == "json_object":
        return Grammar('{"type": "object"}', param=param)
    if asked.kind == "json":
        rewritten = rewrite(read_schema(value, param), Origin(param))
        if warnings is not None:
            rewritten.warn(warnings)
        return Grammar(json.dumps(rewritten.schema), param=param)
    if asked.kind == "choice":
        return _choice(value, param)
    if asked.kind == "grammar":
        return Grammar(lark_of(value, param), "lark", param)
    if len(value) > MAX_CHARACTERS:
        raise RequestError(
            f"{param} has {len(value)} characters; at most {MAX_CHARACTERS} are compiled: send a shorter one", param
        )
    size = spelled_out(value)
    if size > limits.SCHEMA_LITERAL_BYTES:
        raise RequestError(
            f"{param} spells out a text of {size} bytes; this server takes at most {limits.SCHEMA_LITERAL_BYTES}: "
            "repeat less",
            param,
        )
    return Grammar(value, "regex", param)


def read_schema(value: dict[str, Any] | str, param: str) -> dict[str, Any]:
    """A schema that may have come as JSON text. Raises RequestError: the text is no JSON object, or nests too deep."""
    if isinstance(value, dict):
        return value
    raw = value.encode(errors="surrogatepass")
    try:  # the bounds of bodies hold for what a text of one holds, too
        check_structure(raw)
        schema = read_document(raw)
        check_depth(raw, schema)
    except RequestError as error:
        raise RequestError(str(error).replace("the body", f"the schema in {param}"), param) from error
    except ValueError as error:
        raise RequestError(f"{param} is a text that is not JSON ({error}); send the schema itself", param) from error
    if not isinstance(schema, dict):
        raise RequestError(f"{param} must be a schema: a JSON object, or the text of one", param)
    return schema


def _choice(texts: list[str], param: str) -> Grammar:
    for text in texts:
        if len(text.encode(errors="surrogatepass")) > limits.SCHEMA_LITERAL_BYTES:
            raise RequestError(
                f"{param} has a text of more than {limits.SCHEMA_LITERAL_BYTES} bytes, {quoted(text)}; shorten it",
                param,
            )
    # One terminal: each alternative of a rule would be an item of the compiler's parser, which holds 2,000.
    return Grammar("start: CHOICE\nCHOICE: " + " | ".join(json.dumps(text) for text in texts), "lark", param)
