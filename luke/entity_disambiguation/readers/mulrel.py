"""The mulrel-nel form (Le and Titov 2018): a file of tab-separated candidates a mention, and a CoNLL-like text file.

A candidate line: document id, (anything), mention text, left context, right context, (anything), then candidates
``id,prior,title`` or ``EMPTYCAND``, then (anything), and the gold answer as the last field: ``place,id,prior,title``, or
``-1,id,title`` if it is not among the candidates. The text file has one token a line, ``-DOCSTART- (NAME`` lines, and B or I
in the second of six or more fields where a mention is.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from luke.entity_disambiguation.documents import Candidate, Collection, Document, Mention, ReadReport, by_prior
from luke.entity_disambiguation.titles import lines_of
from luke.errors import UserError

_NOT_WORD = re.compile(r"\W+")
_EMPTY = "EMPTYCAND"
# Names of the text files that go with the public code's candidate files.
_TEXT_FILES = {
    "aida_testA.csv": ("testa_testb_aggregate_original",),
    "aida_testB.csv": ("testa_testb_aggregate_original",),
    "aida_train.csv": ("aida_train.txt",),
}


def read_mulrel(candidates_file: Path, text_file: Path | None = None, persons_file: Path | None = None) -> Collection:
    """Reads one benchmark.

    Args:
        candidates_file: The ``.csv`` file.
        text_file: The CoNLL-like file; by default the one beside it that the name leads to.
        persons_file: Titles of persons, one a line, for the coreference heuristic; without it there is none.

    Raises:
        UserError: a file is missing or a line is broken (named).
    """
    text_file = text_file or _text_file_of(candidates_file)
    texts = _read_texts(text_file)
    persons = frozenset(line for _, line in lines_of(persons_file)) if persons_file else frozenset()
    report = ReadReport()
    documents = []
    for name, rows in _read_candidates(candidates_file, report).items():
        rows = _share_person_candidates(rows, persons, report)
        # The id of a document may hold more than its name, such as a number.
        text = texts.get(name.split()[0]) or texts.get(name)
        if text is None:
            report.dropped[f"the document is not in {text_file.name}"] += len(rows)
            continue
        documents.append(_place(name, rows, text, report))
    report.documents = len(documents)
    return Collection(documents, report)


def _text_file_of(candidates_file: Path) -> Path:
    stem = candidates_file.stem.removeprefix("wned-")
    names = _TEXT_FILES.get(candidates_file.name, (f"{stem}.conll", f"{stem}.txt"))
    for name in names:
        if (candidates_file.parent / name).exists():
            return candidates_file.parent / name
    raise UserError(f"{candidates_file}: its text file ({' or '.join(names)}) is not beside it; name it with --text-file")


class _Row:
    """A line of the candidates file."""

    def __init__(self, text: str, title: str, candidates: list[Candidate]) -> None:
        self.text, self.title, self.candidates = text, title, candidates


def _read_candidates(path: Path, report: ReadReport) -> dict[str, list[_Row]]:
    """Document id -> its mentions, in order."""
    rows: dict[str, list[_Row]] = {}
    for number, line in lines_of(path):
        fields = line.strip().split("\t")
        if len(fields) < 8:
            raise UserError(f"{path}, line {number}: {len(fields)} tab-separated fields; the mulrel-nel form has at least 8")
        report.mentions += 1
        mentions = rows.setdefault(fields[0], [])
        title = _gold_title(fields[-1])
        if not title:
            report.dropped["no right entity is given"] += 1
            continue
        try:
            candidates = [] if fields[6] == _EMPTY else _candidates(fields[6:-2])
        except ValueError:
            raise UserError(f"{path}, line {number}: a candidate is not of the form id,prior,title") from None
        mentions.append(_Row(fields[2], title, candidates))
    return rows


def _candidates(fields: Iterable[str]) -> list[Candidate]:
    """Titles may hold commas."""
    parts = [field.split(",", 2) for field in fields]
    return by_prior([Candidate(title, float(prior)) for _, prior, title in parts if title])


def _gold_title(field: str) -> str:
    place, _, rest = field.partition(",")
    title = rest.split(",", 1 if place == "-1" else 2)[-1] if rest.count(",") >= (1 if place == "-1" else 2) else ""
    return title.replace("&amp;", "&")


def _share_person_candidates(rows: Sequence[_Row], persons: frozenset[str], report: ReadReport) -> list[_Row]:
    """Coreference (Le and Titov 2018): a mention contained, at word borders, in longer mentions of persons takes the mean
    of their candidates. A mention is one of a person if its first candidate is."""
    of_persons = [row for row in rows if row.candidates and row.candidates[0].title in persons]
    shared = []
    for row in rows:
        short = row.text.lower()
        longer = [other for other in of_persons if short != other.text.lower() and f" {short} " in f" {other.text.lower()} "]
        if longer:
            report.notes["mentions take the candidates of a longer mention of a person"] += 1
            priors: dict[str, float] = {}
            for other in longer:
                for candidate in other.candidates:
                    priors[candidate.title] = priors.get(candidate.title, 0.0) + candidate.prior / len(longer)
            row = _Row(row.text, row.title, by_prior([Candidate(*entry) for entry in priors.items()]))
        shared.append(row)
    return shared


class _Text:
    """A document of the text file: its words, joined by spaces, and the code points of its mentions."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.length = 0
        self.spans: list[tuple[int, int]] = []

    def add(self, word: str, tag: str) -> None:
        start = self.length + bool(self.words)
        self.words.append(word)
        self.length = start + len(word)
        if tag == "B":
            self.spans.append((start, self.length))
        elif tag == "I":
            self.spans[-1] = (self.spans[-1][0], self.length)


def _read_texts(path: Path) -> dict[str, _Text]:
    texts: dict[str, _Text] = {}
    text: _Text | None = None
    for number, line in lines_of(path):
        fields = line.strip().split("\t")
        if line.startswith("-DOCSTART-"):
            words = line.split()
            if len(words) < 2:
                raise UserError(f"{path}, line {number}: -DOCSTART- without the name of a document")
            name = " ".join(words[1:]).lstrip("(").rstrip(")")
            text = texts[name.split()[0]] = texts[name] = _Text()
            continue
        if text is None:
            raise UserError(f"{path}, line {number}: a token before the first -DOCSTART-")
        tag = fields[1] if len(fields) >= 6 else ""
        if tag not in ("", "B", "I") or (tag == "I" and not text.spans):
            raise UserError(f"{path}, line {number}: tag {tag!r} where B, or I behind B, is due")
        text.add(fields[0], tag)
    return texts


def _place(name: str, rows: Sequence[_Row], text: _Text, report: ReadReport) -> Document:
    """Finds each mention in the text: both files have them in one order, the text file perhaps more of them."""
    joined = " ".join(text.words)
    mentions = []
    next_span = 0
    for row in rows:
        wanted = _essence(row.text)
        place = next_span
        while place < len(text.spans) and _essence(joined[slice(*text.spans[place])]) != wanted:
            place += 1
        if place == len(text.spans):
            report.dropped["the mention is not found in the text file"] += 1
            continue
        next_span = place + 1
        mentions.append(Mention(*text.spans[place], row.title, row.candidates))
    return Document(name, joined, mentions)


def _essence(text: str) -> str:
    """Letters and digits: the two files differ in punctuation and case."""
    return _NOT_WORD.sub("", text.lower())
