"""Entity disambiguation in global mode against the public code's way, on the same documents of 20 mentions.

The peer computes as the public code does: one document at a time, transformers' LUKE, logits of the whole entity vocabulary
for every mention in every round, candidates chosen by a mask, softmax over the vocabulary; with the C library's allocator as
it is, and told to keep memory. Each contender lives in a process of its own; both must give the same answers.

    python benchmarks/ed_speed.py --size mini
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

SIZES = {
    "mini": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
# What glibc needs to be told to keep freed memory.
TUNED = {
    "MALLOC_MMAP_THRESHOLD_": "8589934592",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
}
CONTENDERS = {"public, allocator as it is": {}, "public, allocator tuned": TUNED, "luke": {}}


def make_model(arguments: argparse.Namespace) -> Any:
    """A random model of the size asked for, the same in every process."""
    import torch
    from transformers import LukeConfig

    from luke.entity_disambiguation.model import LukeForEntityDisambiguation

    config = LukeConfig(
        vocab_size=30522,
        entity_vocab_size=arguments.entities,
        entity_emb_size=256,
        max_position_embeddings=513,
        type_vocab_size=2,
        pad_token_id=0,
        use_entity_aware_attention=False,
        **SIZES[arguments.size],
    )
    torch.manual_seed(0)
    model = LukeForEntityDisambiguation(config).eval()
    for name, parameter in model.named_parameters():  # so that answers are far apart
        if "entity" in name and parameter.dim() == 2:
            parameter.data.normal_(std=0.2)
    return model


def make_windows(arguments: argparse.Namespace) -> list[Any]:
    """Random documents; the share of mentions with one candidate is an argument, the others have ten."""
    import numpy as np

    from luke.entity_disambiguation.windows import Window

    rng = np.random.default_rng(1)
    windows = []
    for _ in range(arguments.documents):
        length = int(arguments.words * rng.uniform(0.75, 1.25))
        starts = np.sort(rng.choice(np.arange(1, length - 3), arguments.mentions, replace=False))
        positions = (starts[:, None] + np.arange(2)).ravel()
        candidate_ids = rng.integers(3, arguments.entities, (arguments.mentions, 10))
        single = rng.random(arguments.mentions) < arguments.single
        candidate_ids[single, 1:] = 0
        words = np.concatenate([[101], rng.integers(1000, 30000, length - 2), [102]])
        everything = np.arange(arguments.mentions)
        offsets = np.arange(0, len(positions) + 1, 2)
        windows.append(Window(words, everything, everything >= 0, positions, offsets, candidate_ids))
    return windows


def run_public(model: Any, windows: list[Any]) -> tuple[list[list[int]], float]:
    """Seconds a document, and the answers as entity ids."""
    import torch
    from transformers import LukeForMaskedLM

    peer = LukeForMaskedLM(model.config).eval()
    peer.load_state_dict(model.state_dict(), strict=False)
    peer.entity_predictions.decoder.weight = peer.luke.entity_embeddings.entity_embeddings.weight
    answers, seconds = [], []
    for window in windows:
        begin = time.perf_counter()
        answers.append(_resolve_as_public(torch, peer, window))
        seconds.append(time.perf_counter() - begin)
    return answers, statistics.median(seconds)


def _resolve_as_public(torch: Any, peer: Any, window: Any) -> list[int]:
    mask = 2
    count = len(window.mentions)
    words = torch.from_numpy(window.word_ids)[None]
    positions = torch.full((1, count, 30), -1)
    positions[0, :, :2] = torch.from_numpy(window.position_ids).reshape(count, 2)
    candidates = torch.from_numpy(window.candidate_ids)
    entity_ids = torch.full((1, count), mask)
    with torch.no_grad():
        for _ in range(count):
            hidden = peer.luke(
                input_ids=words,
                attention_mask=torch.ones_like(words),
                entity_ids=entity_ids,
                entity_attention_mask=torch.ones_like(entity_ids),
                entity_position_ids=positions,
            )
            logits = peer.entity_predictions(hidden.entity_last_hidden_state).view(count, -1)
            allowed = torch.zeros_like(logits, dtype=torch.bool)
            allowed.scatter_(1, candidates, candidates != 0)
            logits = logits.masked_fill(~allowed, -1e32)
            probabilities = torch.softmax(logits, -1) * (entity_ids[0] == mask)[:, None].type_as(logits)
            best, indices = probabilities.max(1)
            chosen = best.argmax()
            entity_ids[0, chosen] = indices[chosen]
    found: list[int] = entity_ids[0].tolist()
    return found


def run_luke(model: Any, windows: list[Any]) -> tuple[list[list[int]], float]:
    """As `run_public`, all documents at a time."""
    from luke.entity_disambiguation.inference import Disambiguator, InferenceOptions
    from luke.pretraining.allocator import keep_freed_memory

    keep_freed_memory()

    class Resolver(Disambiguator):
        """Without tokenizer and vocabulary: the windows are there."""

        def __init__(self) -> None:
            self.model, self.device = model, "cpu"

    options = InferenceOptions("global")
    answers: list[list[int]] = [[] for _ in windows]
    begin = time.perf_counter()
    for (number, window), found in Resolver()._resolve(list(enumerate(windows)), options):
        answers[number] = window.candidate_ids[range(len(found.columns)), found.columns].tolist()
    return answers, (time.perf_counter() - begin) / len(windows)


def main() -> None:
    """Runs each contender in a process of its own, prints JSON and appends it to the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=sorted(SIZES), default="mini")
    parser.add_argument("--entities", type=int, default=500_000)
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--public-documents", type=int, default=3, help="The peer runs on the first so many.")
    parser.add_argument("--mentions", type=int, default=20)
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--single", type=float, default=0.0, help="Share of mentions with one candidate.")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if arguments.contender:
        model, windows = make_model(arguments), make_windows(arguments)
        public = arguments.contender.startswith("public")
        run = run_public if public else run_luke
        answers, seconds = run(model, windows[: arguments.public_documents] if public else windows)
        print(json.dumps({"answers": answers, "seconds": seconds}))
        return
    results = {}
    for name, environment in CONTENDERS.items():
        command = [sys.executable, __file__, *sys.argv[1:], "--contender", name]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
        results[name] = json.loads(done.stdout.splitlines()[-1])
    same = [
        results["luke"]["answers"][number] == answers
        for name in CONTENDERS
        if name != "luke"
        for number, answers in enumerate(results[name]["answers"])
    ]
    seconds = {name: round(result["seconds"], 4) for name, result in results.items()}
    report = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        **{name: getattr(arguments, name) for name in ("size", "entities", "documents", "mentions", "words", "single")},
        "seconds_a_document": seconds,
        "times_faster": {name: round(value / seconds["luke"], 1) for name, value in seconds.items() if name != "luke"},
        "same_answers": f"{sum(same)} of {len(same)} documents",
    }
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
