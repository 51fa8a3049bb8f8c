"""The settings of a dataclass as Markdown."""

from __future__ import annotations

import json

from adaptspec.settings.fields import Field, fields_of

BAR = "\\|"


def reference(cls: type) -> str:
    """The settings of a dataclass as Markdown: a table for each group."""
    lines: list[str] = []
    for field in fields_of(cls):
        heading = f"**{field.group}**"
        if heading not in lines:
            lines += ["", heading, "", "| setting | values | default | meaning |", "|---|---|---|---|"]
        doc = " ".join(field.doc.split()) + ("" if field.setting.flag else " It has no flag.")
        cells = (f"`{field.name}`", field.what, _default(field), doc)
        lines.append(f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |")
    return "\n".join(lines).strip() + "\n"


def _default(field: Field) -> str:
    value = field.default
    if value is None or value in ((), {}):
        return ""
    return f"`{json.dumps(value) if isinstance(value, bool) else value}`"
