"""Page store + vocabulary -> pretraining dataset: sentences with links, joined to sequences (Yamada et al. 2020).

The format is described in ``docs/architecture.md``. A shard of pages gives a shard of items; workers write shards, a
finished one is not done again, and the result does not depend on their number.
"""

import functools
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from luke.artifacts import Metadata, StagedFolder, fingerprint_file, read_metadata, replace_file, write_json
from luke.corpus.page_store import Page, PageStore, Paragraph, read_pages
from luke.entity_vocab import UNK, EntityVocab
from luke.errors import UserError
from luke.pretraining.dataset import HELD_OUT, KIND
from luke.progress import Progress
from luke.tokenization import LinkedTextTokenizer, load_tokenizer, tokenizer_fingerprint
from luke.workers import default_workers, map_ordered

logger = logging.getLogger(__name__)

SentenceSplitter = Callable[[str], Sequence[tuple[int, int]]]

_NEVER_TRAINED = ("image", "file", "category")
_ROWS_A_BATCH = 1000
# Pages whose pieces are tokenized in one call: long enough for the tokenizer's threads, short enough for memory.
_PAGES_A_CALL = 64
_SPACES = re.compile(r"\s+")


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
        language: Of the titles in the vocabulary, and of the sentence splitter; default: the page store's for the splitter.
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
        splits = ["", HELD_OUT] if options.held_out_fraction else [""]
        for split in splits:
            (stage.work / split).mkdir(exist_ok=True)
        words.save(stage.work / "tokenizer")
        shutil.copyfile(entity_vocab, stage.work / "entity_vocab.jsonl")
        _build_shards(store, stage.work, options, workers or default_workers(), splitter)
        counts = {split: _seal_split(stage.work / split, len(store.page_files)) for split in splits}
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
            entity_vocab_fingerprint=vocabulary.fingerprint,
            language=options.language or store.language,
            counts=counts[""],
            held_out_counts=counts.get(HELD_OUT),
        )


def _build_shards(
    store: PageStore, work: Path, options: DatasetOptions, workers: int, splitter: SentenceSplitter | None
) -> None:
    # The quota of --max-num-documents is dealt to shards by their sizes, so that workers need not talk.
    tasks, left = [], options.max_num_documents
    for shard, file in enumerate(store.page_files):
        pages = pa.parquet.read_metadata(file).num_rows
        tasks.append(_Task(shard, file, pages if left is None else min(left, pages)))
        left = None if left is None else left - tasks[-1].num_pages
    arguments = (work, store.folder, options, splitter, len(tasks), workers)
    with Progress("pages", sum(task.num_pages for task in tasks), "pages") as progress:
        for task in map_ordered(_build_shard, tasks, min(workers, len(tasks)), _start_worker, arguments):
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
    _builder.build(task)
    return task


class _ShardBuilder:
    """What a worker keeps: tokenizer, vocabulary, redirects, splitter."""

    def __init__(
        self,
        work: Path,
        store: Path,
        options: DatasetOptions,
        splitter: SentenceSplitter | None,
        num_shards: int,
        workers: int,
    ) -> None:
        # Several workers already use all CPUs; a single one leaves that to the tokenizer's threads.
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if workers == 1 else "false"
        self.work, self.options, self.num_shards = work, options, num_shards
        page_store = PageStore(store)
        vocabulary = EntityVocab(work / "entity_vocab.jsonl")
        tokenizer = load_tokenizer(work / "tokenizer")
        if splitter is None:
            from luke.corpus.sentences import make_sentence_splitter

            splitter = make_sentence_splitter(options.sentence_splitter, options.language or page_store.language)
        titles = vocabulary.titles(options.language)
        redirected = {source: titles[target] for source, target in page_store.redirects().items() if target in titles}
        unk = titles[UNK] if options.include_unk_entities else None
        self.items = ItemBuilder(tokenizer, {**redirected, **titles}, unk, splitter, options)
        self.word_type = _smallest_type(tokenizer.vocab_size)
        self.entity_type = _smallest_type(len(vocabulary))
        self.splits = ["", HELD_OUT] if options.held_out_fraction else [""]

    def build(self, task: _Task) -> None:
        paths = {split: self.work / split / shard_file_name(task.shard, self.num_shards) for split in self.splits}
        if all(path.exists() for path in paths.values()):
            return
        rows: dict[str, list[RawItem]] = {split: [] for split in self.splits}
        for page, items in self.items.of_pages(_first(read_pages(task.file), task.num_pages)):
            rows[HELD_OUT if is_held_out(page.title, self.options.held_out_fraction) else ""] += items
        for split, path in paths.items():
            self._write(path, rows[split])

    def _write(self, path: Path, items: list["RawItem"]) -> None:
        schema = _schema(self.word_type, self.entity_type)
        with replace_file(path) as stream, pa.ipc.new_stream(stream, schema) as writer:
            for begin in range(0, len(items), _ROWS_A_BATCH):
                rows = items[begin : begin + _ROWS_A_BATCH]
                columns = [
                    pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)
                ]
                writer.write_batch(pa.record_batch(columns, schema=schema))


def shard_file_name(shard: int, num_shards: int) -> str:
    """The name of a shard of items, as the ``datasets`` library has it."""
    return f"data-{shard:05d}-of-{num_shards:05d}.arrow"


def _first(pages: Iterator[Page], number: int) -> Iterator[Page]:
    for _, page in zip(range(number), pages, strict=False):
        yield page


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
    counts = {"items": 0, "word_tokens": 0, "entities": 0, "unk_entities": 0}
    schema: pa.Schema = None
    for shard in range(num_shards):
        with pa.ipc.open_stream(pa.memory_map(str(folder / shard_file_name(shard, num_shards)))) as reader:
            schema = reader.schema
            for batch in reader:
                entities = batch["entity_ids"].values.to_numpy()
                counts["items"] += batch.num_rows
                counts["word_tokens"] += len(batch["word_ids"].values)
                counts["entities"] += len(entities)
                counts["unk_entities"] += int((entities == 1).sum())
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
    state: dict[str, object] = {
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


class RawItem(NamedTuple):
    """A row of the dataset."""

    page_id: int
    word_ids: list[int]
    entity_ids: list[int]
    entity_starts: list[int]
    entity_ends: list[int]


class _Piece(NamedTuple):
    """A piece of a sentence: outside links, or an anchor, whose ``entity_id`` then is the target's."""

    text: str
    after_space: bool
    entity_id: int | None


class ItemBuilder:
    """Pages -> items.

    Args:
        tokenizer: Makes word ids.
        entity_ids: Title -> entity id, redirects included.
        unk_entity_id: Given to links outside the vocabulary; None drops them.
        splitter: Text -> sentence spans.
        options: How items are made.
    """

    def __init__(
        self,
        tokenizer: LinkedTextTokenizer,
        entity_ids: dict[str, int],
        unk_entity_id: int | None,
        splitter: SentenceSplitter,
        options: DatasetOptions,
    ) -> None:
        self.tokenizer, self.entity_ids, self.unk_entity_id = tokenizer, entity_ids, unk_entity_id
        self.splitter, self.options = splitter, options

    def of_pages(self, pages: Iterator[Page]) -> Iterator[tuple[Page, list[RawItem]]]:
        """Each page with its items, in order; many pages are tokenized in one call."""
        batch: list[Page] = []
        for page in pages:
            batch.append(page)
            if len(batch) == _PAGES_A_CALL:
                yield from self._of_batch(batch)
                batch = []
        yield from self._of_batch(batch)

    def _of_batch(self, pages: list[Page]) -> Iterator[tuple[Page, list[RawItem]]]:
        sentences = [list(self._sentences_of_page(page)) for page in pages]
        pieces = [piece for page in sentences for sentence in page for piece in sentence]
        ids = iter(self.tokenizer.encode_pieces([p.text for p in pieces], [p.after_space for p in pieces]))
        for page, page_sentences in zip(pages, sentences, strict=True):
            tokenized = [[(piece, next(ids)) for piece in sentence] for sentence in page_sentences]
            yield page, list(self._join(self.entity_ids.get(page.title, -1), tokenized))

    def _sentences_of_page(self, page: Page) -> Iterator[list[_Piece]]:
        options = self.options
        if page.title.lower().startswith(tuple(f"{namespace}:" for namespace in _NEVER_TRAINED)):
            return
        if options.predefined_entities_only and page.title not in self.entity_ids:
            return
        for paragraph in page.paragraphs:
            if options.abstract_only and not paragraph.abstract:
                continue
            for start, end in self.splitter(paragraph.text):
                yield list(self._pieces(paragraph, start, end))

    def _pieces(self, paragraph: Paragraph, start: int, end: int) -> Iterator[_Piece]:
        """The pieces of the sentence [start, end): a link counts if it lies within it."""
        place = start
        for link in self._links_by_start(paragraph):
            if link.start < place or link.end > end:
                continue
            entity_id = self.entity_ids.get(link.title, self.unk_entity_id)
            if entity_id is None:
                continue
            yield from self._piece(paragraph.text, place, link.start, None)
            yield from self._piece(paragraph.text, link.start, link.end, entity_id)
            place = link.end
        yield from self._piece(paragraph.text, place, end, None)

    @staticmethod
    def _links_by_start(paragraph: Paragraph) -> list[Any]:
        return sorted(paragraph.links, key=lambda link: link.start)

    @staticmethod
    def _piece(text: str, start: int, end: int, entity_id: int | None) -> Iterator[_Piece]:
        raw = text[start:end]
        stripped = raw.strip()
        if stripped:
            begin = start + len(raw) - len(raw.lstrip())
            yield _Piece(_SPACES.sub(" ", stripped), begin == 0 or text[begin - 1].isspace(), entity_id)

    def _join(self, page_id: int, sentences: list[list[tuple[_Piece, list[int]]]]) -> Iterator[RawItem]:
        """Joins consecutive sentences while they fit."""
        room = self.options.max_seq_length - 2
        words: list[int] = []
        links: list[tuple[int, int, int]] = []
        for sentence in sentences:
            length = sum(len(ids) for _, ids in sentence)
            if not self.options.min_sentence_length <= length <= room or not length:
                continue
            if len(words) + length > room:
                yield from self._item(page_id, words, links)
                words, links = [], []
            for piece, ids in sentence:
                if piece.entity_id is not None and ids:
                    links.append((piece.entity_id, len(words), min(len(words) + len(ids), len(words) + self._mention)))
                words += ids
        yield from self._item(page_id, words, links)

    @functools.cached_property
    def _mention(self) -> int:
        return self.options.max_mention_length

    def _item(self, page_id: int, words: list[int], links: list[tuple[int, int, int]]) -> Iterator[RawItem]:
        if words and (links or self.options.include_sentences_without_entities):
            ids, starts, ends = zip(*links[: self.options.max_entity_length], strict=True) if links else ((), (), ())
            yield RawItem(page_id, words, list(ids), list(starts), list(ends))
