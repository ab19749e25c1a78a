"""Linking over HTTP: ``/link``, ``/health``, ``/metrics``, the OpenAPI page at ``/docs``, and a page to try it at ``/``.

Requests wait in a bounded queue; one thread links what is there in batches, so that concurrent requests share the model's
passes. A full queue is answered with 503, a text that takes too long with 504, bad input with 4xx, always in JSON.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field

from luke.entity_disambiguation.linker import EntityLinker, LinkedText, Span
from luke.errors import UserError

_PAGE = Path(__file__).with_name("try.html")
_BODY_BYTES_A_CHARACTER = 6  # a character as a JSON escape


@dataclass(frozen=True)
class ServerOptions:
    """Limits of the service.

    Attributes:
        max_characters: Of a text.
        max_texts: Of a request.
        max_queue: Texts that wait; more are refused.
        max_batch: Texts linked together.
        timeout: Seconds that a request may take, waiting included.
        language: Of the Wikipedia that the try-out page links to.
    """

    max_characters: int = 20_000
    max_texts: int = 32
    max_queue: int = 256
    max_batch: int = 32
    timeout: float = 60.0
    language: str = "en"

    def __post_init__(self) -> None:
        for name in ("max_characters", "max_texts", "max_queue", "max_batch", "timeout"):
            if getattr(self, name) <= 0:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be positive")


class LinkRequest(BaseModel):
    """Texts to link; ``spans`` gives for each the mentions [start, end), null where they are to be found."""

    model_config = ConfigDict(extra="forbid")
    texts: Annotated[list[str], Field(min_length=1)]
    spans: list[list[tuple[int, int]] | None] | None = None


class Link(BaseModel):
    """A mention and its entity; ``title`` is null where there is none."""

    start: int
    end: int
    text: str
    title: str | None
    probability: float


class Linked(BaseModel):
    """A text with its links."""

    text: str
    links: list[Link]


class LinkResponse(BaseModel):
    """The texts of the request, in order."""

    results: list[Linked]


@dataclass
class _Job:
    text: str
    spans: list[Span] | None
    answer: "asyncio.Future[LinkedText]"


class BatchQueue:
    """Texts that wait, and the task that links them in batches."""

    def __init__(self, linker: EntityLinker, options: ServerOptions) -> None:
        self.linker, self.options = linker, options
        self.jobs: asyncio.Queue[_Job] = asyncio.Queue(options.max_queue)
        self._thread = ThreadPoolExecutor(1, "linker")

    def submit(self, request: LinkRequest) -> list["asyncio.Future[LinkedText]"]:
        """Puts all texts of a request into the queue.

        Raises:
            asyncio.QueueFull: they do not all fit.
        """
        if self.jobs.maxsize - self.jobs.qsize() < len(request.texts):
            raise asyncio.QueueFull
        loop = asyncio.get_running_loop()
        spans = request.spans or [None] * len(request.texts)
        jobs = [_Job(text, known, loop.create_future()) for text, known in zip(request.texts, spans, strict=True)]
        for job in jobs:
            self.jobs.put_nowait(job)
        return [job.answer for job in jobs]

    async def run(self) -> None:
        """Links batches until it is cancelled."""
        while True:
            jobs = [await self.jobs.get()]
            while len(jobs) < self.options.max_batch and not self.jobs.empty():
                jobs.append(self.jobs.get_nowait())
            # Whose request has timed out is not linked any more.
            jobs = [job for job in jobs if not job.answer.done()]
            if not jobs:
                continue
            texts, spans = [job.text for job in jobs], [job.spans for job in jobs]
            try:
                results = await asyncio.get_running_loop().run_in_executor(self._thread, self.linker.link, texts, spans)
            except Exception as error:
                for job in jobs:
                    if not job.answer.done():
                        job.answer.set_exception(error)
                continue
            for job, result in zip(jobs, results, strict=True):
                if not job.answer.done():
                    job.answer.set_result(result)


class _Metrics:
    """What ``/metrics`` tells, in Prometheus' form."""

    def __init__(self, queue: "asyncio.Queue[_Job]") -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("luke_requests", "Requests of /link by status", ["status"], registry=self.registry)
        self.texts = Counter("luke_texts", "Texts linked", registry=self.registry)
        self.links = Counter("luke_links", "Mentions with an entity", registry=self.registry)
        self.seconds = Histogram("luke_request_seconds", "Time of /link", registry=self.registry)
        waiting = Gauge("luke_queue_texts", "Texts that wait", registry=self.registry)
        waiting.set_function(queue.qsize)


def make_app(linker: EntityLinker, options: ServerOptions | None = None) -> FastAPI:
    """The service."""
    options = options or ServerOptions()
    queue = BatchQueue(linker, options)
    metrics = _Metrics(queue.jobs)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(queue.run())
        yield
        task.cancel()

    app = FastAPI(title="LUKE entity linking", lifespan=lifespan)
    largest_body = options.max_texts * options.max_characters * _BODY_BYTES_A_CHARACTER + (1 << 16)

    @app.middleware("http")
    async def limit_and_count(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.url.path != "/link":
            return await call(request)
        begin = time.perf_counter()
        response = await _within_limit(request, call, largest_body)
        metrics.requests.labels(str(response.status_code)).inc()
        metrics.seconds.observe(time.perf_counter() - begin)
        return response

    @app.post("/link")
    async def link(request: LinkRequest) -> LinkResponse:
        """Links texts to entities."""
        _check(request, options)
        try:
            answers = queue.submit(request)
        except asyncio.QueueFull:
            raise HTTPException(503, "too many texts are waiting; try again later", {"Retry-After": "1"}) from None
        try:
            results = await asyncio.wait_for(asyncio.gather(*answers), options.timeout)
        except TimeoutError:
            raise HTTPException(504, f"not linked within {options.timeout:g} seconds") from None
        metrics.texts.inc(len(results))
        metrics.links.inc(sum(entry.title is not None for result in results for entry in result.links))
        return LinkResponse.model_validate({"results": [result.as_dict() for result in results]})

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the service answers, and what it links with."""
        return {
            "status": "ok",
            "entities": len(linker.disambiguator.vocab),
            "anchors": len(linker.table),
            "waiting": queue.jobs.qsize(),
        }

    @app.get("/metrics")
    async def read_metrics() -> Response:
        """Counts and times, for Prometheus."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> str:
        return _PAGE.read_text(encoding="utf-8").replace("LANGUAGE", options.language)

    return app


async def _within_limit(request: Request, call: Callable[[Request], Awaitable[Response]], largest: int) -> Response:
    """Refuses a body by its announced size; one that announces none is refused too."""
    if request.method != "POST":
        return await call(request)
    length = request.headers.get("content-length", "")
    if not length.isdigit():
        return JSONResponse({"detail": "Content-Length is missing"}, 411)
    if int(length) > largest:
        return JSONResponse({"detail": f"the body has {length} bytes; at most {largest} are taken"}, 413)
    return await call(request)


def _check(request: LinkRequest, options: ServerOptions) -> None:
    if len(request.texts) > options.max_texts:
        raise HTTPException(413, f"{len(request.texts)} texts; at most {options.max_texts} are taken")
    longest = max(map(len, request.texts))
    if longest > options.max_characters:
        raise HTTPException(413, f"a text of {longest} characters; at most {options.max_characters} are taken")
    if request.spans is None:
        return
    if len(request.spans) != len(request.texts):
        raise HTTPException(422, f"spans for {len(request.spans)} texts, but {len(request.texts)} texts")
    for text, spans in zip(request.texts, request.spans, strict=True):
        for start, end in spans or ():
            if not 0 <= start < end <= len(text):
                raise HTTPException(422, f"span {start}:{end} is empty or outside of a text of {len(text)} characters")
