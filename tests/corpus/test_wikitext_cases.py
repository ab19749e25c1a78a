"""A regression corpus of wikitext, one construct a line of ``wikitext_cases.jsonl``, with the text and the links of a
reader. A case: its name, the wikitext, its paragraphs (text, [[title, anchor], …]), the wiki's language (else English) and
the page's title if they matter."""

import json
from pathlib import Path
from typing import Any

import pytest

from luke.corpus.wikitext import Site, parse_wikitext

CASES = [json.loads(line) for line in Path(__file__).with_name("wikitext_cases.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    paragraphs = parse_wikitext(case["wikitext"], Site(case.get("language", "en")), case.get("title", ""))
    read = [[p.text, [[link.title, p.text[link.start : link.end]] for link in p.links]] for p in paragraphs]
    assert read == case["paragraphs"]


def test_there_are_many() -> None:
    assert len({case["wikitext"] for case in CASES}) > 250
