"""Prometheus metrics: sums over rounds, requests that ended, and what other parts count, in a registry of their own.

No label comes from a client, and series exist at 0 before the first event. Several engines can live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from adaptspec.control.cost_model import CostModel
from adaptspec.decision import Reason
from adaptspec.results import Completion, FinishReason
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.events import EventBatch
from adaptspec.telemetry.guard_events import GuardEvents
from adaptspec.telemetry.metric_families import DEPTH_LABELS, Collected, counter, gauge, load_families, position_samples
from adaptspec.telemetry.speedup import Estimate, speedup
from adaptspec.telemetry.stream import EventStream
from adaptspec.telemetry.sums import RoundSums
from adaptspec.telemetry.vllm_names import VllmNames

if TYPE_CHECKING:  # inside another engine, ours is not imported
    from adaptspec.engine.async_engine import EngineStats

_SPEC = "adaptspec_spec_decode"
# Long prompts on slow machines take minutes to be read.
_FIRST_TOKEN = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# Small models take tenths of a millisecond, large models on CPUs 0.1 to 0.5 s.
_PER_TOKEN = (
    *(1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 7e-4, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.007),
    *(0.01, 0.015, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 1.0),
)
_WHOLE = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)
_KINDS = ("plain", "drafting", "prompt")


class Metrics:
    """A `Sink` whose counters can be scraped; a scrape has everything up to now.

    Rounds are of one `kind`: `prompt` where a prompt was read as well, else `drafting` or `plain`. Only the last two
    are compared with predictions, since a prompt's time is not that of speculation.
    """

    def __init__(
        self,
        stream: EventStream | None = None,
        *,
        model_name: str = "",
        vllm_names: bool = True,
    ) -> None:
        """`stream` is flushed before a scrape; None: only HTTP answers are counted.

        `vllm_names`: also serve what dashboards, autoscalers and load tools read of vLLM, with `model_name` as label.
        """
        self._stream = stream or EventStream()
        self._sums = RoundSums()
        self._guard = GuardEvents()
        self._seconds = dict.fromkeys(_KINDS, 0.0)
        self._predicted = dict.fromkeys(_KINDS[:2], 0.0)
        self._predicted_plain = dict.fromkeys(_KINDS[:2], 0.0)
        self.registry = CollectorRegistry()
        self._vllm = VllmNames(self.registry, model_name) if vllm_names else None
        self.watch(self._families)
        count, time = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self._responses = count("adaptspec_http_responses", "HTTP answers, by route and status", ("route", "status"))
        self._warnings = count(
            "adaptspec_request_warnings", "Fields of requests that had no effect, by kind", ("kind",)
        )
        self._requests = count("adaptspec_requests", "Requests that ended, by finish reason", ("finish_reason",))
        for reason in FinishReason:
            self._requests.labels(reason.value)  # rates see the first one only if the series was at 0 before
        self._prompt = count("adaptspec_prompt_tokens", "Prompt tokens of requests that ended")
        self._generated = count("adaptspec_generation_tokens", "Output tokens of requests that ended")
        # A canary is judged by tokens after the first over the seconds they took, next to those of the default.
        self._lossy, self._by_policy, self._decoded, self._decoding = (
            count(f"adaptspec_{name}", f"{help_text}, by policy", ("policy",))
            for name, help_text in (
                ("lossy_requests", "Requests that ended under a lossy verification method"),
                ("policy_requests", "Requests that ended"),
                ("policy_decode_tokens", "Output tokens after the first of each request"),
                ("policy_decode_seconds", "Seconds from the first token to the end of each request"),
            )
        )
        self._first_token, self._per_token, self._whole = (
            time(f"adaptspec_{name}_seconds", help_text, buckets=bounds)
            for name, help_text, bounds in (
                ("time_to_first_token", "From arrival to the first token", _FIRST_TOKEN),
                ("inter_token", "Mean time between two output tokens, one value per request", _PER_TOKEN),
                ("request", "From arrival to the end of a request", _WHOLE),
            )
        )

    def watch_count(self, name: str, help_text: str, count: Callable[[], int]) -> None:
        """Also serve a counter that another part keeps."""
        self.watch(lambda: [CounterMetricFamily(name, help_text, count())])

    def watch_load(self, load: Callable[[], EngineStats]) -> None:
        """Also serve running and waiting requests and the use of caches."""
        self.watch(lambda: load_families(load()))
        names = self._vllm
        if names is not None:
            self.watch(lambda: names.load(load()))

    def watch(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Also serve families that are asked for at every scrape, on the scraping thread."""
        self.registry.register(Collected(families))

    def handle(self, batch: EventBatch) -> None:
        if batch.rounds:
            self._sums += batch.table.total()
        for record in (one.record for one in batch.rounds):
            self._guard.add(record.reasons.tolist())
            self._add_seconds(record, batch.costs)
        for one in batch.finished:
            self._finished(one.completion)
            if self._vllm is not None:
                self._vllm.finished(one.completion)

    def close(self, timeout: float) -> None:
        pass

    def responded(self, route: str, status: int) -> None:
        """Count an HTTP answer. `route` becomes a label: it must be one of few."""
        self._responses.labels(route, str(status)).inc()

    def warned(self, kind: str, number: int) -> None:
        """Count warnings of requests. `kind` becomes a label: it must be one of few."""
        self._warnings.labels(kind).inc(number)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The exposition and its content type, in the format that an Accept header asks for."""
        self._stream.flush()
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _add_seconds(self, record: RoundRecord, costs: CostModel | None) -> None:
        rows = len(record.rows)
        if record.prefill_tokens or not rows:
            self._seconds["prompt"] += record.timing.total
            return
        kind = "drafting" if record.depths.any() else "plain"
        self._seconds[kind] += record.timing.total
        if costs is not None:
            plain = costs.plain_seconds(rows, record.work.context_tokens)
            self._predicted[kind] += costs.seconds(record.work)
            self._predicted_plain[kind] += plain * int(record.emitted.sum()) / rows

    def _finished(self, completion: Completion) -> None:
        timings, tokens, policy = completion.timings, len(completion.tokens), completion.stats.policy
        self._requests.labels(completion.finish.value).inc()
        self._prompt.inc(completion.prompt_tokens)
        self._generated.inc(tokens)
        self._by_policy.labels(policy).inc()
        if completion.stats.lossy:
            self._lossy.labels(policy).inc()
        self._whole.observe(timings.finished - timings.arrived)
        if timings.first_token is None:
            return
        self._first_token.observe(timings.first_token - timings.arrived)
        if tokens > 1:
            seconds = timings.finished - timings.first_token
            self._per_token.observe(seconds / (tokens - 1))
            self._decoded.labels(policy).inc(tokens - 1)
            self._decoding.labels(policy).inc(seconds)

    def _families(self) -> Iterator[Metric]:
        sums, guard, costs = self._sums, self._guard, self._stream.costs
        for name, help_text, count in (
            (f"{_SPEC}_drafts", "Drafts: one request in one round", sums.drafts),
            (f"{_SPEC}_draft_tokens", "Tokens drafted along the longest path of each draft", sums.drafted),
            (f"{_SPEC}_nodes", "Drafted tokens that were verified, on all branches", sums.nodes),
            (f"{_SPEC}_accepted_tokens", "Drafted tokens that were emitted", sums.accepted),
            (f"{_SPEC}_emitted_tokens", "Tokens emitted by decoding rounds", sums.emitted),
            (f"{_SPEC}_guard_switches", "Times that a guard switched speculation off", guard.switched_off),
            (f"{_SPEC}_probes", "Trials of speculation while it was off", guard.probes),
            (f"{_SPEC}_probes_won", "Trials after which it stayed on", guard.came_back),
            ("adaptspec_rounds", "Rounds", sums.rounds),
            ("adaptspec_prefill_tokens", "Prompt tokens read", sums.prefill_tokens),
            ("adaptspec_verify_tokens", "Tokens that the target model computed", sums.target_tokens),
            ("adaptspec_draft_steps", "Forward passes of draft models", sums.draft_steps),
            ("adaptspec_draft_seconds", "Seconds of drafting", sums.draft_seconds),
            ("adaptspec_verify_seconds", "Seconds of the target model", sums.verify_seconds),
            ("adaptspec_expected_accepted_tokens", "Drafted tokens expected to be emitted", sums.expected_accepted),
            (
                "adaptspec_accepted_as_expected_tokens",
                "Drafted tokens that were emitted where a number was expected",
                sums.accepted_as_expected,
            ),
        ):
            yield CounterMetricFamily(name, help_text, count)
        positions = position_samples(sums.accepted_per_position.tolist())
        help_text = "Drafted tokens accepted, by position in the draft"
        yield counter(f"{_SPEC}_accepted_tokens_per_pos", help_text, ["position"], positions)
        yield counter(f"{_SPEC}_depth", "Requests in rounds, by decided depth", ["depth"], _depths(sums))
        reasons = [(reason.label, int(sums.reasons[reason])) for reason in Reason]
        yield counter(f"{_SPEC}_decisions", "Requests in rounds, by the reason of their depth", ["reason"], reasons)
        for name, help_text, column in (
            ("drafts", "Drafts, by drafter", "drafts"),
            ("nodes", "Drafted tokens that were verified, by the drafter that proposed them", "nodes"),
            ("accepted_tokens", "Drafted tokens that were emitted, by the drafter that proposed them", "kept"),
        ):
            values = [(drafter, getattr(sums.drafter(i), column)) for i, drafter in enumerate(self._stream.drafters)]
            yield counter(f"{_SPEC}_drafter_{name}", help_text, ["drafter"], values)
        for name, help_text, seconds in (
            ("round", "Measured seconds of rounds, overhead included", self._seconds),
            ("predicted_round", "Seconds of rounds by the cost model", self._predicted),
            (
                "predicted_plain",
                "Seconds of plain decoding for the same tokens by the cost model",
                self._predicted_plain,
            ),
        ):
            yield counter(f"adaptspec_{name}_seconds", f"{help_text}, by kind of round", ["kind"], seconds.items())
        if self._vllm is not None:
            yield from self._vllm.rounds(sums)
        if costs is not None:
            yield from _estimate(speedup(costs, sums.ran, sums.plain))
            help_text = "1 while rounds contradict the cost model, which learns anew"
            yield GaugeMetricFamily("adaptspec_costs_unsure", help_text, costs.uncertain)
            help_text = "Times that rounds contradicted the cost model, which then learned anew"
            yield CounterMetricFamily("adaptspec_costs_remeasured", help_text, costs.resets)


def _depths(sums: RoundSums) -> Iterator[tuple[str, int]]:
    yield from ((str(depth), int(count)) for depth, count in enumerate(sums.depths[:DEPTH_LABELS]))
    if len(sums.depths) > DEPTH_LABELS:
        yield f"{DEPTH_LABELS}+", int(sums.depths[DEPTH_LABELS:].sum())


def _estimate(found: Estimate | None) -> Iterator[Metric]:
    """The speed-up and its bounds; without a sample while it is unknown."""
    words = "Estimated seconds of plain decoding over those of the rounds that ran, since the start"
    for suffix, more, bound in (("", "", "value"), ("_low", ": at least", "low"), ("_high", ": at most", "high")):
        samples = [] if found is None else [((), getattr(found, bound))]
        yield gauge(f"adaptspec_speedup{suffix}_ratio", words + more, [], samples)
