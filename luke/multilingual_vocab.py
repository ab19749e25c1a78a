"""Vocabularies of several languages + interlanguage links -> one vocabulary whose entities have a title in each language."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luke.artifacts import Metadata, fingerprint_file, read_metadata
from luke.corpus.interwiki import KIND as INTERWIKI_KIND
from luke.corpus.interwiki import SITELINKS_FILE
from luke.entity_vocab import SPECIAL, VocabEntry, duckdb_beside, iter_entries, write_entity_vocab
from luke.errors import UserError

_ROWS_A_BATCH = 1 << 16


@dataclass(frozen=True)
class MultilingualOptions:
    """What enters the vocabulary.

    Attributes:
        vocab_size: Entries with the three special tokens.
        min_num_languages: Languages in whose vocabularies an entity must have a title.
    """

    vocab_size: int = 1_200_000
    min_num_languages: int = 3

    def __post_init__(self) -> None:
        if self.vocab_size <= len(SPECIAL):
            raise UserError(f"--vocab-size {self.vocab_size}: must exceed the {len(SPECIAL)} special tokens that it counts")
        if self.min_num_languages < 1:
            raise UserError(f"--min-num-languages {self.min_num_languages}: must be positive")


def build_multilingual_entity_vocab(
    vocabs: Sequence[Path], interwiki: Path, output: Path, options: MultilingualOptions
) -> Metadata:
    """Merges vocabularies, one a language, into ``output``: titles of one Wikidata item share an id, counts add up.

    Entities stand by descending count, then by their first title; the titles of one by language. A title that no item has is
    an entity of one language.

    Raises:
        UserError: a vocabulary does not say its language, two are of the same, or ``output`` holds something else.
    """
    links = read_metadata(interwiki, INTERWIKI_KIND)
    inputs = {f"vocab_{n}": {"path": str(p), "fingerprint": fingerprint_file(p)} for n, p in enumerate(_existing(vocabs), 1)}
    inputs["interwiki"] = {"path": str(interwiki), "fingerprint": links["fingerprint"]}
    plan = {"options": vars(options), "inputs": inputs}
    nothing = f"no entity has a title in {options.min_num_languages} of the languages; lower --min-num-languages"
    return write_entity_vocab(output, plan, _merged(vocabs, interwiki, output, options), nothing)


def _existing(vocabs: Sequence[Path]) -> Sequence[Path]:
    if not vocabs:
        raise UserError("no vocabulary is given (-v)")
    for path in vocabs:
        if not path.is_file():
            raise UserError(f"{path}: no such vocabulary file")
    return vocabs


def _merged(vocabs: Sequence[Path], interwiki: Path, output: Path, options: MultilingualOptions) -> Iterator[VocabEntry]:
    import pyarrow as pa

    schema = pa.schema([("title", pa.string()), ("language", pa.string()), ("count", pa.int64())])
    with duckdb_beside(output) as database:
        database.execute("CREATE TABLE titles (title VARCHAR, language VARCHAR, count BIGINT)")
        for rows in _batches(_titles(vocabs)):
            database.register("batch", pa.table(list(map(pa.array, zip(*rows, strict=True))), schema=schema))
            database.execute("INSERT INTO titles FROM batch")
        result = database.execute(
            """
            WITH linked AS (
                SELECT title, language, count, item
                FROM titles LEFT JOIN read_parquet($1) AS sitelinks USING (title, language)
            ),
            entities AS (
                SELECT list([title, language] ORDER BY language, title) AS titles, sum(count)::BIGINT AS count,
                    count(DISTINCT language) AS languages
                FROM linked
                GROUP BY item, CASE WHEN item IS NULL THEN title END, CASE WHEN item IS NULL THEN language END
            )
            SELECT titles, count FROM entities WHERE languages >= $2
            ORDER BY count DESC, titles[1][1], titles[1][2] LIMIT $3
            """,
            [str(interwiki / SITELINKS_FILE), options.min_num_languages, options.vocab_size - len(SPECIAL)],
        )
        while found := result.fetchmany(_ROWS_A_BATCH):
            for titles, count in found:
                yield [(title, language) for title, language in titles], count


def _titles(vocabs: Sequence[Path]) -> Iterator[tuple[str, str, int]]:
    """(title, language, count) of all entities of all vocabularies."""
    seen: dict[str, Path] = {}
    for path in vocabs:
        languages = set[str]()
        for titles, count in iter_entries(path):
            for title, language in titles:
                if title in SPECIAL:
                    continue
                if language is None:
                    raise UserError(f"{path}: its titles have no language; build it with --language")
                languages.add(language)
                yield title, language, count
        for language in languages:
            if language in seen:
                raise UserError(f"{path} and {seen[language]} are both of the language {language}")
            seen[language] = path


def _batches(rows: Iterator[Any]) -> Iterator[list[Any]]:
    batch: list[Any] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _ROWS_A_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
