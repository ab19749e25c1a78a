"""``luke serve``."""

from typing import Any

import click

from luke.commands.link import linker_options, make_linker


@click.command()
@linker_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at; 0.0.0.0 lets others in.")
@click.option("--port", type=int, default=8000, show_default=True)
@click.option("--max-characters", type=int, default=20_000, show_default=True, help="Of a text.")
@click.option("--max-texts", type=int, default=32, show_default=True, help="Of a request.")
@click.option("--max-queue", type=int, default=256, show_default=True, help="Texts that may wait.")
@click.option("--max-batch", type=int, default=32, show_default=True, help="Texts linked together.")
@click.option("--timeout", type=float, default=60.0, show_default=True, help="Seconds that a request may take.")
def command(
    host: str,
    port: int,
    max_characters: int,
    max_texts: int,
    max_queue: int,
    max_batch: int,
    timeout: float,
    **options: Any,
) -> None:
    """Serves linking over HTTP: /link, /health, /metrics, /docs, and a page to try it."""
    from luke.errors import UserError

    try:
        import uvicorn

        from luke.entity_disambiguation.server import ServerOptions, make_app
    except ImportError as error:
        raise UserError(f"luke serve needs {error.name}: pip install 'luke[serve]'") from None
    language = options["language"] or "en"
    limits = ServerOptions(max_characters, max_texts, max_queue, max_batch, timeout, language)
    uvicorn.run(make_app(make_linker(**options), limits), host=host, port=port, log_level="warning")
