"""`adaptspec host ...`: policies inside other engines."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adaptspec.commands.arguments import add_policies, add_policy, positive

if TYPE_CHECKING:
    from adaptspec.control.host import Host


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec host`."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_vllm(actions.add_parser("vllm", help="the command that starts vLLM with a policy"))
    _add_check(actions.add_parser("check", help="what of a policy holds inside vLLM or SGLang; 1 where it cannot run"))


def _add_vllm(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the command that starts vLLM with a policy: with our scheduler, drafts as deep as the policy goes, and "
        "CUDA graphs for all of its depths. Install adaptspec where vLLM is. Flags of vLLM's own come last, after --."
    )
    add = parser.add_argument
    add_policies(parser)
    add("--model", required=True, help="directory or hub id of the target")
    add("--draft", help="directory or hub id of the draft, where the method has one")
    add("--method", default="draft_model", help="vLLM's name of how it drafts (default: %(default)s)")
    add("--max-num-seqs", type=positive, default=256, metavar="N", help="requests at once (default: %(default)s)")
    add("--journal", type=Path, metavar="FILE", help="write what is decided, round by round, to this file")
    add("--state-dir", type=Path, metavar="DIR", help="keep what is learned here; engines may share it")
    add("--metrics-port", type=int, metavar="PORT", help="serve Prometheus metrics of the policy here")
    add("--otlp-endpoint", metavar="URL", help="send traces to this collector (OTEL_* variables work, too)")
    add("--trace-level", choices=["off", "request", "phase", "round"], help="how much a trace says (default: phase)")
    add(
        "--skip-draft",
        action="store_true",
        help="do not run the draft at all where a policy is off for long; vLLM runs it at depth 0 as well",
    )
    add("--exec", action="store_true", help="become that command, in place of printing it")
    add("more", nargs="*", metavar="-- FLAGS", help="flags of vLLM's own")
    parser.set_defaults(run=_vllm)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say what of a policy is left out inside another engine, a line each with line and column. "
        "The exit status is 1 where it is refused: its text would be another one, or nothing would be left to draft."
    )
    add_policy(parser, "policy")
    parser.add_argument("--for", dest="host", choices=["vllm", "sglang"], required=True, help="the engine")
    parser.add_argument("--method", help="what it drafts with, as it calls that itself (default: a draft model)")
    parser.add_argument(
        "--depth", type=int, metavar="N", help="tokens of a draft at most, as it is started (default: as the policy)"
    )
    parser.set_defaults(run=_check)


def _vllm(arguments: argparse.Namespace) -> int:
    from adaptspec.hosts.settings import PilotSettings
    from adaptspec.hosts.vllm.serve_line import serve_line

    traces = {"endpoint": arguments.otlp_endpoint, "level": arguments.trace_level}
    given = {
        "policy": arguments.policy or None,
        "journal": arguments.journal and arguments.journal.absolute(),
        "state_dir": arguments.state_dir and arguments.state_dir.absolute(),
        "metrics_port": arguments.metrics_port,
        "skip_draft": arguments.skip_draft,
        "traces": {name: value for name, value in traces.items() if value is not None} or None,
    }
    settings = PilotSettings.of({name: value for name, value in given.items() if value is not None})
    words, notes = serve_line(
        arguments.model,
        arguments.draft,
        settings,
        method=arguments.method,
        max_num_seqs=arguments.max_num_seqs,
        more=arguments.more,
    )
    for note in notes:
        sys.stderr.write(f"{note}\n")
    if arguments.exec:
        os.execv(sys.executable, [sys.executable, *words[1:]])  # the one that has vLLM: adaptspec is installed there
    print(shlex.join(words))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from adaptspec.control.host import narrow
    from adaptspec.control.language.library import find_policy
    from adaptspec.control.language.loader import load_policy_spec
    from adaptspec.errors import ConfigError
    from adaptspec.hosts.vllm.contract import check_method

    spec = load_policy_spec(find_policy(arguments.policy))
    host = _host(arguments)
    try:
        if arguments.host == "vllm" and arguments.method is not None:
            check_method(arguments.method)
        _, notes = narrow(spec, host)
    except ConfigError as error:
        print(error)
        return 1
    for note in notes:
        print(note)
    if not notes:
        sys.stderr.write(f"all of {spec.name} holds inside {host.name}\n")
    return 0


def _host(arguments: argparse.Namespace) -> Host:
    from adaptspec.control.host import SGLANG, VLLM, drafters_of

    host = {"vllm": VLLM, "sglang": SGLANG}[arguments.host]
    if arguments.method is not None:
        host = replace(host, drafters=drafters_of(arguments.method))
    return host if arguments.depth is None else replace(host, deepest=arguments.depth)
