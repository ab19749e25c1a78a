"""JSON lines of four kinds, told apart by their keys.

- plain: ``{"id", "text", "mentions": [{"start", "end", "title", "type", "candidates": [{"title", "prior"}]}]}``; all but the
  spans may be missing, and a candidate may be a title alone.
- BLINK: ``{"context_left", "mention", "context_right", "Wikipedia_title" or "label_title"}``: one mention a line.
- ZELDA: ``{"id", "text", "index": [[start, end]], "wikipedia_titles": []}``.
- ELEVANT: ``{"title", "text", "labels": [{"span", "entity_id", "name", "type"}], "hyperlinks"}``: Wikidata items.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from luke.entity_disambiguation.documents import Candidate, Collection, Document, Mention, ReadReport, by_prior
from luke.entity_disambiguation.titles import lines_of
from luke.errors import UserError

Entry = dict[str, Any]


def read_json_lines(path: Path, titles_of_items: Mapping[str, str] | None = None) -> Collection:
    """Reads a file of any of the kinds.

    Args:
        titles_of_items: Wikidata item -> title, for ELEVANT's files. Without it, the title is that of a hyperlink at the
            same place, else Wikidata's name of the item, which is mostly the title.

    Raises:
        UserError: a line is not JSON, of no known kind, or broken (named).
    """
    report = ReadReport()
    documents = []
    for number, line in lines_of(path):
        try:
            entry = json.loads(line)
            document = _reader_of(entry)(entry, report, titles_of_items or {})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"no key {error}" if isinstance(error, KeyError) else str(error)
            raise UserError(f"{path}, line {number}: not a document of a known kind ({reason})") from None
        document.id = document.id or str(number)
        document.mentions = [mention for mention in document.mentions if _is_inside(mention, document, report)]
        document.mentions.sort(key=lambda mention: (mention.start, -mention.end))
        documents.append(document)
    report.documents = len(documents)
    return Collection(documents, report)


def _reader_of(entry: Entry) -> Callable[[Entry, ReadReport, Mapping[str, str]], Document]:
    if "context_left" in entry:
        return _blink
    if "wikipedia_titles" in entry:
        return _zelda
    return _elevant if "labels" in entry else _plain


def _is_inside(mention: Mention, document: Document, report: ReadReport) -> bool:
    if 0 <= mention.start < mention.end <= len(document.text):
        return True
    report.dropped["the span is empty or outside of the text"] += 1
    return False


def _plain(entry: Entry, report: ReadReport, _: Mapping[str, str]) -> Document:
    mentions = []
    for mention in entry["mentions"]:
        candidates = [
            Candidate(c, 0.0) if isinstance(c, str) else Candidate(str(c["title"]), float(c.get("prior", 0.0)))
            for c in mention.get("candidates", ())
        ]
        place = int(mention["start"]), int(mention["end"])
        mentions.append(Mention(*place, mention.get("title"), by_prior(candidates), mention.get("type")))
    report.mentions += len(mentions)
    return Document(str(entry.get("id", "")), str(entry["text"]), mentions)


def _blink(entry: Entry, report: ReadReport, _: Mapping[str, str]) -> Document:
    left, mention, right = (str(entry[key]) for key in ("context_left", "mention", "context_right"))
    start = len(left) + bool(left)
    text = " ".join(part for part in (left, mention, right) if part)
    title = next(str(entry[key]) for key in ("Wikipedia_title", "label_title", "title", "label") if entry.get(key))
    report.mentions += 1
    name = str(entry.get("id", entry.get("query_id", "")))
    return Document(name, text, [Mention(start, start + len(mention), title.replace("_", " "))])


def _zelda(entry: Entry, report: ReadReport, _: Mapping[str, str]) -> Document:
    spans, titles = entry["index"], entry["wikipedia_titles"]
    if len(spans) != len(titles):
        raise ValueError(f"{len(spans)} spans, but {len(titles)} titles")
    report.mentions += len(spans)
    mentions = [Mention(int(s), int(e), str(title).replace("_", " ")) for (s, e), title in zip(spans, titles, strict=True)]
    return Document(str(entry.get("id", "")), str(entry["text"]), mentions)


def _elevant(entry: Entry, report: ReadReport, titles_of_items: Mapping[str, str]) -> Document:
    hyperlinks = {tuple(span): title for span, title in entry.get("hyperlinks") or ()}
    mentions = []
    for label in entry["labels"]:
        report.mentions += 1
        item = label["entity_id"]
        if not str(item).startswith("Q"):
            report.dropped[f"the mention has no Wikidata item ({item})"] += 1
            continue
        title = titles_of_items.get(item) or hyperlinks.get(tuple(label["span"]))
        if title is None:
            report.notes["mentions whose right title is taken to be Wikidata's name of the item"] += 1
        start, end = label["span"]
        mentions.append(Mention(int(start), int(end), title or label["name"], type=_elevant_type(label)))
    return Document(str(entry.get("title", entry.get("id", ""))), str(entry["text"]), mentions)


def _elevant_type(label: Entry) -> str | None:
    """The first of its types, as a word where it is one of the four usual ones (Wikidata's classes)."""
    names = {"Q215627": "PER", "Q27096213": "LOC", "Q43229": "ORG"}
    first = str(label.get("type") or "").split("|")[0]
    return names.get(first, first) or None
