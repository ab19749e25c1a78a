"""Which words templates leave."""

import json
from pathlib import Path

import pytest

from luke.corpus.template_rules import Arguments, apply_rule, find_rule, format_number, load_rules
from luke.corpus.wikitext import Site, parse_wikitext
from luke.errors import UserError
from tests.command_line import refused


def words(template: str, rules: dict[str, str | None], folder: Path, language: str = "en") -> str:
    file = folder / "rules.json"
    file.write_text(json.dumps(rules), encoding="utf-8")
    paragraphs = parse_wikitext(f"a {template}.", Site(language, template_rules=load_rules(language, file)))
    return " / ".join(paragraph.text for paragraph in paragraphs)


@pytest.mark.parametrize(
    ("rule", "template", "text"),
    [
        ("{1}", "{{x|b}}", "a b."),
        ("{2|name}", "{{x|b|c|name=d}}", "a c."),
        ("{2|name}", "{{x|b|name=d}}", "a d."),
        ("{1, 2, 3}", "{{x|b||c}}", "a b, c."),
        ("{1}< of {2}>", "{{x|b|c}}", "a b of c."),
        ("{1}< of {2}>", "{{x|b}}", "a b."),
        ("the {1}", "{{x}}", "a ."),
        ("so", "{{x}}", "a so."),
        ("[[{1}]]", "{{x|b}}s", "a bs."),
        ("{$measure}", "{{x|3|by|4|ft}}", "a 3 by 4 ft."),
        ("{$date}", "{{x|1999|May|5|df=y}}", "a 5 May 1999."),
    ],
)
def test_rule(rule: str, template: str, text: str, tmp_path: Path) -> None:
    assert words(template, {"X": rule}, tmp_path) == text


def test_rules_of_a_file_come_before_the_built_in_ones(tmp_path: Path) -> None:
    assert words("{{lang|fr|mot}}", {}, tmp_path) == "a mot."
    assert words("{{lang|fr|mot}}", {"Lang": "{2} ({1})"}, tmp_path) == "a mot (fr)."
    assert words("{{lang|fr|mot}}", {"lang": None}, tmp_path) == "a ."
    assert words("{{my_own one|b}}", {"My own*": "{1}"}, tmp_path) == "a b."


def test_name_that_begins_like_several() -> None:
    rules = load_rules("en")
    rule = find_rule(rules, "lang-de")
    assert rule is not None
    assert apply_rule(rule, Arguments("lang-de", {"1": "Wort"}, "en")) == "German: Wort"
    assert find_rule(rules, "language") is None


@pytest.mark.parametrize(
    ("number", "language", "text"),
    [
        ("1234567", "en", "1,234,567"),
        ("-1234.50", "de", "-1.234,50"),
        ("1234", "pl", "1234"),
        ("999", "en", "999"),
        ("about 1234", "en", "about 1234"),
        ("1234", "xx", "1234"),
    ],
)
def test_numbers(number: str, language: str, text: str) -> None:
    assert format_number(number, language) == text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "line 1, column 2: not JSON"),
        ("[]", "not a JSON object"),
        ('{"x": 1}', "the rule of 'x' is 1, neither a string nor null"),
        ('{"x": "{1"}', "without its partner at '{1'"),
        ('{"x": "a > b"}', "without its partner at '> b'"),
        ('{"x": "{$convert}"}', "none of {$measure}, {$date}, {$joined}, {$language}: {$convert}"),
        ('{"x": "{}"}', "without its partner"),
    ],
)
def test_bad_file(content: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as error:
        load_rules("en", file)
    assert str(file) in str(error.value) and problem in str(error.value)


def test_missing_file_is_said_before_the_dump_is_read(tmp_path: Path) -> None:
    dump = tmp_path / "dump.xml"
    dump.write_text("<mediawiki/>", encoding="utf-8")
    rules = tmp_path / "none.json"
    line = refused("build-dump-db", dump, tmp_path / "out", "--template-rules", rules, leaving=tmp_path / "out")
    assert "none.json: no such file of template rules" in line


def test_a_rendered_dump_needs_none(tmp_path: Path) -> None:
    dump, rules = tmp_path / "dump.ndjson", tmp_path / "rules.json"
    dump.write_text('{"article_body": {"html": ""}}\n', encoding="utf-8")
    rules.write_text("{}", encoding="utf-8")
    line = refused("build-dump-db", dump, tmp_path / "out", "--template-rules", rules, leaving=tmp_path / "out")
    assert "already holds the words of templates" in line
