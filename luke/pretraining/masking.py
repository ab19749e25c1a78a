"""Masking words and entities: a pure function of (seed, dataset, epoch, item), whatever worker, rank or restart computes it.

Entities follow Yamada et al. 2020, section 3.3; whole words the public code (`MaskingOptions.whole_word_masking`).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from luke.errors import UserError
from luke.pretraining.dataset import Item, Sample

Ints = npt.NDArray[np.integer]

UNK_ENTITY_ID = 1
MASK_ENTITY_ID = 2
_NUM_SPECIAL_ENTITIES = 3


@dataclass(frozen=True)
class MaskingOptions:
    """What is masked, and how. Probabilities are shares of an item's words or entities.

    Raises:
        UserError: a probability lies outside [0, 1], or two that share one draw add up to more than 1.
    """

    masked_lm_prob: float = 0.15
    masked_entity_prob: float = 0.15
    random_word_prob: float = 0.1
    unmasked_word_prob: float = 0.1
    random_entity_prob: float = 0.0
    unmasked_entity_prob: float = 0.0
    whole_word_masking: bool = True
    mask_words_in_entity_span: bool = False
    unk_entity_targets: bool = True

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name.endswith("_prob") and not 0 <= value <= 1:
                raise UserError(f"--{name.replace('_', '-')} {value}: must lie between 0 and 1")
        for kind in ("word", "entity"):
            if getattr(self, f"random_{kind}_prob") + getattr(self, f"unmasked_{kind}_prob") > 1:
                raise UserError(f"--random-{kind}-prob and --unmasked-{kind}-prob add up to more than 1")
        if not self.masked_lm_prob and not self.masked_entity_prob:
            raise UserError("--masked-lm-prob and --masked-entity-prob are both 0: nothing would be learnt")


class WordVocab(NamedTuple):
    """What masking needs to know of the tokenizer: bool (V,) `starts_word` and `is_special`, and the id of its mask."""

    starts_word: npt.NDArray[np.bool_]
    is_special: npt.NDArray[np.bool_]
    mask_id: int


class MaskedItem(NamedTuple):
    """An item as the model sees it, and what it is to predict.

    ``word_ids`` (W,) and ``entity_ids`` (E,) are int64; the positions (M,) and (K,) index them in ascending order, and the
    labels (M,) and (K,) are the true ids.
    """

    item: Item
    word_ids: Ints
    entity_ids: Ints
    masked_word_positions: Ints
    masked_word_labels: Ints
    masked_entity_positions: Ints
    masked_entity_labels: Ints


def _number_to_mask(length: int, probability: float) -> int:
    """round(n · p), at least one; none of nothing or with probability 0."""
    return max(1, round(length * probability)) if length and probability else 0


class Masker:
    """Masks items.

    Args:
        options: What is masked, and how.
        words: The tokenizer's side.
        entity_vocab_size: U; random entities are drawn from [3, U).
        seed: The run's seed.
    """

    def __init__(self, options: MaskingOptions, words: WordVocab, entity_vocab_size: int, seed: int) -> None:
        self.options, self.words, self.seed = options, words, seed
        self.entity_vocab_size = entity_vocab_size
        self.random_words = np.flatnonzero(~words.is_special)

    def __call__(self, item: Item, sample: Sample) -> MaskedItem:
        """The masks of ``item``, which ``sample`` names."""
        rng = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, sample.dataset, sample.epoch, sample.row]))
        entity_ids, entity_positions = self._mask_entities(rng, item)
        word_ids, word_positions = self._mask_words(rng, item, entity_positions)
        return MaskedItem(
            item,
            word_ids,
            entity_ids,
            word_positions,
            item.word_ids[word_positions],
            entity_positions,
            item.entity_ids[entity_positions],
        )

    def _mask_entities(self, rng: np.random.Generator, item: Item) -> tuple[Ints, Ints]:
        masked = item.entity_ids.astype(np.int64)
        targets = np.arange(len(masked))
        if not self.options.unk_entity_targets:
            targets = np.flatnonzero(masked != UNK_ENTITY_ID)
        number = _number_to_mask(len(targets), self.options.masked_entity_prob)
        chosen = np.sort(rng.permutation(targets)[:number])
        draw = rng.random(number)
        random_prob, unmasked_prob = self.options.random_entity_prob, self.options.unmasked_entity_prob
        masked[chosen[draw >= random_prob + unmasked_prob]] = MASK_ENTITY_ID
        replaced = chosen[draw < random_prob]
        if len(replaced):
            masked[replaced] = rng.integers(_NUM_SPECIAL_ENTITIES, self.entity_vocab_size, len(replaced))
        return masked, chosen

    def _mask_words(self, rng: np.random.Generator, item: Item, masked_entities: Ints) -> tuple[Ints, Ints]:
        masked = item.word_ids.astype(np.int64)
        number = _number_to_mask(len(masked), self.options.masked_lm_prob)
        if not number:
            return masked, np.zeros(0, np.int64)
        starts = self.words.starts_word[masked] if self.options.whole_word_masking else np.ones(len(masked), bool)
        starts[0] = True
        word_of_token = np.cumsum(starts) - 1
        lengths = np.bincount(word_of_token)
        forced = self._words_of_mentions(item, masked_entities, word_of_token)
        chosen = _choose_words(rng, lengths, number, forced)
        if not len(chosen):  # every word is longer than the number: take one subword, as the public code does
            word_of_token, chosen = np.arange(len(masked)), rng.integers(0, len(masked), 1)
        # One draw a word, so that its subwords share their fate.
        draw = np.full(word_of_token[-1] + 1, np.inf)
        draw[chosen] = rng.random(len(chosen))
        draw_of_token = draw[word_of_token]
        positions = np.flatnonzero(draw_of_token < np.inf)
        draw_of_masked = draw_of_token[positions]
        random_prob, unmasked_prob = self.options.random_word_prob, self.options.unmasked_word_prob
        masked[positions[draw_of_masked >= random_prob + unmasked_prob]] = self.words.mask_id
        replaced = positions[draw_of_masked < random_prob]
        masked[replaced] = self.random_words[rng.integers(0, len(self.random_words), len(replaced))]
        return masked, positions

    def _words_of_mentions(self, item: Item, masked_entities: Ints, word_of_token: Ints) -> Ints:
        """The words that a masked entity's mention touches, if they are to be masked too."""
        if not self.options.mask_words_in_entity_span or not len(masked_entities):
            return np.zeros(0, np.int64)
        spans = zip(item.entity_starts[masked_entities], item.entity_ends[masked_entities], strict=True)
        return np.unique(np.concatenate([word_of_token[start:end] for start, end in spans]))


def _choose_words(rng: np.random.Generator, lengths: Ints, number: int, forced: Ints) -> Ints:
    """Random words of at most ``number`` tokens together; a word that would exceed it is skipped.

    ``forced`` words are all taken, first; they count towards the number, and may exceed it.
    """
    order = rng.permutation(len(lengths))
    if len(forced):
        order = order[~np.isin(order, forced)]
        number -= int(lengths[forced].sum())
    ends = np.cumsum(lengths[order])
    fitting = int(np.searchsorted(ends, number, side="right"))
    chosen = order[:fitting].tolist()
    left = number - (int(ends[fitting - 1]) if fitting else 0)
    for word, length in zip(order[fitting:].tolist(), lengths[order[fitting:]].tolist(), strict=True):
        if left <= 0:
            break
        if length <= left:
            chosen.append(word)
            left -= length
    return np.concatenate([forced, np.array(chosen, np.int64)])
