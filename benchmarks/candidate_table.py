"""How long it takes to open a candidate table of 15 million anchors, and to look texts up in it.

    python benchmarks/candidate_table.py [--anchors 15000000]

The table is synthetic: 1,000 real keys among keys that only have a place in the order. Opening and first look-ups are timed
in a process of their own, with the table's pages dropped from the system's cache first.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from luke.artifacts import StagedFolder
from luke.entity_disambiguation.anchor_text import EXACT, Hasher
from luke.entity_disambiguation.build_candidates import ANCHOR_SCHEMA, write_batches
from luke.entity_disambiguation.candidate_table import ANCHORS_FILE, ENTITIES_FILE, FREQUENCIES_FILE, KIND, CandidateTable

REAL = 1000
ENTITIES = 1_000_000
TEXT = "The anchor 17 was lost near anchor 940 in the sea between the islands of the north, as told before. " * 20


def write_table(folder: Path, rows: int) -> None:
    """A table of ``rows`` anchors of about 20 characters with two candidates each."""
    rng = np.random.default_rng(0)
    hasher = Hasher()
    hashes = rng.integers(0, 2**64, rows, dtype=np.uint64)
    hashes[:REAL] = [hasher.of_key(f"anchor {number}", EXACT) for number in range(REAL)]
    order = np.argsort(hashes)
    keys = [f"anchor {n}" if n < REAL else f"some other text {n}" for n in order.tolist()]
    ones = pa.array(np.ones(rows, np.uint32))
    offsets = pa.array(np.arange(0, 2 * rows + 1, 2, dtype=np.int32))
    lists = [rng.integers(0, ENTITIES, 2 * rows, dtype=np.uint32), np.ones(2 * rows, np.uint32)]
    columns = [pa.array(hashes[order]), pa.array(np.zeros(rows, np.uint8)), pa.array(keys), ones, ones]
    columns += [pa.array(np.full(rows, 2, np.uint32)), *(pa.ListArray.from_arrays(offsets, pa.array(a)) for a in lists)]
    with StagedFolder(folder, KIND, {"options": {"max_anchor_tokens": 20}, "inputs": {}}) as stage:
        anchors = pa.table(dict(zip(ANCHOR_SCHEMA.names, columns, strict=True)), schema=ANCHOR_SCHEMA)
        titles = pa.table({"title": [f"Entity {number}" for number in range(ENTITIES)]})
        for name, table in (
            (ANCHORS_FILE, anchors),
            (ENTITIES_FILE, titles),
            (FREQUENCIES_FILE, pa.table({"pages_with": ones})),
        ):
            write_batches(stage.work / name, table.schema, table.to_batches())
        stage.finish(counts={})


def measure(folder: Path) -> dict[str, float]:
    """Seconds to open, for the first look-up, for a later one, to find the spans of a text first and later."""
    marks = [time.perf_counter()]
    table = CandidateTable(folder)
    marks.append(time.perf_counter())
    assert len(table.candidates("anchor 17")) == 2
    marks.append(time.perf_counter())
    for number in range(REAL):
        assert table.lookup(f"anchor {number}") is not None
    marks.append(time.perf_counter())
    assert len(table.find_spans(TEXT)) == 40
    marks.append(time.perf_counter())
    table.find_spans(TEXT)
    marks.append(time.perf_counter())
    opened, first, thousand, spans_first, spans = np.diff(marks).tolist()
    return {
        "open_s": opened,
        "first_lookup_s": first,
        "lookup_us": thousand / REAL * 1e6,
        "first_spans_s": spans_first,
        "spans_chars_per_s": len(TEXT) / spans,
    }


def drop_from_cache(folder: Path) -> None:
    """Asks the system to forget the files' pages."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main() -> None:
    """Builds the table, measures in a fresh process, prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--anchors", type=int, default=15_000_000)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "table"
        write_table(folder, arguments.anchors)
        size = sum(path.stat().st_size for path in folder.iterdir())
        drop_from_cache(folder)
        output = subprocess.run([sys.executable, __file__, "--measure", folder], capture_output=True, text=True, check=True)
        result = {"anchors": arguments.anchors, "bytes": size, **json.loads(output.stdout), "cpu": platform.processor()}
        print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
