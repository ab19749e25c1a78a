"""The loader alone: word tokens a second, masked and packed; and what opening and resuming a large dataset costs.

    python benchmarks/loader.py                  # the demo's pages, and ten million made-up items
    python benchmarks/loader.py --items 100000

Each figure comes from a process of its own, of one thread. Memory is the process's peak (its resident set, which counts the
pages of memory-mapped files that it touched).
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ("loading", "opening", "resuming")
BATCH, BUDGET = 2048, 8 * 512  # items of a step; tokens of a micro batch
RESUMED_STEP = 90_000
STEPS = 3
ITEM_WORDS, ITEM_ENTITIES, FILE_ITEMS = 24, 2, 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dataset-dir", type=Path, default=ROOT / "benchmarks" / "data" / "excerpt-512")
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "loader.json")
    parser.add_argument("--measure", choices=MEASURED, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not (options.dataset_dir / "metadata.json").exists():
        sys.exit(f"{options.dataset_dir} is not there: run `make bench`, which builds it, or give --dataset-dir")
    large = ROOT / "benchmarks" / "data" / f"{options.items}-items"
    if options.measure:
        print(json.dumps(measure(options.measure, options.dataset_dir, large)))
        return
    if not (large / "metadata.json").exists():
        write_items(options.dataset_dir, large, options.items)
    result: dict[str, Any] = {"date": date.today().isoformat(), "items": options.items}
    for name in MEASURED:
        rounds = [in_a_process(name, options) for _ in range(options.rounds)]
        result[name] = {key: statistics.median(round_[key] for round_ in rounds) for key in rounds[0]}
    print(json.dumps(result, indent=2))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")


def in_a_process(name: str, options: argparse.Namespace) -> dict[str, float]:
    """One measurement."""
    command = [sys.executable, __file__, "--measure", name, "--items", str(options.items)]
    command += ["--dataset-dir", str(options.dataset_dir)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return dict(json.loads(printed))


def measure(name: str, dataset_dir: Path, large: Path) -> dict[str, float]:
    """Tokens a second of the loader; or seconds until the first micro batches are there, and memory beyond the imports'."""
    from luke.pretraining.batching import StepLoader
    from luke.pretraining.dataset import PretrainingDataset, SampleOrder
    from luke.pretraining.masking import Masker, MaskingOptions, WordVocab
    from luke.tokenization import load_tokenizer

    tokenizer = load_tokenizer(dataset_dir / "tokenizer")
    words = WordVocab(tokenizer.word_start_mask(), tokenizer.special_token_mask(), tokenizer.mask_id)
    imports = peak_mib()
    begin = time.perf_counter()
    dataset = PretrainingDataset(dataset_dir if name == "loading" else large)
    masker = Masker(MaskingOptions(), words, dataset.metadata["entity_vocab_size"], seed=0)
    order = SampleOrder([len(dataset)], seed=0)
    loader = StepLoader([dataset], order, masker, tokenizer.cls_id, tokenizer.sep_id, BATCH, BUDGET)
    first = loader[RESUMED_STEP if name == "resuming" else 0]
    if name != "loading":
        return {"seconds": time.perf_counter() - begin, "mib": peak_mib() - imports}
    assert first.micro_batches
    begin, tokens = time.perf_counter(), 0
    for step in range(1, STEPS + 1):
        tokens += sum(sum(batch.word_lengths) for batch in loader[step].micro_batches)
    return {"word_tokens_per_second": tokens / (time.perf_counter() - begin)}


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_items(like: Path, output: Path, number: int) -> None:
    """A dataset of made-up items, in the files and with the metadata of a real one."""
    import numpy as np
    import pyarrow as pa

    with pa.ipc.open_stream(pa.memory_map(str(next(like.glob("data-*.arrow"))))) as reader:
        schema = reader.schema
    metadata = json.loads((like / "metadata.json").read_text())
    work = output.with_name(output.name + ".partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    generator = np.random.default_rng(0)

    def lists(values: Any, length: int, kind: Any) -> Any:
        offsets = pa.array(np.arange(0, len(values) + 1, length, dtype=np.int32))
        return pa.ListArray.from_arrays(offsets, pa.array(values, kind.value_type), type=kind)

    for part, begin in enumerate(range(0, number, FILE_ITEMS)):
        count = min(FILE_ITEMS, number - begin)
        starts = np.tile(np.arange(ITEM_ENTITIES) * 4, count)
        columns = {
            "page_id": pa.array(np.full(count, -1), schema.field("page_id").type),
            "word_ids": (generator.integers(1000, metadata["word_vocab_size"], count * ITEM_WORDS), ITEM_WORDS),
            "entity_ids": (generator.integers(3, metadata["entity_vocab_size"], count * ITEM_ENTITIES), ITEM_ENTITIES),
            "entity_starts": (starts, ITEM_ENTITIES),
            "entity_ends": (starts + 2, ITEM_ENTITIES),
        }
        arrays = [
            lists(*columns[field.name], field.type) if isinstance(columns[field.name], tuple) else columns[field.name]
            for field in schema
        ]
        with pa.OSFile(str(work / f"data-{part:05d}.arrow"), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema), max_chunksize=1 << 16)
    (work / "metadata.json").write_text(json.dumps(metadata))
    work.rename(output)


if __name__ == "__main__":
    main()
