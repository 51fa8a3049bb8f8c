"""Draft models of other tokenizers: text stays plain decoding's, acceptance is what reference loops count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.generation import candidate_generator as reference

from adaptspec.bench.teacher_forcing import Judge
from adaptspec.draft_tree import DraftTree
from adaptspec.drafting.cross_tokenizer import MIN_ALIKE, SharedTokensDrafter, TextDrafter, make
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob, Loaded, ModelDrafter
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.engine.warm_up import warm_up
from adaptspec.errors import ConfigError, PairError
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.models.tokenization import Spelling, load_tokenizer
from adaptspec.request import Request, SamplingParams
from tests.drafting.spellings import (
    ALL,
    DRAFT,
    SPELLINGS,
    TARGET,
    respelled_draft,
    translated_draft,
    word_piece,
    write_model,
)
from tests.exactness import dictated
from tests.exactness.harness import Case, Notes, answers
from tests.exactness.worlds import World
from tests.fakes import TableRunner, array
from tests.models.packing import load_runner

PROMPTS = (
    "Once upon a time, in a village by the sea, there was",
    "<|user|>\nTell me of caf\u00e9s \U0001f600 \u4f60\u597d.<|end|>\n<|assistant|>\n",
    "def add(a, b):\n    return",
    "The",
)
GREEDY = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
WAYS = {"shared": 0.0, "text": ALL}  # how much must be written alike for tokens to be shared


class Pair:
    """A target and a draft model of another tokenizer."""

    drafter: ModelDrafter

    def __init__(self, target: Path, draft: Path, least: float = MIN_ALIKE) -> None:
        self.target, own = (load_runner(str(path), device="cpu", max_rows=4) for path in (target, draft))
        self.tokenizer, other = load_tokenizer(str(target)), load_tokenizer(str(draft))
        self.drafter = make(
            Loaded(self.target, own, self.target.info.eos_token_ids, tokenizers=(self.tokenizer, other)), least
        )
        self.notes = Notes()

    def core(self, case: Case) -> EngineCore:
        """An engine that drafts as a case says."""
        self.notes = Notes()
        world = World(self.target, [self.drafter], self.tokenizer)
        limits = EngineLimits(max_rows=4, prefill_tokens=16, max_depth=7)
        return world.engine([dictated.policy(case.policy)], limits, [self.notes])

    def accepted(self) -> list[int]:
        """Accepted tokens by round of one request alone, those of its prompt left out."""
        return [int(record.accepted[0]) for record in self.notes.records if len(record.accepted)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module")
def drafts(folder: Path) -> dict[str, Path]:
    """Random models of each spelling, and the bundled draft with other ids, of all its tokens and of fewer."""
    made = {name: write_model(folder / name, spell(), seed=3, num_hidden_layers=1) for name, spell in SPELLINGS.items()}
    made |= {"moved": respelled_draft(folder / "moved"), "fewer": respelled_draft(folder / "fewer", lost=0.3)}
    return made | {"translated": translated_draft(folder / "translated")}


def asked(pair: Pair, *params: SamplingParams) -> list[Request]:
    texts = [tuple(pair.tokenizer.encode(text, add_special_tokens=False)) for text in PROMPTS]
    return [Request(f"r{i}", texts[i % len(texts)], replace(one, seed=i)) for i, one in enumerate(params)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_other_ids_cost_no_acceptance(drafts: dict[str, Path], temperature: float) -> None:
    """Round by round, what the same weights have accepted in the target's tokens: branches, noise and all."""
    same, moved = Pair(TARGET, DRAFT), Pair(TARGET, drafts["moved"])
    assert type(same.drafter) is DraftModelDrafter
    for shape in ("chain", "comb"):
        requests = asked(same, *[replace(GREEDY, temperature=temperature)] * 4)
        both = []
        for pair in (same, moved):
            done = answers(pair.core(Case(shape=shape)), requests)
            both.append((done, [(r.drafted.tolist(), r.accepted.tolist()) for r in pair.notes.records]))
        assert {key: one.tokens for key, one in both[0][0].items()} == {
            key: one.tokens for key, one in both[1][0].items()
        }
        assert both[0][1] == both[1][1]
        assert sum(sum(accepted) for _, accepted in both[0][1]) > 20


@pytest.mark.whole
def test_the_noise_of_the_same_text_goes_through_text(drafts: dict[str, Path]) -> None:
    """Drawn drafts are accepted as often as in the target's tokens; the likeliest text, or noise of one's own,
    would lose a third of that.
    """
    rates = []
    for least in WAYS.values():
        pair = Pair(TARGET, drafts["moved"], least)
        drawn = replace(GREEDY, temperature=0.8, max_tokens=60)
        answers(pair.core(Case(depths="3")), asked(pair, *[drawn] * 8))
        accepted, drafted = (
            sum(int(getattr(r, name).sum()) for r in pair.notes.records) for name in ("accepted", "drafted")
        )
        rates.append(accepted / drafted)
    assert rates[1] > 0.95 * rates[0] > 0.3


def model(folder: Path) -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return loaded


# Longer than the windows of transformers' generator, which takes shorter ones for something else.
STORIES = (
    "Once upon a time, in a village by the sea, there was",
    "One day, a bird saw a big tree. The bird",
)


def greedily(pair: Pair, story: str, depth: int = 4) -> tuple[list[int], list[int], list[int]]:
    """The prompt and the first token, which is not drafted; the others; how many were accepted in each round."""
    prompt = pair.tokenizer.encode(story, add_special_tokens=False)
    request = Request("r", tuple(prompt), SamplingParams(max_tokens=40, temperature=0.0))
    done = answers(pair.core(Case(depths=str(depth))), [request])["r"]
    assert len(done.tokens) == 40, "a text that ends is another matter"
    return [*prompt, done.tokens[0]], list(done.tokens[1:]), pair.accepted()


@pytest.mark.parametrize("name", ["moved", "translated", pytest.param("fewer", marks=pytest.mark.whole)])
def test_acceptance_through_text_is_that_of_transformers(drafts: dict[str, Path], name: str) -> None:
    """Round by round that of its generator for other tokenizers: a cache that is taken back, and a window that is
    written anew, change nothing.
    """
    pair, target = Pair(TARGET, drafts[name], ALL), model(TARGET)
    for story in STORIES:
        text, rest, accepted = greedily(pair, story)
        ids, its = torch.tensor([text]), list[int]()
        generator = _candidates(pair, drafts[name], ids)
        while ids.shape[1] < len(text) + len(rest):
            candidates = generator.get_candidates(ids)[0]
            with torch.inference_mode():
                own = target(candidates).logits[0, ids.shape[1] - 1 :].argmax(1)
            drafted = candidates[0, ids.shape[1] :]
            its.append(int((drafted == own[: len(drafted)]).int().cumprod(0).sum()))
            ids = torch.cat([ids, own[None, : its[-1] + 1]], dim=1)
        assert accepted[:-2] == its[: len(accepted) - 2], "the last ones end with the request"
        assert sum(its) > 4


def _candidates(pair: Pair, draft: Path, ids: torch.Tensor) -> reference.AssistedCandidateGeneratorDifferentTokenizers:
    """A generator of transformers that drafts four tokens behind a text."""
    assistant = model(draft)
    settings = assistant.generation_config
    settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = 4, "constant"
    settings.assistant_confidence_threshold, settings.eos_token_id = 0.0, None
    return reference.AssistedCandidateGeneratorDifferentTokenizers(
        input_ids=ids,
        assistant_model=assistant,
        target_tokenizer=pair.tokenizer,
        assistant_tokenizer=load_tokenizer(str(draft)),
        generation_config=GenerationConfig(max_length=256, min_length=0, do_sample=False),
        model_kwargs={"attention_mask": torch.ones_like(ids)},
        logits_processor=LogitsProcessorList(),
    )


def test_without_shared_noise_a_draft_through_text_is_a_function_of_the_text(drafts: dict[str, Path]) -> None:
    """As methods that weigh drafts need it: each is a point mass, whatever the seed."""
    pair = Pair(TARGET, drafts["moved"], ALL)
    tokens, found = pair.tokenizer.encode(PROMPTS[0], add_special_tokens=False), []
    for seed in (1, 2):
        rows = [RowSampling(replace(GREEDY, temperature=0.9), seed, tokens, len(tokens), (1,))]
        sampling = SamplingBatch(rows, pair.target.info.vocab_size)
        job = DraftJob(array(0), [tokens], array(5), sampling, shares_noise=False, keep_distribution=True)
        tree = pair.drafter.propose(job).tree
        pair.drafter.free(0)
        assert tree.distribution is None
        found.append(tree.token.tolist())
    assert found[0] == found[1]
    assert len(found[0]) > 2


class Repeats(TableRunner):
    """A runner that finds one token likeliest after any text."""

    def __init__(self, vocabulary: int, token: int) -> None:
        super().__init__(vocab=2)
        self.info = replace(self.info, vocab_size=vocabulary)
        self._likeliest = torch.eye(vocabulary)[token]

    def logits(self, tokens: list[int]) -> torch.Tensor:
        return self._likeliest


def test_a_draft_begins_within_a_character(tokenizer: PreTrainedTokenizerFast) -> None:
    """The target has written the first of two bytes, which are one token of the draft: it goes on with the second."""
    first, second = (bytes_to_unicode()[byte] for byte in "\u00e9".encode())
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), first + second]
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, [(first, second)]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    runner = Repeats(len(letters), len(letters) - 1)
    its = Spelling(tokenizer, replace(runner.info, vocab_size=len(tokenizer)))
    own = Spelling(PreTrainedTokenizerFast(tokenizer_object=backend), runner.info)
    drafter = TextDrafter(DraftModelDrafter(runner), its, own, "through text")
    written = tokenizer.encode("caf\u00e9\u00e9")
    tokens = written[:4]
    sampling = SamplingBatch([RowSampling(GREEDY, 0, tokens, 3, (1,))], len(tokenizer))
    tree = drafter.propose(DraftJob(array(0), [tokens], array(3), sampling)).tree
    assert tree.token.tolist() == written[4:7]


@pytest.mark.parametrize("way", WAYS)
def test_a_text_ends_in_either_tokenizer(drafts: dict[str, Path], way: str) -> None:
    """The draft's own end of a text is drafted as the target's."""
    pair = Pair(TARGET, drafts["moved"], WAYS[way])
    prompt = pair.tokenizer.encode("<|user|>\nCalculate 18 + 24.<|end|>\n<|assistant|>\n", add_special_tokens=False)
    request = Request("r", tuple(prompt), SamplingParams(max_tokens=100, temperature=0.0))
    text = [*prompt, *answers(pair.core(Case(depths="0")), [request])["r"].tokens]
    assert text[-1] == pair.tokenizer.eos_token_id
    rows = [RowSampling(GREEDY, 0, text[:-2], len(prompt), (1,))]
    job = DraftJob(array(0), [text[:-2]], array(6), SamplingBatch(rows, pair.target.info.vocab_size))
    tree = pair.drafter.propose(job).tree
    pair.drafter.free(0)
    assert tree.token.tolist() == text[-2:], "and ends there"


@pytest.mark.parametrize("way", WAYS)
def test_passes_are_measured_with_what_translating_takes(drafts: dict[str, Path], way: str) -> None:
    """As those of any draft model: a cost for each step, and rows that are free again."""
    pair = Pair(TARGET, drafts["moved"], WAYS[way])
    executor, limits = ModelExecutor(pair.target, [pair.drafter]), EngineLimits(max_rows=4, max_depth=3)
    profile = warm_up(executor, InputProcessor(pair.target.info, pair.tokenizer), limits, seconds=0.5).profile
    assert min(profile.drafters["draft-model"].step_seconds) > 0.0
    assert pair.drafter.runner.free_memory == 1.0
    assert pair.drafter.cache_gap(0, 40) == 38


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("other", [False, True], ids=["goes on", "goes on in another way"])
def test_a_reused_prefix_is_not_read_again_in_draft_tokens(drafts: dict[str, Path], way: str, other: bool) -> None:
    """The next turn of a chat: the draft's cache keeps the tokens that are the same in the new text."""
    pair = Pair(TARGET, drafts["moved"], WAYS[way])
    core = pair.core(Case(depths="3"))
    (first,) = asked(pair, replace(GREEDY, max_tokens=20))
    text = [*first.prompt, *answers(core, [first])["r0"].tokens]
    text = [*(text[: len(first.prompt) + 3] if other else text), *first.prompt[:9]]
    found = []
    for again, salt in (("cached", None), ("read", "salt")):
        request = replace(first, id=again, prompt=tuple(text), cache_salt=salt)
        pair.notes.records.clear()
        done = answers(core, [request])[again]
        caught_up = sum(record.caught_up for record in pair.notes.records)
        found.append(done.tokens)
        assert done.stats.drafted
        assert (caught_up < 0.5 * len(text)) == (salt is None)
    assert found[0] == found[1]


def test_a_copied_cache_is_kept_up_to_the_first_difference(drafts: dict[str, Path]) -> None:
    """Texts with a first token in common may have none in draft tokens: nothing of the copied cache is drafted from."""
    fresh, reused = (Pair(TARGET, drafts["moved"], ALL) for _ in range(2))
    letter, *before = fresh.tokenizer.encode("d o the thing that you like", add_special_tokens=False)
    after = fresh.tokenizer.encode("ef add(a, b):\n    return", add_special_tokens=False)

    def draft(pair: Pair, text: list[int]) -> DraftTree:
        sampling = SamplingBatch([RowSampling(GREEDY, 0, text, len(text), ())], pair.target.info.vocab_size)
        return pair.drafter.propose(DraftJob(array(0), [text], array(5), sampling)).tree

    draft(reused, [letter, *before])
    reused.drafter.copy_prefix(0, 0, 1)
    found, expected = (draft(pair, [letter, *after]) for pair in (reused, fresh))
    assert found.token.tolist() == expected.token.tolist()
    assert found.confidence.tolist() == expected.confidence.tolist()


def test_a_pair_is_identified_by_its_tokenizers(drafts: dict[str, Path]) -> None:
    """In words, for the line that serve prints."""
    assert Pair(TARGET, DRAFT).drafter.description == "in the target's tokens"
    moved, gpt2 = Pair(TARGET, drafts["moved"]).drafter, Pair(TARGET, drafts["gpt2"]).drafter
    assert isinstance(moved, SharedTokensDrafter)
    assert moved.description == "in the 4096 tokens of both tokenizers (which encode 100% of a text alike)"
    assert isinstance(gpt2, TextDrafter)
    assert "through text (the two tokenizers encode only" in gpt2.description


def test_a_tokenizer_whose_tokens_spell_no_text_is_refused(folder: Path) -> None:
    place = write_model(folder / "pieces", word_piece(), eos_token_id=None)
    with pytest.raises(PairError, match=r"pieces: its tokens .* goes only with models of the same tokenizer"):
        Pair(TARGET, place)


def test_a_tape_needs_the_targets_own_tokens(drafts: dict[str, Path]) -> None:
    pair = Pair(TARGET, drafts["moved"])
    with pytest.raises(ConfigError, match="moved has another tokenizer than the target"):
        Judge(pair.target, [pair.drafter])
