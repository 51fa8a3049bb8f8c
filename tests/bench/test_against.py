"""Plain decoding against another engine: equal texts, and differences where they begin."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from adaptspec.bench.against import Answer, against_report, check_against, compared, run_against
from adaptspec.bench.workloads import read_workloads
from adaptspec.config import EngineConfig
from adaptspec.engine.build import Built, build
from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ConfigError
from adaptspec.request import SamplingParams
from tests.conftest import MakeModel
from tests.e2e.conftest import start_server
from tests.models.tiny_gguf import write_gguf

TOKENS = 10
WORK = dict(list(read_workloads(None, 1).items())[:3])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def config(target_path: Path) -> EngineConfig:
    return EngineConfig(model=str(target_path), draft=None, max_num_seqs=1)


@pytest.fixture
def built(config: EngineConfig) -> Built:
    return build(config)


def test_transformers_writes_the_same(built: Built, config: EngineConfig) -> None:
    ticks: list[str] = []
    result = run_against("transformers", built, config, WORK, TOKENS, tick=ticks.append)
    assert (result["prompts"], result["unexplained"], len(ticks)) == (3, 0, 3)
    assert "3 of 3" in str(against_report(result)[-1])


@pytest.fixture
def url(make_model: MakeModel, request: pytest.FixtureRequest) -> Iterator[str]:
    """A server with a tiny model of this seed."""
    server = start_server("--model", str(make_model("llama", seed=request.param)))
    yield server.url
    assert server.terminate() == 0


@pytest.mark.whole
@pytest.mark.parametrize(("url", "same"), [(0, True), (7, False)], indirect=["url"])
def test_a_server_is_compared_by_its_texts(built: Built, config: EngineConfig, url: str, same: bool) -> None:
    """The same model writes the same; another one writes something else where our best tokens are no tie."""
    result = run_against(f"{url}/v1", built, config, WORK, TOKENS, tick=lambda _: None)
    assert (result["different"] == 0) == same
    assert (result["unexplained"] == 0) == same
    assert all(one["position"] < TOKENS for one in result["differences"])


def test_a_server_that_is_not_there_is_named(built: Built, config: EngineConfig) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9/v1/models cannot be asked"):
        run_against("http://127.0.0.1:9", built, config, WORK, TOKENS, tick=lambda _: None)


def test_a_server_of_another_api_is_named(built: Built, config: EngineConfig) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(ConfigError, match="/v1/models does not answer as OpenAI's API does"):
            run_against(f"http://127.0.0.1:{server.server_port}", built, config, WORK, TOKENS, tick=lambda _: None)
        thread.join()


@pytest.mark.parametrize("engine", ["transformers", "http://127.0.0.1:9"])
def test_a_gguf_file_is_compared_with_servers_only(make_model: MakeModel, tmp_path: Path, engine: str) -> None:
    """Refused before a model is loaded, with what to give."""
    config = EngineConfig(model=str(write_gguf(make_model("llama"), tmp_path / "tiny.gguf", "F32")))
    refused = pytest.raises(ConfigError, match="give --model DIR with safetensors, or the URL of a server")
    with refused if engine == "transformers" else nullcontext():
        check_against(engine, config)


def test_ids_and_texts_locate_the_same_difference(built: Built) -> None:
    """At the first token that differs, with the gap of our best two there; past our end there is no gap."""
    engine, ends = Engine(built.core, built.tokenizer), built.target.info.eos_token_ids
    (ours,) = engine.generate(["one two three"], SamplingParams(TOKENS, 0.0, logprobs=2, ignore_eos=True))
    other = (*ours.tokens[:4], ours.tokens[4] ^ 1, *ours.tokens[5:])
    difference = compared(ours, Answer("", other), built.tokenizer, ends)
    assert difference is not None
    best, second = ours.logprobs[4].top
    assert difference == {"position": 4, "tokens": [ours.tokens[4], other[4]], "gap": best[1] - second[1]}
    longer = compared(ours, Answer("", (*ours.tokens, 9)), built.tokenizer, ends)
    assert longer == {"position": TOKENS, "tokens": [None, 9], "gap": None}
    assert compared(ours, Answer(ours.text), built.tokenizer, ends) is None
    shorter = compared(ours, Answer(ours.text[:-1]), built.tokenizer, ends)
    assert shorter is not None
    assert shorter["position"] == TOKENS - 1
