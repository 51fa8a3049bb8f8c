"""What a server prints when it listens: what was loaded, how it runs, and a first request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from aiohttp import web
from rich.console import Console

from adaptspec.config import BUNDLED
from adaptspec.drafting.drafter import ModelDrafter
from adaptspec.engine.build import Built
from adaptspec.models.pass_range import exactness
from adaptspec.server.generation import GENERATION, Generation
from adaptspec.server.prompts import Prompts
from adaptspec.server.routes import KEYED
from adaptspec.start_status import StartStatus, resident_bytes


def announce(console: Console, url: str, app: web.Application, built: Built, status: StartStatus) -> None:
    """Print it, and end the `status` of the start."""
    service = app[GENERATION]
    status.close()
    console.print(f"[bold]AdaptSpec listens on {url}[/bold]")
    for label, text in _start_facts(service, built, status):
        console.print(f"  {label:<10} {text}", soft_wrap=True, markup=False, highlight=False)
    if service.engine.target.name == BUNDLED:
        console.print(
            "These small models are for a first look; `adaptspec serve --model smollm2` serves one that answers."
        )
    console.print("Try it:")
    console.print(_first_request(url, service, keyed=app[KEYED]), soft_wrap=True, highlight=False)


def _start_facts(service: Generation, built: Built, status: StartStatus) -> Iterator[tuple[str, str]]:
    """What was loaded and how it will run: labels and texts."""
    engine, info, marks = service.engine, service.engine.target, service.reasoning
    others = [*service.names.names[1:], *(["any other"] if service.names.any_name else [])]
    yield "model", " or ".join([info.name, *others])
    yield "target", f"{built.target.info.name} ({info.parameters / 1e6:.1f} M parameters, context {info.context})"
    yield "weights", info.dtype
    yield "exactness", exactness(info)
    yield "end tokens", _ends(built)
    yield "template", _template(service.prompts)
    if marks is not None:
        yield "reasoning", f"{marks.open} ... {marks.close} as reasoning_content"
    yield "drafters", ", ".join(drafter.name for drafter in built.drafters)
    for drafter in built.drafters:
        if isinstance(drafter, ModelDrafter):
            draft = drafter.runner.info
            short = f", up to its own context of {draft.context} tokens" if draft.context < info.context else ""
            yield "draft", f"{draft.name}, {drafter.description}{short}"
    yield "threads", str(built.threads)
    resident = resident_bytes()
    if resident is not None:
        yield "memory", f"{resident / 1e9:.2f} GB resident"
    one, four = (built.costs.verify_seconds(1, tokens) for tokens in (1, 4))
    yield "costs", f"a pass of 1 token takes {one * 1e3:.3g} ms, one of 4 tokens {four * 1e3:.3g} ms"
    others = [name for name in engine.policies if name != engine.default_policy]
    yield "policy", f"{engine.default_policy} (also served: {', '.join(others)})"
    yield "ready", f"in {status.seconds:.0f} s"


def _first_request(url: str, service: Generation, *, keyed: bool) -> str:
    """A command that asks this server something."""
    text = "Tell me a story about a small fox."
    body: dict[str, Any] = {"model": service.names.names[0]}
    if service.prompts.template.source is None:
        path, body = "completions", {**body, "prompt": text, "max_tokens": 64}
    else:
        path, body = "chat/completions", {**body, "messages": [{"role": "user", "content": text}]}
    key = " -H 'Authorization: Bearer KEY'" if keyed else ""
    return f"  curl {url}/v1/{path} -H 'Content-Type: application/json'{key} \\\n    -d '{json.dumps(body)}'"


def _ends(built: Built) -> str:
    """The tokens that end a text, with their ids."""
    ids = built.target.info.eos_token_ids
    named = [f"{built.tokenizer.convert_ids_to_tokens(token)} ({token})" for token in ids]
    return ", ".join(named) or "none: answers end at max_tokens or with the context"


def _template(prompts: Prompts) -> str:
    """How conversations are written."""
    traits = prompts.template.traits
    if prompts.template.source is None:
        return "none: /v1/completions only"
    systems = "" if traits.system else "; system text goes before the user's"
    parts = "; content as parts" if traits.parts else ""
    turns = "" if traits.earlier_turns else "; only the latest messages"
    form = "tools described in the prompt" if prompts.tool_form.in_words else "tools in the template's own form"
    return f"{form}{systems}{parts}{turns}"
