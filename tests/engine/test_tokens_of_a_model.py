"""Which tokens a model's texts have, and which end them: by its files, its tokenizer and its chat template together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from adaptspec.config import EngineConfig
from adaptspec.engine.build import build
from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ModelError
from tests.conftest import MakeModel


def ends(folder: Path, **config: Any) -> tuple[int, ...]:
    return build(
        EngineConfig(model=str(folder), draft=None, device="cpu", max_num_seqs=4, **config)
    ).target.info.eos_token_ids


def test_the_templates_end_of_turn_ends_a_text(make_model: MakeModel, tmp_path: Path) -> None:
    """Of the tiny models <|end|> is 1, <|user|> 2 and <|assistant|> 3."""
    folder = tmp_path / "model"
    shutil.copytree(make_model("llama", eos_token_id=0), folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert ends(folder) == (0, 1)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}<|assistant|>{% endfor %}")
    assert ends(folder) == (0, 3)
    mine = tmp_path / "mine.jinja"
    mine.write_text("{% for m in messages %}{{ m.content }}\n<|user|>\n{% endfor %}")
    assert ends(folder, chat_template=str(mine)) == (0, 2)
    mine.write_text("{% for m in messages %}{{ m.content }};{% endfor %}")
    assert ends(folder, chat_template=str(mine)) == (0,)
    assert ends(folder, chat_template="none") == (0,)


def test_the_tokenizers_end_token_ends_a_text(make_model: MakeModel, tmp_path: Path) -> None:
    """Most fine-tunes of base models name only the base's in their other files."""
    folder = tmp_path / "model"
    shutil.copytree(make_model("llama", eos_token_id=0), folder)
    assert ends(folder, chat_template="none") == (0, 1)


def test_a_template_that_cannot_be_used_ends_the_start(make_model: MakeModel, tmp_path: Path) -> None:
    """Before the weights are read, which may take minutes. These cannot be read at all."""
    folder, mine = tmp_path / "model", tmp_path / "mine.jinja"
    shutil.copytree(make_model("llama"), folder)
    (folder / "model.safetensors").write_bytes(b"")
    mine.write_text("{% for m in messages %}{{ m.role")
    with pytest.raises(ModelError, match=r"template .* cannot be used: line 1: unexpected end .* --chat-template FILE"):
        ends(folder, chat_template=str(mine))


def test_a_conversation_is_written_by_the_template_that_was_given(make_model: MakeModel, tmp_path: Path) -> None:
    mine = tmp_path / "mine.jinja"
    mine.write_text("{{ greeting }}{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}")
    config = EngineConfig(
        model=str(make_model("llama")),
        draft=None,
        device="cpu",
        max_num_seqs=4,
        chat_template=str(mine),
        default_chat_template_kwargs={"greeting": "Hi, "},
    )
    engine = Engine.from_config(config)
    assert engine.tokenizer.decode(engine.chat([{"role": "user", "content": "you"}])) == "Hi, you"
