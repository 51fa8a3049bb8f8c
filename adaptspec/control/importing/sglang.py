"""SGLang's adaptive speculation: the JSON file of `--speculative-adaptive-config`, as a policy.

Source: SGLang documentation, "Adaptive Speculative Decoding". Three layouts are read: tiers per first batch size
(`"1": {"candidate_steps": [1, 3], ...}`), one ladder for every batch size (`candidate_steps`), and ladders that
differ in their tiers only (`batch_size_to_candidate_steps`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from adaptspec.control.ceilings import DEEPEST
from adaptspec.control.choosers.ema_tiers import SHIPPED
from adaptspec.control.importing.foreign import Foreign, Imported, read_foreign, validated

Steps = Annotated[list[Annotated[int, Field(ge=0, le=DEEPEST)]], Field(min_length=1, max_length=16)]
Size = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}$")]


class _Margins(Foreign):
    down_hysteresis: float = -0.25
    up_hysteresis: float = 0.0
    ceiling_coeff: float = 0.0

    @field_validator("ceiling_coeff")
    @classmethod
    def _no_cap(cls, value: float) -> float:
        if value:
            raise ValueError("a cap by the expected length has no counterpart here; set it to 0 or leave it out")
        return value


class _Ladder(_Margins):
    candidate_steps: Steps


class _Config(_Margins):
    ema_alpha: float = Field(default=0.2, gt=0.0, le=1.0)
    warmup_batches: int = Field(default=10, ge=0)
    update_interval: int = Field(default=5, ge=1)
    candidate_steps: Steps | None = None
    batch_size_to_candidate_steps: dict[Size, Steps] | None = None
    ladders: dict[Size, _Ladder] | None = Field(
        default=None, alias="a first batch size"
    )  # stands for all keys that are numbers

    @model_validator(mode="after")
    def _one_layout(self) -> _Config:
        ways = (self.candidate_steps, self.batch_size_to_candidate_steps, self.ladders)
        if sum(way is not None for way in ways) > 1:
            raise ValueError("give candidate_steps, batch_size_to_candidate_steps or keys by batch size, only one")
        sizes = self.batch_size_to_candidate_steps or self.ladders
        if sizes is not None and min(map(int, sizes)) != 1:
            raise ValueError("the first ladder must be for batch size 1, so that every batch size has one")
        return self

    def by_size(self) -> dict[int, dict[str, Any]]:
        """The policy's ladders by first batch size; as SGLang ships them if the file names none."""
        if self.ladders is not None:
            return {int(size): _ladder(one.candidate_steps, one) for size, one in self.ladders.items()}
        if self.batch_size_to_candidate_steps is not None:
            return {int(size): _ladder(steps, self) for size, steps in self.batch_size_to_candidate_steps.items()}
        if self.candidate_steps is not None:
            return {1: _ladder(self.candidate_steps, self)}
        return {
            size: {"tiers": list(one.tiers), "down-hysteresis": one.down_hysteresis} for size, one in SHIPPED.items()
        }


def import_sglang(path: Path, name: str = "sglang-import") -> Imported:
    """
    Raises:
        PolicyError: `file:line:column: path: what is wrong`, a line for each thing that is.
    """
    source = read_foreign(path)
    data = source.data if isinstance(source.data, dict) else {}
    sizes = {key: value for key, value in data.items() if str(key).isdecimal()}
    rest = {key: value for key, value in data.items() if key not in sizes}
    config = validated(_Config, {**rest, **({"a first batch size": sizes} if sizes else {})}, source)
    choose = {
        "algorithm": "ema-tiers",
        "alpha": config.ema_alpha,
        "warmup": config.warmup_batches,
        "interval": config.update_interval,
        "ladders": dict(sorted(config.by_size().items())),
    }
    remarks = [
        f"Imported from {path.name}, an adaptive speculation configuration of SGLang: it decides as it did there.",
        "Where drafting loses it keeps trying, as it knows no costs: `guard: {never-slower: {}}` prevents that.",
    ]
    return Imported(name, "SGLang's adaptive rule, imported", {"choose": choose}, remarks)


def _ladder(steps: list[int], margins: _Margins) -> dict[str, Any]:
    ladder: dict[str, Any] = {"tiers": sorted(set(steps))}
    if margins.down_hysteresis:
        ladder["down-hysteresis"] = margins.down_hysteresis
    if margins.up_hysteresis:
        ladder["up-hysteresis"] = margins.up_hysteresis
    return ladder
