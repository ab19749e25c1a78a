"""Pretraining datasets of random items, for tests of everything behind the dataset."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from luke.artifacts import make_metadata, write_json
from luke.pretraining.dataset import Item

FIRST_WORD = 5  # ids below are special tokens


def random_item(
    rng: np.random.Generator, words: int, entities: int, vocab_size: int = 200, entity_vocab_size: int = 50
) -> Item:
    """W words, E entities of one to three tokens each, in order of their starts."""
    starts = np.sort(rng.integers(0, words, entities))
    ends = np.minimum(starts + rng.integers(1, 4, entities), words)
    return Item(
        int(rng.integers(-1, entity_vocab_size)),
        rng.integers(FIRST_WORD, vocab_size, words).astype(np.uint16),
        rng.integers(1, entity_vocab_size, entities).astype(np.uint16),
        starts.astype(np.uint16),
        ends.astype(np.uint16),
    )


def write_dataset(folder: Path, items: list[Item], rows: int = 7, held_out: Sequence[Item] = (), **facts: Any) -> Path:
    """Writes ``items`` in the dataset format, ``rows`` a record batch, two files; and ``held_out`` items, if any."""
    folder.mkdir(parents=True)
    half = -(-len(items) // 2)
    for number, part in enumerate((items[:half], items[half:])):
        _write_items(folder / f"data-{number:05d}-of-00002.arrow", part, rows)
    if held_out:
        (folder / "held_out").mkdir()
        _write_items(folder / "held_out" / "data-00000-of-00001.arrow", held_out, rows)
    facts = {"max_seq_length": 64, "max_entity_length": 16, "max_mention_length": 4, **facts}
    plan = {"options": {}, "inputs": {}}
    write_json(folder / "metadata.json", make_metadata("pretraining-dataset", plan, "0" * 64, **facts))
    return folder


def _write_items(path: Path, items: Sequence[Item], rows: int) -> None:
    columns = {
        "page_id": pa.array([item.page_id for item in items], pa.int32()),
        **{
            name: pa.array([getattr(item, name) for item in items], pa.list_(pa.uint16()))
            for name in ("word_ids", "entity_ids", "entity_starts", "entity_ends")
        },
    }
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
