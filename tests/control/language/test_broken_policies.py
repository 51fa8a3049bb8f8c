"""A hundred ways to write a policy file wrongly: each is refused at its place, with a word on what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.control.language.build import load_policy_spec, parse_policy_spec
from adaptspec.control.tasks import Labels
from adaptspec.errors import PolicyError

HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\n"
STATIC = "choose: {algorithm: static, depth: 3}"
GOODPUT = "choose: {algorithm: goodput}"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)
)

# The text, where the first problem stands, and what is said of it.
FILES = [
    ("", "1:1", "the file is empty"),
    ("\n\n# nothing but a comment\n", "1:1", "the file is empty"),
    ("---\n", "2:1", "a policy is a mapping"),
    ("just text", "1:1", "a policy is a mapping"),
    ("- a\n- list\n", "1:1", "a policy is a mapping"),
    ("42", "1:1", "a policy is a mapping"),
    ("kind: SpeculationPolicy", "1:1", "'apiVersion' is missing"),
    ("a: [1, 2", "1:9", "not YAML"),
    ("a: {b: 1", "1:9", "not YAML"),
    ("a: 'open", "1:9", "not YAML"),
    ('a: "open\n', "2:1", "not YAML"),
    ('a: "\\q"', "1:6", "not YAML"),
    ('a: "\\UFFFFFFFF"', "1:7", "no such character"),
    ('a: "\\ud800"', "1:4", "cannot be read"),
    ("a: b: c", "1:5", "not YAML"),
    ("a:\n\t- tab", "2:1", "not YAML"),
    ("a: 1\n b: 2", "2:3", "not YAML"),
    ("a: @b", "1:4", "not YAML"),
    ("a: `b`", "1:4", "not YAML"),
    ("%YAML 9.9\n---\na: 1", "1:1", "not YAML"),
    ("a: 1\n---\nb: 2", "2:1", "not YAML"),
    ("a: \x00", "1:4", "U+0000"),
    ("a: 1\nb: \x1b[31m", "2:4", "U+001B"),
    ("a: 1\na: 2", "2:1", "stands here twice"),
    ("a: {b: 1, b: 1}", "1:11", "stands here twice"),
    ("a: *nowhere", "1:4", "undefined alias"),
    ("a: &x [*x]", "1:1", "too many or too deeply"),
    ("a: &x {b: *x}", "1:1", "too many or too deeply"),
    (BOMB, "4:1", "too many or too deeply"),
    ("[" * 40 + "]" * 40, "1:25", "too many or too deeply"),
    ("[" * 60_000, "1:25", "too many or too deeply"),
    ("{a: " * 40, "1:94", "too many or too deeply"),
    ("- " * 40, "1:49", "too many or too deeply"),
    ("[" + "x," * 20_000 + "]", "1:20000", "too many or too deeply"),
    ("a: " + "x" * 70_000, "1:1", "larger than 64 KiB"),
    ("# " * 40_000, "1:1", "larger than 64 KiB"),
    ("a: !!python/object/apply:os.system [ls]", "1:4", "'python/object/apply:os.system' is not allowed"),
    ("a: !!python/name:os.system ''", "1:4", "'python/name:os.system' is not allowed"),
    ("a: !!python/tuple [1]", "1:4", "'python/tuple' is not allowed"),
    ("a: !custom x", "1:4", "'!custom' is not allowed"),
    ("a: !!set {b}", "1:4", "'set' is not allowed"),
    ("a: !!omap [b: 1]", "1:4", "'omap' is not allowed"),
    ("a: !!binary aGk=", "1:4", "'binary' is not allowed"),
    ("a: 2026-11-21", "1:4", "'timestamp' is not allowed"),
    ("a: &b {c: 1}\nd:\n  <<: *b", "3:3", "'merge' is not allowed"),
    ("a: !!int ''", "1:4", "'' cannot be read"),
    ("a: !!float x", "1:4", "'x' cannot be read"),
    ("a: !!bool maybe", "1:4", "'maybe' cannot be read"),
    ("a: 0b_", "1:4", "'0b_' is no number in YAML 1.2; write it another way"),
    ("a: " + "9" * 5000, "1:4", "cannot be read"),
    ("a: 1" + ":0" * 400 + ".5", "1:4", "is no number in YAML 1.2; write it another way"),
    ("? [1, 2]\n: x", "1:3", "is not allowed here"),
    ("? {a: 1}\n: x", "1:3", "is not allowed here"),
    ("null: x", "1:1", "the key None must be a word"),
    ("1.5: x", "1:1", "the key 1.5 must be a word"),
    ("true: x", "1:1", "the key True must be a word"),
    (HEAD.replace("v1", "v9") + "spec: {choose: {algorithm: goodput}}", "1:13", "'adaptspec.dev/v9' is not supported"),
    (HEAD.replace("apiVersion: adaptspec.dev/", "apiVersion: ") + f"spec: {{{GOODPUT}}}", "1:13", "is not supported"),
    (HEAD.replace("apiVersion", "apiversion") + f"spec: {{{GOODPUT}}}", "1:1", "did you mean 'apiVersion'?"),
    (HEAD.replace("SpeculationPolicy", "Policy") + f"spec: {{{GOODPUT}}}", "2:7", "'Policy' is not supported"),
    (HEAD.replace("mine", "My Policy") + f"spec: {{{GOODPUT}}}", "3:18", "metadata.name: string should match"),
    (HEAD.replace("mine", "a" * 64) + f"spec: {{{GOODPUT}}}", "3:18", "metadata.name: string should match"),
    (HEAD.replace("mine", "7") + f"spec: {{{GOODPUT}}}", "3:18", "should be a valid string, not 7"),
    (HEAD.replace("{name: mine}", "mine") + f"spec: {{{GOODPUT}}}", "3:11", "a mapping is needed here with name"),
    (HEAD.replace("name", "nam") + f"spec: {{{GOODPUT}}}", "3:11", "'name' is missing"),
    (HEAD, "1:1", "'spec' is missing"),
    (HEAD + f"sepc: {{{GOODPUT}}}", "1:1", "sepc: unknown key (did you mean 'spec'?)"),
]

# The last line of a policy whose head is right, the column of the first problem, and what is said of it.
BODIES = [
    ("spec: [1]", 7, "a mapping is needed here with choose"),
    ("spec: null", 7, "a mapping is needed here"),
    ("spec: {}", 7, "spec: 'choose' is missing"),
    ("spec: {choose: godput}", 16, "spec.choose: there is no algorithm 'godput' (did you mean 'goodput'?)"),
    ("spec: {choose: static}", 16, "spec.choose: 'depth' is missing"),
    ("spec: {choose: 3}", 16, "spec.choose: a mapping is needed here"),
    ("spec: {choose: {}}", 16, "spec.choose: 'algorithm' is missing"),
    ("spec: {choose: {algorithm: godput}}", 28, "no algorithm 'godput' (did you mean 'goodput'?)"),
    ("spec: {choose: {algorithm: 3}}", 28, "there is no algorithm"),
    ("spec: {choose: {algorithm: [static]}}", 28, "there is no algorithm"),
    ("spec: {choose: {depth: 3}}", 16, "spec.choose: 'algorithm' is missing"),
    ("spec: {choose: {algorithm: static}}", 16, "spec.choose: 'depth' is missing"),
    ("spec: {choose: {algorithm: static, deptth: 3}}", 16, "spec.choose: 'depth' is missing"),
    (
        "spec: {choose: {algorithm: static, depth: 3, dept: 3}}",
        46,
        "spec.choose.dept: unknown key (did you mean 'depth'?)",
    ),
    ("spec: {choose: {algorithm: static, depth: three}}", 43, "should be a valid integer, not 'three'"),
    ("spec: {choose: {algorithm: static, depth: '3'}}", 43, "should be a valid integer, not '3'"),
    ("spec: {choose: {algorithm: static, depth: 3.0}}", 43, "should be a valid integer, not 3.0"),
    ("spec: {choose: {algorithm: static, depth: true}}", 43, "should be a valid integer, not True"),
    ("spec: {choose: {algorithm: static, depth: null}}", 43, "should be a valid integer, not None"),
    ("spec: {choose: {algorithm: static, depth: -1}}", 43, "greater than or equal to 0, not -1"),
    ("spec: {choose: {algorithm: static, depth: 65}}", 43, "less than or equal to 64, not 65"),
    ("spec: {choose: {algorithm: static, depth: .inf}}", 43, "should be a valid integer"),
    (f"spec: {{{STATIC}, stp: {{rule: none}}}}", 47, "spec.stp: unknown key (did you mean 'stop'?)"),
    (f"spec: {{{STATIC}, 7: x}}", 47, "spec.7: unknown key"),
    (f"spec: {{{STATIC}, tiers: [0, 1]}}", 7, "'static' has depths of its own"),
    (f"spec: {{{STATIC}, max-depth: 3}}", 7, "'static' has depths of its own"),
    (f"spec: {{{GOODPUT}, tiers: [3, 1]}}", 45, "tiers must ascend"),
    (f"spec: {{{GOODPUT}, tiers: [1, 1]}}", 45, "tiers must ascend"),
    (f"spec: {{{GOODPUT}, tiers: []}}", 45, "at least 1 item"),
    (f"spec: {{{GOODPUT}, tiers: [0, 99]}}", 49, "spec.tiers.1: input should be less than or equal to 64"),
    (f"spec: {{{GOODPUT}, tiers: 3}}", 45, "should be a valid list, not 3"),
    (f"spec: {{{GOODPUT}, tiers: [0, 1], max-depth: 3}}", 7, "either tiers or max-depth"),
    (f"spec: {{{GOODPUT}, max_depth: 3}}", 38, "(did you mean 'max-depth'?)"),
    ("spec: {choose: {algorithm: goodput, prior: {acceptance: 1.5}}}", 57, "less than 1, not 1.5"),
    ("spec: {choose: {algorithm: goodput, prior: {weight: .nan}}}", 53, "should be a finite number, not nan"),
    ("spec: {choose: {algorithm: goodput, discount: 0.1}}", 47, "greater than 0.5, not 0.1"),
    ("spec: {choose: {algorithm: goodput, optimism: high}}", 47, "should be a valid number, not 'high'"),
    (f"spec: {{{GOODPUT}, drafters: [eagle]}}", 49, "spec.drafters.0: 'eagle' is not supported"),
    (f"spec: {{{GOODPUT}, drafters: []}}", 48, "at least 1 item"),
    (f"spec: {{{GOODPUT}, drafters: ngram}}", 48, "should be a valid list, not 'ngram'"),
    (f"spec: {{{GOODPUT}, drafters: [draft_model]}}", 49, "(did you mean 'draft-model'?)"),
    (f"spec: {{{STATIC}, stop: {{rule: confidence}}}}", 53, "spec.stop: 'threshold' is missing"),
    (f"spec: {{{STATIC}, stop: {{rule: confidence, threshold: 2}}}}", 83, "less than or equal to 1, not 2"),
    (f"spec: {{{STATIC}, stop: {{rule: confidance, threshold: 0.2}}}}", 60, "(did you mean 'confidence'?)"),
    (f"spec: {{{STATIC}, stop: {{rule: none, threshold: 0.2}}}}", 66, "spec.stop.threshold: unknown key"),
    (f"spec: {{{STATIC}, stop: non}}", 53, "there is no rule 'non' (did you mean 'none'?)"),
    (f"spec: {{{STATIC}, stop: confidence}}", 53, "spec.stop: 'threshold' is missing"),
    (f"spec: {{{STATIC}, stop: false}}", 53, "a mapping is needed here"),
    (f"spec: {{{GOODPUT}, verification: typical}}", 52, "lossy: true"),
    (f"spec: {{{GOODPUT}, rollout: canary}}", 47, "spec.rollout: 'percent' is missing"),
    (f"spec: {{{GOODPUT}, verification: {{method: couple}}}}", 61, "(did you mean 'coupled'?)"),
    (f"spec: {{{GOODPUT}, verification: {{method: typical}}}}", 52, "lossy: true"),
    (f"spec: {{{GOODPUT}, verification: {{method: typical, lossy: maybe}}}}", 52, "lossy: true"),
    (f"spec: {{{GOODPUT}, guard: {{never-slower: {{margin: 1.5}}}}}}", 69, "less than 1, not 1.5"),
    (f"spec: {{{GOODPUT}, guard: {{never-slower: yes}}}}", 60, "a mapping is needed here with margin"),
    (f"spec: {{{GOODPUT}, guard: {{probe: false}}}}", 53, "a mapping is needed here with after-tokens"),
    (f"spec: {{{GOODPUT}, guard: {{dwell_rounds: 8}}}}", 46, "(did you mean 'dwell-rounds'?)"),
    (f"spec: {{{GOODPUT}, guard: {{dwell-rounds: 1e9}}}}", 60, "should be a valid integer, not 1000000000.0"),
    (f"spec: {{{GOODPUT}, guard: {{probe: {{backoff: 0.5}}}}}}", 63, "greater than or equal to 1"),
    (f"spec: {{{GOODPUT}, guard: {{probe: {{after-tokens: 0}}}}}}", 68, "greater than or equal to 1"),
    (f"spec: {{{GOODPUT}, guard: {{disable-below-acceptance: 50%}}}}", 72, "should be a valid number, not '50%'"),
    (f"spec: {{{GOODPUT}, guard: {{max-batch-size: 0}}}}", 62, "greater than or equal to 1, not 0"),
    (f"spec: {{{GOODPUT}, guard: {{min-free-memory: 2}}}}", 63, "less than or equal to 1, not 2"),
    (f"spec: {{{GOODPUT}, guard: {{depth-by-batch-size: [[2, 4, 1]]}}}}", 67, "must start at batch size 1"),
    (f"spec: {{{GOODPUT}, guard: {{depth-by-batch-size: [[1, 4]]}}}}", 67, "[1, 4] is no [first batch size"),
    (f"spec: {{{GOODPUT}, tasks: {{cod: {{off: true}}}}}}", 46, "did you mean 'code'? A task of your own"),
    (f"spec: {{{GOODPUT}, tasks: {{code: {{of: true}}}}}}", 53, "(did you mean 'off'?)"),
    (f"spec: {{{GOODPUT}, tasks: {{code: {{off: 1}}}}}}", 58, "should be a valid boolean, not 1"),
    (f"spec: {{{GOODPUT}, tasks: {{code: {{max-depth: deep}}}}}}", 64, "should be a valid integer, not 'deep'"),
    (f"spec: {{{GOODPUT}, tasks: {{3: {{}}}}}}", 46, "should be a valid string, not 3"),
    (f"spec: {{{GOODPUT}, tasks: [code]}}", 45, "spec.tasks: a mapping is needed here"),
    ("spec: {choose: {algorithm: batch-table, schedule: [[2, 4, 1]]}}", 51, "must start at batch size 1"),
    ("spec: {choose: {algorithm: batch-table, schedule: [[1, 4, 1], [3, 8, 0]]}}", 51, "[3, 8, 0] overlaps"),
    (
        "spec: {choose: {algorithm: batch-table, schedule: [[1, 4, 1.5]]}}",
        59,
        "spec.choose.schedule.0.2: input should be",
    ),
    ("spec: {choose: {algorithm: batch-table, schedule: [[4, 1, 1]]}}", 51, "is no [first batch size"),
    ("spec: {choose: {algorithm: batch-table}}", 16, "'schedule' is missing"),
    ("spec: {choose: {algorithm: ema-tiers, ladders: {8: {tiers: [1]}}}}", 48, "must be for batch size 1"),
    (
        "spec: {choose: {algorithm: ema-tiers, ladders: {one: {tiers: [1]}}}}",
        49,
        "should be a valid integer, not 'one'",
    ),
    ("spec: {choose: {algorithm: ema-tiers, ladders: {1: {tiers: []}}}}", 60, "at least 1 item"),
    (
        "spec: {choose: {algorithm: ema-tiers, ladders: {1: {tier: [1]}}}}",
        52,
        "spec.choose.ladders.1: 'tiers' is missing",
    ),
    ("spec: {choose: {algorithm: ema-tiers, alpha: 0}}", 46, "greater than 0, not 0"),
    (f"spec: {{{STATIC}, rollout: {{mode: sometimes}}}}", 63, "spec.rollout.mode"),
]
CASES = [*FILES, *((HEAD + body, f"4:{column}", said) for body, column, said in BODIES)]


def test_there_are_a_hundred_of_them() -> None:
    """Each a text of its own, or the table would say more than it holds."""
    assert len({text for text, _, _ in CASES}) == len(CASES) >= 100


@pytest.mark.parametrize(("text", "place", "said"), CASES, ids=[str(i) for i in range(len(CASES))])
def test_broken_policies_are_located(text: str, place: str, said: str) -> None:
    """The first line of the error leads an editor to the fault. Bombs must be refused before they go off."""
    with pytest.raises(PolicyError) as caught:
        parse_policy_spec(text, "p", Labels())
    first, *others = str(caught.value).splitlines()
    assert first.startswith(f"p:{place}: ")
    assert said in str(caught.value)
    assert len(others) <= 10
    assert all(line.startswith(("p:", "... and")) for line in others)


@pytest.mark.parametrize(
    ("raw", "place", "said"),
    [
        (b"\xff\xfe\x00", "1:1", "not UTF-8"),
        (b"a: 1\nb: \xe9t\xe9", "2:4", "not UTF-8"),
        (bytes(range(256)) * 40, "2:118", "not UTF-8"),
        (b"\x7fELF" + bytes(1000), "1:1", "U+007F"),
        (b"a" * (10 << 20), "1:1", "larger than 64 KiB"),
        (HEAD.encode("utf-16"), "1:1", "not UTF-8"),
    ],
    ids=["byte order mark", "latin-1", "binary", "program", "10 MB", "utf-16"],
)
def test_broken_files_are_located(tmp_path: Path, raw: bytes, place: str, said: str) -> None:
    """What is no text at all is refused as kindly."""
    path = tmp_path / "p.yaml"
    path.write_bytes(raw)
    with pytest.raises(PolicyError) as caught:
        load_policy_spec(path)
    assert str(caught.value).startswith(f"{path}:{place}: ")
    assert said in str(caught.value)


def test_every_problem_is_told_in_the_order_of_the_file() -> None:
    """One look, one edit: not one error per attempt."""
    text = HEAD + "spec:\n  guard: {dwell: 1}\n  choose: {algorithm: goodput, discount: 7}\n  tears: 1\n"
    with pytest.raises(PolicyError) as caught:
        parse_policy_spec(text, "p")
    assert [line.split(" ")[0] for line in str(caught.value).splitlines()] == ["p:5:11:", "p:6:42:", "p:7:3:"]


def test_no_more_than_ten_are_told() -> None:
    """A file of another kind would fill the screen."""
    with pytest.raises(PolicyError) as caught:
        parse_policy_spec("".join(f"key{i}: 1\n" for i in range(40)), "p")
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "... and 34 more"


def test_messages_hold_no_control_characters_and_no_endless_words() -> None:
    """They go to terminals, logs and HTTP answers."""
    for text in ('"a\\e[31m\\nb": 1', f"{'k' * 9000}: 1", HEAD + f"spec: {{choose: {{algorithm: {'x' * 9000}}}}}"):
        with pytest.raises(PolicyError) as caught:
            parse_policy_spec(text, "p")
        assert all(line.isprintable() and len(line) < 2100 for line in str(caught.value).splitlines())
