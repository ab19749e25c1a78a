"""Link counts -> entity vocabulary.

Counting is one scan of the page store's columns by DuckDB, which spills to disk beyond its memory limit.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from luke.artifacts import (
    METADATA_FILE,
    Metadata,
    fingerprint_file,
    make_metadata,
    metadata_path,
    read_metadata,
    replace_file,
    same_plan,
    write_json,
)
from luke.corpus.page_store import PageStore
from luke.errors import UserError

KIND = "entity-vocabulary"
PAD, UNK, MASK = "[PAD]", "[UNK]", "[MASK]"
SPECIAL = (PAD, UNK, MASK)  # ids 0, 1, 2
UNK_ID = SPECIAL.index(UNK)
_MEMORY_LIMIT = "2GB"

# The titles of an entity, each with its language or None, and its links.
VocabEntry = tuple[Sequence[tuple[str, str | None]], int]


@dataclass(frozen=True)
class VocabOptions:
    """What enters the vocabulary.

    Attributes:
        vocab_size: Entries with the three special tokens.
        min_count: Links that an entity needs.
        white_list: Titles, one a line, kept whatever their count if linked at least once.
        white_list_only: Keep no others.
        allow_missing_pages: Keep targets that have no page in the store, as in a partial dump.
        language: Written with each title; the form of several languages needs it.
    """

    vocab_size: int = 1_000_000
    min_count: int = 0
    white_list: Path | None = None
    white_list_only: bool = False
    allow_missing_pages: bool = False
    language: str | None = None

    def __post_init__(self) -> None:
        if self.vocab_size <= len(SPECIAL):
            raise UserError(f"--vocab-size {self.vocab_size}: must exceed the {len(SPECIAL)} special tokens that it counts")
        if self.min_count < 0:
            raise UserError(f"--min-count {self.min_count}: must not be negative")
        if self.white_list_only and self.white_list is None:
            raise UserError("--white-list-only needs --white-list")


def build_entity_vocab(page_store: Path, output: Path, options: VocabOptions) -> Metadata:
    """Writes the vocabulary of a page store to ``output``, a JSON-lines file, and its metadata beside it.

    Raises:
        UserError: no page store, nothing linked, or ``output`` holds something else.
    """
    store = PageStore(page_store)
    white_list = _read_white_list(options.white_list)
    plan = {
        "options": {**vars(options), "white_list": white_list},
        "inputs": {"pages": {"path": str(page_store), "fingerprint": store.metadata["fingerprint"]}},
    }
    nothing = (
        f"{page_store}: no link leads to a page of the store that is asked for; for a partial dump use --allow-missing-pages"
    )
    entries = (([(title, options.language)], count) for title, count in _chosen_entries(store, output, options, white_list))
    return write_entity_vocab(output, plan, entries, nothing)


def write_entity_vocab(output: Path, plan: Mapping[str, Any], entries: Iterator[VocabEntry], nothing: str) -> Metadata:
    """Writes a vocabulary, the special tokens first, unless it is there already.

    Args:
        output: The JSON-lines file; its metadata lie beside it.
        plan: Options and inputs, see `luke.artifacts.make_metadata`.
        entries: The entities by id.
        nothing: What to say if there is no entity.

    Raises:
        UserError: nothing comes out, or ``output`` holds something else.
    """
    if output.exists():
        _check_existing(output, plan)
        return read_metadata(output, KIND)
    output.parent.mkdir(parents=True, exist_ok=True)
    special: Iterator[VocabEntry] = (([(token, None)], 0) for token in SPECIAL)
    with replace_file(output) as stream:
        counts = {"entities": 0, "links": 0}
        for number, (titles, count) in enumerate(chain(special, entries)):
            line = {"id": number, "entities": titles, "count": count}
            stream.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            counts = {"entities": counts["entities"] + 1, "links": counts["links"] + count}
        if not counts["links"]:
            raise UserError(nothing)
        stream.flush()
        metadata = make_metadata(KIND, plan, fingerprint_file(Path(stream.name)), counts=counts)
        # Before the vocabulary itself, so that a kill in between leaves nothing under its name.
        write_json(output.with_name(f"{output.name}.{METADATA_FILE}"), metadata)
    return metadata


def _check_existing(output: Path, plan: Mapping[str, Any]) -> None:
    if not metadata_path(output).exists():
        raise UserError(f"{output}: exists and is not a vocabulary made here; choose another output or delete it")
    metadata = read_metadata(output, KIND)
    if metadata["fingerprint"] != fingerprint_file(output):
        raise UserError(f"{output}: has changed since it was built; delete it to build it again")
    if not same_plan(metadata, plan):
        raise UserError(f"{output}: already holds a vocabulary made with other options or input; choose another output")


def _read_white_list(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--white-list {path}: cannot be read: {error}") from None
    return sorted({line.strip() for line in lines if line.strip()})


def _chosen_entries(
    store: PageStore, output: Path, options: VocabOptions, white_list: list[str]
) -> Iterator[tuple[str, int]]:
    """(title, links) of the entities, by descending links, ties by title; redirects resolved."""
    import pyarrow as pa

    with duckdb_beside(output) as database:
        database.register("white_list", pa.table({"title": pa.array(white_list, pa.string())}))
        pages = [str(path) for path in store.page_files]
        # Distinct targets are counted first: redirects and pages are then looked up once a target, not once a link.
        database.execute(
            """
            CREATE TABLE targets AS
            WITH all_paragraphs AS (SELECT unnest(paragraphs) AS paragraph FROM read_parquet($1)),
            all_links AS (SELECT unnest(paragraph.links) AS link FROM all_paragraphs)
            SELECT link.title AS title, count(*) AS links FROM all_links GROUP BY link.title
            """,
            [pages],
        )
        database.execute(
            """
            CREATE TABLE counts AS
            WITH resolved AS (
                SELECT coalesce(target, title) AS title, links
                FROM targets LEFT JOIN read_parquet($1) AS redirects ON title = source
            )
            SELECT title, sum(links)::BIGINT AS links, title IN (FROM white_list) AS listed
            FROM resolved
            WHERE title <> '' AND NOT starts_with(title, 'Category:')
            GROUP BY title
            """,
            [str(store.redirects_file)],
        )
        database.execute("DROP TABLE targets")
        if not options.allow_missing_pages:
            database.execute("DELETE FROM counts WHERE title NOT IN (SELECT title FROM read_parquet($1))", [pages])
        # The white list stays whatever its counts; the rest fills what is left.
        listed = database.execute("SELECT count(*) FROM counts WHERE listed").fetchall()[0][0]
        room = 0 if options.white_list_only else max(0, options.vocab_size - len(SPECIAL) - listed)
        result = database.execute(
            """
            SELECT title, links FROM counts WHERE listed
            UNION ALL
            (SELECT title, links FROM counts WHERE NOT listed AND links >= $1 ORDER BY links DESC, title LIMIT $2)
            ORDER BY links DESC, title
            """,
            [options.min_count, room],
        )
        while rows := result.fetchmany(1 << 16):
            yield from rows


@contextmanager
def duckdb_beside(output: Path) -> Iterator[Any]:
    """A database of bounded memory that spills to the disk of ``output``."""
    import duckdb

    with duckdb.connect() as database, tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as spill:
        database.execute(f"SET memory_limit = '{_MEMORY_LIMIT}'; SET preserve_insertion_order = false")
        database.execute("SET temp_directory = $1", [spill])
        yield database


class EntityVocab:
    """An entity vocabulary: ids of titles, titles of ids.

    Reads JSON lines, and the old form of ``title TAB count`` lines (``.tsv``).

    Args:
        path: The file.

    Raises:
        UserError: it cannot be read, a line is broken (named), ids have gaps, a title stands twice, or the special tokens
            are not ids 0, 1 and 2.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._titles: list[list[tuple[str, str | None]]] = []
        self._ids: dict[tuple[str, str | None], int] = {}
        self.counts: list[int] = []
        for number, (entity_id, titles, count) in enumerate(_read_lines(path)):
            self._add(number, entity_id, titles, count)
        for number, special in enumerate(SPECIAL):
            if number >= len(self._titles) or self._titles[number][0][0] != special:
                raise UserError(f"{path}: not an entity vocabulary: its entry {number} must be {special}")
        self.fingerprint = fingerprint_file(path)

    def _add(self, number: int, entity_id: int, titles: list[tuple[str, str | None]], count: int) -> None:
        if entity_id != number:
            raise UserError(f"{self.path}, line {number + 1}: id {entity_id} where {number} is due; ids must have no gaps")
        for title in titles:
            if title in self._ids:
                raise UserError(f"{self.path}, line {number + 1}: {title[0]!r} stands twice")
            self._ids[title] = number
        self._titles.append(titles)
        self.counts.append(count)

    def __len__(self) -> int:
        return len(self._titles)

    def __contains__(self, title: str) -> bool:
        return self.get_id(title) is not None

    def get_id(self, title: str, language: str | None = None, default: int | None = None) -> int | None:
        """The id of a title; a vocabulary without languages has it under None."""
        found = self._ids.get((title, language))
        return self._ids.get((title, None), default) if found is None else found

    def get_title(self, entity_id: int, language: str | None = None) -> str:
        """A title of an id, in ``language`` if it has one."""
        titles = self._titles[entity_id]
        return next((title for title, code in titles if code == language), titles[0][0])

    def save(self, path: Path) -> None:
        """Writes the vocabulary as JSON lines: byte for byte the file that it was read from, unless that is a ``.tsv``."""
        if self.path.suffix != ".tsv":
            shutil.copyfile(self.path, path)
            return
        with replace_file(path, "w") as stream:
            for entity_id, (titles, count) in enumerate(zip(self._titles, self.counts, strict=True)):
                line = {"id": entity_id, "entities": titles, "count": count}
                stream.write(json.dumps(line, ensure_ascii=False) + "\n")

    def titles(self, language: str | None = None) -> dict[str, int]:
        """Title -> id of all entities that have one in ``language``, or in none."""
        return {title: entity_id for (title, code), entity_id in self._ids.items() if code in (language, None)}


def iter_entries(path: Path) -> Iterator[VocabEntry]:
    """The entries of a vocabulary, one at a time: it may be larger than memory.

    Raises:
        UserError: it cannot be read, or a line is broken (named).
    """
    for _, titles, count in _read_lines(path):
        yield titles, count


def _read_lines(path: Path) -> Iterator[tuple[int, list[tuple[str, str | None]], int]]:
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream):
                yield _parse_line(path, number, line)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the entity vocabulary cannot be read: {error}") from None


def _parse_line(path: Path, number: int, line: str) -> tuple[int, list[tuple[str, str | None]], int]:
    try:
        if path.suffix == ".tsv":
            title, count = line.rstrip("\n").split("\t")
            return number, [(title, None)], int(count)
        entry = json.loads(line)
        titles = [(str(title), language) for title, language in entry["entities"]]
        if not titles:
            raise ValueError("no title")
        return int(entry["id"]), titles, int(entry["count"])
    except (ValueError, KeyError, TypeError) as error:
        form = "title TAB count" if path.suffix == ".tsv" else '{"id": …, "entities": [[title, language]], "count": …}'
        raise UserError(f"{path}, line {number + 1}: not of the form {form} ({error})") from None
