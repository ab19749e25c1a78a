"""Models for disambiguation from checkpoints of ours and from the public code's files."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LukeConfig

from luke.entity_disambiguation.convert import convert_checkpoint
from luke.entity_disambiguation.inference import Disambiguator
from luke.errors import UserError

from ..command_line import refused
from .tiny_disambiguators import make_disambiguator, random_document

GOLDEN = Path(__file__).parents[1] / "golden" / "convert"


def write_public_model(folder: Path, disambiguator: Disambiguator, *, old: bool) -> None:
    """The same model as the public code would save it: positions from 0, the embedding of [MASK] apart."""
    state = {name: value.clone() for name, value in disambiguator.model.state_dict().items()}
    state["luke.embeddings.position_ids"] = torch.arange(64)[None]
    word_positions = "luke.embeddings.position_embeddings.weight"
    entity_positions = "luke.entity_embeddings.position_embeddings.weight"
    state[word_positions], state[entity_positions] = state[word_positions][1:], state[entity_positions][:-1]
    table = state["luke.entity_embeddings.entity_embeddings.weight"]
    state["luke.entity_embeddings.mask_embedding"] = table[2].clone()
    table[2] = 99.0
    settings = disambiguator.model.config.to_dict() | {
        "max_position_embeddings": 64,
        "bert_model_name": str(folder / "tokenizer"),
    }
    if old:
        state = {name.removeprefix("luke."): value for name, value in state.items()}
        (folder / "metadata.json").write_text(json.dumps({"model_config": settings}))
    else:
        LukeConfig(**settings).save_pretrained(folder)
    torch.save(state, folder / "pytorch_model.bin")


@pytest.mark.parametrize("old", [False, True])
def test_public_models(tmp_path: Path, old: bool) -> None:
    disambiguator = make_disambiguator(tmp_path)
    write_public_model(tmp_path, disambiguator, old=old)
    convert_checkpoint(tmp_path, tmp_path / "model", tokenizer=str(tmp_path / "tokenizer"))
    again = Disambiguator.from_pretrained(tmp_path / "model")
    documents = [random_document(np.random.default_rng(2), 20, 8)]
    assert disambiguator.predict(documents) == again.predict(documents)
    convert_checkpoint(tmp_path, tmp_path / "model", tokenizer=str(tmp_path / "tokenizer"))  # done already


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    write_public_model(tmp_path, make_disambiguator(tmp_path), old=True)
    shutil.move(tmp_path / "entity_vocab.jsonl", tmp_path / "moved.jsonl")
    with pytest.raises(UserError, match="--entity-vocab-file"):
        convert_checkpoint(tmp_path, tmp_path / "model")
    lines = (tmp_path / "moved.jsonl").read_text().splitlines()
    (tmp_path / "short.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(UserError, match="39 entities, but the model has 40"):
        convert_checkpoint(tmp_path, tmp_path / "model", entity_vocab=tmp_path / "short.jsonl")
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises(UserError, match=r"metadata.json: not the settings"):
        convert_checkpoint(tmp_path, tmp_path / "model", entity_vocab=tmp_path / "moved.jsonl")
    (tmp_path / "metadata.json").unlink()
    message = refused(
        "convert-checkpoint", tmp_path, tmp_path / "result", "--entity-vocab-file", tmp_path / "moved.jsonl",
        leaving=tmp_path / "result",
    )  # fmt: skip
    assert "--metadata-file" in message
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(UserError):
        convert_checkpoint(tmp_path, tmp_path / "model", entity_vocab=tmp_path / "moved.jsonl")


def test_public_pretraining_checkpoint(tmp_path: Path) -> None:
    """The golden checkpoint of the public code, a RoBERTa, of which transformers' outputs are known."""
    convert_checkpoint(
        GOLDEN / "mp_rank_00_model_states.pt", tmp_path / "model", tokenizer=str(GOLDEN / "tiny-roberta"),
        metadata=GOLDEN / "metadata.json", entity_vocab=GOLDEN / "entity_vocab.jsonl",
    )  # fmt: skip
    model = Disambiguator.from_pretrained(tmp_path / "model").model
    saved = torch.load(GOLDEN / "mp_rank_00_model_states.pt", weights_only=True)["module"]
    assert torch.equal(model.entity_predictions.bias, saved["entity_predictions.bias"])
    key = "encoder.layer.0.attention.self.query.weight"
    assert torch.equal(model.luke.state_dict()[key], saved[key])
