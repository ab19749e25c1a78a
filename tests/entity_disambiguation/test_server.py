"""The service: answers, batches, limits, failures, and its page in a headless browser."""

import asyncio
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

fastapi = pytest.importorskip("fastapi")
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
from fastapi.responses import HTMLResponse  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402

from luke.entity_disambiguation.server import ServerOptions, make_app  # noqa: E402
from luke.errors import UserError  # noqa: E402

from .linker_fixture import WordLinker  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ServerOptions(max_characters=100, max_texts=4, max_queue=6, max_batch=3, timeout=2.0)


@pytest.fixture
def linker() -> WordLinker:
    return WordLinker()


@pytest.fixture
def client(linker: WordLinker) -> Iterator[TestClient]:
    with TestClient(make_app(linker, OPTIONS), raise_server_exceptions=False) as client:
        yield client


def test_links(client: TestClient) -> None:
    answer = client.post("/link", json={"texts": ["In Rome", "x"], "spans": [None, [[0, 1]]]})
    assert answer.status_code == 200
    assert answer.json() == {
        "results": [
            {"text": "In Rome", "links": [
                {"start": 3, "end": 7, "text": "Rome", "title": "Rome (city)", "probability": 0.9}
            ]},
            {"text": "x", "links": [{"start": 0, "end": 1, "text": "x", "title": None, "probability": 0.9}]},
        ]
    }  # fmt: skip
    assert client.get("/health").json() == {"status": "ok", "entities": 7, "anchors": 9, "waiting": 0}
    metrics = client.get("/metrics").text
    assert 'luke_requests_total{status="200"} 1.0' in metrics and "luke_links_total 1.0" in metrics
    assert "/link" in client.get("/openapi.json").json()["paths"] and client.get("/docs").status_code == 200


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (422, {}),
        (422, {"texts": []}),
        (422, {"texts": "Rome"}),
        (422, {"texts": ["Rome"], "more": 1}),
        (422, {"texts": ["Rome"], "spans": []}),
        (422, {"texts": ["Rome"], "spans": [[[2, 9]]]}),
        (422, {"texts": ["Rome"], "spans": [[[2, 2]]]}),
        (422, {"texts": ["Rome"], "spans": [[[0]]]}),
        (413, {"texts": ["x"] * 5}),
        (413, {"texts": ["x" * 101]}),
    ],
)
def test_bad_input(client: TestClient, status: int, body: dict[str, Any]) -> None:
    answer = client.post("/link", json=body)
    assert answer.status_code == status and answer.json()["detail"]


def test_bad_bodies(client: TestClient) -> None:
    assert client.post("/link", content=b"{not json", headers={"Content-Type": "application/json"}).status_code == 422
    assert client.post("/link", content=b" " * 200_000).status_code == 413
    unsized = client.post("/link", content=iter([b"{}"]))
    assert unsized.status_code == 411 and "Content-Length" in unsized.json()["detail"]
    assert client.get("/link").status_code == 405 and client.get("/nothing").status_code == 404


def test_concurrent_requests_share_batches_and_a_full_queue_refuses(linker: WordLinker, client: TestClient) -> None:
    linker.gate.clear()
    statuses: list[int] = []

    def ask(texts: list[str]) -> None:
        statuses.append(client.post("/link", json={"texts": texts}).status_code)

    first = threading.Thread(target=ask, args=(["first"],))
    first.start()
    wait_until(lambda: client.get("/health").json()["waiting"] == 0)
    time.sleep(0.1)
    threads = [threading.Thread(target=ask, args=([f"{n} a", f"{n} b"],)) for n in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: client.get("/health").json()["waiting"] == 6)
    full = client.post("/link", json={"texts": ["one more"]})
    assert full.status_code == 503 and full.headers["retry-after"] == "1"
    linker.gate.set()
    for thread in (first, *threads):
        thread.join()
    assert statuses == [200] * 4 and [len(batch) for batch in linker.batches] == [1, 3, 3]


def test_a_slow_text_times_out_and_the_service_goes_on(linker: WordLinker, client: TestClient) -> None:
    linker.gate.clear()
    slow = client.post("/link", json={"texts": ["Rome"]})
    assert slow.status_code == 504 and "2 seconds" in slow.json()["detail"]
    linker.gate.set()
    assert client.post("/link", json={"texts": ["Rome"]}).status_code == 200


def test_a_failure_is_not_the_end(client: TestClient) -> None:
    assert client.post("/link", json={"texts": ["fail"]}).status_code == 500
    assert client.post("/link", json={"texts": ["Rome"]}).status_code == 200


def test_limits_must_be_positive() -> None:
    with pytest.raises(UserError, match="--max-queue 0"):
        ServerOptions(max_queue=0)


def wait_until(condition: Any) -> None:
    for _ in range(200):
        if condition():
            return
        time.sleep(0.02)
    pytest.fail("it did not happen")


# Loads the page in a frame, types into it, submits, and copies what appears.
DRIVER = """<!doctype html><iframe id="frame" src="/"></iframe><div id="seen"></div><script>
document.getElementById("frame").addEventListener("load", async () => {
  const page = document.getElementById("frame").contentDocument;
  page.getElementById("text").value = TEXT;
  page.querySelector("button").click();
  for (let n = 0; n < 100; n++) {
    await new Promise(resolve => setTimeout(resolve, 50));
    const seen = page.getElementById("result").innerHTML + page.getElementById("error").textContent;
    if (seen) { document.getElementById("seen").innerHTML = seen; return; }
  }
});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ('"\U0001f642 to Rome & <Nil>"', [
            '<a href="https://de.wikipedia.org/wiki/Rome_(city)" title="Rome (city) (0.90)">Rome</a>',
            '\U0001f642 to ', ' &amp; &lt;<span class="nil" title="no entity (0.90)">Nil</span>&gt;',
        ]),
        ('"x".repeat(101)', ["a text of 101 characters; at most 100 are taken"]),
    ],
)  # fmt: skip
def test_the_page_in_a_browser(linker: WordLinker, text: str, seen: list[str]) -> None:
    options = ServerOptions(max_characters=100, language="de")
    app = make_app(linker, options)
    app.add_api_route("/driver", lambda: HTMLResponse(DRIVER.replace("TEXT", text)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        wait_until(lambda: server.started)
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--dump-dom"]
        address = f"http://127.0.0.1:{port}/driver"
        page = subprocess.run([*command, address], capture_output=True, text=True, timeout=120).stdout
    finally:
        server.should_exit = True
        thread.join()
    for part in seen:
        assert part in page
