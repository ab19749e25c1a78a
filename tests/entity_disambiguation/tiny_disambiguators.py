"""A small random model for disambiguation with its tokenizer and vocabulary, and random documents for it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LukeConfig

from luke.entity_disambiguation.documents import Candidate, Document, Mention
from luke.entity_disambiguation.inference import Disambiguator
from luke.entity_disambiguation.model import LukeForEntityDisambiguation
from luke.entity_vocab import SPECIAL, EntityVocab
from luke.tokenization import load_tokenizer

from ..tiny_bases import TEXT
from ..tokenizers import write_tokenizer

ENTITIES = 40
WORDS = sorted({word for text in TEXT for word in text.split()})


def write_vocab(path: Path, size: int = ENTITIES) -> Path:
    """Entity 0, Entity 1, … behind the special tokens."""
    titles = [*SPECIAL, *(f"Entity {number}" for number in range(size - len(SPECIAL)))]
    lines = [{"id": number, "entities": [[title, None]], "count": 0} for number, title in enumerate(titles)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def make_disambiguator(folder: Path, seed: int = 0, **sizes: Any) -> Disambiguator:
    """A random model whose answers depend strongly on its input; in ``folder`` its tokenizer and vocabulary."""
    tokenizer = load_tokenizer(write_tokenizer("word-piece", folder / "tokenizer"))
    vocab = EntityVocab(write_vocab(folder / "entity_vocab.jsonl"))
    config = LukeConfig(
        **{
            "vocab_size": tokenizer.vocab_size,
            "entity_vocab_size": ENTITIES,
            "hidden_size": 32,
            "entity_emb_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 65,
            "type_vocab_size": 2,
            "pad_token_id": 0,
            "use_entity_aware_attention": False,
            **sizes,
        }
    )
    torch.manual_seed(seed)
    model = LukeForEntityDisambiguation(config)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.6)
    return Disambiguator(model, tokenizer, vocab)


def random_document(rng: np.random.Generator, words: int, mentions: int, name: str = "d", overlap: bool = False) -> Document:
    """Words of the tokenizer's own texts; mentions of one or two words, with none to six candidates, some unknown."""
    chosen = [WORDS[number] for number in rng.integers(0, len(WORDS), words)]
    starts = np.cumsum([0] + [len(word) + 1 for word in chosen])
    first = np.sort(rng.choice(np.arange(words - 1) if overlap else np.arange(0, words - 1, 2), mentions, replace=False))
    found = []
    for number in first.tolist():
        last = number + int(rng.integers(1, 3))
        titles = [f"Entity {entity}" for entity in rng.choice(ENTITIES + 5, int(rng.integers(0, 7)), replace=False)]
        candidates = [Candidate(title, 1 / (place + 1)) for place, title in enumerate(titles)]
        gold = titles[int(rng.integers(len(titles)))] if titles else "Entity 0"
        found.append(Mention(int(starts[number]), int(starts[last]) - 1, gold, candidates))
    return Document(name, " ".join(chosen), found)
