"""Model inputs of 512-token texts with 20 spans: LukeProcessor beside transformers' LukeTokenizer.

    python benchmarks/processor_speed.py VOCAB_JSON MERGES_TXT [PAGES_JSONL_GZ]

The vocabulary is a byte-level BPE of real size. The texts are paragraphs of Wikipedia (tests/golden), each text new to both:
words repeat as they do in running text.
"""

import gzip
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from transformers import LukeTokenizer, PreTrainedTokenizer

from luke.processor import LukeProcessor
from luke.tokenization import load_tokenizer

ENTITIES = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "[MASK2]": 3}
PAGES = Path(__file__).parents[1] / "tests" / "golden" / "dataset" / "pages_excerpt.jsonl.gz"
BATCH, TOKENS, SPANS = 16, 512, 20


def read_cases(pages: Path, tokenizer: Any) -> list[tuple[str, list[tuple[int, int]]]]:
    """Texts of 512 tokens and a little more, each with 20 spans of one to three words."""
    generator = random.Random(1)
    cases = []
    with gzip.open(pages, "rt", encoding="utf-8") as lines:
        text = " ".join(paragraph["text"] for line in lines for paragraph in json.loads(line)["paragraphs"])
    words = text.split()
    for start in range(0, len(words) - 420, 420):
        part = words[start : start + 420]
        borders, position = [], 0
        for word in part:
            borders.append((position, position + len(word)))
            position += len(word) + 1
        firsts = sorted(generator.sample(range(0, 300, 4), SPANS))
        spans = [(borders[first][0], borders[first + generator.randint(0, 2)][1]) for first in firsts]
        cases.append((" ".join(part), spans))
    return [case for case in cases if len(tokenizer._tokenizer.encode(case[0]).ids) >= TOKENS]


def main() -> None:
    vocab, merges = Path(sys.argv[1]), Path(sys.argv[2])
    pieces = json.loads(vocab.read_text())
    pairs = [tuple(line.split()) for line in merges.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    extra = [token for token in ("<s>", "<pad>", "</s>", "<unk>", "<mask>") if token not in pieces]
    pieces |= {token: len(pieces) + number for number, token in enumerate(extra)}
    theirs = LukeTokenizer(vocab=pieces, merges=[(pair[0], pair[1]) for pair in pairs], entity_vocab=ENTITIES)
    if not hasattr(theirs, "truncate_sequences"):  # transformers 5 cannot truncate with entities without it
        theirs.truncate_sequences = PreTrainedTokenizer.truncate_sequences.__get__(theirs)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = LukeProcessor(load_tokenizer(folder), ENTITIES)
    cases = read_cases(Path(sys.argv[3]) if len(sys.argv) > 3 else PAGES, theirs)
    batches = [cases[start : start + BATCH] for start in range(0, len(cases) - BATCH + 1, BATCH)]
    ours("warm up", spans=[(0, 4)])  # imports torch
    seconds: dict[str, list[float]] = {"LukeTokenizer": [], "LukeProcessor": []}
    for batch in batches:
        # CPU time, since the machine may do other things beside.
        texts, spans = [text for text, _ in batch], [spans for _, spans in batch]
        start = time.process_time()
        expected = theirs(texts, entity_spans=spans, max_length=TOKENS, truncation=True, padding=True, return_tensors="pt")
        middle = time.process_time()
        found = ours(texts, spans=spans, max_length=TOKENS).inputs
        seconds["LukeTokenizer"].append(middle - start)
        seconds["LukeProcessor"].append(time.process_time() - middle)
        assert all(found[name].equal(expected[name]) for name in found), "the results differ"
    print(f"{len(batches)} batches of {BATCH} texts of {TOKENS} tokens with {SPANS} spans, every text new")
    for name, times in seconds.items():
        print(f"{name}: {statistics.median(times) / BATCH * 1000:.2f} ms of CPU a text (median), {sum(times):.2f} s in all")
    theirs_times, ours_times = seconds.values()
    ratio, total_ratio = statistics.median(theirs_times) / statistics.median(ours_times), sum(theirs_times) / sum(ours_times)
    print(f"ratio: {ratio:.1f} (medians), {total_ratio:.1f} (all)")


if __name__ == "__main__":
    main()
