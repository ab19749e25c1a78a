"""Annotated documents -> the steps of fine-tuning: windows, masked anew in each epoch, cut into micro batches."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from luke.entity_disambiguation.decoding import MASK_ID
from luke.entity_disambiguation.documents import Document
from luke.entity_disambiguation.inference import make_batch
from luke.entity_disambiguation.model import CandidateBatch
from luke.entity_disambiguation.windows import Ints, Window, WindowMaker
from luke.pretraining.batching import cut_step
from luke.pretraining.dataset import Sample, SampleOrder


class Example(NamedTuple):
    """A window, the entity id of each mention (E,), and the column of it among the candidates (E,)."""

    window: Window
    entity_ids: Ints
    columns: Ints


def make_examples(documents: Sequence[Document], maker: WindowMaker) -> tuple[list[Example], int]:
    """The windows of documents, and the number of mentions left out: those whose right entity is not among the candidates
    or not in the vocabulary, of which nothing can be learnt."""
    limit, language = maker.options.max_candidates, maker.options.language
    examples, dropped = [], 0
    for document in documents:
        known = [
            mention
            for mention in document.mentions
            if mention.title in {candidate.title for candidate in mention.candidates[:limit]}
            and maker.vocab.get_id(mention.title or "", language) is not None
        ]
        dropped += len(document.mentions) - len(known)
        for window in maker.windows(Document(document.id, document.text, known)):
            ids = np.array([maker.vocab.get_id(known[n].title or "", language) for n in window.mentions], np.int64)
            if len(ids):
                examples.append(Example(window, ids, (window.candidate_ids == ids[:, None]).argmax(1)))
    return examples, dropped


class FineTuningSteps:
    """``steps[k]`` is what one process runs in step k: a function of the seed and k alone.

    Args:
        masked_entity_prob: Share of a window's mentions that are masked, and so asked about; at least one is.
        batch_size: Windows of a step, over all processes.
        token_budget: Words and mentions of a micro batch.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        masked_entity_prob: float,
        seed: int,
        batch_size: int,
        token_budget: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.examples, self.masked_entity_prob, self.seed = examples, masked_entity_prob, seed
        self.batch_size, self.token_budget = batch_size, token_budget
        self.rank, self.world_size = rank, world_size
        self._order = SampleOrder([len(examples)], seed)

    def __getitem__(self, step: int) -> list[CandidateBatch]:
        samples = [self._order[number] for number in range(step * self.batch_size, (step + 1) * self.batch_size)]
        lengths = [self.examples[sample.row].window.num_tokens for sample in samples]
        mine = cut_step(lengths, self.token_budget, self.world_size)[self.rank :: self.world_size]
        return [self._batch([samples[number] for number in numbers]) for numbers in mine]

    def _batch(self, samples: Sequence[Sample]) -> CandidateBatch:
        examples = [self.examples[sample.row] for sample in samples]
        masked = [self._masked(example, sample) for example, sample in zip(examples, samples, strict=True)]
        states = []
        for example, places in zip(examples, masked, strict=True):
            entity_ids = example.entity_ids.copy()
            entity_ids[places] = MASK_ID
            states.append((example.window, entity_ids))
        batch = make_batch(states, masked)
        labels = np.concatenate([example.columns[places] for example, places in zip(examples, masked, strict=True)])
        return CandidateBatch(batch.packed, batch.mention_index, batch.candidate_ids, torch.from_numpy(labels))

    def _masked(self, example: Example, sample: Sample) -> Ints:
        rng = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 1, sample.epoch, sample.row]))
        size = len(example.entity_ids)
        return np.sort(rng.permutation(size)[: max(1, round(size * self.masked_entity_prob))])
