"""Page store + vocabulary -> pretraining dataset.

The format is described in ``docs/architecture.md``. A shard of pages gives a shard of items; workers write shards, a
finished one is not done again, and the result does not depend on their number.
"""

import gc
import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from luke.artifacts import Metadata, StagedFolder, fingerprint_file, read_metadata, replace_file, write_json
from luke.corpus.page_store import PageStore
from luke.corpus.sentences import SentenceSplitter, make_sentence_splitter
from luke.entity_vocab import UNK_ID, EntityVocab
from luke.errors import UserError
from luke.pretraining.dataset import HELD_OUT, KIND
from luke.pretraining.item_builder import DROPPED, ItemBuilder, Items
from luke.pretraining.link_targets import LinkTargets, write_link_targets
from luke.progress import Progress
from luke.tokenization import load_tokenizer, tokenizer_fingerprint
from luke.workers import default_workers, map_ordered

logger = logging.getLogger(__name__)

_LINK_TARGETS_FILE = "link_targets.npy"  # only while shards are built
_PAGES_KEY = b"pages"  # in a shard's schema: how many pages its items are of
_ROWS_A_BATCH = 1000
# Large enough for array operations to pay, small enough for memory and caches.
_PAGES_A_CALL = 64


@dataclass(frozen=True)
class DatasetOptions:
    """How items are made; names and defaults as in the public code.

    Attributes:
        sentence_splitter: ``sentencex``, ``icu`` or ``none``.
        max_seq_length: Words of an item with [CLS] and [SEP].
        max_entity_length: Entities of an item.
        max_mention_length: Words of a mention.
        min_sentence_length: Words of a sentence; shorter ones are dropped.
        abstract_only: Only paragraphs before the first heading.
        include_sentences_without_entities: Keep items without links.
        include_unk_entities: Keep links outside the vocabulary as [UNK].
        max_num_documents: Pages to read.
        predefined_entities_only: Only pages in the vocabulary.
        language: Of the titles in the vocabulary, and of the sentence splitter; default: the page store's.
        held_out_fraction: Share of pages, by a hash of their titles, whose items go to ``held_out/``.
    """

    sentence_splitter: str = "sentencex"
    max_seq_length: int = 512
    max_entity_length: int = 128
    max_mention_length: int = 30
    min_sentence_length: int = 5
    abstract_only: bool = False
    include_sentences_without_entities: bool = False
    include_unk_entities: bool = False
    max_num_documents: int | None = None
    predefined_entities_only: bool = False
    language: str | None = None
    held_out_fraction: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (
            ("max_seq_length", 8),
            ("max_entity_length", 1),
            ("max_mention_length", 1),
            ("min_sentence_length", 0),
            ("max_num_documents", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
        if max(self.max_seq_length, self.max_entity_length) > np.iinfo(np.uint16).max:
            raise UserError(f"--max-seq-length and --max-entity-length must not exceed {np.iinfo(np.uint16).max}")
        if not 0 <= self.held_out_fraction < 1:
            raise UserError(f"--held-out-fraction {self.held_out_fraction}: must be at least 0 and less than 1")


def build_pretraining_dataset(
    page_store: Path,
    tokenizer: str,
    entity_vocab: Path,
    output: Path,
    options: DatasetOptions,
    workers: int | None = None,
    splitter: SentenceSplitter | None = None,
) -> Metadata:
    """Writes the dataset of a page store.

    Args:
        page_store, tokenizer, entity_vocab: What it is made from.
        output: The dataset's folder.
        options: How.
        workers: Processes; default one a CPU.
        splitter: Used in place of ``options.sentence_splitter``; must be picklable with several workers.

    Raises:
        UserError: an input is not what it should be, or no item comes out.
    """
    store, words, vocabulary = PageStore(page_store), load_tokenizer(tokenizer), EntityVocab(entity_vocab)
    plan = {
        "options": asdict(options),
        "inputs": {
            "pages": {"path": str(page_store), "fingerprint": store.metadata["fingerprint"]},
            "tokenizer": {"path": str(tokenizer), "fingerprint": tokenizer_fingerprint(words)},
            "entity_vocab": {"path": str(entity_vocab), "fingerprint": vocabulary.fingerprint},
        },
    }
    with StagedFolder(output, KIND, plan) as stage:
        if stage.done:
            logger.info("%s: already built", output)
            return read_metadata(output, KIND)
        for split in _splits(options):
            (stage.work / split).mkdir(exist_ok=True)
        words.save(stage.work / "tokenizer")
        vocabulary.save(stage.work / "entity_vocab.jsonl")
        link_targets = stage.work / _LINK_TARGETS_FILE
        language = options.language or store.language
        write_link_targets(link_targets, vocabulary.titles(language), store.redirects_file)
        _build_shards(store, stage.work, options, (splitter, language, len(vocabulary)), workers or default_workers())
        link_targets.unlink()
        counts = {split: _seal_split(stage.work / split, len(store.page_files)) for split in _splits(options)}
        if not counts[""]["items"]:
            raise UserError(
                f"{page_store}: not one item comes out: no sentence holds a link that is in {entity_vocab}; "
                "is it this corpus's vocabulary?"
            )
        return stage.finish(
            max_seq_length=options.max_seq_length,
            max_entity_length=options.max_entity_length,
            max_mention_length=options.max_mention_length,
            word_vocab_size=words.vocab_size,
            entity_vocab_size=len(vocabulary),
            tokenizer_fingerprint=tokenizer_fingerprint(words),
            entity_vocab_fingerprint=fingerprint_file(stage.work / "entity_vocab.jsonl"),
            language=language,
            counts=counts[""],
            held_out_counts=counts.get(HELD_OUT),
        )


def _build_shards(store: PageStore, work: Path, options: DatasetOptions, settings: tuple[Any, ...], workers: int) -> None:
    # The quota of --max-num-documents is dealt to shards by their sizes, so that workers need not talk.
    tasks, left = [], options.max_num_documents
    for shard, file in enumerate(store.page_files):
        pages = pq.read_metadata(file).num_rows
        tasks.append(_Task(shard, file, pages if left is None else min(left, pages)))
        left = None if left is None else left - tasks[-1].num_pages
    workers = min(workers, len(tasks))
    arguments = (work, options, *settings, len(tasks), workers)
    with Progress("pages", sum(task.num_pages for task in tasks), "pages") as progress:
        for task in map_ordered(_build_shard, tasks, workers, _start_worker, arguments):
            progress.advance(task.num_pages)


class _Task(NamedTuple):
    shard: int
    file: Path
    num_pages: int


_builder: "_ShardBuilder | None" = None


def _start_worker(*arguments: Any) -> None:
    global _builder
    _builder = _ShardBuilder(*arguments)


def _build_shard(task: _Task) -> _Task:
    assert _builder is not None
    # There are no cycles among the millions of words and sentences, and looking for them takes a fifth of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        _builder.build(task)
    finally:
        if collecting:
            gc.enable()
    return task


class _ShardBuilder:
    """What a worker keeps: tokenizer, link targets, splitter."""

    def __init__(
        self,
        work: Path,
        options: DatasetOptions,
        splitter: SentenceSplitter | None,
        language: str | None,
        entity_vocab_size: int,
        num_shards: int,
        workers: int,
    ) -> None:
        # Several workers already use all CPUs; a single one leaves that to the tokenizer's threads.
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if workers == 1 else "false"
        self.work, self.options, self.num_shards = work, options, num_shards
        if splitter is None:
            splitter = make_sentence_splitter(options.sentence_splitter, language)
        tokenizer = load_tokenizer(work / "tokenizer")
        targets = LinkTargets(work / _LINK_TARGETS_FILE, UNK_ID if options.include_unk_entities else DROPPED)
        self.items = ItemBuilder(tokenizer, targets, splitter, options)
        self.schema = _schema(_smallest_type(tokenizer.vocab_size), _smallest_type(entity_vocab_size))

    def build(self, task: _Task) -> None:
        name = shard_file_name(task.shard, self.num_shards)
        if (self.work / name).exists():
            return
        parts: dict[str, list[Items]] = {split: [] for split in _splits(self.options)}
        for pages in _first_pages(task):
            items = self.items.items(pages)
            if self.options.held_out_fraction:
                titles = pages["title"].to_pylist()
                held_out = np.array(
                    [is_held_out(titles[page], self.options.held_out_fraction) for page in items.pages], bool
                )
                parts[HELD_OUT].append(items.select(held_out))
                items = items.select(~held_out)
            parts[""].append(items)
        # The shard of training items is the last to be written: where it is, all are.
        for split in reversed(parts):
            self._write(self.work / split / name, parts[split])

    def _write(self, path: Path, parts: list[Items]) -> None:
        num_pages = sum(len(np.unique(items.pages)) for items in parts)
        schema = self.schema.with_metadata({_PAGES_KEY: str(num_pages)})
        with replace_file(path) as stream, pa.ipc.new_stream(stream, schema) as writer:
            for items in parts:
                columns = [
                    items.page_ids,
                    (items.word_offsets, items.word_ids),
                    *((items.entity_offsets, column) for column in (items.entity_ids, items.starts, items.ends)),
                ]
                arrays = [_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
                batch = pa.record_batch(arrays, schema=schema)
                for begin in range(0, batch.num_rows, _ROWS_A_BATCH):
                    writer.write_batch(batch.slice(begin, _ROWS_A_BATCH))


def _array(column: Any, kind: pa.DataType) -> pa.Array:
    if not isinstance(column, tuple):
        return pa.array(column.astype(kind.to_pandas_dtype()))
    offsets, values = column
    return pa.ListArray.from_arrays(offsets.astype(np.int32), values.astype(kind.value_type.to_pandas_dtype()), type=kind)


def _first_pages(task: _Task) -> Iterator[pa.RecordBatch]:
    left = task.num_pages
    with pq.ParquetFile(task.file) as file:
        for batch in file.iter_batches(batch_size=_PAGES_A_CALL):
            if left > 0:
                yield batch.slice(0, left)
            left -= batch.num_rows


def _splits(options: DatasetOptions) -> list[str]:
    return ["", HELD_OUT] if options.held_out_fraction else [""]


def shard_file_name(shard: int, num_shards: int) -> str:
    """The name of a shard of items, as the ``datasets`` library has it."""
    return f"data-{shard:05d}-of-{num_shards:05d}.arrow"


def is_held_out(title: str, fraction: float) -> bool:
    """Whether a page is held out: a hash of its title falls into the share."""
    return int.from_bytes(hashlib.sha256(title.encode()).digest()[:8], "big") < fraction * 2**64


def _smallest_type(size: int) -> pa.DataType:
    return pa.uint16() if size <= 1 << 16 else pa.uint32()


def _schema(word_type: pa.DataType, entity_type: pa.DataType) -> pa.Schema:
    lists = {"word_ids": word_type, "entity_ids": entity_type, "entity_starts": pa.uint16(), "entity_ends": pa.uint16()}
    return pa.schema([("page_id", pa.int32()), *((name, pa.list_(kind)) for name, kind in lists.items())])


def _seal_split(folder: Path, num_shards: int) -> dict[str, int]:
    """Writes what ``datasets.load_from_disk`` wants, and returns the counts."""
    counts = {"items": 0, "word_tokens": 0, "entities": 0, "unk_entities": 0, "pages": 0}
    schema: pa.Schema = None
    for shard in range(num_shards):
        with pa.ipc.open_stream(pa.memory_map(str(folder / shard_file_name(shard, num_shards)))) as reader:
            schema = reader.schema
            counts["pages"] += int(schema.metadata[_PAGES_KEY])
            for batch in reader:
                entities = batch["entity_ids"].values.to_numpy()
                counts["items"] += batch.num_rows
                counts["word_tokens"] += len(batch["word_ids"].values)
                counts["entities"] += len(entities)
                counts["unk_entities"] += int((entities == UNK_ID).sum())
    features = {
        field.name: {"dtype": str(field.type), "_type": "Value"}
        if field.name == "page_id"
        else {"feature": {"dtype": str(field.type.value_type), "_type": "Value"}, "_type": "List"}
        for field in schema
    }
    write_json(
        folder / "dataset_info.json",
        {"citation": "", "description": "", "features": features, "homepage": "", "license": ""},
    )
    files = [{"filename": shard_file_name(shard, num_shards)} for shard in range(num_shards)]
    fingerprint = hashlib.sha256("".join(fingerprint_file(folder / file["filename"]) for file in files).encode()).hexdigest()
    state: dict[str, Any] = {
        "_data_files": files,
        "_fingerprint": fingerprint[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    write_json(folder / "state.json", state)
    return counts
