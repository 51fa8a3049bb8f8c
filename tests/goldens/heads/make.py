"""Heads of random weights saved by `speculators`, and the logits that its own forward gives for them.

    pip install speculators==0.9.0            # in an environment of its own: it pins other versions than ours
    python tests/goldens/heads/make.py        # in that environment, from the root of the repository

One folder each: config.json and model.safetensors as it saves them, and expected.safetensors: `states` [n, F x hidden]
that stand for a target's, `tokens` [n], each read with the state at its place, `logits` [steps, n, vocabulary]. Step
j's at place i: those after token i + j, read with what the head made of the place at steps before. NaN: not computed.
Heads that bring no embedding or head have those of `linspace`, which a test gives the target, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash.config import DFlashSpeculatorConfig
from speculators.models.dflash.core import DFlashDraftModel
from speculators.models.eagle3 import Eagle3SpeculatorConfig
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.models.mtp.config import MTPSpeculatorConfig
from speculators.models.mtp.core import MTPDraftModel
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

HERE = Path(__file__).parent
VOCAB, HIDDEN, LENGTH, STEPS = 260, 16, 20, 3
FIRST, MASK = 7, 3  # the token that texts begin with, which no state comes before; what stands for tokens to come
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
WINDOW = {"layer_types": ["sliding_attention"], "sliding_window": 5, "use_sliding_window": True}
FEW = 40  # tokens of a vocabulary of its own
CASES: dict[str, dict[str, Any]] = {
    "eagle3": {"ids": [1, 2, 4]},
    "eagle3-vocabulary": {"ids": [0, 2, 3], "vocabulary": FEW},
    "eagle3-norm-before-residual": {"ids": [1, 2, 3], "norm_before_residual": True, "vocabulary": FEW},
    "eagle3-norm-before-fc": {"ids": [1, 2], "norm_before_fc": True, "vocabulary": FEW},
    "eagle3.1": {"ids": [1, 2, 4], "fc_norm": True, "norm_output": True, "vocabulary": FEW},
    "eagle3-qwen3-two-layers": {"ids": [1, 2, 3], "layers": 2, "family": Qwen3Config, "vocabulary": FEW},
    "eagle3-window": {"ids": [1, 2, 3], "family": Qwen3Config, "more": WINDOW, "vocabulary": FEW},
    "mtp": {"family": Qwen3Config},
    "mtp-window": {"family": Qwen3Config, "more": WINDOW},
    "dflash": {"ids": [1, 3], "family": Qwen3Config, "vocabulary": FEW, "layers": 2, "mask_token_id": MASK},
    **{
        f"dflash-window{name}": {
            **{"ids": [1, 3], "family": Qwen3Config, "more": WINDOW, "mask_token_id": MASK, "vocabulary": FEW},
            "sliding_window_non_causal": bool(name),
        }
        for name in ("", "-both-sides")
    },
}
KINDS = {
    "eagle3": (Eagle3SpeculatorConfig, Eagle3DraftModel),
    "mtp": (MTPSpeculatorConfig, MTPDraftModel),
    "dflash": (DFlashSpeculatorConfig, DFlashDraftModel),
}


def main() -> None:
    for name, case in CASES.items():
        torch.manual_seed(0)
        kind = name.partition("-")[0].partition(".")[0]
        head = made(kind, **case).eval()
        draw(head)
        head.save_pretrained(HERE / name)
        (HERE / name / "config.py").unlink(missing_ok=True)
        text = torch.randint(4, VOCAB, (1, LENGTH + 1))
        text[0, 0] = FIRST
        states = torch.randn(1, LENGTH, len(case.get("ids", "1")) * HIDDEN)
        logits = LOGITS[kind](head, states, text)
        found = {"states": states[0], "tokens": text[0, 1:].clone(), "logits": logits.contiguous()}
        save_file(found, HERE / name / "expected.safetensors")


def made(
    kind: str,
    ids: list[int] | None = None,
    vocabulary: int = VOCAB,
    *,
    layers: int = 1,
    family: Any = LlamaConfig,
    more: Any = None,
    **own: Any,
) -> Any:
    layer = family(**SIZES, num_hidden_layers=layers, **(more or {}))
    layer._attn_implementation = "eager"
    about = SpeculatorsConfig(
        algorithm=kind,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )
    if kind != "mtp":
        own["draft_vocab_size"] = vocabulary
        own["eagle_aux_hidden_state_layer_ids" if "eagle" in kind else "aux_hidden_state_layer_ids"] = ids
    if kind == "dflash":
        own["block_size"] = STEPS + 1
    config, model = KINDS[kind]
    return model(config(transformer_layer_config=layer, speculators_config=about, **own))


@torch.no_grad()
def draw(head: Any) -> None:
    for name, parameter in head.named_parameters():
        parameter.normal_(1.0 if "norm" in name and parameter.ndim == 1 else 0.0, 0.25)
    if head.d2t is not None:
        count = len(head.d2t)
        tokens = torch.randperm(VOCAB)[:count].sort().values
        head.d2t.copy_(tokens - torch.arange(count))
        head.t2d.zero_()
        head.t2d[tokens] = True


@torch.no_grad()
def eagle_logits(head: Any, states: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """Of its forward for training, where that is the same: a window holds there what was drafted beside its tokens."""
    own: list[torch.Tensor] = []
    logits: list[torch.Tensor] = []
    states_of: list[Any] = []
    fed = head.fc.register_forward_hook(lambda *call: torch.cat((call[2][:, : call[2].shape[1] - len(own)], *own), 1))
    made = head.norm.register_forward_hook(lambda *call: states_of.append(call[2 if head.config.norm_output else 1]))
    told = head.lm_head.register_forward_hook(lambda *call: logits.append(call[2][0].clone()))

    def forward(known: torch.Tensor, mine: list[torch.Tensor], read: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        own[:] = mine
        whole = torch.nn.functional.pad(known, (0, 0, 0, len(mine)))
        head(whole, read[:, 1:], torch.zeros(1, whole.shape[1], dtype=torch.long), ttt_steps=1)
        state = states_of[-1]
        return (state if isinstance(state, torch.Tensor) else state[0])[:, -1:], logits[-1][-1]

    found = drafted(forward, states, text)
    own.clear()
    logits.clear()
    if not head.uses_sliding_window_attn:
        head(states, text[:, 1:], torch.zeros(1, LENGTH, dtype=torch.long), ttt_steps=STEPS)
        for step, one in enumerate(logits):
            torch.testing.assert_close(found[step, : LENGTH - step], one[: LENGTH - step], rtol=1e-4, atol=1e-5)
        found = torch.stack(logits)
    for hook in (fed, made, told):
        hook.remove()
    return found


def drafted(forward: Any, states: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """Logits of each place and step by a forward that takes the states known, those made since, and the tokens read.

    It gives the state that it makes of the last, and the logits.
    """
    found: torch.Tensor | None = None
    for place in range(LENGTH):
        own: list[torch.Tensor] = []
        for step in range(min(STEPS, LENGTH - place)):
            state, logits = forward(states[:, : place + 1], own, text[:, : place + step + 2])
            own.append(state)
            if found is None:
                found = torch.full((STEPS, LENGTH, len(logits)), torch.nan)
            found[step, place] = logits
    assert found is not None
    return found


@torch.no_grad()
def mtp_logits(head: Any, states: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """Of a forward of one step: one of more, for training, reads no state of the target's again behind the first."""
    head.embed_tokens.weight.copy_(torch.linspace(-1, 1, VOCAB * HIDDEN).view(VOCAB, HIDDEN))
    head.lm_head.weight.copy_(torch.linspace(-1, 1, VOCAB * HIDDEN).sin().view(VOCAB, HIDDEN))
    head.config.speculators_config.proposal_methods[0].speculative_tokens = 1
    made: list[torch.Tensor] = []
    hook = head.lm_head.register_forward_pre_hook(lambda _, args: made.append(args[0]))

    def forward(known: torch.Tensor, own: list[torch.Tensor], read: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pad = torch.nn.functional.pad
        logits, _, _ = head(pad(read, (0, 1)), pad(torch.cat((known, *own), 1), (0, 0, 0, 2)))
        return made[-1][:, -1:], logits[0][0, -1]

    found = drafted(forward, states, text)
    hook.remove()
    return found


@torch.no_grad()
def dflash_logits(head: Any, states: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    head.embed_tokens.weight.copy_(torch.linspace(-1, 1, VOCAB * HIDDEN).view(VOCAB, HIDDEN))
    size, count = head.block_size, LENGTH + 1
    whole = torch.cat((states, torch.zeros(1, 1, states.shape[2])), 1)
    whole, text = (torch.nn.functional.pad(part, pad) for part, pad in ((whole, (0, 0, 0, size)), (text, (0, size))))
    mask = torch.ones(1, count + size)
    documents = torch.zeros(1, count + size, dtype=torch.long)
    last = torch.zeros(1, count + size, HIDDEN)
    _, logits, _, _, at = head._backbone_forward(whole, text, mask, last, documents, max_anchors=count)
    blocks, anchors = logits.view(count, size, -1), at.view(count, size)[:, 0]
    ordered = torch.full((count, size, blocks.shape[2]), torch.nan)
    ordered[anchors] = blocks
    return ordered[1:, 1 : 1 + STEPS].transpose(0, 1)  # the first slot drafts nothing


LOGITS = {
    "eagle3": eagle_logits,
    "mtp": mtp_logits,
    "dflash": dflash_logits,
}

if __name__ == "__main__":
    main()
