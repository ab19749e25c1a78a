"""People's own text with links, as JSON lines -> page store. The form is described in ``docs/corpora.md``.

Titles are taken as they stand, but for white space around them: a knowledge base's names may begin with small letters.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luke.artifacts import Metadata, fingerprint_inputs
from luke.corpus.page_store import Link, Page, Paragraph
from luke.corpus.record_store import BadRecordError, Record, build_from_records, load_json
from luke.corpus.streams import Line, iter_lines
from luke.errors import UserError

_LARGEST_NUMBER = 2**63


@dataclass(frozen=True)
class CorpusOptions:
    """How a corpus is read.

    Attributes:
        language: Its language code, for the sentence splitter and the vocabulary.
        aliases: A file of further names of titles: lines ``alias TAB title``, or ``{"alias": …, "title": …}``.
        skip_bad: Leave bad lines out and count them.
    """

    language: str | None = None
    aliases: Path | None = None
    skip_bad: bool = False


def build_corpus_db(corpus: list[Path], output: Path, options: CorpusOptions, workers: int | None = None) -> Metadata:
    """Writes the page store of JSON-lines files, also compressed ones.

    Raises:
        UserError: a line is bad (each is named with its reason), there is none, or ``output`` holds something else.
    """
    inputs = fingerprint_inputs("corpus", corpus)
    if options.aliases is not None:
        inputs |= fingerprint_inputs("aliases", [options.aliases])
    plan = {"options": {"language": options.language, "skip_bad": options.skip_bad}, "inputs": inputs}
    return build_from_records(
        output,
        plan,
        (line for path in corpus for line in iter_lines(path)),
        parse_record,
        sum(path.stat().st_size for path in corpus),
        workers,
        options.skip_bad,
        dict(_read_aliases(options.aliases)) if options.aliases else None,
        language=options.language,
    )


def _read_aliases(path: Path) -> Iterator[tuple[str, str]]:
    for line in iter_lines(path):
        try:
            if line.data.lstrip().startswith(b"{"):
                entry = _an_object(load_json(line.data), "the line")
                alias, title = _a_title(entry.get("alias"), '"alias"'), _a_title(entry.get("title"), '"title"')
            else:
                fields = line.data.decode().split("\t")
                if len(fields) != 2:
                    raise BadRecordError(f"has {len(fields)} columns, not the two of: alias TAB title")
                alias, title = _a_title(fields[0], "the alias"), _a_title(fields[1], "the title")
        except (BadRecordError, UnicodeDecodeError) as error:
            raise UserError(f"{line.place}: {error}") from None
        yield alias, title


def parse_record(line: Line) -> Record:
    """The page of a line: ``{"title", "paragraphs": [{"text", "links": [{"start", "end", "title"}]}]}`` or ``{"text",
    "entities": [{"start", "end", "title"}]}``.

    Raises:
        BadRecordError: the line is of neither form, or a link does not lie in its text.
    """
    record = _an_object(load_json(line.data), "the line")
    # Pages without a title are told apart by where they stand.
    title = _a_title(record["title"], '"title"') if "title" in record else f"{Path(line.file).name}:{line.number}"
    if "paragraphs" in record:
        entries = _a_list(record["paragraphs"], '"paragraphs"')
        paragraphs = [_paragraph(entry, "links", f"paragraph {number}") for number, entry in enumerate(entries, 1)]
    elif "text" in record:
        paragraphs = [_paragraph(record, "entities", "the text")]
    else:
        raise BadRecordError('has neither "paragraphs" nor "text"')
    page_id = record.get("page_id", line.number)
    if type(page_id) is not int or not 0 <= page_id < _LARGEST_NUMBER:
        raise BadRecordError(f'"page_id" is {_shown(page_id)}, not a whole number')
    return Record(Page(title, page_id, paragraphs))


def _paragraph(entry: Any, links_key: str, where: str) -> Paragraph:
    entry = _an_object(entry, where)
    text = entry.get("text")
    if not isinstance(text, str):
        raise BadRecordError(f'{where}: "text" is {_shown(text)}, not a string')
    abstract = entry.get("abstract", True)
    if not isinstance(abstract, bool):
        raise BadRecordError(f'{where}: "abstract" is {_shown(abstract)}, not true or false')
    links = _a_list(entry.get(links_key, []), f'{where}: "{links_key}"')
    found = [_link(link, text, f"{where}, link {number}") for number, link in enumerate(links, 1)]
    return Paragraph(text, abstract, sorted(found, key=lambda link: (link.start, link.end)))


def _link(entry: Any, text: str, where: str) -> Link:
    entry = _an_object(entry, where)
    start, end = entry.get("start"), entry.get("end")
    if type(start) is not int or type(end) is not int:
        raise BadRecordError(f'{where}: "start" and "end" are {_shown(start)} and {_shown(end)}, not two whole numbers')
    if not 0 <= start < end <= len(text):
        raise BadRecordError(f"{where}: [{start}, {end}) does not lie in its text of {len(text)} characters")
    if not text[start:end].strip():
        raise BadRecordError(f"{where}: [{start}, {end}) holds nothing but white space")
    return Link(_a_title(entry.get("title"), f'{where}: "title"'), start, end)


def _an_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRecordError(f"{where} is {_shown(value)}, not an object")
    return value


def _a_list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRecordError(f"{where} is {_shown(value)}, not a list")
    return value


def _a_title(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadRecordError(f"{where} is {_shown(value)}, not a title")
    return value.strip()


def _shown(value: Any) -> str:
    return "missing" if value is None else json.dumps(value, ensure_ascii=False)[:60]
