"""``luke build-interwiki-db``."""

from pathlib import Path

import click


def language_codes(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """``ja,ko`` -> codes."""
    return tuple(code.strip() for code in (value or "").split(",") if code.strip())


@click.command()
@click.argument("dumps", metavar="WIKIDATA...", nargs=-1, required=True)
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--languages", callback=language_codes, help="Codes of the Wikipedias, as ja,ko.  [default: all]")
def command(dumps: tuple[str, ...], output: Path, languages: tuple[str, ...]) -> None:
    """Reads a Wikidata JSON dump (plain, bzip2, gzip or zstd) and writes to OUT which titles of Wikipedias are one item."""
    from luke.corpus.interwiki import build_interwiki_db

    counts = build_interwiki_db(dumps, output, languages)["counts"]
    click.echo(f"{output}: {counts['items']:,} items, {counts['titles']:,} titles")
