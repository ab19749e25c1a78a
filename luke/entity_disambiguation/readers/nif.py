"""NIF 2.0 benchmarks in Turtle (Hellmann et al. 2013), as GERBIL's are: ``nif:Context`` with its text, and annotations with
``nif:beginIndex``, ``nif:endIndex`` and ``itsrdf:taIdentRef``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from luke.entity_disambiguation.documents import Collection, Document, Mention, ReadReport
from luke.errors import UserError

_NIF = "http://persistence.uni-leipzig.org/nlp2rdf/ontologies/nif-core#"
_ITS = "http://www.w3.org/2005/11/its/rdf#"
_WIKI_PARTS = ("/wiki/", "dbpedia.org/resource/")


def read_nif(path: Path, titles_of_items: Mapping[str, str] | None = None) -> Collection:
    """Reads a Turtle file.

    Args:
        titles_of_items: Wikidata item -> title, for benchmarks that name items.

    Raises:
        UserError: rdflib is not installed, or the file is not Turtle or holds no text.
    """
    try:
        from rdflib import Graph, Namespace
        from rdflib.plugins.parsers.notation3 import BadSyntax
    except ImportError:
        raise UserError("reading NIF needs rdflib: pip install 'luke[disambiguation]'") from None
    try:
        graph = Graph().parse(str(path), format="turtle")
    except (OSError, BadSyntax, UnicodeDecodeError, SyntaxError) as error:
        raise UserError(f"{path}: not a Turtle file: {' '.join(str(error).split())[:200]}") from None
    nif, its = Namespace(_NIF), Namespace(_ITS)
    report = ReadReport()
    documents = {
        context: Document(str(context), str(text), [])
        for context, text in sorted(graph.subject_objects(nif.isString), key=str)
    }
    if not documents:
        raise UserError(f"{path}: holds no nif:isString, so no text")
    for annotation, context in sorted(graph.subject_objects(nif.referenceContext), key=str):
        references = sorted(map(str, graph.objects(annotation, its.taIdentRef)))
        if context not in documents or annotation in documents or not references:
            continue
        report.mentions += 1
        titles = [title for title in (_title(reference, titles_of_items or {}) for reference in references) if title]
        start, end = (_integer(graph.value(annotation, key)) for key in (nif.beginIndex, nif.endIndex))
        document = documents[context]
        if not titles:
            report.dropped["the mention has no title of Wikipedia or DBpedia, nor a known Wikidata item"] += 1
        elif start is None or end is None or not 0 <= start < end <= len(document.text):
            report.dropped["the span is empty or outside of the text"] += 1
        else:
            document.mentions.append(Mention(start, end, titles[0]))
    for document in documents.values():
        document.mentions.sort(key=lambda mention: (mention.start, -mention.end))
    report.documents = len(documents)
    return Collection(list(documents.values()), report)


def _title(reference: str, titles_of_items: Mapping[str, str]) -> str | None:
    for part in _WIKI_PARTS:
        if part in reference:
            name = unquote(reference.split(part, 1)[1]).replace("_", " ")
            return titles_of_items.get(name) if "wikidata.org" in reference else name
    return titles_of_items.get(reference.rsplit("/", 1)[-1]) if "wikidata.org" in reference else None


def _integer(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
