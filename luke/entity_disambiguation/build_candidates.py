"""Page store -> candidate table.

Sources: the anchors of all links, with their counts; titles, and redirects to them, with one link each, without what stands
in brackets behind them; disambiguation pages, with one link from the page's name to the first link of each of their lines.
Redirects are resolved; disambiguation pages are no entities.

Counting is done by DuckDB, which spills to disk beyond its memory limit. Document frequencies are counted shard by shard by
worker processes, which map the table; finished shards are kept.
"""

import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from luke.artifacts import Metadata, StagedFolder, read_metadata, replace_file
from luke.corpus.page_store import PageStore, read_pages
from luke.entity_disambiguation.anchor_index import AnchorIndex, read_batches
from luke.entity_disambiguation.anchor_text import EXACT, FOLDED, LOWER, Hasher, fold, normalize
from luke.entity_disambiguation.candidate_table import ANCHORS_FILE, ENTITIES_FILE, FREQUENCIES_FILE, KIND
from luke.errors import UserError
from luke.pretraining.build_dataset import is_held_out
from luke.progress import Progress
from luke.workers import default_workers, map_ordered

_MEMORY_LIMIT = "2GB"
_ROWS_A_BATCH = 1 << 20
_ROWS_A_FETCH = 1 << 16
_BRACKETS = re.compile(r"\s*\([^()]*\)$|\s*（[^（）]*）$")

_ENTRY_TYPE = pa.list_(pa.uint32())
ANCHOR_SCHEMA = pa.schema(
    [
        ("hash", pa.uint64()),
        ("level", pa.uint8()),
        ("key", pa.string()),
        ("links", pa.uint32()),
        ("pages_linked", pa.uint32()),
        ("total_weight", pa.uint32()),
        ("entities", _ENTRY_TYPE),
        ("weights", _ENTRY_TYPE),
    ]
)
_ENTITY_SCHEMA = pa.schema([("title", pa.string())])
_FREQUENCY_SCHEMA = pa.schema([("pages_with", pa.uint32())])


@dataclass(frozen=True)
class CandidateOptions:
    """What enters a candidate table.

    Attributes:
        min_links: Links that an anchor needs to an entity.
        max_candidates: Entities kept for an anchor, those with most links; priors are shares of all its links.
        max_anchor_tokens: Words, spaces and signs of the longest anchor that is looked for in texts.
        allow_missing_pages: Keep link targets that have no page in the store, as in a partial dump.
        held_out_fraction: Leave out the pages that a dataset with the same fraction holds out.
        disambiguation_suffix: Another ending of the titles of disambiguation pages, beside the known ones.
    """

    min_links: int = 1
    max_candidates: int = 100
    max_anchor_tokens: int = 20
    allow_missing_pages: bool = False
    held_out_fraction: float = 0.0
    disambiguation_suffix: str | None = None

    def __post_init__(self) -> None:
        for name in ("min_links", "max_candidates", "max_anchor_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least 1")
        if not 0 <= self.held_out_fraction < 1:
            raise UserError(f"--held-out-fraction {self.held_out_fraction}: must be at least 0 and less than 1")


def build_candidates(
    db: Path, output: Path, options: CandidateOptions | None = None, workers: int | None = None
) -> Metadata:
    """Writes the candidate table of a page store to the folder ``output``.

    Raises:
        UserError: no page store, no link in it, or ``output`` holds something else.
    """
    options = options or CandidateOptions()
    store = PageStore(db)
    inputs = {"pages": {"path": str(db), "fingerprint": store.metadata["fingerprint"]}}
    with StagedFolder(output, KIND, {"options": asdict(options), "inputs": inputs}) as folder:
        if folder.done:
            return read_metadata(output, KIND)
        anchors = folder.work / ANCHORS_FILE
        # Anchors are written last: where they are, entities are.
        if not anchors.exists():
            _write_tables(store, folder.work, options)
        counts = {
            "anchors": sum(batch.num_rows for batch in read_batches(anchors)),
            "entities": sum(batch.num_rows for batch in read_batches(folder.work / ENTITIES_FILE)),
        }
        _write_frequencies(store, folder.work, options, workers or default_workers())
        return folder.finish(counts=counts, language=store.language)


# -- anchors and entities ----------------------------------------------------------------------------------------------


def _write_tables(store: PageStore, work: Path, options: CandidateOptions) -> None:
    import duckdb

    with duckdb.connect() as database, tempfile.TemporaryDirectory(prefix=".spill.", suffix=".tmp", dir=work) as spill:
        database.execute(f"SET memory_limit = '{_MEMORY_LIMIT}'; SET preserve_insertion_order = false")
        database.execute("SET temp_directory = $1", [spill])
        _add_functions(database, options)
        _collect_links(database, store, options)
        _collect_names(database, store)
        _merge_forms(database, options)
        if not database.execute("SELECT count(*) FROM pairs").fetchall()[0][0]:
            raise UserError(
                f"{store.folder}: no link leads to a page of the store; for a partial dump use --allow-missing-pages"
            )
        entities = database.sql("SELECT title FROM entities ORDER BY id").to_arrow_reader(_ROWS_A_FETCH)
        write_batches(work / ENTITIES_FILE, _ENTITY_SCHEMA, entities)
        rows = database.sql(
            """
            WITH merged AS (
                SELECT level, key, id, sum(weight) AS weight FROM keyed JOIN pairs USING (exact)
                JOIN entities ON title = target GROUP BY ALL
            ), listed AS (
                SELECT level, key, sum(weight) AS total,
                    list(id ORDER BY weight DESC, id) AS ids, list(weight ORDER BY weight DESC, id) AS weights
                FROM merged GROUP BY ALL
            ), counted AS (
                SELECT level, key, sum(links) AS links, sum(pages) AS pages FROM keyed JOIN anchors USING (exact)
                GROUP BY ALL
            )
            SELECT key_hash(key, level) AS hash, level::UTINYINT AS level, key,
                coalesce(links, 0)::UINTEGER AS links, coalesce(pages, 0)::UINTEGER AS pages_linked,
                total::UINTEGER AS total_weight,
                ids[1:$1]::UINTEGER[] AS entities, weights[1:$1]::UINTEGER[] AS weights
            FROM listed LEFT JOIN counted USING (level, key)
            ORDER BY hash, level, key
            """,
            params=[options.max_candidates],
        )
        write_batches(work / ANCHORS_FILE, ANCHOR_SCHEMA, rows.to_arrow_reader(_ROWS_A_FETCH))


def _add_functions(database: Any, options: CandidateOptions) -> None:
    """SQL functions for what must be done exactly as in a look-up."""
    from duckdb.sqltypes import BOOLEAN, TINYINT, UBIGINT, VARCHAR

    hasher = Hasher()

    def map_text(function: Any) -> Any:
        return lambda column: pa.array([function(text) for text in column.to_pylist()], pa.string())

    def key_hash(keys: Any, levels: Any) -> pa.Array:
        pairs = zip(keys.to_pylist(), levels.to_pylist(), strict=True)
        return pa.array([hasher.of_key(key, level) for key, level in pairs], pa.uint64())

    def held_out(titles: Any) -> pa.Array:
        return pa.array([is_held_out(title, options.held_out_fraction) for title in titles.to_pylist()], pa.bool_())

    markers = _disambiguation_markers(options)

    def is_disambiguation(titles: Any, beginnings: Any) -> pa.Array:
        pairs = zip(titles.to_pylist(), beginnings.to_pylist(), strict=True)
        return pa.array([markers.match(title, beginning) for title, beginning in pairs], pa.bool_())

    for name, function, arguments, result in (
        ("normal_form", map_text(normalize), [VARCHAR], VARCHAR),
        ("lower_form", map_text(lambda text: fold(text, LOWER)), [VARCHAR], VARCHAR),
        ("folded_form", map_text(lambda text: fold(text, FOLDED)), [VARCHAR], VARCHAR),
        ("name_of_title", map_text(lambda title: _BRACKETS.sub("", title)), [VARCHAR], VARCHAR),
        ("key_hash", key_hash, [VARCHAR, TINYINT], UBIGINT),
        ("is_held_out", held_out, [VARCHAR], BOOLEAN),
        ("is_disambiguation", is_disambiguation, [VARCHAR, VARCHAR], BOOLEAN),
    ):
        database.create_function(name, function, arguments, result, type="arrow")


class _DisambiguationMarkers:
    """What tells a disambiguation page: the ending of its title, or what its first paragraph says."""

    def __init__(self, suffixes: list[str], phrases: list[str]) -> None:
        self.suffixes, self.phrases = tuple(suffixes), phrases

    def match(self, title: str, beginning: str) -> bool:
        said = beginning.rstrip(" :\n")
        return title.endswith(self.suffixes) or any(said.endswith(phrase) for phrase in self.phrases)


def _disambiguation_markers(options: CandidateOptions) -> _DisambiguationMarkers:
    known = json.loads(Path(__file__).with_name("disambiguation_pages.json").read_text(encoding="utf-8"))
    own = [options.disambiguation_suffix] if options.disambiguation_suffix else []
    return _DisambiguationMarkers(known["title_suffixes"] + own, known["first_paragraph"])


def _collect_links(database: Any, store: PageStore, options: CandidateOptions) -> None:
    """Tables: ``pages`` (title, is_disambiguation), ``redirects``, ``links`` (anchor, target, page, number)."""
    files = [str(path) for path in store.page_files]
    database.execute(
        "CREATE TABLE pages AS SELECT title, is_disambiguation(title, coalesce(paragraphs[1].text[1:200], '')) AS ambiguous "
        "FROM read_parquet($1)",
        [files],
    )
    database.execute("CREATE TABLE redirects AS FROM read_parquet($1)", [str(store.redirects_file)])
    left_out = "WHERE NOT is_held_out(title)" if options.held_out_fraction else ""
    database.execute(
        f"""
        CREATE TABLE links AS
        WITH texts AS (SELECT title AS page, unnest(paragraphs) AS paragraph FROM read_parquet($1) {left_out}),
        found AS (SELECT page, paragraph.text AS text, unnest(paragraph.links) AS link FROM texts
                  WHERE page NOT IN (SELECT title FROM pages WHERE ambiguous)),
        cut AS (SELECT page, text[link.start + 1 : link.end] AS anchor, link.title AS title FROM found)
        SELECT anchor, coalesce(target, title) AS target, page, count(*) AS number
        FROM cut LEFT JOIN redirects ON title = source WHERE anchor <> '' AND title <> '' GROUP BY ALL
        """,
        [files],
    )
    missing = "" if options.allow_missing_pages else "OR target NOT IN (SELECT title FROM pages)"
    database.execute(
        "DELETE FROM links WHERE target IN (SELECT title FROM pages WHERE ambiguous) "
        f"OR starts_with(target, 'Category:') {missing}"
    )


def _collect_names(database: Any, store: PageStore) -> None:
    """Table ``names`` (anchor, target): what titles, redirects and disambiguation pages say."""
    database.execute(
        """
        CREATE TABLE names AS
        WITH known AS (SELECT DISTINCT target AS title FROM links UNION SELECT title FROM pages WHERE NOT ambiguous)
        SELECT name_of_title(title) AS anchor, title AS target FROM known
        UNION ALL SELECT name_of_title(source), target FROM redirects WHERE target IN (SELECT title FROM known)
        """
    )
    # The first link of each line of a disambiguation page is what the line is about.
    database.execute(
        """
        INSERT INTO names
        WITH lines AS (
            SELECT title AS page, unnest(paragraphs) AS line FROM read_parquet($1)
            WHERE title IN (SELECT title FROM pages WHERE ambiguous)
        ), first_links AS (
            SELECT page, list_sort(list_transform(line.links, lambda l: {start: l.start, title: l.title}))[1].title AS title
            FROM lines WHERE len(line.links) > 0
        ), resolved AS (
            SELECT page, coalesce(target, title) AS target FROM first_links LEFT JOIN redirects ON title = source
        )
        SELECT name_of_title(page), target FROM resolved
        WHERE target IN (SELECT target FROM names) AND target NOT IN (SELECT title FROM pages WHERE ambiguous)
        """,
        [[str(path) for path in store.page_files]],
    )


def _merge_forms(database: Any, options: CandidateOptions) -> None:
    """Tables: ``pairs`` (exact, target, weight), ``anchors`` (exact, links, pages), ``entities`` (id, title), ``keyed``
    (level, key, exact)."""
    database.execute(
        """
        CREATE TABLE forms AS SELECT anchor, normal_form(anchor) AS exact
        FROM (SELECT anchor FROM links UNION SELECT anchor FROM names)
        """
    )
    database.execute("DELETE FROM forms WHERE exact = ''")
    database.execute(
        """
        CREATE TABLE pairs AS
        WITH linked AS (
            SELECT exact, target, sum(number) AS weight FROM links JOIN forms USING (anchor) GROUP BY ALL
            HAVING sum(number) >= $1
        ), named AS (SELECT exact, target, count(*) AS weight FROM names JOIN forms USING (anchor) GROUP BY ALL)
        SELECT exact, target, sum(weight) AS weight FROM (FROM linked UNION ALL FROM named) GROUP BY ALL
        """,
        [options.min_links],
    )
    database.execute(
        "CREATE TABLE anchors AS SELECT exact, sum(number) AS links, count(DISTINCT page) AS pages "
        "FROM links JOIN forms USING (anchor) GROUP BY exact"
    )
    database.execute(
        "CREATE TABLE entities AS SELECT row_number() OVER (ORDER BY title) - 1 AS id, title "
        "FROM (SELECT DISTINCT target AS title FROM pairs)"
    )
    database.execute("DROP TABLE links; DROP TABLE names; DROP TABLE forms")
    database.execute(
        """
        CREATE TABLE spellings AS
        SELECT exact, lower_form(exact) AS lower, folded_form(exact) AS folded FROM (SELECT DISTINCT exact FROM pairs)
        """
    )
    # A form that has one spelling, itself, is already there as that spelling.
    database.execute(
        f"""
        CREATE TABLE keyed AS
        SELECT {EXACT}::TINYINT AS level, exact AS key, exact FROM spellings
        UNION ALL SELECT {LOWER}::TINYINT, lower, exact FROM spellings WHERE lower IN
            (SELECT lower FROM spellings GROUP BY lower HAVING count(*) > 1 OR min(exact) <> lower)
        UNION ALL SELECT {FOLDED}::TINYINT, folded, exact FROM spellings WHERE folded IN
            (SELECT folded FROM spellings GROUP BY folded HAVING count(DISTINCT lower) > 1 OR min(lower) <> folded)
        """
    )


def write_batches(path: Path, schema: pa.Schema, batches: Any) -> None:
    """Writes record batches as an Arrow file, whole or not at all, in batches of equal size."""

    def flush(writer: Any, parts: list[pa.RecordBatch]) -> None:
        if parts:
            writer.write_table(pa.Table.from_batches(parts, schema).combine_chunks(), max_chunksize=_ROWS_A_BATCH)

    with replace_file(path) as stream, pa.ipc.new_file(stream, schema) as writer:
        parts, rows = list[pa.RecordBatch](), 0
        for batch in batches:
            parts.append(batch.cast(schema))
            rows += batch.num_rows
            if rows >= _ROWS_A_BATCH:
                flush(writer, parts)
                parts, rows = [], 0
        flush(writer, parts)


# -- document frequencies ----------------------------------------------------------------------------------------------

_index: AnchorIndex | None = None
_held_out_fraction = 0.0


def _start_worker(work: Path, options: CandidateOptions) -> None:
    global _index, _held_out_fraction
    _index = AnchorIndex(work / ANCHORS_FILE, options.max_anchor_tokens)
    _held_out_fraction = options.held_out_fraction


def _count_shard(task: tuple[Path, Path]) -> tuple[Path, int]:
    """Counts the pages of one shard that hold each key; writes the keys that occur with their counts."""
    pages, output = task
    assert _index is not None
    totals = np.zeros(len(_index), np.uint32)
    number = 0
    for page in read_pages(pages):
        number += 1
        if _held_out_fraction and is_held_out(page.title, _held_out_fraction):
            continue
        totals[_index.rows_in("\n".join(paragraph.text for paragraph in page.paragraphs))] += 1
    rows = np.flatnonzero(totals)
    table = pa.table({"row": rows, "pages": totals[rows]})
    with replace_file(output) as stream, pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)
    return output, number


def _write_frequencies(store: PageStore, work: Path, options: CandidateOptions, workers: int) -> None:
    """``frequencies.arrow``: in the order and the batches of ``anchors.arrow``."""
    shards = [(path, work / f"counts-{number:05d}.arrow") for number, path in enumerate(store.page_files)]
    todo = [(pages, output) for pages, output in shards if not output.exists()]
    total = int(store.metadata.get("counts", {}).get("pages", 0)) if len(todo) == len(shards) else None
    with Progress("pages searched for anchors", total, "pages") as progress:
        for _, number in map_ordered(_count_shard, todo, workers, _start_worker, (work, options)):
            progress.advance(number)
    index = AnchorIndex(work / ANCHORS_FILE, options.max_anchor_tokens)
    totals = np.zeros(len(index), np.uint32)
    for _, output in shards:
        for batch in read_batches(output):
            totals[batch["row"].to_numpy()] += batch["pages"].to_numpy()

    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in index.batches:
            yield pa.record_batch([pa.array(totals[first : first + batch.num_rows])], schema=_FREQUENCY_SCHEMA)
            first += batch.num_rows

    with replace_file(work / FREQUENCIES_FILE) as stream, pa.ipc.new_file(stream, _FREQUENCY_SCHEMA) as writer:
        for batch in batches():
            writer.write_batch(batch)
    for _, output in shards:
        output.unlink()
