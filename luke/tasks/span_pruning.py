"""Which spans are worth the encoder's look: a logistic regression on each word's form and its neighbours'.

Of n words there are about 16 n spans, of which one in fifty is a mention. Whether a word can begin or end one is mostly told
by its form; a span is kept if the two scores add up to a threshold, chosen so that only a given share of true mentions is
lost.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from luke.tasks.conll import WordSpan
from luke.tensors import save_tensors

FILE = "span_pruning.safetensors"
_BUCKETS = 1 << 17
_EPOCHS, _BATCH, _RATE = 6, 512, 0.05
_FOLDS = 4
_SEED = 0

Floats = npt.NDArray[np.float32]


class SpanPruner:
    """Scores of words as the first or last of a mention.

    Attributes:
        threshold: Spans whose two scores add up to less are not kept.
    """

    def __init__(self) -> None:
        self.table = nn.EmbeddingBag(_BUCKETS, 2, mode="sum")
        nn.init.zeros_(self.table.weight)
        self.threshold = float("-inf")

    def fit(self, sentences: Sequence[tuple[Sequence[str], Sequence[WordSpan]]], lost: float) -> None:
        """Learns from sentences with their mentions.

        The threshold comes from scores by models that have not seen the sentence (cross-fitting): of n mentions the one at
        rank ``lost`` · (n + 1), which bounds the share lost in new data of the same kind (split conformal prediction, Vovk
        et al. 2005). If there are too few mentions for that, nothing is pruned.
        """
        gold: list[float] = []
        for fold in range(_FOLDS):
            pruner = SpanPruner()
            pruner._learn([s for number, s in enumerate(sentences) if number % _FOLDS != fold])
            for words, spans in sentences[fold::_FOLDS]:
                sums = pruner._sums(words)
                gold += [float(sums[start, end - 1]) for start, end, _ in spans]
        rank = int(lost * (len(gold) + 1))
        self.threshold = sorted(gold)[rank - 1] if rank else float("-inf")
        self._learn(sentences)

    def _learn(self, sentences: Sequence[tuple[Sequence[str], Sequence[WordSpan]]]) -> None:
        if not sentences:
            return
        features = [row for words, _ in sentences for row in word_features(words)]
        targets = torch.zeros(len(features), 2)
        first = 0
        for words, spans in sentences:
            for start, end, _ in spans:
                targets[first + start, 0] = targets[first + end - 1, 1] = 1
            first += len(words)
        rows = torch.tensor(features)
        optimizer = torch.optim.Adagrad(self.table.parameters(), lr=_RATE)
        generator = torch.Generator().manual_seed(_SEED)
        for _ in range(_EPOCHS):
            for chosen in torch.randperm(len(rows), generator=generator).split(_BATCH):
                loss = nn.functional.binary_cross_entropy_with_logits(self.table(rows[chosen]), targets[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    @torch.no_grad()
    def _sums(self, words: Sequence[str]) -> Floats:
        """float32 (n, n): score of word i as first plus that of word j as last."""
        scores = self.table(torch.tensor(word_features(words))).numpy()
        sums: Floats = scores[:, :1] + scores[:, 1]
        return sums

    def keep(self, words: Sequence[str]) -> npt.NDArray[np.bool_]:
        """bool (n, n): whether the span from word i to word j, included, is kept."""
        kept: npt.NDArray[np.bool_] = self._sums(words) >= self.threshold
        return kept

    def save(self, folder: Path) -> None:
        """Writes what was learnt."""
        tensors: dict[str, Tensor] = {"table": self.table.weight.detach(), "threshold": torch.tensor(self.threshold)}
        save_tensors(tensors, folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> "SpanPruner":
        """Reads what `save` wrote."""
        pruner, tensors = cls(), load_file(folder / FILE)
        pruner.table.weight = nn.Parameter(tensors["table"])
        pruner.threshold = float(tensors["threshold"])
        return pruner


def word_features(words: Sequence[str]) -> list[list[int]]:
    """Hashed features of each word: its form, shape, ends, and its neighbours'."""
    forms = ["^", *(word.lower() for word in words), "$"]
    shapes = ["^", *(word_shape(word) for word in words), "$"]
    return [
        [
            zlib.crc32(feature.encode()) % _BUCKETS
            for feature in (
                "bias",
                f"word {forms[i]}",
                f"shape {shapes[i]}",
                f"start {forms[i][:3]}",
                f"end {forms[i][-3:]}",
                f"before {forms[i - 1]}",
                f"after {forms[i + 1]}",
                f"shapes before {shapes[i - 1]} {shapes[i]}",
                f"shapes after {shapes[i]} {shapes[i + 1]}",
            )
        ]
        for i in range(1, len(words) + 1)
    ]


def word_shape(word: str) -> str:
    """``McDonald's`` -> ``XxXx'x``: runs of capitals, small letters, digits; other characters as they are."""
    shape = ""
    for character in word:
        kind = "X" if character.isupper() else "x" if character.isalpha() else "0" if character.isdigit() else character
        if not shape.endswith(kind):
            shape += kind
    return shape
