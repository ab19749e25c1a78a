"""The Wikidata JSON dump -> which titles of which Wikipedias are one item.

``sitelinks.parquet`` has a row for each title: ``item`` (int64, the number of its item in this file), ``wikidata_id``
(string, such as ``Q42``; null if the dump does not say it), ``language`` and ``title``.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from luke.artifacts import Metadata, StagedFolder, fingerprint_inputs, read_metadata, replace_file
from luke.corpus.streams import Line, expand_paths, iter_lines
from luke.errors import UserError
from luke.progress import Progress

KIND = "interwiki-db"
SITELINKS_FILE = "sitelinks.parquet"
_SCHEMA = pa.schema([("item", pa.int64()), ("wikidata_id", pa.string()), ("language", pa.string()), ("title", pa.string())])
_ROWS_A_BATCH = 1 << 17

_WIKIPEDIA = re.compile(r"([a-z_]+)wiki")
# Wikis whose names look like a Wikipedia's.
_OTHER_WIKIS = {
    *("api", "beta", "commons", "foundation", "incubator", "labs", "login", "mediawiki", "media", "meta", "outreach"),
    *(
        "quality",
        "sources",
        "species",
        "strategy",
        "test",
        "test_two",
        "usability",
        "wikidata",
        "wikifunctions",
        "wikimania",
    ),
}


class Sitelink(NamedTuple):
    """A row of the file."""

    item: int
    wikidata_id: str | None
    language: str
    title: str


def build_interwiki_db(dumps: Sequence[str | Path], output: Path, languages: Sequence[str] = ()) -> Metadata:
    """Writes the titles of Wikidata's items in Wikipedias to the folder ``output``.

    Args:
        dumps: The JSON dump (one item a line, plain or compressed), or its parts, or wildcards.
        output: The folder.
        languages: Only these; none means all.

    Raises:
        UserError: a line is not an entity of Wikidata (named), or no item has a title there.
    """
    paths = expand_paths(dumps)
    plan = {"options": {"languages": sorted(languages)}, "inputs": fingerprint_inputs("wikidata", paths)}
    with StagedFolder(output, KIND, plan) as stage:
        if stage.done:
            return read_metadata(output, KIND)
        counts = {"items": 0, "titles": 0}
        with (
            replace_file(stage.work / SITELINKS_FILE) as stream,
            pq.ParquetWriter(stream, _SCHEMA, compression="zstd") as file,
        ):
            for item, rows in _batches(paths, frozenset(languages)):
                file.write_table(pa.table(list(map(pa.array, zip(*rows, strict=True))), schema=_SCHEMA))
                counts = {"items": item, "titles": counts["titles"] + len(rows)}
        return stage.finish(counts=counts)


def _batches(paths: Sequence[Path], languages: frozenset[str]) -> Iterator[tuple[int, list[Sitelink]]]:
    """Rows by the hundred thousand, with the number of items so far."""
    item, rows = 0, list[Sitelink]()
    with Progress("items", unit="items") as progress:
        for path in paths:
            for line in iter_lines(path):
                links = _sitelinks(line, item, languages)
                progress.advance()
                if not links:
                    continue
                item += 1
                rows += links
                if len(rows) >= _ROWS_A_BATCH:
                    yield item, rows
                    rows = []
        if not item:
            where = f"a Wikipedia of {', '.join(sorted(languages))}" if languages else "any Wikipedia"
            raise UserError(f"{paths[0]}: no item has a title in {where}; is it a Wikidata JSON dump with sitelinks?")
    if rows:
        yield item, rows


def _sitelinks(line: Line, item: int, languages: frozenset[str]) -> list[Sitelink]:
    """The titles of a line's item in the order of their languages; none if it is a property or a bracket."""
    data = line.data.strip().rstrip(b",")
    if data in (b"[", b"]", b""):
        return []
    try:
        entity = json.loads(data)
        if entity["type"] != "item":
            return []
        # An item without a title anywhere has an empty list in place of an object.
        titles = {site: link["title"] for site, link in dict(entity.get("sitelinks") or {}).items()}
    except RecursionError:
        raise UserError(f"{line.place}: nested too deep for an entity of Wikidata") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{line.place}: not an entity of a Wikidata JSON dump ({error!r})") from None
    found = ((wikipedia_language(site), title) for site, title in titles.items())
    chosen = sorted((language, title) for language, title in found if language and (not languages or language in languages))
    return [Sitelink(item, entity.get("id"), language, title) for language, title in chosen]


def wikipedia_language(site: str) -> str | None:
    """``zh_min_nanwiki`` -> ``zh-min-nan``; None of a wiki that is no Wikipedia."""
    match = _WIKIPEDIA.fullmatch(site)
    return match[1].replace("_", "-") if match and match[1] not in _OTHER_WIKIS else None
