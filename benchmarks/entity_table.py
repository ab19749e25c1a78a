"""What an entity table of full size (500,000 × 256) costs in a step of 2,048 items, as a share of the step.

Measured, in fp32 and with the allocator set up: the entity head forward and backward for the masked entities of the step;
AdamW and clipping on the table; and one micro batch of LUKE base without the table's part, from which the rest of the step
is extrapolated by its tokens (it is the same micro batch over and over).

    python benchmarks/entity_table.py
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BATCH, MICRO_BATCH = 2048, 4
HEAD_ENTITIES = 256  # masked entities that the head is timed with


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dataset-dir", type=Path, default=ROOT / "benchmarks" / "data" / "excerpt-512")
    parser.add_argument("--entities", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "entity_table.json")
    options = parser.parse_args()
    if not (options.dataset_dir / "metadata.json").exists():
        sys.exit(f"{options.dataset_dir} is not there: run `make bench`, which builds it, or give --dataset-dir")
    result = measure(options)
    print(json.dumps(result, indent=2))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Medians of the parts in seconds, taken in turn, and what they add up to."""
    from luke.pretraining.allocator import keep_freed_memory

    keep_freed_memory()
    import torch
    from transformers import LukeConfig

    from luke.model import LukeForPretraining
    from luke.pretraining.batching import StepLoader
    from luke.pretraining.config import OptimizerSettings
    from luke.pretraining.dataset import PretrainingDataset, SampleOrder
    from luke.pretraining.masking import Masker, MaskingOptions, WordVocab
    from luke.pretraining.optimizer import AdamW
    from luke.tokenization import load_tokenizer

    dataset = PretrainingDataset(options.dataset_dir)
    tokenizer = load_tokenizer(options.dataset_dir / "tokenizer")
    words = WordVocab(tokenizer.word_start_mask(), tokenizer.special_token_mask(), tokenizer.mask_id)
    masker = Masker(MaskingOptions(), words, dataset.metadata["entity_vocab_size"], seed=0)
    order, budget = SampleOrder([len(dataset)], seed=0), MICRO_BATCH * dataset.metadata["max_seq_length"]
    loader = StepLoader([dataset], order, masker, tokenizer.cls_id, tokenizer.sep_id, BATCH, budget)
    step = loader[0].micro_batches
    tokens, masked = (
        sum(values) for values in zip(*((sum(b.word_lengths), b.masked_entity_labels.numel()) for b in step), strict=True)
    )
    batch = step[0]
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 50_000, "entity_emb_size": 256, "max_position_embeddings": 514}
    model = LukeForPretraining(
        LukeConfig(entity_vocab_size=options.entities, use_entity_aware_attention=False, **sizes)
    ).train()
    table, head = model.luke.entity_embeddings.entity_embeddings.weight, model.entity_predictions
    optimizer = AdamW([table], OptimizerSettings(1e-5, weight_decay=0.01, bias_correction=False))
    hidden = torch.randn(HEAD_ENTITIES, model.config.hidden_size, requires_grad=True)
    labels = torch.randint(options.entities, (HEAD_ENTITIES,))

    def run_head() -> None:
        head(hidden, labels)[0].backward()

    def run_encoder() -> None:
        model.predict_entities = False
        model(batch)["masked_lm_loss"].backward()

    def run_optimizer() -> None:
        torch.nn.utils.clip_grad_norm_([table], 1.0)
        optimizer.step()
        table.grad.zero_()

    parts: dict[str, Callable[[], None]] = {"head": run_head, "optimizer": run_optimizer, "encoder": run_encoder}
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(options.rounds + 1):
        for name, run in parts.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    median = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    entity_side = median["head"] * masked / HEAD_ENTITIES + median["optimizer"]
    rest = median["encoder"] * tokens / sum(batch.word_lengths)
    return {
        "date": date.today().isoformat(),
        "word_tokens_of_a_step": tokens,
        "masked_entities_of_a_step": masked,
        "measured_seconds": median,
        "extrapolated_seconds": {"entity table": entity_side, "rest of the step": rest},
        "share": entity_side / (entity_side + rest),
    }


if __name__ == "__main__":
    main()
