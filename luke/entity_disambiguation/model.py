"""The encoder and the entity head over candidates only: ``LukeForEntityDisambiguation``.

Letters beside those of `luke.model`: K mentions asked for, C candidates of a mention.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LukeConfig

from luke.backbones import read_tensors
from luke.errors import UserError
from luke.model import EntityTransform, LukeModel, PackedBatch, TiedDecoder
from luke.tensors import save_tensors

KIND = "entity-disambiguation-model"
WEIGHTS_FILE, CONFIG_FILE, VOCAB_FILE, TOKENIZER_FOLDER = (
    "model.safetensors",
    "config.json",
    "entity_vocab.jsonl",
    "tokenizer",
)
_TIED = "entity_predictions.decoder.weight"


@dataclass
class CandidateBatch:
    """Documents on one flat axis, and what is asked about them.

    Attributes:
        packed: Words and entities.
        mention_index: int64 (K,), positions on the flat axis.
        candidate_ids: int64 (K, C), entity ids; 0 where a mention has fewer.
        labels: int64 (K,), the column of the right candidate; None without.
    """

    packed: PackedBatch
    mention_index: Tensor
    candidate_ids: Tensor
    labels: Tensor | None = None

    def to(self, device: torch.device | str) -> Self:
        """A copy on ``device``."""
        values: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        moved: dict[str, Any] = {name: None if value is None else value.to(device) for name, value in values.items()}
        return type(self)(**moved)


class CandidateDecoder(TiedDecoder):
    """Logits of candidates alone from the entity table. A module of its own for the same reason as its parent."""

    def forward(self, features: Tensor, candidate_ids: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        """(K, D), (K, C), (U,) -> (K, C)."""
        rows = F.embedding(candidate_ids, self.weight)
        return torch.bmm(rows, features[:, :, None].to(rows.dtype)).squeeze(-1) + bias[candidate_ids]


class CandidateHead(nn.Module):
    """The entity head of pretraining, under the same names, over candidates."""

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        self.transform = EntityTransform(config)
        self.decoder = CandidateDecoder()
        self.bias = nn.Parameter(torch.zeros(config.entity_vocab_size))

    def forward(self, hidden: Tensor, candidate_ids: Tensor) -> Tensor:
        """(K, H), (K, C) -> fp32 (K, C), -inf where there is no candidate."""
        logits: Tensor = self.decoder(self.transform(hidden), candidate_ids, self.bias)
        return logits.float().masked_fill(candidate_ids == 0, float("-inf"))


class LukeForEntityDisambiguation(nn.Module):
    """Scores the candidates of masked mentions (Yamada et al. 2022, section 3)."""

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        self.config = config
        self.luke = LukeModel(config)
        del self.luke.pooler  # of no use here: it would be random
        self.entity_predictions = CandidateHead(config)
        self.entity_predictions.decoder.tie(self.luke.entity_embeddings.entity_embeddings)

    def logits(self, batch: CandidateBatch) -> Tensor:
        """fp32 (K, C): one logit a candidate, -inf where there is none. Rows of other entities are not touched."""
        hidden = self.luke(batch.packed).index_select(0, batch.mention_index)
        logits: Tensor = self.entity_predictions(hidden, batch.candidate_ids)
        return logits

    def forward(self, batch: CandidateBatch) -> dict[str, Tensor]:
        """Sums over the labels: ``masked_entity_loss`` (cross entropy over candidates), ``masked_entity_correct``."""
        logits = self.logits(batch)
        assert batch.labels is not None
        return {
            "masked_entity_loss": F.cross_entropy(logits, batch.labels, reduction="sum"),
            "masked_entity_correct": (logits.detach().argmax(-1) == batch.labels).sum().float(),
        }

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "LukeForEntityDisambiguation":
        """The model of a folder that `save_pretrained` wrote, in evaluation mode.

        Raises:
            UserError: the folder is no such model, or its weights do not fit its configuration.
        """
        folder = Path(folder)
        try:
            config = LukeConfig.from_json_file(str(folder / CONFIG_FILE))
        except (OSError, ValueError) as error:
            raise UserError(
                f"{folder}: not a model for entity disambiguation: {error}; make one with luke convert-checkpoint"
            ) from None
        if not (folder / WEIGHTS_FILE).exists():
            raise UserError(f"{folder}: {WEIGHTS_FILE} is missing")
        model = cls(config)
        model.load_weights(read_tensors(folder / WEIGHTS_FILE), str(folder / WEIGHTS_FILE))
        return model.eval()

    def load_weights(self, weights: dict[str, Tensor], source: str) -> None:
        """Loads named weights; heads of pretraining and the pooler among them are left aside.

        Raises:
            UserError: a weight is missing or has another shape.
        """
        own = self.state_dict()
        for name, value in weights.items():
            if name in own and own[name].shape != value.shape:
                raise UserError(f"{source}: {name} is {tuple(value.shape)}, but the model's is {tuple(own[name].shape)}")
        missing, _ = self.load_state_dict(weights, strict=False)
        lacking = [name for name in missing if name != _TIED]
        if lacking:
            raise UserError(f"{source}: lacks {len(lacking)} parameters of the model, such as {lacking[0]}")
        self.entity_predictions.decoder.tie(self.luke.entity_embeddings.entity_embeddings)

    def save_pretrained(self, folder: Path) -> None:
        """Writes configuration and weights; the decoder, which is the entity table, is written once."""
        folder.mkdir(parents=True, exist_ok=True)
        self.config.architectures = [type(self).__name__]
        self.config.save_pretrained(folder)
        tensors = {name: value.detach().contiguous() for name, value in self.state_dict().items() if name != _TIED}
        save_tensors(tensors, folder / WEIGHTS_FILE)
