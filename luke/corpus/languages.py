"""Which Wikipedia a file or a site belongs to: the codes that database names and Wikidata give to languages."""

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from luke.errors import UserError

_FILE_NAME = re.compile(r"([a-z][a-z_]*)wiki[-_.]")


@cache
def wikipedia_languages() -> frozenset[str]:
    """The language codes of all Wikipedias."""
    data = json.loads(Path(__file__).with_name("wikipedia_sites.json").read_text(encoding="utf-8"))
    return frozenset(data["languages"])


def language_of_site(site: str) -> str | None:
    """``ja`` of ``jawiki``, ``be-x-old`` of ``be_x_oldwiki``; None if that is no Wikipedia (``jawiktionary``,
    ``commonswiki``)."""
    code = site.removesuffix("wiki").replace("_", "-")
    return code if site.endswith("wiki") and code in wikipedia_languages() else None


def language_of_files(paths: Sequence[Path]) -> str | None:
    """What the names of a dump's files say: ``ja`` for ``jawiki-20240101-pages-articles1.xml-p1p100.bz2``; None if they say
    nothing.

    Raises:
        UserError: they say different things.
    """
    found: dict[str, Path] = {}
    for path in paths:
        match = _FILE_NAME.match(path.name)
        language = language_of_site(f"{match[1]}wiki") if match else None
        if language is not None:
            found.setdefault(language, path)
    if len(found) > 1:
        raise UserError(f"files of several languages ({', '.join(map(str, found.values()))}): build one store a language")
    return next(iter(found), None)
