"""AIDA-CoNLL's own file, ``AIDA-YAGO2-dataset.tsv`` (Hoffart et al. 2011).

A token a line; in a mention also B or I, the mention's text, the YAGO2 entity (``--NME--`` if there is none), and mostly the
Wikipedia URL. ``-DOCSTART- (1163testb SOCCER)`` begins a document; ``testa`` and ``testb`` in its name say its part.
"""

import re
from pathlib import Path
from urllib.parse import unquote

from luke.entity_disambiguation.documents import Collection, Document, Mention, ReadReport
from luke.entity_disambiguation.titles import lines_of
from luke.errors import UserError

PARTS = ("train", "testa", "testb", "all")
_NO_ENTITY = "--NME--"
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


def read_aida(path: Path, part: str = "all") -> Collection:
    """Reads one part of the file, or all of it.

    Raises:
        UserError: it cannot be read, or a line is broken (named).
    """
    report = ReadReport()
    documents: list[Document] = []
    words: list[str] = []
    length, inside = 0, False
    for number, line in lines_of(path):
        fields = line.split("\t")
        if line.startswith("-DOCSTART-"):
            _close(documents, words)
            documents.append(Document(line.partition("(")[2].rstrip(") "), "", []))
            words, length, inside = [], 0, False
            continue
        if not documents:
            raise UserError(f"{path}, line {number}: a token before the first -DOCSTART-")
        start = length + bool(words)
        words.append(fields[0])
        length = start + len(fields[0])
        tag = fields[1] if len(fields) > 1 else ""
        if tag == "B":
            if len(fields) < 4:
                raise UserError(f"{path}, line {number}: a mention without an entity")
            documents[-1].mentions.append(Mention(start, length, _title(fields)))
        elif tag == "I" and inside:
            documents[-1].mentions[-1].end = length
        elif tag:
            raise UserError(f"{path}, line {number}: tag {tag!r} where B, or I behind B, is due")
        inside = bool(tag)
    _close(documents, words)
    documents = [document for document in documents if part in ("all", _part(document.id))]
    for document in documents:
        report.mentions += len(document.mentions)
        report.dropped["the mention has no entity (--NME--)"] += sum(m.title is None for m in document.mentions)
        document.mentions = [mention for mention in document.mentions if mention.title is not None]
    report.documents = len(documents)
    report.dropped = +report.dropped  # without reasons that never came up
    return Collection(documents, report)


def _close(documents: list[Document], words: list[str]) -> None:
    if documents:
        documents[-1].text = " ".join(words)


def _part(name: str) -> str:
    return next((part for part in PARTS[1:3] if part in name.split()[0]), PARTS[0])


def _title(fields: list[str]) -> str | None:
    """The title in the Wikipedia URL; without one, the YAGO2 entity, which is a title with escapes."""
    if fields[3] == _NO_ENTITY:
        return None
    if len(fields) > 4 and "/wiki/" in fields[4]:
        return unquote(fields[4].split("/wiki/", 1)[1]).replace("_", " ")
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), fields[3]).replace("_", " ")
