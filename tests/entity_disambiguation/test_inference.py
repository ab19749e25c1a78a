"""The fast inference gives what the plain definition gives: one document, one state at a time, softmax over all entities."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LukeForMaskedLM

from luke.entity_disambiguation.decoding import Rule, beam, confidence_order
from luke.entity_disambiguation.documents import Candidate, Document, Mention
from luke.entity_disambiguation.inference import Disambiguator, InferenceOptions
from luke.entity_disambiguation.model import LukeForEntityDisambiguation
from luke.entity_disambiguation.windows import Window, WindowMaker, WindowOptions
from luke.errors import UserError

from .tiny_disambiguators import make_disambiguator, random_document

MASK = 2


class Plain:
    """The definition, on transformers' own model: padded, one state, logits of the whole vocabulary."""

    def __init__(self, disambiguator: Disambiguator) -> None:
        self.model = LukeForMaskedLM(disambiguator.model.config).eval()
        missing, unexpected = self.model.load_state_dict(disambiguator.model.state_dict(), strict=False)
        assert not unexpected and all(name.startswith(("lm_head.", "luke.pooler.")) for name in missing)
        self.model.tie_weights()
        self.model.entity_predictions.decoder.weight = self.model.luke.entity_embeddings.entity_embeddings.weight

    @torch.no_grad()
    def probabilities(self, window: Window, entity_ids: list[int]) -> np.ndarray:
        """(E, U): softmax over the vocabulary of the candidates' logits, others at minus infinity."""
        spans = [window.position_ids[a:b] for a, b in zip(window.offsets[:-1], window.offsets[1:], strict=True)]
        positions = torch.full((1, len(spans), max(map(len, spans))), -1)
        for row, span in enumerate(spans):
            positions[0, row, : len(span)] = torch.from_numpy(span)
        output = self.model(
            input_ids=torch.from_numpy(window.word_ids)[None],
            entity_ids=torch.tensor([entity_ids]),
            entity_position_ids=positions,
        )
        logits = output.entity_logits[0].double()
        allowed = torch.zeros_like(logits, dtype=torch.bool)
        for row, ids in enumerate(window.candidate_ids):
            allowed[row, ids[ids > 0]] = True
        logits = logits.masked_fill(~allowed, -1e30)
        return torch.softmax(logits, -1).numpy()

    def resolve(self, window: Window, mode: str) -> list[int]:
        """The entity id chosen for each mention; 0 without candidates."""
        choices = [set(ids[ids > 0].tolist()) for ids in window.candidate_ids]
        entity_ids = [MASK] * len(choices)
        if mode == "local":
            table = self.probabilities(window, entity_ids)
            return [int(table[row].argmax()) if choices[row] else 0 for row in range(len(choices))]
        resolved: dict[int, int] = {}
        while len(resolved) < sum(map(bool, choices)):
            table = self.probabilities(window, entity_ids)
            unresolved = [row for row in range(len(choices)) if choices[row] and row not in resolved]
            # A probability of 1 that is exactly 1, of an only candidate, comes before one that rounds to it.
            best = max(unresolved, key=lambda row: (len(choices[row]) == 1, table[row].max()))
            resolved[best] = entity_ids[best] = int(table[best].argmax())
        return [resolved.get(row, 0) for row in range(len(choices))]

    def beam(self, window: Window, size: int) -> list[int]:
        choices = [set(ids[ids > 0].tolist()) for ids in window.candidate_ids]
        states = [([MASK] * len(choices), 0.0)]
        for row, choice in enumerate(choices):
            if len(choice) == 1:
                states[0][0][row] = next(iter(choice))
        open_ = [row for row in range(len(choices)) if len(choices[row]) > 1]
        for _ in open_:
            grown = {}
            for ids, score in states:
                table = self.probabilities(window, ids)
                row = max((r for r in open_ if ids[r] == MASK), key=lambda r: table[r].max())
                for entity in np.argsort(-table[row])[: min(size, len(choices[row]))].tolist():
                    new = [*ids[:row], entity, *ids[row + 1 :]]
                    grown[tuple(new)] = max(score + np.log(table[row][entity]), grown.get(tuple(new), -np.inf))
            states = sorted(((list(ids), score) for ids, score in grown.items()), key=lambda entry: -entry[1])[:size]
        return [states[0][0][row] if choices[row] else 0 for row in range(len(choices))]


@pytest.fixture(scope="module")
def disambiguator(tmp_path_factory: pytest.TempPathFactory) -> Disambiguator:
    return make_disambiguator(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    """Short ones, long ones that are split, one without mentions, overlapping mentions."""
    rng = np.random.default_rng(1)
    sizes = [(8, 3), (12, 5), (30, 8), (60, 20), (5, 0), (2, 1), (40, 12), (25, 9)]
    return [random_document(rng, words, n, str(i), overlap=i == 7) for i, (words, n) in enumerate(sizes)]


def ids_of(disambiguator: Disambiguator, documents: list[Document], options: InferenceOptions) -> list[list[int]]:
    predictions = disambiguator.predict(documents, options)
    vocab = disambiguator.vocab
    return [[0 if p.title is None else vocab.get_id(p.title, default=1) or 0 for p in row] for row in predictions]


@pytest.mark.parametrize("split", ["simple", "per_mention"])
@pytest.mark.parametrize("mode", ["local", "global", "beam"])
def test_same_answers_as_the_definition(
    disambiguator: Disambiguator, documents: list[Document], mode: str, split: str
) -> None:
    windows = WindowOptions(split, max_seq_length=64)
    options = InferenceOptions(mode, 3, windows, token_budget=300)
    if mode == "beam" and split == "per_mention":  # the definition takes minutes for a long document
        documents = [document for document in documents if len(document.mentions) <= 9]
    maker = WindowMaker(disambiguator.tokenizer, disambiguator.vocab, windows)
    plain = Plain(disambiguator)
    expected = []
    for document in documents:
        answers = [-1] * len(document.mentions)
        for window in maker.windows(document):
            found = plain.beam(window, 3) if mode == "beam" else plain.resolve(window, mode)
            for place in np.flatnonzero(window.is_target):
                assert answers[window.mentions[place]] == -1
                answers[window.mentions[place]] = found[place]
        expected.append(answers)
    assert ids_of(disambiguator, documents, options) == expected
    assert any(len(maker.windows(document)) > 1 for document in documents)


def test_modes_and_splits_differ(disambiguator: Disambiguator) -> None:
    rng = np.random.default_rng(4)
    documents = [random_document(rng, 80, 30, str(number)) for number in range(6)]
    runs = {
        (mode, split): ids_of(disambiguator, documents, InferenceOptions(mode, 4, WindowOptions(split, max_seq_length=64)))
        for mode in ("local", "global")
        for split in ("simple", "per_mention")
    }
    assert len({str(run) for run in runs.values()}) == 4


def test_a_beam_finds_what_the_global_order_misses() -> None:
    """The most confident answer (5 for the first mention) leaves only unlikely ones for the second."""
    candidates = np.array([[5, 6], [7, 8]])
    nothing = np.zeros(0, np.int64)
    window = Window(nothing, np.arange(2), np.ones(2, np.bool_), nothing, np.zeros(3, np.int64), candidates)
    likely = {(MASK, MASK): [[0.6, 0.4], [0.5, 0.5]], (5, MASK): [[0, 0], [0.5, 0.5]], (6, MASK): [[0, 0], [0.1, 0.9]]}

    def resolve(rule: Rule) -> list[int]:
        try:
            states = next(rule)
            while True:
                with np.errstate(divide="ignore"):
                    states = rule.send([np.log(np.array(likely[tuple(state.tolist())])) for state in states])
        except StopIteration as finished:
            return [int(candidates[row, column]) for row, column in enumerate(finished.value.columns)]

    assert resolve(confidence_order(window)) == resolve(beam(1)(window)) == [5, 7]  # 0.6 x 0.5
    assert resolve(beam(2)(window)) == [6, 8]  # 0.4 x 0.9


def test_a_beam_of_one_is_the_global_order(disambiguator: Disambiguator, documents: list[Document]) -> None:
    windows = WindowOptions(max_seq_length=64)
    narrow = ids_of(disambiguator, documents, InferenceOptions("beam", 1, windows))
    assert narrow == ids_of(disambiguator, documents, InferenceOptions("global", windows=windows))


@pytest.mark.parametrize("budget", [1, 100, 100_000])
def test_batches_change_nothing(disambiguator: Disambiguator, documents: list[Document], budget: int) -> None:
    windows = WindowOptions(max_seq_length=64)
    together = disambiguator.predict(documents, InferenceOptions("global", windows=windows, token_budget=budget))
    apart = [disambiguator.predict([document], InferenceOptions("global", windows=windows))[0] for document in documents]
    assert [[p.title for p in row] for row in together] == [[p.title for p in row] for row in apart]
    np.testing.assert_allclose(
        [p.probability for row in together for p in row], [p.probability for row in apart for p in row], rtol=1e-4
    )


def test_candidates_of_one_entity_count_once(disambiguator: Disambiguator) -> None:
    """Two titles that the vocabulary lacks are both [UNK]: one candidate, the first, with one share of the probability."""
    candidates = [Candidate("Entity 3", 0.5), Candidate("Nobody", 0.3), Candidate("No one", 0.2)]
    document = Document("d", "Tokyo is far", [Mention(0, 5, "Entity 3", candidates)])
    few = Document("d", document.text, [Mention(0, 5, "Entity 3", candidates[:2])])
    options = InferenceOptions("local")
    assert disambiguator.predict([document], options) == disambiguator.predict([few], options)


def test_candidate_limit(disambiguator: Disambiguator, documents: list[Document]) -> None:
    options = InferenceOptions(windows=WindowOptions(max_seq_length=64, max_candidates=2))
    predictions = [p for row in disambiguator.predict(documents, options) for p in row]
    assert {p.candidate for p in predictions} == {None, 0, 1}


def test_long_documents_are_cut_between_mentions(disambiguator: Disambiguator) -> None:
    document = random_document(np.random.default_rng(5), 120, 50)
    maker = WindowMaker(disambiguator.tokenizer, disambiguator.vocab, WindowOptions("simple", max_seq_length=40))
    windows = maker.windows(document)
    word_ids, spans = disambiguator.tokenizer.tokenize(document.text, [(m.start, m.end) for m in document.mentions])
    assert np.concatenate([window.word_ids[1:-1] for window in windows]).tolist() == word_ids
    assert np.concatenate([window.mentions for window in windows]).tolist() == list(range(50))
    assert max(len(window.word_ids) for window in windows) <= 40
    for window in windows:
        for place, mention in enumerate(window.mentions):
            positions = window.position_ids[window.offsets[place] : window.offsets[place + 1]]
            assert window.word_ids[positions].tolist() == word_ids[slice(*spans[mention])]


def test_windows_hold_so_many_mentions(disambiguator: Disambiguator) -> None:
    document = random_document(np.random.default_rng(5), 40, 15)
    options = WindowOptions("simple", max_entity_length=4)
    windows = WindowMaker(disambiguator.tokenizer, disambiguator.vocab, options).windows(document)
    assert np.concatenate([window.mentions for window in windows]).tolist() == list(range(15))
    assert max(len(window.mentions) for window in windows) == 4


def test_each_mention_is_in_the_middle_of_its_window(disambiguator: Disambiguator) -> None:
    document = random_document(np.random.default_rng(5), 120, 30)
    options = WindowOptions("per_mention", max_seq_length=42)
    windows = WindowMaker(disambiguator.tokenizer, disambiguator.vocab, options).windows(document)
    assert len(windows) == 30 and all(window.is_target.sum() == 1 for window in windows)
    middle = windows[15]
    place = int(np.flatnonzero(middle.is_target)[0])
    positions = middle.position_ids[middle.offsets[place] : middle.offsets[place + 1]]
    assert abs((positions[0] - 1) - (40 - positions[-1])) <= 1 and len(middle.word_ids) == 42


def test_saved_models_come_back(disambiguator: Disambiguator, tmp_path: Path) -> None:
    disambiguator.model.save_pretrained(tmp_path)
    again = LukeForEntityDisambiguation.from_pretrained(tmp_path)
    for name, value in disambiguator.model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert again.entity_predictions.decoder.weight is again.luke.entity_embeddings.entity_embeddings.weight
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(UserError, match="not a whole safetensors"):
        LukeForEntityDisambiguation.from_pretrained(tmp_path)
    with pytest.raises(UserError, match="convert-checkpoint"):
        LukeForEntityDisambiguation.from_pretrained(tmp_path / "nothing")
