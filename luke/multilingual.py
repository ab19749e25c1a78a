"""The road of several languages, from dumps to datasets with one vocabulary: the loop over the single commands."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from luke.corpus.interwiki import build_interwiki_db
from luke.corpus.sources import build_page_store
from luke.entity_vocab import VocabOptions, build_entity_vocab
from luke.errors import UserError
from luke.multilingual_vocab import MultilingualOptions, build_multilingual_entity_vocab
from luke.pretraining.build_dataset import DatasetOptions, build_pretraining_dataset

# The same text lies on the server in up to three forms; the first that is there is read.
DUMP_PATTERNS = (
    "{language}wiki-*-pages-articles.xml*",
    "{language}wiki-*-pages-articles[0-9]*.xml*",
    "{language}wiki-*-pages-articles-multistream.xml*",
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MultilingualRecipe:
    """What is built, and where.

    Attributes:
        languages: Codes, each once.
        dumps: The folder of the dumps.
        dump_pattern: The name of a language's dump or its parts, ``{language}`` in it; None: `DUMP_PATTERNS`.
        wikidata: The Wikidata JSON dump.
        tokenizer: The folder of the base's tokenizer.
        output: The folder of all that is made.
        workers: Processes; None: one a CPU.

    Raises:
        UserError: a language stands twice, a dump is missing, or there are several of one language.
    """

    languages: tuple[str, ...]
    dumps: Path
    dump_pattern: str | None
    wikidata: Path
    tokenizer: str
    output: Path
    workers: int | None

    def __post_init__(self) -> None:
        if len(set(self.languages)) < len(self.languages) or not self.languages:
            raise UserError("--languages: name each language once")
        if self.dump_pattern is not None and "{language}" not in self.dump_pattern:
            raise UserError(f"--dump-pattern {self.dump_pattern}: has no {{language}} in it")
        if not self.wikidata.is_file():
            raise UserError(f"--wikidata {self.wikidata}: no such file")
        for language in self.languages:  # what is missing is said before hours of work, not after
            self.dump_files(language)

    def dump_files(self, language: str) -> list[Path]:
        """The files of a language's dump."""
        patterns = [self.dump_pattern] if self.dump_pattern else DUMP_PATTERNS
        names = [pattern.format(language=language.replace("-", "_")) for pattern in patterns]
        for name in names:
            files = sorted(path for path in self.dumps.glob(name) if path.is_file())
            dates = {path.name.split("-pages-articles")[0] for path in files}
            if len(dates) > 1:
                raise UserError(f"{self.dumps}: dumps of several dates of {language}: {', '.join(sorted(dates))}; keep one")
            if files:
                return files
        raise UserError(f"{self.dumps}: no dump of the language {language} there (looked for {', '.join(names)})")

    def build(self, vocab: VocabOptions, merged: MultilingualOptions, dataset: DatasetOptions) -> None:
        """Page stores, vocabularies, interwiki DB, the merged vocabulary, datasets; what is finished is kept."""
        for language in self.languages:
            folder = self.output / language
            folder.mkdir(parents=True, exist_ok=True)
            logger.info("%s: page store", language)
            build_page_store(self.dump_files(language), folder / "pages", self.workers, language)
            logger.info("%s: entity vocabulary", language)
            build_entity_vocab(folder / "pages", folder / "entity_vocab.jsonl", replace(vocab, language=language))
        logger.info("interlanguage links")
        interwiki, vocabulary = self.output / "interwiki", self.output / "entity_vocab.jsonl"
        build_interwiki_db([self.wikidata], interwiki, self.languages)
        vocabularies = [self.output / language / "entity_vocab.jsonl" for language in self.languages]
        build_multilingual_entity_vocab(vocabularies, interwiki, vocabulary, merged)
        for language in self.languages:
            logger.info("%s: dataset", language)
            folder, options = self.output / language, replace(dataset, language=language)
            build_pretraining_dataset(
                folder / "pages", self.tokenizer, vocabulary, folder / "dataset", options, self.workers
            )
