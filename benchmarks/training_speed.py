"""Training speed against the public way of computing, side by side on the same real items.

The peers are the transformers model padded to the longest item of a micro batch, (A) scoring all positions and (B) masked
positions only, as the public code computes; each with the C library's allocator as it is and told to keep memory. Every
step is run by a process of its own, after one that warms it up; the contenders take turns, so that the machine's moods hit
all alike.
Tokens are word tokens with [CLS] and [SEP], without padding. Utilisation is the arithmetic of the model alone (no padding)
over that of a large matrix product timed in the same turns.

    python benchmarks/training_speed.py --size base
    python benchmarks/training_speed.py --size base --lengths short
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SIZES = {
    "mini": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
# What glibc needs to be told to keep freed memory, for peers that do not do it themselves.
TUNED = {
    "MALLOC_MMAP_THRESHOLD_": "8589934592",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
}
PRODUCTS = ("product fp32", "product bf16")
CONTENDERS = ("A default", "A tuned", "B default", "B tuned", "luke fp32", "luke bf16", "luke fp32 stage 1", *PRODUCTS)
MICRO_BATCH = 4
VOCABULARY = 50_000  # words, and entities
PRODUCT_SIZE = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dataset-dir", type=Path, help="default: items of 512 words of the demo's pages, built once")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--lengths", choices=("full", "short"), default="full", help="short: items cut to a mean of 254")
    parser.add_argument("--accumulated", type=int, default=4, help="micro batches of a step")
    parser.add_argument("--rounds", type=int, default=5)
    fitting = [name for name in CONTENDERS if "bf16" not in name or has_bf16()]
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=fitting)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--step", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.dataset_dir = options.dataset_dir or long_items()
    if options.contender:
        run_contender(options)
    else:
        compare(options)


def long_items() -> Path:
    """The demo's pages in items of up to 512 words."""
    demo, dataset = ROOT / "demo", ROOT / "benchmarks" / "data" / "excerpt-512"
    if not (demo / "dataset" / "metadata.json").exists():
        sys.exit("the benchmark trains on the demo's pages: run `make demo` first, or give --dataset-dir")
    dataset.parent.mkdir(exist_ok=True)
    tokenizer, vocabulary = demo / "dataset" / "tokenizer", demo / "entity_vocab.jsonl"
    command = ["build-wikipedia-pretraining-dataset", demo / "pages", tokenizer, vocabulary, dataset]
    subprocess.run([Path(sys.executable).parent / "luke", *command], check=True)
    return dataset


def has_bf16() -> bool:
    """Whether the CPU multiplies bf16 numbers; where it does not, they are several times slower than fp32."""
    path = Path("/proc/cpuinfo")
    return path.exists() and any(name in path.read_text() for name in ("avx512_bf16", "amx_bf16"))


def compare(options: argparse.Namespace) -> None:
    """Times one step of each contender in turn, `rounds` times, and reports medians."""
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in options.contenders}
    for number in range(options.rounds):
        for name in options.contenders:
            speeds[name].append(timed_step(options, name, number))
    tokens_of = {name: statistics.median(value for value, _ in values) for name, values in speeds.items()}
    flops_of = {name: statistics.median(value for _, value in values) for name, values in speeds.items()}
    result = {
        "date": date.today().isoformat(),
        "hardware": hardware(),
        "size": options.size,
        "lengths": options.lengths,
        "micro_batch": MICRO_BATCH,
        "accumulated": options.accumulated,
        "tokens_per_second": {name: value for name, value in tokens_of.items() if name not in PRODUCTS},
        "flops_per_second": flops_of,
        "utilisation": utilisation(flops_of),
        "times_b_tuned": times(tokens_of, "B tuned"),
        "times_b_default": times(tokens_of, "B default"),
        "all_rounds": speeds,
    }
    print_table(result)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"training_speed_{options.size}_{options.lengths}_{date.today().isoformat()}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(path)


def hardware() -> str:
    """The processor's name and the number of CPUs that this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    vectors = [kind for kind in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if any(kind in line for line in lines)]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} CPUs, {' '.join(vectors)}"


def utilisation(flops_of: dict[str, float]) -> dict[str, float]:
    """Each contender's share of the speed of the matrix product of its precision."""
    peaks = {"fp32": flops_of.get("product fp32"), "bf16": flops_of.get("product bf16")}
    shares = {}
    for name, flops in flops_of.items():
        peak = peaks["bf16" if "bf16" in name else "fp32"]
        if peak and flops and name not in PRODUCTS:
            shares[name] = flops / peak
    return shares


def times(tokens_of: dict[str, float], peer: str) -> dict[str, float]:
    """Each contender's speed in units of the peer's."""
    if peer not in tokens_of:
        return {}
    return {name: tokens / tokens_of[peer] for name, tokens in tokens_of.items() if name not in PRODUCTS}


def print_table(result: dict[str, Any]) -> None:
    """The medians for people."""
    print(f"{'':20s} {'tokens/s':>10s} {'x B tuned':>10s} {'x B default':>12s} {'utilisation':>12s}")
    for name, tokens in result["tokens_per_second"].items():
        cells = [result[kind].get(name) for kind in ("times_b_tuned", "times_b_default", "utilisation")]
        shown = [f"{cell:.2f}" if cell else "" for cell in cells]
        print(f"{name:20s} {tokens:10,.0f} {shown[0]:>10s} {shown[1]:>12s} {shown[2]:>12s}")


def timed_step(options: argparse.Namespace, name: str, number: int) -> tuple[float, float]:
    """The tokens and the model's operations per second of a contender's step, in a process that ends with it: the peers that
    score all positions need so much memory that they cannot wait beside each other."""
    command = [sys.executable, __file__, "--contender", name, "--size", options.size, "--lengths", options.lengths]
    command += ["--dataset-dir", str(options.dataset_dir), "--accumulated", str(options.accumulated)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **(TUNED if name.endswith("tuned") else {})}
    done = subprocess.run([*command, "--step", str(number)], stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{name}: ended with status {done.returncode}; is there enough memory?")
    tokens, flops = done.stdout.split()[-2:]
    return float(tokens), float(flops)


def run_contender(options: argparse.Namespace) -> None:
    """Prints the tokens and the model's operations per second of one optimizer step, after one that warms up."""
    from luke.pretraining.allocator import keep_freed_memory

    if options.contender.startswith("luke"):
        keep_freed_memory()
    if options.contender in PRODUCTS:
        step = product_step(options)
    else:
        step = our_step(options) if options.contender.startswith("luke") else peer_step(options)
    step(2 * options.step)
    begin = time.perf_counter()
    tokens, flops = step(2 * options.step + 1)
    seconds = time.perf_counter() - begin
    print(tokens / seconds, flops / seconds)


def product_step(options: argparse.Namespace) -> Callable[[int], tuple[int, int]]:
    """A product of two large matrices."""
    import torch

    dtype = torch.bfloat16 if options.contender.endswith("bf16") else torch.float32
    left, right = (torch.randn(PRODUCT_SIZE, PRODUCT_SIZE, dtype=dtype) for _ in range(2))

    def step(_: int) -> tuple[int, int]:
        torch.mm(left, right)
        return 0, 2 * PRODUCT_SIZE**3

    return step


def luke_config(options: argparse.Namespace, metadata: dict[str, Any]) -> Any:
    from transformers import LukeConfig

    return LukeConfig(
        vocab_size=max(VOCABULARY, metadata["word_vocab_size"]),
        entity_vocab_size=max(VOCABULARY, metadata["entity_vocab_size"]),
        entity_emb_size=256,
        max_position_embeddings=metadata["max_seq_length"] + 2,
        use_entity_aware_attention=False,
        **SIZES[options.size],
    )


def masked_steps(options: argparse.Namespace) -> tuple[Any, Callable[[int], list[Any]], Any]:
    """The dataset, the masked items of a step, and the tokenizer: the same for all contenders."""
    from luke.pretraining.dataset import PretrainingDataset, SampleOrder
    from luke.pretraining.masking import Masker, MaskingOptions, WordVocab
    from luke.tokenization import load_tokenizer

    dataset = PretrainingDataset(options.dataset_dir)
    tokenizer = load_tokenizer(options.dataset_dir / "tokenizer")
    words = WordVocab(tokenizer.word_start_mask(), tokenizer.special_token_mask(), tokenizer.mask_id)
    masker = Masker(MaskingOptions(), words, dataset.metadata["entity_vocab_size"], seed=0)
    order = SampleOrder([len(dataset)], seed=0)
    size = MICRO_BATCH * options.accumulated

    def items(step: int) -> list[Any]:
        samples = [order[number] for number in range(step * size, (step + 1) * size)]
        return [masker(cut(dataset[sample.row], sample.row, options), sample) for sample in samples]

    return dataset, items, tokenizer


def cut(item: Any, row: int, options: argparse.Namespace) -> Any:
    """The item, cut to a length between 10 and 498 words (by its row) for a mix of short pages."""
    if options.lengths == "full":
        return item
    import numpy as np

    length = int(np.random.default_rng(row).integers(8, 497))
    kept = item.entity_ends <= length
    mentions = (item.entity_ids[kept], item.entity_starts[kept], item.entity_ends[kept])
    return type(item)(item.page_id, item.word_ids[:length], *mentions)


def our_step(options: argparse.Namespace) -> Callable[[int], tuple[int, int]]:
    import torch

    from luke.model import LukeForPretraining
    from luke.pretraining.batching import cut_step, pack_items
    from luke.pretraining.config import OptimizerSettings
    from luke.pretraining.flops import training_flops
    from luke.pretraining.optimizer import AdamW, parameter_groups

    dataset, items_of, tokenizer = masked_steps(options)
    torch.manual_seed(0)
    model = LukeForPretraining(luke_config(options, dataset.metadata)).train()
    model.luke.pooler.requires_grad_(False)
    frozen = options.contender.endswith("stage 1")  # its arithmetic is another: no utilisation
    if frozen:
        for name, parameter in model.named_parameters():
            parameter.requires_grad = name.startswith(("luke.entity_embeddings.", "entity_predictions."))
    settings = OptimizerSettings(1e-5, weight_decay=0.01, bias_correction=False)
    optimizer = AdamW(parameter_groups(model, 0.01), settings)
    budget = MICRO_BATCH * dataset.metadata["max_seq_length"]
    half = options.contender.endswith("bf16")

    def step(number: int) -> tuple[int, int]:
        items, flops = items_of(number), 0
        lengths = [len(item.word_ids) + 2 + len(item.entity_ids) for item in items]
        words = sum(len(item.masked_word_labels) for item in items)
        entities = sum(len(item.masked_entity_labels) for item in items)
        for micro_batch in cut_step(lengths, budget, 1):
            batch = pack_items([items[i] for i in micro_batch], tokenizer.cls_id, tokenizer.sep_id)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                sums = model(batch)
            (sums["masked_lm_loss"] / words + sums["masked_entity_loss"] / entities).backward()
            flops += training_flops(model.config, batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return sum(len(item.word_ids) + 2 for item in items), 0 if frozen else flops

    return step


def peer_step(options: argparse.Namespace) -> Callable[[int], tuple[int, int]]:
    """Transformers' model on padded micro batches, with the same AdamW groups in torch's form."""
    import torch
    from transformers import LukeForMaskedLM

    from luke.pretraining.batching import pack_items
    from luke.pretraining.flops import training_flops
    from luke.pretraining.optimizer import parameter_groups

    dataset, items_of, tokenizer = masked_steps(options)
    torch.manual_seed(0)
    model = LukeForMaskedLM(luke_config(options, dataset.metadata)).train()
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=1e-5)
    only_masked = options.contender.startswith("B")
    cross_entropy = torch.nn.functional.cross_entropy

    def loss_of(inputs: dict[str, Any]) -> Any:
        labels, entity_labels = inputs.pop("labels"), inputs.pop("entity_labels")
        if not only_masked:
            return model(**inputs, labels=labels, entity_labels=entity_labels).loss
        output = model.luke(**inputs)
        words = output.last_hidden_state[labels != -100]
        entities = output.entity_last_hidden_state[entity_labels != -100]
        loss = cross_entropy(model.lm_head(words), labels[labels != -100])
        return loss + cross_entropy(model.entity_predictions(entities), entity_labels[entity_labels != -100])

    def step(number: int) -> tuple[int, int]:
        items, flops = items_of(number), 0
        for begin in range(0, len(items), MICRO_BATCH):
            micro_batch = items[begin : begin + MICRO_BATCH]
            (loss_of(pad(micro_batch, tokenizer)) / options.accumulated).backward()
            flops += training_flops(model.config, pack_items(micro_batch, tokenizer.cls_id, tokenizer.sep_id))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return sum(len(item.word_ids) + 2 for item in items), flops

    return step


def pad(items: list[Any], tokenizer: Any) -> dict[str, Any]:
    """The padded inputs of LukeForMaskedLM."""
    import torch

    words, entities = max(len(i.word_ids) for i in items) + 2, max(1, *(len(i.entity_ids) for i in items))
    batch = {
        "input_ids": torch.full((len(items), words), tokenizer.pad_id),
        "attention_mask": torch.zeros(len(items), words, dtype=torch.long),
        "labels": torch.full((len(items), words), -100),
        "entity_ids": torch.zeros(len(items), entities, dtype=torch.long),
        "entity_attention_mask": torch.zeros(len(items), entities, dtype=torch.long),
        "entity_position_ids": torch.full((len(items), entities, 30), -1),
        "entity_labels": torch.full((len(items), entities), -100),
    }
    for row, item in enumerate(items):
        length, number = len(item.word_ids) + 2, len(item.entity_ids)
        batch["input_ids"][row, :length] = torch.tensor([tokenizer.cls_id, *item.word_ids, tokenizer.sep_id])
        batch["attention_mask"][row, :length] = 1
        batch["labels"][row, item.masked_word_positions + 1] = torch.from_numpy(item.masked_word_labels.astype("int64"))
        batch["entity_ids"][row, :number] = torch.from_numpy(item.entity_ids)
        batch["entity_attention_mask"][row, :number] = 1
        labels = torch.from_numpy(item.masked_entity_labels.astype("int64"))
        batch["entity_labels"][row, item.masked_entity_positions] = labels
        for column, (start, end) in enumerate(zip(item.item.entity_starts, item.item.entity_ends, strict=True)):
            batch["entity_position_ids"][row, column, : end - start] = torch.arange(int(start), int(end)) + 1
    return batch


if __name__ == "__main__":
    main()
