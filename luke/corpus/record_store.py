"""Records of any source, one a line -> a page store.

One process reads the lines and hands out shards of them, cut by size so that they do not depend on the number of workers;
the workers parse them and write the shards. A finished shard is not parsed again after a kill. What is wrong with a line is
written beside its shard, and in the end to ``skipped.jsonl`` in the store.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from luke.artifacts import Metadata, StagedFolder, read_metadata, replace_file
from luke.corpus.page_store import KIND, Page, count_pages, page_file_name, write_pages, write_redirects
from luke.corpus.redirects import redirect_part, resolve_redirects
from luke.corpus.streams import Line
from luke.errors import UserError
from luke.progress import Progress
from luke.workers import default_workers, map_ordered

logger = logging.getLogger(__name__)

SKIPPED_FILE = "skipped.jsonl"
_LEAST_SHARD, _LARGEST_SHARD, _SHARDS, _EXPANSION = 1 << 20, 64 << 20, 256, 4
_NAMED_LINES = 20  # of a shard; all are in `SKIPPED_FILE`


class BadRecordError(Exception):
    """What is wrong with a record."""


@dataclass(slots=True)
class Record:
    """What a line holds: a page, and redirects (source -> target)."""

    page: Page
    redirects: dict[str, str] = field(default_factory=dict)


# A line -> its record, or None if it is none of this corpus. Raises BadRecordError. Must be picklable.
RecordParser = Callable[[Line], Record | None]


def load_json(data: bytes) -> Any:
    """A line's JSON value.

    Raises:
        BadRecordError: it is no JSON, is nested too deeply, or holds half a character (which no file can hold).
    """
    try:
        value = json.loads(data)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise BadRecordError("its JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise BadRecordError("holds half a surrogate pair (\\ud800 to \\udfff)") from None
    except ValueError as error:
        raise BadRecordError(f"not JSON: {error}") from None
    return value


def build_from_records(
    output: Path,
    plan: Mapping[str, Any],
    lines: Iterable[Line],
    parser: RecordParser,
    size: int,
    workers: int | None = None,
    skip_bad: bool = False,
    redirects: Mapping[str, str] | None = None,
    **facts: Any,
) -> Metadata:
    """Writes the page store of records.

    Args:
        output: The page store's folder.
        plan: As for `StagedFolder`.
        lines: The records, in order.
        parser: Line -> record.
        size: Bytes of the source, which decide how many shards there are.
        workers: Processes; default one a CPU.
        skip_bad: Leave bad lines out and count them, in place of refusing them.
        redirects: Beside those of the records.
        **facts: Further metadata.

    Raises:
        UserError: a line is bad; there is no page; ``output`` holds something else.
    """
    with StagedFolder(output, KIND, plan) as stage:
        if stage.done:
            logger.info("%s: already built", output)
            return read_metadata(output, KIND)
        shards = _cut_shards(lines, max(_LEAST_SHARD, min(_LARGEST_SHARD, size * _EXPANSION // _SHARDS)))
        counts = {"pages": 0, "redirects": 0, "paragraphs": 0, "links": 0, "skipped": 0}
        number = 0
        with Progress("pages", unit="pages") as progress:
            arguments = (parser, stage.work)
            for number, done in enumerate(
                map_ordered(_parse_shard, shards, workers or default_workers(), _start, arguments)
            ):
                if done.skipped and not skip_bad:
                    _refuse(stage.work / _skipped_part(number), done.skipped)
                progress.advance(done.counts["pages"])
                for name, count in done.counts.items():
                    counts[name] += count
        if not counts["pages"]:
            raise UserError(f"{next(iter(plan['inputs'].values()))['path']}: holds no page{_reason(counts['skipped'])}")
        if redirects and not (stage.work / redirect_part(number + 1)).exists():
            write_redirects(stage.work / redirect_part(number + 1), redirects)
        counts["redirects"] = resolve_redirects(stage.work)
        _join_skipped(stage.work)
        return stage.finish(counts=counts, **facts)


def _reason(skipped: int) -> str:
    return f" (its {skipped:,} lines are bad)" if skipped else ""


def _refuse(part: Path, skipped: int) -> None:
    bad = [json.loads(line) for line in part.read_text(encoding="utf-8").splitlines()[:_NAMED_LINES]]
    described = [f"{entry['file']}, line {entry['line']}: {entry['reason']}" for entry in bad]
    more = f"; and {skipped - len(bad):,} more" if skipped > len(bad) else ""
    raise UserError(f"{'; '.join(described)}{more}. Mend them, or leave them out with --skip-bad")


def _skipped_part(shard: int) -> str:
    return f"skipped-{shard:05d}.part"


def _join_skipped(work: Path) -> None:
    parts = sorted(work.glob(_skipped_part(0).replace("00000", "*")))
    if parts and not (work / SKIPPED_FILE).exists():
        with replace_file(work / SKIPPED_FILE) as stream:
            for part in parts:
                stream.write(part.read_bytes())
    for part in parts:
        part.unlink()


class _Shard(NamedTuple):
    number: int
    lines: list[Line]


def _cut_shards(lines: Iterable[Line], size: int) -> Iterator[_Shard]:
    number, shard, total = 0, list[Line](), 0
    for line in lines:
        shard.append(line)
        total += len(line.data)
        if total >= size:
            yield _Shard(number, shard)
            number, shard, total = number + 1, [], 0
    if shard:
        yield _Shard(number, shard)


class _Done(NamedTuple):
    counts: dict[str, int]
    skipped: int


_parser: tuple[RecordParser, Path] | None = None


def _start(parser: RecordParser, work: Path) -> None:
    global _parser
    _parser = parser, work


def _parse_shard(shard: _Shard) -> _Done:
    """Writes a shard's bad lines, redirects and pages, unless they are there; returns its counts."""
    assert _parser is not None
    parser, work = _parser
    path, part = work / page_file_name(shard.number), work / _skipped_part(shard.number)
    if not path.exists():
        records, skipped = _parse(shard.lines, parser)
        if skipped:
            with replace_file(part, "w") as stream:
                stream.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in skipped)
        redirects = {source: target for record in records for source, target in record.redirects.items()}
        write_redirects(work / redirect_part(shard.number), redirects)
        write_pages(path, [record.page for record in records])
    num_skipped = part.read_bytes().count(b"\n") if part.exists() else 0
    return _Done({"skipped": num_skipped, **count_pages(path)}, num_skipped)


def _parse(lines: list[Line], parser: RecordParser) -> tuple[list[Record], list[dict[str, Any]]]:
    records, skipped = [], []
    for line in lines:
        try:
            record = parser(line)
        except BadRecordError as error:
            skipped.append({"file": line.file, "line": line.number, "reason": str(error)})
        else:
            if record is not None:
                records.append(record)
    return records, skipped
