"""Named entity recognition on WNUT-17: windows with pruned spans beside one pass a sentence with all its spans.

The peer is transformers' own model as its example uses it: all spans of up to 16 words of one sentence in one padded pass.
(It is spared the cost of transformers' tokenizer: its inputs are made by `LukeProcessor`.) Both decode greedily. They take
turns on parts of the sentences, so that the machine's moods hit both alike; the F1 of both stands beside.

    python benchmarks/ner_speed.py MODEL emerging.dev.conll [--sentences 300]

MODEL is what `luke finetune ner` wrote; `benchmarks/fine_tuning.py --tasks ner` leaves some in benchmarks/data.
"""

import argparse
import json
import statistics
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from transformers import LukeForEntitySpanClassification

from luke.tasks.metrics import span_metrics
from luke.tasks.span_decoding import ScoredSpan, greedy
from luke.tasks.training import load_fine_tuned

ROOT = Path(__file__).resolve().parents[1]
PARTS = 5
LONGEST = 16  # words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "ner_speed.json")
    options = parser.parse_args()
    tuned = load_fine_tuned(options.model, "ner")
    peer = LukeForEntitySpanClassification.from_pretrained(options.model).eval()
    sentences = tuned.task.read(options.data, tuned.task.options)[: options.sentences]
    found: dict[str, list[Any]] = {"transformers": [], "luke": []}
    seconds: dict[str, list[float]] = {"transformers": [], "luke": []}
    by_sentence(peer, tuned.task, sentences[:4])  # warm-up
    tuned.predict(sentences[:4])
    for part in range(PARTS):
        chosen = sentences[part::PARTS]
        for name, run in (
            ("transformers", lambda: by_sentence(peer, tuned.task, chosen)),  # noqa: B023
            ("luke", lambda: tuned.predict(chosen)),  # noqa: B023
        ):
            begin = time.perf_counter()
            found[name] += run()
            seconds[name].append(time.perf_counter() - begin)
    order = [sentence for part in range(PARTS) for sentence in sentences[part::PARTS]]
    gold = [sentence.entities or () for sentence in order]
    spans = {name: [[(s.start, s.end, s.label) for s in row] for row in rows] for name, rows in found.items()}
    result = {
        "date": date.today().isoformat(),
        "sentences": len(sentences),
        "f1": {name: span_metrics(gold, rows)["f1"] for name, rows in spans.items()},
        "times_as_fast": statistics.median(a / b for a, b in zip(seconds["transformers"], seconds["luke"], strict=True)),
        "seconds": seconds,
    }
    print(json.dumps(result, indent=2))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")


@torch.no_grad()
def by_sentence(model: Any, task: Any, sentences: list[Any]) -> list[list[ScoredSpan]]:
    """One pass a sentence, all its spans."""
    results = []
    for sentence in sentences:
        count = len(sentence.words)
        spans = [(i, j) for i in range(count) for j in range(i + 1, min(i + LONGEST, count) + 1)]
        characters = [(sentence.words[i][0], sentence.words[j - 1][1]) for i, j in spans]
        inputs = task.processor(
            [sentence.text], spans=[characters], task="entity_span_classification", max_entity_length=len(spans)
        ).inputs
        log_probabilities = model(**inputs).logits[0].log_softmax(-1).numpy()
        best = log_probabilities[:, 1:].argmax(-1) + 1
        scored = [
            ScoredSpan(i, j, task.labels[label], float(row[label]), float(row[label] - row[0]))
            for (i, j), row, label in zip(spans, log_probabilities, best.tolist(), strict=True)
        ]
        results.append(greedy(scored))
    return results


if __name__ == "__main__":
    main()
