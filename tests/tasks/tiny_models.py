"""Tiny random LUKEs and plain encoders with tokenizers, as folders that transformers could have saved."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LukeConfig, LukeForMaskedLM

from luke.processor import LukeProcessor
from luke.tasks.training import _with_markers
from luke.tokenization import load_tokenizer
from tests.tiny_bases import make_base

VOCABULARY = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "Tokyo": 3, "Athens": 4, "Stagira": 5, "[MASK2]": 6}


def make_luke(folder: Path, family: str = "bert", **config: Any) -> Path:
    """A random LUKE on the tokenizer of a family of bases."""
    base = folder.with_name(folder.name + "-base")
    make_base(family, base)
    processor = LukeProcessor(_with_markers(load_tokenizer(base)), VOCABULARY)
    pad = processor.tokenizer.pad_id
    settings: dict[str, Any] = {
        "vocab_size": processor.tokenizer.vocab_size,
        "entity_vocab_size": len(VOCABULARY),
        "entity_emb_size": 16,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 130 + pad,
        "type_vocab_size": 2,
        "pad_token_id": pad,
        "initializer_range": 0.1,
        **config,
    }
    torch.manual_seed(11)
    LukeForMaskedLM(LukeConfig(**settings)).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def make_plain(folder: Path, family: str = "bert") -> Path:
    """A random plain encoder."""
    make_base(family, folder, max_position_embeddings=130)
    return folder


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
