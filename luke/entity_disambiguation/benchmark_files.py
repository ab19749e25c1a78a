"""Any benchmark by its path: which reader, and what is done to its documents afterwards."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from luke.artifacts import replace_file
from luke.entity_disambiguation.candidate_table import CandidateTable, with_table_candidates
from luke.entity_disambiguation.documents import Collection
from luke.entity_disambiguation.readers.aida import read_aida
from luke.entity_disambiguation.readers.json_lines import read_json_lines
from luke.entity_disambiguation.readers.mulrel import read_mulrel
from luke.entity_disambiguation.readers.nif import read_nif
from luke.entity_disambiguation.readers.pages import read_linked_pages
from luke.entity_disambiguation.readers.ppr import with_ppr_candidates
from luke.entity_disambiguation.titles import apply_titles, lines_of, read_titles
from luke.errors import UserError

FORMS = ("auto", "mulrel", "aida", "json-lines", "nif", "pages")
_SUFFIXES = {".csv": "mulrel", ".tsv": "aida", ".jsonl": "json-lines", ".json": "json-lines", ".ttl": "nif", ".nif": "nif"}


@dataclass(frozen=True)
class ReadOptions:
    """How benchmarks are read; nothing of it is required.

    Attributes:
        form: One of `FORMS`; ``auto`` goes by the name's ending.
        part: Of AIDA's own file: train, testa, testb or all.
        text_file: Of the mulrel-nel form, where it does not lie beside the candidates.
        persons: Titles of persons, for the mulrel-nel form's coreference heuristic.
        ppr_for_ned_dir: PPRforNED's folder; its candidates take the place of others.
        titles_file, redirects_file: As the public code's; ``titles_db`` is a page store instead.
        wikidata_titles: File of ``item TAB title`` lines, for benchmarks that name Wikidata items.
        held_out_fraction: Of a page store: the share of pages that was held out.
    """

    form: str = "auto"
    part: str = "all"
    text_file: Path | None = None
    persons: Path | None = None
    ppr_for_ned_dir: Path | None = None
    titles_file: Path | None = None
    redirects_file: Path | None = None
    titles_db: Path | None = None
    wikidata_titles: Path | None = None
    held_out_fraction: float = 0.0


def read_benchmark(path: Path, options: ReadOptions | None = None) -> Collection:
    """Reads one benchmark, resolves titles, and drops mentions without a valid title.

    Raises:
        UserError: it is not there, of no known form, or broken (named).
    """
    options = options or ReadOptions()
    if not path.exists():
        raise UserError(f"{path}: not found (a benchmark is needed here)")
    collection = _readers(options)[_form_of(path, options.form)](path)
    if options.ppr_for_ned_dir is not None:
        collection = with_ppr_candidates(collection, options.ppr_for_ned_dir)
    titles = read_titles(options.titles_file, options.redirects_file, options.titles_db)
    return apply_titles(collection, titles)


def _form_of(path: Path, form: str) -> str:
    if form != "auto":
        return form
    if path.is_dir():
        return "pages"
    if path.suffix not in _SUFFIXES:
        raise UserError(f"{path}: the ending {path.suffix!r} tells no form; give --format {'|'.join(FORMS[1:])}")
    return _SUFFIXES[path.suffix]


def _readers(options: ReadOptions) -> dict[str, Callable[[Path], Collection]]:
    return {
        "mulrel": lambda path: read_mulrel(path, options.text_file, options.persons),
        "aida": lambda path: read_aida(path, options.part),
        "json-lines": lambda path: read_json_lines(path, _wikidata_titles(options.wikidata_titles)),
        "nif": lambda path: read_nif(path, _wikidata_titles(options.wikidata_titles)),
        "pages": lambda path: read_linked_pages(path, options.held_out_fraction),
    }


def _wikidata_titles(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    titles = {}
    for number, line in lines_of(path):
        item, tab, title = line.partition("\t")
        if not tab:
            raise UserError(f"{path}, line {number}: not of the form item TAB title")
        titles[item] = title
    return titles


def write_json_lines(collection: Collection, path: Path) -> None:
    """Writes documents in the plain form, which `read_benchmark` reads again."""
    with replace_file(path, "w") as stream:
        for document in collection.documents:
            mentions = [
                {
                    "start": m.start,
                    "end": m.end,
                    "title": m.title,
                    "type": m.type,
                    "candidates": [{"title": c.title, "prior": c.prior} for c in m.candidates],
                }
                for m in document.mentions
            ]
            line = {"id": document.id, "text": document.text, "mentions": mentions}
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")


def list_candidates(
    benchmarks: Sequence[Path], options: ReadOptions, table: Path | None, max_candidates: int, output: Path
) -> int:
    """Writes the titles of all candidates of some benchmarks, sorted, one a line. Returns their number.

    Args:
        table: A candidate table whose candidates take the place of the benchmarks' own.
    """
    opened = CandidateTable(table) if table is not None else None
    titles: set[str] = set()
    for path in benchmarks:
        collection = read_benchmark(path, options)
        if opened is not None:
            collection = with_table_candidates(collection, opened, max_candidates)
        for document in collection.documents:
            for mention in document.mentions:
                titles.update(candidate.title for candidate in mention.candidates[:max_candidates])
    if not titles:
        raise UserError(f"{', '.join(map(str, benchmarks))}: no mention has candidates; give --candidates")
    with replace_file(output, "w") as stream:
        stream.writelines(title + "\n" for title in sorted(titles))
    return len(titles)
