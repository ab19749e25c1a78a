"""Pages -> items, in columns: sentences with links, joined to sequences (Yamada et al. 2020, appendix A).

Everything a token or a link costs is done by array operations; Python runs once a sentence.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from luke.corpus.sentences import SentenceSplitter
from luke.pretraining.link_targets import LinkTargets
from luke.tokenization import LinkedTextTokenizer, Sentence

Ints = npt.NDArray[np.integer[Any]]

DROPPED = -1
_NEVER_TRAINED = ("image:", "file:", "category:")


class ItemOptions(Protocol):
    """What decides items; see `luke.pretraining.build_dataset.DatasetOptions`."""

    @property
    def max_seq_length(self) -> int: ...
    @property
    def max_entity_length(self) -> int: ...
    @property
    def max_mention_length(self) -> int: ...
    @property
    def min_sentence_length(self) -> int: ...
    @property
    def abstract_only(self) -> bool: ...
    @property
    def include_sentences_without_entities(self) -> bool: ...
    @property
    def predefined_entities_only(self) -> bool: ...


class Items(NamedTuple):
    """N items with T words and L entities in all, on flat axes.

    Attributes:
        pages: (N,): number of the page that the item is of, among the pages given.
        page_ids: (N,): the page's entity id, -1 if it has none.
        word_ids: (T,); item n has ``word_ids[word_offsets[n] : word_offsets[n + 1]]``.
        word_offsets: (N + 1,).
        entity_ids, starts, ends: (L,): each mention's entity and its words, counted from the item's first.
        entity_offsets: (N + 1,).
    """

    pages: Ints
    page_ids: Ints
    word_ids: Ints
    word_offsets: Ints
    entity_ids: Ints
    starts: Ints
    ends: Ints
    entity_offsets: Ints

    def select(self, chosen: npt.NDArray[np.bool_]) -> "Items":
        """The items for which ``chosen`` (N,) holds."""
        words = np.repeat(chosen, np.diff(self.word_offsets))
        entities = np.repeat(chosen, np.diff(self.entity_offsets))
        return Items(
            self.pages[chosen],
            self.page_ids[chosen],
            self.word_ids[words],
            offsets_of(np.diff(self.word_offsets)[chosen]),
            self.entity_ids[entities],
            self.starts[entities],
            self.ends[entities],
            offsets_of(np.diff(self.entity_offsets)[chosen]),
        )


def offsets_of(lengths: Ints) -> npt.NDArray[np.int64]:
    """Where each of N parts begins, and the last one ends (N + 1,)."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


class _Sentences(NamedTuple):
    """S sentences: their texts with links, the page of each (S,), the links of each (S,), and the links' entities (L,)."""

    texts: list[Sentence]
    pages: Ints
    num_links: Ints
    entity_ids: Ints


class ItemBuilder:
    """Makes items of pages.

    Args:
        tokenizer: Makes word ids.
        link_targets: Makes entity ids; `DROPPED` for links that do not count.
        splitter: Paragraph -> sentence spans, ascending.
        options: How items are made.
    """

    def __init__(
        self, tokenizer: LinkedTextTokenizer, link_targets: LinkTargets, splitter: SentenceSplitter, options: ItemOptions
    ) -> None:
        self.tokenizer, self.link_targets = tokenizer, link_targets
        self.splitter, self.options = splitter, options

    def items(self, pages: pa.RecordBatch) -> Items:
        """The items of pages (rows of a page store), in order."""
        titles = pages["title"].to_pylist()
        page_ids = self.link_targets.page_ids(titles)
        chosen = [
            not title.lower().startswith(_NEVER_TRAINED) and (page_id >= 0 or not self.options.predefined_entities_only)
            for title, page_id in zip(titles, page_ids.tolist(), strict=True)
        ]
        return self._join(self._sentences(pages["paragraphs"], chosen), page_ids)

    def _sentences(self, paragraphs: pa.ListArray, chosen: list[bool]) -> _Sentences:
        """The sentences of the chosen pages, each with the links that lie within it and do not overlap."""
        columns = _Paragraphs.of(paragraphs.flatten(), self.link_targets)
        borders = (paragraphs.offsets.to_numpy() - paragraphs.offsets[0].as_py()).tolist()
        sentences, pages, num_links, entity_ids = [], [], [], []
        for page in np.flatnonzero(chosen).tolist():
            for paragraph in range(borders[page], borders[page + 1]):
                if self.options.abstract_only and not columns.abstract[paragraph]:
                    continue
                text = columns.texts[paragraph]
                link, last = columns.borders[paragraph], columns.borders[paragraph + 1]
                for start, end in self.splitter(text):
                    links, place = [], start
                    while link < last and columns.starts[link] < end:
                        if columns.starts[link] >= place and columns.ends[link] <= end:
                            place = columns.ends[link]
                            links.append((columns.starts[link], place))
                            entity_ids.append(columns.entity_ids[link])
                        link += 1
                    sentences.append(Sentence(text, start, end, links))
                    pages.append(page)
                    num_links.append(len(links))
        return _Sentences(
            sentences, np.array(pages, np.int64), np.array(num_links, np.int64), np.array(entity_ids, np.int64)
        )

    def _join(self, sentences: _Sentences, page_ids: Ints) -> Items:
        """Tokenizes sentences, drops those too short or too long, and joins consecutive ones of a page while they fit."""
        tokenized = self.tokenizer.tokenize_sentences(sentences.texts)
        lengths = np.diff(tokenized.offsets)
        room = self.options.max_seq_length - 2
        kept = (lengths >= max(self.options.min_sentence_length, 1)) & (lengths <= room)
        offsets = offsets_of(np.where(kept, lengths, 0))
        sentence_of_link = np.repeat(np.arange(len(lengths)), sentences.num_links)
        # A link whose anchor has no token is none: nothing in the text stands for it.
        kept_links = kept[sentence_of_link] & (tokenized.span_ends > tokenized.span_starts)
        shift = (offsets[:-1] - tokenized.offsets[:-1])[sentence_of_link[kept_links]]
        starts, ends = tokenized.span_starts[kept_links] + shift, tokenized.span_ends[kept_links] + shift

        pages = sentences.pages[kept]
        first = np.array(_first_sentences(lengths[kept].tolist(), pages.tolist(), room), np.int64)
        word_offsets = np.append(offsets[:-1][kept][first], offsets[-1])
        item = np.searchsorted(word_offsets, starts, side="right") - 1
        rank = np.arange(len(item)) - np.searchsorted(item, item)
        within = rank < self.options.max_entity_length
        item, starts, ends = (
            item[within],
            starts[within] - word_offsets[item[within]],
            ends[within] - word_offsets[item[within]],
        )
        num_entities = np.bincount(item, minlength=len(first))
        items = Items(
            pages[first],
            page_ids[pages[first]],
            tokenized.word_ids[np.repeat(kept, lengths)],
            word_offsets,
            sentences.entity_ids[kept_links][within],
            starts,
            np.minimum(ends, starts + self.options.max_mention_length),
            offsets_of(num_entities),
        )
        return items if self.options.include_sentences_without_entities else items.select(num_entities > 0)


def _first_sentences(lengths: list[int], pages: list[int], room: int) -> list[int]:
    """The sentences that begin an item: the first of a page, and those that no longer fit."""
    first, size, current = [], 0, -1
    for number, (length, page) in enumerate(zip(lengths, pages, strict=True)):
        size += length
        if page != current or size > room:
            first.append(number)
            size, current = length, page
    return first


class _Paragraphs(NamedTuple):
    """Paragraphs in columns; the links of paragraph p, by their starts, are numbers borders[p] to borders[p + 1]."""

    texts: list[str]
    abstract: list[bool]
    borders: list[int]
    starts: list[int]
    ends: list[int]
    entity_ids: list[int]

    @staticmethod
    def of(paragraphs: pa.StructArray, link_targets: LinkTargets) -> "_Paragraphs":
        """Reads paragraphs of a page store, without the links that are dropped."""
        lists = paragraphs.field("links")
        links = lists.flatten()
        entity_ids = link_targets.ids(links.field("title").to_pylist())
        starts, ends = links.field("start").to_numpy(), links.field("end").to_numpy()
        paragraph = np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy()))
        order = np.lexsort((starts, paragraph))
        order = order[entity_ids[order] != DROPPED]
        borders = offsets_of(np.bincount(paragraph[order], minlength=len(lists)))
        return _Paragraphs(
            paragraphs.field("text").to_pylist(),
            paragraphs.field("abstract").to_pylist(),
            borders.tolist(),
            starts[order].tolist(),
            ends[order].tolist(),
            entity_ids[order].tolist(),
        )
