"""A linker that needs no model: for the service and the spaCy component."""

import threading
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from luke.entity_disambiguation.linker import EntityLink, EntityLinker, LinkedText


class WordLinker(EntityLinker):
    """Links "Rome" to "Rome (city)" and gives "Nil" no entity; counts its batches, and waits while ``gate`` is closed."""

    def __init__(self) -> None:
        self.disambiguator: Any = SimpleNamespace(vocab=range(7))
        self.table: Any = range(9)
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()

    def link(self, texts: Sequence[str], spans: Sequence[Iterable[Any] | None] | None = None) -> list[LinkedText]:
        """As `EntityLinker.link`."""
        self.gate.wait(10)
        self.batches.append(list(texts))
        if "fail" in texts:
            raise RuntimeError("broken")
        return [self._link(text, known) for text, known in zip(texts, spans or [None] * len(texts), strict=True)]

    def _link(self, text: str, spans: Iterable[Any] | None) -> LinkedText:
        if spans is None:
            spans = [(text.index(word), text.index(word) + len(word)) for word in ("Rome", "Nil") if word in text]
        titles = {"Rome": "Rome (city)"}
        return LinkedText(text, [EntityLink(a, b, text[a:b], titles.get(text[a:b]), 0.9) for a, b in sorted(spans)])
