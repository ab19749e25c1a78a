"""Linked texts as an HTML page: each link leads to its article."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from luke.artifacts import replace_file
from luke.entity_disambiguation.linker import LinkedText

_STYLE = (
    "body{font:16px/1.6 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "p{white-space:pre-wrap}.nil{background:#eee}"
)


def link_html(linked: LinkedText, site: str) -> str:
    """A text as HTML, links to ``site`` such as ``https://en.wikipedia.org/wiki/``; of overlapping ones the first alone."""
    parts, place = [], 0
    for link in linked.links:
        if link.start < place:
            continue
        parts.append(escape(linked.text[place : link.start]))
        if link.title is None:
            parts.append(f'<span class="nil" title="no entity">{escape(link.text)}</span>')
        else:
            address = escape(site + quote(link.title.replace(" ", "_")))
            shown = escape(f"{link.title} ({link.probability:.2f})")
            parts.append(f'<a href="{address}" title="{shown}">{escape(link.text)}</a>')
        place = link.end
    parts.append(escape(linked.text[place:]))
    return "".join(parts)


def write_link_page(path: Path, texts: Sequence[LinkedText], language: str = "en") -> None:
    """Writes a page that needs no other file."""
    site = f"https://{language}.wikipedia.org/wiki/"
    body = "\n".join(f"<p>{link_html(linked, site)}</p>" for linked in texts)
    head = f'<meta charset="utf-8"><title>Linked text</title><style>{_STYLE}</style>'
    with replace_file(path, "w") as stream:
        stream.write(
            f'<!doctype html>\n<html lang="{escape(language)}"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'
        )
