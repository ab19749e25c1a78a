"""One HTML page: each document with its mentions, right links green, wrong ones red, those without a choice grey."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from luke.artifacts import replace_file
from luke.entity_disambiguation.documents import Collection, Document
from luke.entity_disambiguation.inference import Prediction
from luke.errors import UserError

_TEMPLATE = "evaluation.html.jinja"


def write_page(
    path: Path,
    collections: Mapping[str, Collection],
    answers: Mapping[str, Sequence[Sequence[Prediction]]],
    results: Mapping[str, Mapping[str, Any]],
) -> None:
    """Writes the page, which needs no other file.

    Raises:
        UserError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError:
        raise UserError("--html needs jinja2: pip install 'luke[disambiguation]'") from None
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    benchmarks = [
        {
            "name": Path(name).name,
            "figures": results[name],
            "documents": [
                {"id": document.id, "parts": marked_parts(document, row)}
                for document, row in zip(collection.documents, answers[name], strict=True)
            ],
        }
        for name, collection in collections.items()
    ]
    with replace_file(path, "w") as stream:
        stream.write(environment.get_template(_TEMPLATE).render(benchmarks=benchmarks))


def marked_parts(document: Document, answers: Sequence[Prediction]) -> list[dict[str, Any]]:
    """A text in parts: plain ones, and mentions with what was answered. A mention inside another is shown behind it."""
    parts: list[dict[str, Any]] = []
    place = 0
    for mention, answer in zip(document.mentions, answers, strict=True):
        if mention.start > place:
            parts.append({"text": document.text[place : mention.start], "kind": ""})
        kind = "none" if answer.title is None else "right" if answer.title == mention.title else "wrong"
        parts.append(
            {
                "text": document.mention_text(mention),
                "kind": "unknown" if mention.title is None else kind,
                "answer": answer.title,
                "gold": mention.title,
                "probability": answer.probability,
                "candidates": len(mention.candidates),
                "nested": mention.start < place,
            }
        )
        place = max(place, mention.end)
    parts.append({"text": document.text[place:], "kind": ""})
    return parts
