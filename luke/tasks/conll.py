"""Columns of words and tags (CoNLL-2002, CoNLL-2003, WNUT) -> sentences with labelled spans, whatever the tags' scheme."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from luke.errors import UserError
from luke.tasks.task import read_text

WordSpan = tuple[int, int, str]

_BEGIN, _INSIDE, _END, _SINGLE = "B", "IM", "EL", "SUW"


def read_columns(path: Path, encoding: str) -> Iterator[tuple[int, list[str], list[str] | None]]:
    """Sentences: the number of their document (always 0 without ``-DOCSTART-`` lines), words, and tags or None.

    The word is the first column and the tag the last, separated by tabs or spaces; empty lines end sentences.

    Raises:
        UserError: a line has another number of columns than the one above, or a tag of no scheme.
    """
    document, columns = 0, None
    words: list[str] = []
    tags: list[str] = []

    def sentence() -> tuple[int, list[str], list[str] | None]:
        return document, list(words), list(tags) if tags else None

    for number, line in enumerate(read_text(path, encoding).splitlines(), start=1):
        fields = line.split("\t") if "\t" in line else line.split()
        fields = [item.strip() for item in fields]
        if not any(fields) or fields[0] == "-DOCSTART-":
            if words:
                yield sentence()
            words, tags = [], []
            if fields and fields[0] == "-DOCSTART-":
                document += 1
            continue
        if columns is not None and len(fields) != columns:
            raise UserError(f"{path}, line {number}: {len(fields)} columns where the lines above have {columns}")
        columns = len(fields)
        words.append(fields[0])
        if columns > 1:
            _check_tag(path, number, fields[-1])
            tags.append(fields[-1])
    if words:
        yield sentence()


def _check_tag(path: Path, line: int, tag: str) -> None:
    prefix, dash, label = tag.partition("-")
    if tag != "O" and not (dash and label and len(prefix) == 1 and prefix in _BEGIN + _INSIDE + _END + _SINGLE):
        raise UserError(f"{path}, line {line}: the last column, {tag!r}, is not a tag such as O, B-PER or I-PER")


def spans_of_tags(tags: Sequence[str]) -> list[WordSpan]:
    """Labelled word spans, ends exclusive, of tags in IOB1, IOB2, BIOES, BILOU or plain IO, as conlleval reads them."""
    spans: list[WordSpan] = []
    start: int | None = None
    previous_prefix, previous_label = "O", ""
    for number, tag in enumerate([*tags, "O"]):
        prefix, _, label = tag.partition("-")
        continues = (
            start is not None
            and tag != "O"
            and label == previous_label
            and prefix in _INSIDE + _END
            and previous_prefix not in _END + _SINGLE
        )
        if not continues:
            if start is not None:
                spans.append((start, number, previous_label))
            start = None if tag == "O" else number
        previous_prefix, previous_label = prefix, label
    return spans


def tags_of_spans(length: int, spans: Sequence[WordSpan]) -> list[str]:
    """IOB2 tags of spans that do not overlap."""
    tags = ["O"] * length
    for start, end, label in spans:
        tags[start:end] = [f"B-{label}"] + [f"I-{label}"] * (end - start - 1)
    return tags
