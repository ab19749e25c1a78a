"""Wikitext as a reader sees it."""

import random
import time

import mwparserfromhell
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luke.corpus.page_store import Paragraph
from luke.corpus.wikitext import Site, _ParagraphBuilder, parse_wikitext

ENGLISH = Site()
GERMAN = Site("de", {0: "", -2: "Medium", 6: "Datei", 10: "Vorlage", 14: "Kategorie"})


def read(wikitext: str, site: Site = ENGLISH) -> list[tuple[str, list[tuple[str, str]]]]:
    """(text, [(target, anchor)]) of each paragraph."""
    return [(p.text, anchors(p)) for p in parse_wikitext(wikitext, site)]


def anchors(paragraph: Paragraph) -> list[tuple[str, str]]:
    return [(link.title, paragraph.text[link.start : link.end]) for link in paragraph.links]


CASES = {
    "plain link": ("the [[cat]].", "the cat.", [("Cat", "cat")]),
    "piped link": ("the [[Felis catus|cat]].", "the cat.", [("Felis catus", "cat")]),
    "link trail": ("many [[cat]]s.", "many cats.", [("Cat", "cats")]),
    "trail of a piped link": ("the [[France|French]]man", "the Frenchman", [("France", "Frenchman")]),
    "markup ends a trail": ("'''[[cat]]'''s [[dog]]<i>s</i>", "cats dogs", [("Cat", "cat"), ("Dog", "dog")]),
    "nowiki ends a trail": ("[[cat]]<nowiki/>s", "cats", [("Cat", "cat")]),
    "template ends a trail": ("[[cat]]{{x}}s", "cats", [("Cat", "cat")]),
    "no trail of other letters": ("[[cat]]é", "caté", [("Cat", "cat")]),
    "section cut": ("[[Cat#Diet|food]]", "food", [("Cat", "food")]),
    "section without text": ("see [[Cat#Diet]]", "see Cat#Diet", [("Cat", "Cat#Diet")]),
    "section of the same page": ("[[#Diet|below]]", "below", []),
    "underscores and spaces": ("[[big_ cat |a]] b", "a b", [("Big cat", "a")]),
    "percent encoding": ("[[Caf%C3%A9|bar]]", "bar", [("Café", "bar")]),
    "entity in a title": ("[[AT&amp;T]]", "AT&T", [("AT&T", "AT&T")]),
    "bold and italic": ("'''[[a]]''' ''b'' '''''c'''''", "a b c", [("A", "a")]),
    "quotes in an anchor": ("[[a|''b'' c]]", "b c", [("A", "b c")]),
    "quotes across a link": ("''x [[a|b'' c]]", "x b c", [("A", "b c")]),
    "apostrophe stays": ("rock 'n' roll's", "rock 'n' roll's", []),
    "pipe trick": ("[[Paris (Texas)|]]", "Paris", [("Paris (Texas)", "Paris")]),
    "category": ("x [[Category:Cats]]", "x", []),
    "link to a category": ("see [[:Category:Cats]]", "see Category:Cats", []),
    "leading colon": ("see [[:cat]]", "see cat", [("Cat", "cat")]),
    "file with a caption with links": ("[[File:a.jpg|thumb|a [[cat]] on [[mat|a mat]]]]x", "x", []),
    "image": ("[[Image:a.jpg]]x", "x", []),
    "unclosed file": ("[[File:a.jpg|thumb|cap\nnext", "next", []),
    "interlanguage link": ("x [[de:Katze]] [[fr:Chat|chat]]", "x", []),
    "link to another language": ("x [[:de:Katze|Katze]]", "x Katze", []),
    "own language": ("[[en:cat|x]]", "x", [("Cat", "x")]),
    "no prefix but a title": ("[[CSI: Miami]] [[NBA: x]]", "CSI: Miami NBA: x", [("CSI: Miami",) * 2, ("NBA: x",) * 2]),
    "interwiki link without text": ("[[wikt:cat]] x", "wikt:cat x", []),
    "visible interwiki link": ("[[wikt:cat|cat]] x", "cat x", []),
    "other namespace": ("[[Wikipedia:Help|help]] [[User:A|b]]", "help b", []),
    "title with a colon": ("[[2001: A Space Odyssey]]", "2001: A Space Odyssey", [("2001: A Space Odyssey",) * 2]),
    "template": ("a {{citation needed|date=1}} b", "a  b", []),
    "nested templates": ("a{{b|{{c|[[d]]}}}}e", "ae", []),
    "unclosed template": ("a {{b [[c]] d", "a {{b c d", [("C", "c")]),
    "unopened template": ("a }} b", "a }} b", []),
    "table": ("{| class=x\n| [[b]]\n|}\nc", "c", []),
    "table in a table": ("{|\n| x\n{|\n| y\n|}\n|}\nc", "c", []),
    "template in a table": ("{|\n| {{x|}}\n|}\nc", "c", []),
    "unclosed table": ("a\n{|\n| b", "a", []),
    "reference": ("a<ref>[[b]]</ref> c<ref name=x />.", "a c.", []),
    "reference with attributes": ('a<ref name="x y">b</ref>c', "ac", []),
    "comment": ("a<!-- [[b]] -->c", "ac", []),
    "comment in a link": ("[[a<!-- x -->b]]", "ab", [("Ab", "ab")]),
    "unclosed comment": ("a<!-- b", "a", []),
    "formula": ("a <math>x^2</math> b", "a  b", []),
    "gallery": ("a<gallery>\nFile:b.jpg|[[c]]\n</gallery>d", "ad", []),
    "entity in nowiki": ("<nowiki>&lt;b&gt;</nowiki>", "<b>", []),
    "verbatim": ("<pre>[[a]] ''b''</pre>", "[[a]] ''b''", []),
    "only for templates": ("<noinclude>a</noinclude><includeonly>b</includeonly>", "a", []),
    "unclosed tag": ("a <b>b [[c]]", "a b c", [("C", "c")]),
    "stray closing tag": ("a</span> b", "a b", []),
    "unknown tag": ("a <foo> b", "a <foo> b", []),
    "unclosed reference": ("a<ref>b", "a<ref>b", []),
    "nowiki": ("<nowiki>[[a]] ''b''</nowiki>", "[[a]] ''b''", []),
    "tags keep their text": ("a <b>b</b> <span class=x>[[c]]</span>", "a b c", [("C", "c")]),
    "line break": ("a<br />b", "a b", []),
    "entities": ("a &amp; b&nbsp;c &#8211; d", "a & b\u00a0c – d", []),
    "external link": ("[http://x.org label [[a]]] y", "label a y", [("A", "a")]),
    "external link without label": ("a [http://x.org] b", "a  b", []),
    "external link without a scheme": ("[//x.org label]", "label", []),
    "external link in link brackets": ("[[http://x.org label]]", "[label]", []),
    "quoted label": ('[http://x.org"label"]', '"label"', []),
    "entity without semicolon": ("R&amp B [[Q&copy B|x]]", "R&amp B x", [("Q&copy B", "x")]),
    "bare address": ("see http://x.org/ there", "see http://x.org/ there", []),
    "magic word": ("__TOC__a", "a", []),
    "brackets in an anchor": ("[[a|b [c] d]]", "b [c] d", [("A", "b [c] d")]),
    "unclosed link": ("a [[b c", "a [[b c", []),
    "what is no title": ("[[a<b|c]] [[a&#124;b]] [[a\nb]]", "c a|b [[a b]]", []),
    "capital of several letters": ("[[ß|a]] [[ǆ|b]]", "a b", [("ß", "a"), ("Ǆ", "b")]),
    "letters without capitals": ("[[საქართველო]]", "საქართველო", [("საქართველო",) * 2]),
    "empty link": ("a [[]] b", "a  b", []),
    "rule": ("----\na", "a", []),
    "non-BMP": ("😀 [[𝔘𝔫|𝔲𝔫𝔡]] 😀 [[a]]", "😀 𝔲𝔫𝔡 😀 a", [("𝔘𝔫", "𝔲𝔫𝔡"), ("A", "a")]),
    "right to left": ("قال [[محمد|النبي]] هنا", "قال النبي هنا", [("محمد", "النبي")]),
    "combining marks": ("e\u0301 [[a|n\u0303]] x", "e\u0301 n\u0303 x", [("A", "n\u0303")]),
    "several lines": ("a\nb [[c]]\nd", "a b c d", [("C", "c")]),
}


@pytest.mark.parametrize("name", CASES)
def test_construct(name: str) -> None:
    wikitext, text, links = CASES[name]
    assert read(wikitext) == [(text, links)]


def test_blocks_are_paragraphs_and_the_abstract_ends_at_the_first_heading() -> None:
    wikitext = "a [[b]].\n\nc\nd\n== E [[f]] ==\ng\n* h\n** [[i]]\n# j\nk\n"
    assert [text for text, _ in read(wikitext)] == ["a b.", "c d", "E f", "g", "h", "i", "j", "k"]
    assert [p.abstract for p in parse_wikitext(wikitext, ENGLISH)] == [True, True, *[False] * 6]
    assert read("a\n==b==\nc")[1] == ("b", [])


def test_block_elements_part_paragraphs() -> None:
    assert read("<div>a</div><div>[[b]]</div>c<hr>d") == [("a", []), ("b", [("B", "b")]), ("c", []), ("d", [])]
    table = "a<table><tr><td>[[b]]<table><tr><td>c</td></tr></table></td></tr></table>d"
    assert read(table) == [("a", []), ("d", [])]


def test_a_wikis_own_names_and_letters() -> None:
    assert read("[[Datei:a.jpg|[[b]]]][[Kategorie:C]]x", GERMAN) == [("x", [])]
    assert read("[[Bild]]ähnlich", GERMAN) == [("Bildähnlich", [("Bild", "Bildähnlich")])]
    assert read("[[Vorlage:A|b]]", GERMAN) == [("b", [])]
    assert read("[[file:a.jpg]]x", GERMAN) == [("x", [])], "English names are understood everywhere"
    assert read("[[cat]]", Site(first_letter=False)) == [("cat", [("cat", "cat")])]


def test_titles_are_normalized() -> None:
    assert ENGLISH.normalize_title(" foo_bar#x ") == "Foo bar"
    assert ENGLISH.normalize_title("ǆ") == "Ǆ"
    assert ENGLISH.normalize_title("#x") == ""


_PIECES = [
    *("[[", "]]", "{{", "}}", "{|", "|}", "|", "'''", "''", "<ref>", "</ref>", "<!--", "-->", "<nowiki>", "</nowiki>", "=="),
    *("\n", "\n\n", "* ", "[http://x ", "]", "&amp;", "File:", "Category:", "de:", "a", " b ", "😀", "é", "#", ":", "<br>"),
    *("-{", "}-", "<math>", "</math>", "__TOC__", "{{{", "}}}", "<", ">", "\u200f"),
]


@settings(max_examples=400, deadline=2000)
@given(st.lists(st.sampled_from(_PIECES), max_size=60).map("".join))
def test_anything_is_read_and_every_link_has_its_anchor(wikitext: str) -> None:
    for paragraph in parse_wikitext(wikitext, ENGLISH):
        assert paragraph.text == paragraph.text.strip() != ""
        place = 0
        for link in paragraph.links:
            assert place <= link.start < link.end <= len(paragraph.text)
            assert link.title and paragraph.text[link.start : link.end].strip()
            place = link.end


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["[[a]]", "[[b|c d]]", "[http://x.org y]", "s", " ", "&amp;", "\n", "[[File x|y]]", "😀"])))
def test_plain_links_are_read_as_the_parser_reads_them(pieces: list[str]) -> None:
    block = "".join(pieces)
    plain, parsed = _ParagraphBuilder(ENGLISH), _ParagraphBuilder(ENGLISH)
    plain.add_plain(block)
    parsed.add(mwparserfromhell.parse(block, skip_style_tags=True))
    assert plain.paragraph(True) == parsed.paragraph(True)


MARKS = [
    "{{",
    "[[",
    "[[File:",
    "[[File:a\n",
    "{|\n",
    "<ref>",
    "<ref name=x",
    "<nowiki>",
    "'''",
    "[[a|",
    "{{{",
    "<b>",
    "<!--",
]
MARKS += ["]]", "[http://x ", "]", "=", "= ", " ", "* ", "\n", "<table>", "&"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("first", MARKS)
def test_no_run_of_marks_takes_long(first: str) -> None:
    """Time grows with the length, not with its square: these pages took the parser minutes, or for ever."""
    for second in MARKS:
        for page in ((first + second) * 600, first * 600 + second * 600):
            start = time.process_time()
            parse_wikitext(page, ENGLISH)
            assert time.process_time() - start < 3, (first, second)


def test_mutated_pages_never_fail() -> None:
    rng = random.Random(0)
    page = "\n\n".join(wikitext for wikitext, _, _ in CASES.values())
    for _ in range(200):
        characters = list(page)
        for _ in range(30):
            place = rng.randrange(len(characters))
            characters[place : place + rng.randrange(3)] = rng.choice(_PIECES)
        for paragraph in parse_wikitext("".join(characters), ENGLISH):
            assert all(paragraph.text[link.start : link.end].strip() for link in paragraph.links)
