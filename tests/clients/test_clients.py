"""Programs that people point at OpenAI's API, pointed at a real server: what they read is what the server says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import openai
import pytest

from adaptspec.config import model_path
from adaptspec.models.runner import Packed
from adaptspec.models.tokenization import load_tokenizer
from tests.clients.conftest import PROGRAMS, environment, node_project, run
from tests.e2e.conftest import Server
from tests.fakes import array
from tests.models.packing import load_runner

pytestmark = pytest.mark.clients

CONSTRAINTS = Path(__file__).parents[2] / ".ci" / "constraints.txt"
STORY: Any = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture(scope="module")
def story(server: Server) -> str:
    """24 tokens of plain greedy decoding: what every client must read."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused") as client:
        answer = client.chat.completions.create(
            model="bundled",
            messages=STORY,
            max_tokens=24,
            temperature=0,
            extra_body={"adaptspec": {"max_depth": 0}},
        )
    return str(answer.choices[0].message.content)


def _last_line(printed: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return read


def test_openai_for_node(server: Server, story: str) -> None:
    """Chat, streams, tools, schemas and responses, by the helpers of the package from npm."""
    node, project = node_project("openai@7")
    program = shutil.copy(PROGRAMS / "openai_client.mjs", project)
    read = _last_line(run(node, program, ADAPTSPEC_URL=f"{server.url}/v1"))
    assert read["whole"] == read["streamed"] == read["response"] == read["final"] == story
    assert read["usage"] == read["streamedUsage"]
    assert read["call"]["name"] == "see"
    assert read["call"]["arguments"]["kind"] in ("fox", "fog")
    assert read["shaped"]["kind"] in ("fox", "fog")
    assert read["refused"] == {"status": 400, "param": "n"}


def test_litellm(server: Server, story: str) -> None:
    """Completion, stream, tools, log-probabilities."""
    python = environment("litellm", "litellm", "mcp") / "python"  # it imports mcp for tools, and does not ask for it
    program, local = PROGRAMS / "litellm_client.py", {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    read = _last_line(run(python, program, ADAPTSPEC_URL=f"{server.url}/v1", **local))
    assert read["whole"] == read["streamed"] == story
    assert read["logprobs"] == read["usage"] == 24
    assert read["call"]["kind"] in ("fox", "fog")
    assert read["text"]


def test_langchain(server: Server, story: str) -> None:
    """Invoke, stream, batch, tools, structured output."""
    python = environment("langchain", "langchain-openai") / "python"
    read = _last_line(run(python, PROGRAMS / "langchain_client.py", ADAPTSPEC_URL=f"{server.url}/v1"))
    assert read["whole"] == read["streamed"] == read["batch"][0] == story
    assert read["calls"] == ["look_up"]
    assert read["place"].keys() in ({"town", "people"}, {"error"})
    assert read["place"].get("error") in (None, "LengthFinishReasonError")
    assert read["text"]


def test_lm_eval(server: Server, tmp_path: Path) -> None:
    """Multiple choice by log-likelihoods of echoed token ids, and writing until a stop: the target's own numbers."""
    python, target = environment("lm-eval", "lm-eval[api]", "transformers") / "python", model_path("bundled", "target")
    tasks = shutil.copytree(PROGRAMS / "lm_eval_task", tmp_path / "tasks")
    for task in tasks.glob("*.yaml"):
        task.write_text(task.read_text().replace("TINY_JSONL", str(tasks / "tiny.jsonl")))
    settings = f"model=bundled,base_url={server.url}/v1/completions,tokenizer_backend=huggingface,tokenizer={target}"
    run(
        *(python, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", settings),
        *("--tasks", "tiny_choice,tiny_writing", "--include_path", tasks),
        *("--output_path", tmp_path / "out", "--log_samples"),
        timeout=300,
        HF_DATASETS_CACHE=str(tmp_path / "cache"),
        HF_HUB_OFFLINE="1",
        OPENAI_API_KEY="unused",
    )
    told = _samples(tmp_path, "tiny_choice")
    assert len(told) == 4
    for sample in told:
        document = sample["doc"]
        for choice, (response,) in zip(document["choices"], sample["resps"], strict=True):
            value, greedy = _likelihood(document["question"], choice)
            assert float(response[0]) == pytest.approx(value, abs=1e-3)
            assert (str(response[1]) == "True") is greedy
    assert all(sample["resps"][0][0] for sample in _samples(tmp_path, "tiny_writing"))


def _samples(folder: Path, task: str) -> list[dict[str, Any]]:
    (file,) = (folder / "out").rglob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def _likelihood(question: str, choice: str) -> tuple[float, bool]:
    """The target's own, one pass over both: log-likelihood of `choice`, and whether greedy decoding would write it."""
    place = model_path("bundled", "target")
    tokenizer, runner = load_tokenizer(place), load_runner(place, device="cpu", max_rows=1)
    before = tokenizer.encode(question, add_special_tokens=False)
    tokens = tokenizer.encode(question + choice, add_special_tokens=False)
    count = len(tokens)
    assert runner.reserve(0, count)
    logits = runner.forward(Packed(array(0), array(count), array(*tokens), array(count))).logits.log_softmax(1)
    own = range(len(before), count)
    return sum(float(logits[i - 1, tokens[i]]) for i in own), all(int(logits[i - 1].argmax()) == tokens[i] for i in own)


def test_ai_sdk(server: Server, story: str) -> None:
    """Vercel's: texts, streams, objects by schema, and a tool whose result goes back to the model."""
    node, project = node_project("ai@7", "@ai-sdk/openai-compatible@3", "zod@4")
    program = shutil.copy(PROGRAMS / "ai_sdk_client.mjs", project)
    read = _last_line(run(node, program, ADAPTSPEC_URL=f"{server.url}/v1"))
    assert read["whole"] == read["streamed"] == story
    assert (read["usage"], read["streamedUsage"], read["reason"]) == (24, 24, "length")
    assert read["warnings"] == []
    assert {read[name]["kind"] for name in ("shaped", "grown", "output")} <= {"fox", "fog"}
    assert read["seen"][0] in ("fox", "fog")
    assert read["steps"] == 2


def test_guidellm(server: Server, tmp_path: Path) -> None:
    """A load generator's whole run: every request of it succeeds."""
    torch = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))  # not CUDA's
    program, out = environment("guidellm", "guidellm==0.8.1", torch) / "guidellm", tmp_path / "report.json"
    run(
        *(program, "run", "--disable-console", "--output", f"kind=json,path={out}"),
        *("--backend", f"kind=openai_http,target={server.url},model=bundled"),
        *("--tokenizer", f"kind=hf_auto,model={model_path('bundled', 'target')}"),
        *("--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=8"),
        *("--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=16"),
        timeout=300,
        HF_HUB_OFFLINE="1",
    )
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    made = benchmark["metrics"]["request_totals"]
    assert (made["successful"], made["errored"]) == (8, 0)


def test_aiperf(server: Server, tmp_path: Path) -> None:
    """Streams under load: its table of speculative decoding is printed, from what our answers say of themselves."""
    program = environment("aiperf", "aiperf==0.13.0") / "aiperf"
    printed = run(
        *(program, "profile", "--model", "bundled", "--url", server.url, "--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", model_path("bundled", "target"), "--synthetic-input-tokens-mean", "16"),
        *("--output-tokens-mean", "24", "--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"),
        *("--request-count", "8", "--concurrency", "2", "--random-seed", "1", "--ui", "none"),
        *("--output-artifact-dir", tmp_path),
        timeout=300,
        COLUMNS="200",
    )
    assert "LLM Metrics: Spec Decode" in printed
    assert "Acceptance Length" in printed
    assert "no prompt-cache read tokens were seen" not in printed
    told = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert told["request_count"]["avg"] == 8
    assert told["error_summary"] == []
    steps, accepted = told["spec_decode_steps"]["sum"], told["spec_decode_accepted_draft_tokens"]["sum"]
    # Of each answer's 24 tokens, the first comes from reading the prompt, and every later round adds one of its own.
    assert 0 < steps <= told["spec_decode_steps"]["count"] * 23
    assert 0 < accepted <= told["spec_decode_draft_tokens"]["sum"]
    metrics = json.loads((tmp_path / "server_metrics_export.json").read_text())["metrics"]
    assert "adaptspec_generation_tokens" in metrics, "it reads /metrics beside"
