"""Which templates leave which words: a small table, as no template's own text is at hand when a page is read.

A rule is wikitext with slots. ``{1}`` is the template's first argument and ``{text}`` the one of that name; ``{2|text}`` is
the first of several that says anything, and ``{2, 3}`` all that do, with commas between. ``{$measure}``, ``{$date}``,
``{$joined}`` and ``{$language}`` are made by the functions below. What stands in ``<…>`` is left out when its slots are
empty. A name that ends in ``*`` is the beginning of several templates' names. ``template_rules.json`` holds the rules of
every language (``*``) and of single ones.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from luke.errors import UserError

_PIECE = re.compile(r"\{([^{}<>]+)\}|<([^<>]*)>|[^{}<>]+")
_NUMBER = re.compile(r"([+−-]?)(\d+)(\.\d+)?")
_EVERY_LANGUAGE = "*"


class Arguments(NamedTuple):
    """A template as it is used: its normal name, its arguments by name or number, the language of the wiki."""

    name: str
    values: Mapping[str, str]
    language: str

    def numbered(self) -> list[str]:
        """The arguments 1, 2, …, up to the first that is missing."""
        values = list[str]()
        while (value := self.values.get(str(len(values) + 1))) is not None:
            values.append(value)
        return values


class _Slot(NamedTuple):
    names: tuple[str, ...]
    every: bool


class _Optional(NamedTuple):
    pieces: "tuple[str | _Slot, ...]"


Rule = tuple[str | _Slot | _Optional, ...]


class Rules(NamedTuple):
    """The rules for one wiki: by a template's normal name, and by what its name begins with."""

    exact: dict[str, Rule]
    prefixes: dict[str, Rule]


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_name("template_rules.json").read_text(encoding="utf-8"))
    return table


def normal_name(written: str) -> str:
    """A template's name as rules have it: lower case, spaces, no ``Template:``."""
    return " ".join(written.replace("_", " ").split()).lower().removeprefix("template:").lstrip()


def load_rules(language: str, file: Path | None = None) -> Rules:
    """The rules for a language; those of ``file`` come first.

    Args:
        language: The wiki's language code.
        file: JSON, ``{"template's name": "rule", …}``; null takes the template's rule away.

    Raises:
        UserError: ``file`` cannot be read, or a rule of it.
    """
    own = _read_rules(file) if file else {}
    rules = _table()["rules"]
    texts: dict[str, str | None] = {**rules[_EVERY_LANGUAGE], **rules.get(language, {}), **own}
    exact, prefixes = dict[str, Rule](), dict[str, Rule]()
    for name, text in texts.items():
        if text is not None:
            try:
                rule = _compile(text)
            except ValueError as error:
                raise UserError(f"{file}: the rule of {name!r}: {error}") from None
            if name.endswith("*"):
                prefixes[name[:-1]] = rule
            else:
                exact[name] = rule
    return Rules(exact, prefixes)


def _read_rules(file: Path) -> dict[str, str | None]:
    try:
        rules = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file}: no such file of template rules") from None
    except UnicodeDecodeError:
        raise UserError(f"{file}: not UTF-8") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{file}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    if not isinstance(rules, dict):
        raise UserError(f'{file}: not a JSON object such as {{"nowrap": "{{1}}"}}')
    for name, rule in rules.items():
        if rule is not None and not isinstance(rule, str):
            raise UserError(f"{file}: the rule of {name!r} is {json.dumps(rule)[:60]}, neither a string nor null")
    return {normal_name(name): rule for name, rule in rules.items()}


def _compile(text: str) -> Rule:
    pieces, place = list[str | _Slot | _Optional](), 0
    for match in _PIECE.finditer(text):
        if match.start() != place:
            break
        place = match.end()
        if match[1] is not None:
            pieces.append(_slot(match[1]))
        elif match[2] is not None:
            inner = _compile(match[2])
            pieces.append(_Optional(tuple(piece for piece in inner if not isinstance(piece, _Optional))))
        else:
            pieces.append(match[0])
    if place != len(text):
        raise ValueError(f"a brace or an angle bracket without its partner at {text[place:][:20]!r}")
    return tuple(pieces)


def _slot(text: str) -> _Slot:
    every = "," in text
    names = tuple(name.strip() for name in text.split("," if every else "|"))
    for name in names:
        if not name or (name.startswith("$") and name not in _FUNCTIONS):
            known = ", ".join(f"{{{function}}}" for function in _FUNCTIONS)
            raise ValueError(f"no argument and none of {known}: {{{text}}}")
    return _Slot(names, every)


def find_rule(rules: Rules, name: str) -> Rule | None:
    """The rule for a template with this normal name."""
    rule = rules.exact.get(name)
    if rule is None:
        rule = next((rule for prefix, rule in rules.prefixes.items() if name.startswith(prefix)), None)
    return rule


def apply_rule(rule: Rule, arguments: Arguments) -> str:
    """The wikitext that a template leaves; nothing if its rule has slots and all are empty."""
    words, slots = list[str](), list[str]()
    for piece in rule:
        if isinstance(piece, str):
            words.append(piece)
        elif isinstance(piece, _Slot):
            slots.append(_fill(piece, arguments))
            words.append(slots[-1])
        else:
            filled = [part if isinstance(part, str) else _fill(part, arguments) for part in piece.pieces]
            if any(text for part, text in zip(piece.pieces, filled, strict=True) if isinstance(part, _Slot)):
                words += filled
                slots.append("filled")
    return "".join(words) if not slots or any(slots) else ""


def _fill(slot: _Slot, arguments: Arguments) -> str:
    values: Iterator[str] = (
        _FUNCTIONS[name](arguments) if name.startswith("$") else arguments.values.get(name, "") for name in slot.names
    )
    said = (value for value in values if value)
    return ", ".join(said) if slot.every else next(said, "")


def format_number(text: str, language: str) -> str:
    """A number with the signs of a language, as ``{{formatnum:}}`` writes it; other text as it is."""
    signs = _table()["number_signs"].get(language)
    number = _NUMBER.fullmatch(text.strip())
    if signs is None or number is None:
        return text
    sign, whole, decimals = number.groups()
    if len(whole) >= signs.get("least_digits", 4):
        whole = f"{int(whole):,}".replace(",", signs["group"])
    return sign + whole + (signs["decimal"] + decimals[1:] if decimals else "")


def _measure(arguments: Arguments) -> str:
    """``{{convert|5|to|10|km|mi}}`` -> ``5 to 10 km``: as it was measured, without what it is converted to."""
    table = _table()
    values = [value.strip() for value in arguments.numbered()]
    if not values:
        return ""
    place, words = 1, format_number(values[0], arguments.language)
    while place + 1 < len(values) and values[place] in table["connectors"]:
        connector = table["connectors"][values[place]]
        connector = connector if connector == "–" else f" {connector} "
        words += connector + format_number(values[place + 1], arguments.language)
        place += 2
    parts = [words]
    while place < len(values):
        parts.append(table["unit_signs"].get(values[place], values[place]))
        smaller = values[place + 1 : place + 3]
        if len(smaller) < 2 or smaller[1] not in table["smaller_units"] or _NUMBER.fullmatch(smaller[0]) is None:
            break
        parts.append(smaller[0])
        place += 2
    return " ".join(part for part in parts if part)


def _date(arguments: Arguments) -> str:
    """``{{birth date|1970|1|2}}`` -> ``January 2, 1970``; ``2 January 1970`` with ``df=yes``."""
    year, month, day = ([value.strip() for value in arguments.numbered()] + [""] * 3)[:3]
    if not year.isdecimal():
        return year
    if month.isdecimal() and 1 <= int(month) <= 12:
        month = _table()["months"][int(month) - 1]
    if not month or month.isdecimal():
        return year
    if not day.isdecimal():
        return f"{month} {year}"
    day = str(int(day))
    return f"{day} {month} {year}" if arguments.values.get("df") else f"{month} {day}, {year}"


def _joined(arguments: Arguments) -> str:
    """Phonetic signs, one an argument, without labels such as ``lang``; ``_`` is a space."""
    signs = (value for value in arguments.numbered() if value.lower() not in _table()["phonetic_labels"])
    return "".join(" " if sign == "_" else sign for sign in signs)


def _language(arguments: Arguments) -> str:
    """The name of the language that ``{{lang-fr}}`` or ``{{langx|fr}}`` is about; "" if it is not known."""
    code = arguments.name.partition("-")[2] or arguments.values.get("1", "").strip()
    name: str = _table()["language_names"].get(arguments.language, {}).get(code, "")
    return name


_FUNCTIONS: dict[str, Callable[[Arguments], str]] = {
    "$measure": _measure,
    "$date": _date,
    "$joined": _joined,
    "$language": _language,
}
