"""``luke link``."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_PATH = click.Path(path_type=Path)


def linker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that a linker is made of; `make_linker` takes them."""
    for option in reversed(
        (
            click.option("--model", type=_PATH, required=True, help="The model's folder (luke convert-checkpoint)."),
            click.option("--candidates", type=_PATH, help="The candidate table. [default: MODEL/candidates]"),
            click.option("--min-link-probability", type=float, default=0.1, show_default=True, help="Of a mention's text."),
            click.option("--nil-threshold", type=float, default=0.0, show_default=True, help="Less probable: no entity."),
            click.option("--inference", type=click.Choice(["local", "global", "beam"]), default="global", show_default=True),
            click.option("--split", type=click.Choice(["simple", "per_mention"]), default="simple", show_default=True),
            click.option("--language", help="Language of the vocabulary's titles, if it has several."),
            click.option("--device", default="cpu", show_default=True),
        )
    ):
        function = option(function)
    return function


def make_linker(
    model: Path,
    candidates: Path | None,
    min_link_probability: float,
    nil_threshold: float,
    inference: str,
    split: str,
    language: str | None,
    device: str,
) -> Any:
    """The linker that the options describe."""
    from luke.entity_disambiguation.inference import InferenceOptions
    from luke.entity_disambiguation.linker import EntityLinker, LinkOptions
    from luke.entity_disambiguation.windows import WindowOptions
    from luke.pretraining.allocator import keep_freed_memory

    keep_freed_memory()
    windows = WindowOptions(split, language=language)
    options = LinkOptions(min_link_probability, nil_threshold, InferenceOptions(inference, windows=windows))
    return EntityLinker.from_pretrained(model, candidates, options, device)


@click.command()
@click.argument("texts", metavar="TEXT_OR_FILE...", nargs=-1, required=True)
@linker_options
@click.option(
    "--spans", multiple=True, metavar="START:END,...", help="The mentions of a text, where they are known; once a text."
)
@click.option("--html", type=_PATH, help="Write a page with the linked texts instead of JSON lines.")
def command(texts: tuple[str, ...], spans: tuple[str, ...], html: Path | None, language: str | None, **options: Any) -> None:
    """Links texts to entities and prints a JSON object a text. An argument that names a file stands for its text, - for
    the standard input."""
    from luke.entity_disambiguation.link_page import write_link_page

    given = [_parse_spans(entry) for entry in spans] or None
    if given is not None and len(given) != len(texts):
        raise click.UsageError(f"--spans is given {len(given)} times, but there are {len(texts)} texts")
    read = [_read(text) for text in texts]
    linked = make_linker(**options, language=language).link(read, given)
    if html is not None:
        write_link_page(html, linked, language or "en")
        click.echo(f"{html}: written")
        return
    for text in linked:
        click.echo(json.dumps(text.as_dict(), ensure_ascii=False))


def _parse_spans(text: str) -> list[tuple[int, int]]:
    try:
        pairs = [entry.split(":") for entry in text.split(",") if entry]
        return [(int(start), int(end)) for start, end in pairs]
    except ValueError:
        raise click.UsageError(f"--spans {text}: write START:END,START:END") from None


def _read(argument: str) -> str:
    from luke.errors import UserError

    if argument == "-":
        return sys.stdin.read()
    try:
        is_file = Path(argument).is_file()
    except (OSError, ValueError):  # longer than a name may be
        is_file = False
    if not is_file:
        return argument
    try:
        return Path(argument).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{argument}: cannot be read: {error}") from None
