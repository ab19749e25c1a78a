"""A spaCy component: ``nlp.add_pipe("luke_entity_linker", config={"model": …, "candidates": …})``.

Where documents have entities already (a recognizer before it, or set by hand), these are the mentions; otherwise they are
found. Each mention's title is the ``kb_id_`` of its span in ``doc.ents``; "NIL" where there is no entity.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.util import filter_spans

from luke.entity_disambiguation.linker import EntityLinker, LinkedText, LinkOptions

NIL = "NIL"
_LABEL = "ENTITY"


class SpacyEntityLinker:
    """Links the documents of a pipeline."""

    def __init__(self, linker: EntityLinker) -> None:
        self.linker = linker

    def __call__(self, doc: Doc) -> Doc:
        """Links one document."""
        return self._link([doc])[0]

    def pipe(self, stream: Iterable[Doc], batch_size: int = 64) -> Iterator[Doc]:
        """Links many documents at a time, for ``nlp.pipe``."""
        docs = iter(stream)
        while batch := list(islice(docs, batch_size)):
            yield from self._link(batch)

    def _link(self, docs: list[Doc]) -> list[Doc]:
        spans = [[(ent.start_char, ent.end_char) for ent in doc.ents] or None for doc in docs]
        for doc, linked in zip(docs, self.linker.link([doc.text for doc in docs], spans), strict=True):
            doc.ents = filter_spans(_spans(doc, linked))
        return docs


def _spans(doc: Doc, linked: LinkedText) -> Iterator[Span]:
    labels = {(ent.start_char, ent.end_char): ent.label_ for ent in doc.ents}
    for link in linked.links:
        label = labels.get((link.start, link.end), _LABEL)
        span: Any = doc.char_span(link.start, link.end, label, link.title or NIL, alignment_mode="expand")
        if span is not None:
            yield span


@Language.factory(
    "luke_entity_linker",
    default_config={"candidates": None, "min_link_probability": 0.1, "nil_threshold": 0.0, "device": "cpu"},
)
def make_component(
    nlp: Language,
    name: str,
    model: str,
    candidates: str | None,
    min_link_probability: float,
    nil_threshold: float,
    device: str,
) -> SpacyEntityLinker:
    """The component, from a pipeline's configuration."""
    options = LinkOptions(min_link_probability, nil_threshold)
    return SpacyEntityLinker(EntityLinker.from_pretrained(model, candidates, options, device))
