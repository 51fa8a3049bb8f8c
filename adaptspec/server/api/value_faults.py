"""What is wrong with a single value of a request, and what to send instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic_core import ErrorDetails

# What is wanted, by the type of a validation error.
_WANTED: Mapping[str, str] = {
    "bool_type": "true or false",
    "dict_type": "a JSON object",
    "model_type": "a JSON object",
    "model_attributes_type": "a JSON object",
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "a string",
}
# And with the name of the bound in the error's context.
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}
_LITERAL, _PATTERN = "literal_error", "string_pattern_mismatch"


def value_fault(details: Sequence[ErrorDetails], given: str | None) -> str | None:
    """The words of an error, without the field; None where the first error is not of these types.

    `details` are the errors of one place: where a value may be of several kinds, there is one for each. `given` is the
    value, as messages quote it; None for lists and objects.
    """
    kind = details[0]["type"]
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        bound = details[0]["ctx"][name]
        return f"must be {words} {int(bound) if bound == int(bound) else bound}"
    if kind == _PATTERN:
        return f"must match the regular expression {details[0]['ctx']['pattern']}"
    if kind not in _WANTED and kind != _LITERAL:
        return None
    literals = [one["ctx"]["expected"] for one in details if one["type"] == _LITERAL]
    wanted = [f"one of {words}" if " or " in words else words for words in literals]
    wanted = list(dict.fromkeys([*wanted, *(_WANTED[one["type"]] for one in details if one["type"] in _WANTED)]))
    listed = (", or " if literals else " or ").join(wanted)
    return f"is {given}; send {listed}" if literals and given is not None else f"must be {listed}"
