"""Dumps of every kind -> page store: which kind a file is, by what it holds."""

from collections.abc import Sequence
from pathlib import Path

from luke.artifacts import Metadata
from luke.corpus.record_store import BadRecordError, load_json
from luke.corpus.streams import Line, compression_of, expand_paths, head, is_parquet, iter_lines
from luke.errors import UserError

_WHITE_SPACE = b"\xef\xbb\xbf \t\r\n"
XML, HTML, STRUCTURED = "MediaWiki XML", "Enterprise HTML", "structured contents"


def build_page_store(
    names: Sequence[str | Path],
    output: Path,
    workers: int | None = None,
    language: str | None = None,
    strict: bool = False,
    template_rules: Path | None = None,
) -> Metadata:
    """Writes the page store of a dump.

    Args:
        names: Its file, or its part files, or wildcards of them.
        output: The page store's folder.
        workers: Processes; default one a CPU.
        language: The wiki's language code, if the files' names and the dump do not say it.
        strict: Refuse MediaWiki XML with damaged parts in place of leaving out the pages in them.
        template_rules: A file of further rules for the words of templates in MediaWiki XML.

    Raises:
        UserError: what the readers raise; files are of no kind, or of several.
    """
    from luke.corpus.wikipedia_dump import build_dump_db
    from luke.corpus.wikipedia_html import build_html_db

    paths = expand_paths(names)
    kinds = {kind_of(path): path for path in reversed(paths)}
    if len(kinds) > 1:
        found = ", ".join(f"{path} is {kind}" for kind, path in kinds.items())
        raise UserError(f"the files are of several kinds ({found}): build one store of each")
    kind = next(iter(kinds))
    if kind == XML:
        return build_dump_db(paths, output, workers, language, strict, template_rules)
    if template_rules is not None:
        raise UserError(f"--template-rules {template_rules}: {kind} already holds the words of templates; leave it out")
    return build_html_db(paths, output, kind == STRUCTURED, workers, language)


def kind_of(path: Path) -> str:
    """`XML`, `HTML` or `STRUCTURED`.

    Raises:
        UserError: the file is of none of these kinds.
    """
    if is_parquet(path):
        return STRUCTURED
    start = head(path, 1 << 10).lstrip(_WHITE_SPACE)
    if start.startswith(b"{"):
        return _json_kind(next(iter_lines(path)))
    with path.open("rb") as stream:
        compressed = compression_of(stream.read(4)) is not None
    if start and not start.startswith(b"<") and not compressed:
        raise UserError(f"{path}: neither XML, JSON lines nor Parquet, nor compressed; is it a Wikipedia dump?")
    return XML  # whose reader says what it is instead, if it is not


def _json_kind(line: Line) -> str:
    try:
        record = load_json(line.data)
    except BadRecordError as error:
        raise UserError(f"{line.place}: {error}") from None
    if isinstance(record, dict) and "article_body" in record:
        return HTML
    if isinstance(record, dict) and "sections" in record:
        return STRUCTURED
    raise UserError(
        f"{line.place}: has neither article_body (Enterprise HTML) nor sections (structured contents); "
        "luke build-corpus-db reads your own text"
    )
