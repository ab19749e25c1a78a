"""PPRforNED candidates (Pershina et al. 2015) for AIDA-CoNLL: one file a document, named by the document's number.

``ENTITY`` lines have a field ``origText:…``; the ``CANDIDATE`` lines behind one have a field ``url:…``. There are no priors.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from luke.entity_disambiguation.documents import Candidate, Collection, Document, Mention, ReadReport
from luke.entity_disambiguation.titles import lines_of
from luke.errors import UserError

_NUMBER = re.compile(r"\d+")
_NOT_WORD = re.compile(r"\W+")


def with_ppr_candidates(collection: Collection, folder: Path) -> Collection:
    """The documents with the candidates of the files in ``folder`` (at any depth) in place of their own.

    Raises:
        UserError: there is no such folder, or no file for any document.
    """
    files = {path.name: path for path in sorted(folder.rglob("*")) if path.is_file() and path.name.isdigit()}
    if not files:
        raise UserError(f"{folder}: holds no PPRforNED files (named by numbers, such as 1163)")
    report = ReadReport(**vars(collection.report) | {"notes": collection.report.notes.copy()})
    documents = []
    for document in collection.documents:
        number = _NUMBER.match(document.id)
        path = files.get(number[0]) if number else None
        if path is None:
            report.notes["mentions without candidates: PPRforNED has no file for the document"] += len(document.mentions)
        entries = list(_entries(path)) if path else []
        documents.append(Document(document.id, document.text, list(_matched(document, entries, report))))
    return Collection(documents, report)


def _entries(path: Path) -> Iterator[tuple[str, list[Candidate]]]:
    """(mention text, candidates) of a file, in order."""
    text, candidates = None, list[Candidate]()
    for number, line in lines_of(path):
        kind, *fields = line.split("\t")
        values = dict(field.split(":", 1) for field in fields if ":" in field)
        try:
            if kind == "ENTITY":
                if text is not None:
                    yield text, candidates
                text, candidates = values["origText"], []
            elif kind == "CANDIDATE":
                candidates.append(Candidate(unquote(values["url"].split("/wiki/", 1)[1]).replace("_", " "), 0.0))
        except (KeyError, IndexError):
            raise UserError(f"{path}, line {number}: {kind} without origText: or url:") from None
    if text is not None:
        yield text, candidates


def _matched(document: Document, entries: list[tuple[str, list[Candidate]]], report: ReadReport) -> Iterator[Mention]:
    place = 0
    for mention in document.mentions:
        wanted = _essence(document.mention_text(mention))
        found = next((n for n in range(place, len(entries)) if _essence(entries[n][0]) == wanted), None)
        if found is None and entries:
            report.notes["mentions without candidates: not in the document's PPRforNED file"] += 1
        candidates = [] if found is None else entries[found][1]
        place = place if found is None else found + 1
        yield Mention(mention.start, mention.end, mention.title, candidates, mention.type)


def _essence(text: str) -> str:
    return _NOT_WORD.sub("", text.lower())
