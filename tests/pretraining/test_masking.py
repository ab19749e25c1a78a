import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luke.errors import UserError
from luke.pretraining.dataset import Item, Sample
from luke.pretraining.masking import MASK_ENTITY_ID, UNK_ENTITY_ID, MaskedItem, Masker, MaskingOptions, WordVocab

from .items import FIRST_WORD, random_item

VOCAB, ENTITIES, MASK = 200, 50, 4
FIRST = Sample(0, 0, 0)


def vocab() -> WordVocab:
    """Ids below 5 are special; every third word continues a word."""
    ids = np.arange(VOCAB)
    return WordVocab(starts_word=ids % 3 != 0, is_special=ids < FIRST_WORD, mask_id=MASK)


def mask(item: Item, seed: int = 0, sample: Sample = FIRST, **options: object) -> MaskedItem:
    return Masker(MaskingOptions(**options), vocab(), ENTITIES, seed)(item, sample)  # type: ignore[arg-type]


items = st.builds(
    lambda seed, words, entities: random_item(np.random.default_rng(seed), words, entities),
    st.integers(0, 2**32),
    st.integers(1, 120),
    st.integers(0, 12),
)


def whole_words(item: Item) -> list[set[int]]:
    words: list[set[int]] = []
    for position, word in enumerate(item.word_ids):
        if position == 0 or vocab().starts_word[word]:
            words.append(set())
        words[-1].add(position)
    return words


@settings(max_examples=200, deadline=None)
@given(items, st.integers(0, 1000), st.floats(0.01, 1), st.floats(0.01, 1), st.booleans())
def test_counts_labels_and_positions(item: Item, seed: int, word_prob: float, entity_prob: float, whole: bool) -> None:
    masked = mask(item, seed, masked_lm_prob=word_prob, masked_entity_prob=entity_prob, whole_word_masking=whole)
    number = max(1, round(len(item.word_ids) * word_prob))
    assert 1 <= len(masked.masked_word_positions) <= number
    assert np.array_equal(np.unique(masked.masked_word_positions), masked.masked_word_positions)
    assert np.array_equal(masked.masked_word_labels, item.word_ids[masked.masked_word_positions])
    expected = max(1, round(len(item.entity_ids) * entity_prob)) if len(item.entity_ids) else 0
    assert len(np.unique(masked.masked_entity_positions)) == len(masked.masked_entity_positions) == expected
    assert np.array_equal(masked.masked_entity_labels, item.entity_ids[masked.masked_entity_positions])
    untouched = np.setdiff1d(np.arange(len(item.word_ids)), masked.masked_word_positions)
    assert np.array_equal(masked.word_ids[untouched], item.word_ids[untouched])
    assert (masked.entity_ids[masked.masked_entity_positions] == MASK_ENTITY_ID).all()
    if whole and len(masked.masked_word_positions) > 1:
        chosen = set(masked.masked_word_positions.tolist())
        assert all(word <= chosen or not word & chosen for word in whole_words(item))
    if not whole:
        assert len(masked.masked_word_positions) == number


@settings(max_examples=100, deadline=None)
@given(items, st.integers(0, 1000))
def test_number_is_reached_whenever_a_word_still_fits(item: Item, seed: int) -> None:
    masked = mask(item, seed, masked_lm_prob=0.3)
    chosen = set(masked.masked_word_positions.tolist())
    left = max(1, round(len(item.word_ids) * 0.3)) - len(chosen)
    assert all(len(word) > left for word in whole_words(item) if not word & chosen)


def test_split_of_words_is_80_10_10_and_one_draw_a_word() -> None:
    item = random_item(np.random.default_rng(1), 400, 0)
    counts = np.zeros(3)
    for row in range(300):
        masked = mask(item, sample=Sample(0, 0, row), masked_lm_prob=0.15)
        seen = masked.word_ids[masked.masked_word_positions]
        is_mask, is_same = seen == MASK, seen == masked.masked_word_labels
        counts += [is_mask.sum(), (~is_mask & ~is_same).sum(), is_same.sum()]
        chosen = set(masked.masked_word_positions.tolist())
        for word in whole_words(item):
            if word <= chosen and len(word) > 1:
                kinds = {int(masked.word_ids[p] == MASK) for p in word}
                assert len(kinds) == 1
    share = counts / counts.sum()
    # 18,000 draws: three standard deviations are 0.009; a random word equals the true one once in 195.
    assert share == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


def test_random_words_are_never_special() -> None:
    item = random_item(np.random.default_rng(1), 400, 0)
    seen = set()
    for row in range(50):
        masked = mask(item, sample=Sample(0, 0, row), random_word_prob=1.0, unmasked_word_prob=0.0)
        seen |= set(masked.word_ids[masked.masked_word_positions].tolist())
    assert min(seen) >= FIRST_WORD and len(seen) > 150


def test_entity_replacements() -> None:
    item = random_item(np.random.default_rng(1), 100, 60)
    counts = np.zeros(3)
    for row in range(200):
        masked = mask(
            item, sample=Sample(0, 0, row), masked_entity_prob=1.0, random_entity_prob=0.2, unmasked_entity_prob=0.3
        )
        is_mask, is_same = masked.entity_ids == MASK_ENTITY_ID, masked.entity_ids == item.entity_ids
        counts += [(is_mask & ~is_same).sum(), (~is_mask & ~is_same).sum(), is_same.sum()]
    assert counts / counts.sum() == pytest.approx([0.5, 0.2, 0.3], abs=0.03)


def test_unk_entities_can_be_left_out_of_the_targets() -> None:
    item = random_item(np.random.default_rng(1), 100, 20)
    item.entity_ids[:10] = UNK_ENTITY_ID
    known = int((item.entity_ids != UNK_ENTITY_ID).sum())
    masked = mask(item, masked_entity_prob=1.0, unk_entity_targets=False)
    assert len(masked.masked_entity_labels) == known and UNK_ENTITY_ID not in masked.masked_entity_labels
    assert UNK_ENTITY_ID in mask(item, masked_entity_prob=1.0).masked_entity_labels


def test_words_in_spans_of_masked_entities_come_first() -> None:
    item = random_item(np.random.default_rng(3), 200, 10)
    masked = mask(item, mask_words_in_entity_span=True)
    chosen = set(masked.masked_word_positions.tolist())
    inside = {p for e in masked.masked_entity_positions for p in range(int(item.entity_starts[e]), int(item.entity_ends[e]))}
    assert inside and inside <= chosen
    assert len(chosen) <= 30, "they count towards the number"
    assert not inside <= set(mask(item).masked_word_positions.tolist())


def test_zero_probability_masks_nothing() -> None:
    item = random_item(np.random.default_rng(3), 50, 5)
    assert not len(mask(item, masked_lm_prob=0.0).masked_word_positions)
    assert not len(mask(item, masked_entity_prob=0.0).masked_entity_positions)


def test_a_single_long_word_still_gives_one_subword() -> None:
    item = Item(-1, np.full(20, 6, np.uint16), *(np.zeros(0, np.uint16),) * 3)  # 6 % 3 == 0: all one word
    assert len(mask(item).masked_word_positions) == 1


def test_masks_depend_on_seed_dataset_epoch_and_row_alone() -> None:
    item = random_item(np.random.default_rng(3), 300, 30)

    def key(seed: int, sample: Sample) -> tuple[bytes, bytes]:
        masked = mask(item, seed, sample)
        return masked.word_ids.tobytes(), masked.entity_ids.tobytes()

    base = key(5, Sample(1, 2, 3))
    assert key(5, Sample(1, 2, 3)) == base
    others = [key(6, Sample(1, 2, 3)), key(5, Sample(0, 2, 3)), key(5, Sample(1, 1, 3)), key(5, Sample(1, 2, 4))]
    assert all(other != base for other in others)


@pytest.mark.parametrize(
    "options",
    [
        {"masked_lm_prob": 1.5},
        {"masked_entity_prob": -0.1},
        {"random_word_prob": 0.7, "unmasked_word_prob": 0.7},
        {"random_entity_prob": 0.7, "unmasked_entity_prob": 0.7},
        {"masked_lm_prob": 0.0, "masked_entity_prob": 0.0},
    ],
)
def test_bad_probabilities_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match="prob"):
        MaskingOptions(**options)  # type: ignore[arg-type]
