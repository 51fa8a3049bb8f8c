"""What commands share of the command line: names of flags and variables, removed ones, forms of output.

Imports nothing that takes time: completion in a shell builds the parser anew for every key.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from importlib import import_module

PREFIX = "ADAPTSPEC_"
_ALWAYS_WATCHED = "leave it out: a policy is always reloaded when its file changes"
_CONSTANT = "leave it out: the journal is kept in four files of 64 MiB"
# Flags that there once were, also as variables and as keys of a configuration file, and what to do instead.
REMOVED_FLAGS: Mapping[str, str] = {
    "--draft-device": "leave it out: a draft model is on the device of its target, where no step waits for a copy",
    "--markdown": "leave it out: tables are text, and `--json` prints one object for programs",
    "--csv": "use `--json`, which prints one object for programs",
    "--plot": "draw what `--json` prints with a tool of your own",
    "--exact": "leave it out: each start tests up to which pass size drafts leave the text unchanged, and reports it",
    "--journal-megabytes": _CONSTANT,
    "--journal-files": _CONSTANT,
    "--watch-policies": _ALWAYS_WATCHED,
    "--no-watch-policies": _ALWAYS_WATCHED,
    "--trace-round-share": "set OTEL_TRACES_SAMPLER=traceidratio and OTEL_TRACES_SAMPLER_ARG=P",
    "--metrics-compat": "leave it out: /metrics always has vLLM's names, too",
    "--otlp-metrics": "have the collector scrape /metrics (its prometheus receiver)",
    "--pad-stream": "leave it out, or let a proxy in front of the server pad what it sends",
    "--limit": "leave it out: limits of requests and connections are constants; --max-waiting bounds the queue",
}
_NESTED = "settings are no longer nested: write each at the top of the file, by the name of its flag"
# Keys of configuration files that no flag was called by.
REMOVED_KEYS: Mapping[str, str] = {
    "engine": f"{_NESTED} (max_rows is max_num_seqs now, context is max_model_len, eager is enforce_eager, policies "
    "is policy, chat_template_kwargs is default_chat_template_kwargs)",
    "traces": f"{_NESTED} (otlp_traces_endpoint, trace_level, trace_slow_seconds, trace_content)",
    "push": f"there is no push any more; {REMOVED_FLAGS['--otlp-metrics']}",
    "limits": f"there are no limits any more; {REMOVED_FLAGS['--limit']}",
    "compat_vllm": f"there is no compat_vllm any more; {REMOVED_FLAGS['--metrics-compat']}",
    "journal_bytes": f"there is no journal_bytes any more; {_CONSTANT}",
}


def flag_of(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def variable(flag: str) -> str:
    """The environment variable of a long flag."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def lazy(target: str) -> Callable[[argparse.Namespace], int]:
    """A command's function by `module:function`, imported when it is called."""
    module, _, name = target.partition(":")

    def run(arguments: argparse.Namespace) -> int:
        return int(getattr(import_module(module), name)(arguments))

    return run
