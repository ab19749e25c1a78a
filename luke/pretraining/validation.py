"""Loss and accuracy on held-out items while a run goes on, over all its processes."""

from collections.abc import Sequence

import torch

from luke.errors import UserError
from luke.model import PackedBatch
from luke.pretraining.batching import cut_step, pack_items
from luke.pretraining.dataset import Item, PretrainingDataset, Sample
from luke.pretraining.engine import Engine, Processes
from luke.pretraining.losses import TARGETS, target_counts
from luke.pretraining.run_plan import Run

_MASK_SEED = 20_260_000  # of the masks: the same at every evaluation, whatever the run's seed


class Validation:
    """The held-out items of a run's datasets, cut over its processes.

    Args:
        run: The run; every dataset of it must have held-out items.
        processes: The training processes.

    Raises:
        UserError: a dataset has no held-out items.
    """

    def __init__(self, run: Run, processes: Processes) -> None:
        self.processes = processes
        datasets = [PretrainingDataset(dataset.folder, held_out=True) for dataset in run.datasets]
        items = _first_items(datasets, run.options.eval_items)
        if len(items) < processes.data_world_size:
            raise UserError(
                f"{len(items)} held-out items are too few for {processes.data_world_size} processes; raise --eval-items"
            )
        masker = run.masker(_MASK_SEED)
        lengths = [datasets[sample.dataset].num_tokens(sample.row) for sample in items]
        budget = min(run.token_budget, max(max(lengths), sum(lengths) // processes.data_world_size))
        self.batches: list[PackedBatch] = []
        for numbers in cut_step(lengths, budget, processes.data_world_size)[
            processes.data_rank :: processes.data_world_size
        ]:
            chosen = [(datasets[items[n].dataset][items[n].row], items[n]) for n in numbers]
            if run.options.word_only_training:
                chosen = [(Item(-1, item.word_ids, *(item.entity_ids[:0],) * 3), sample) for item, sample in chosen]
            self.batches.append(pack_items([masker(*pair) for pair in chosen], run.cls_id, run.sep_id))

    def __call__(self, engine: Engine) -> dict[str, float]:
        """``eval_`` figures: each loss and accuracy, and ``eval_loss``, their losses' sum. All processes take part."""
        sums: dict[str, torch.Tensor] = {}
        counts = dict.fromkeys(TARGETS, 0)
        for batch in self.batches:
            for name, value in engine.evaluate(batch.to(self.processes.device)).items():
                sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + value.cpu()
            for name, count in target_counts(batch).items():
                counts[name] += count
        local = torch.tensor([*sums.values(), *counts.values()], dtype=torch.float64)
        totals = self.processes.sum(local).tolist()
        number = dict(zip(counts, totals[len(sums) :], strict=True))
        figures = {
            f"eval_{name.replace('_correct', '_accuracy')}": total / max(1.0, number[name.rsplit("_", 1)[0]])
            for name, total in zip(sums, totals, strict=False)
        }
        return {"eval_loss": sum(value for name, value in figures.items() if name.endswith("_loss")), **figures}


def _first_items(datasets: Sequence[PretrainingDataset], number: int) -> list[Sample]:
    """``number`` held-out items, spread evenly over all of all datasets."""
    every = [Sample(d, 0, row) for d, dataset in enumerate(datasets) for row in range(len(dataset))]
    step = max(1.0, len(every) / number)
    return [every[int(k * step)] for k in range(min(number, len(every)))]
