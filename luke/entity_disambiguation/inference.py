"""Which entity each mention means: many windows of many documents at a time, logits of candidates only."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from luke.entity_disambiguation.decoding import MASK_ID, Answers, Floats, Rule, beam, confidence_order, local
from luke.entity_disambiguation.documents import Document
from luke.entity_disambiguation.model import TOKENIZER_FOLDER, VOCAB_FILE, CandidateBatch, LukeForEntityDisambiguation
from luke.entity_disambiguation.windows import Ints, Window, WindowMaker, WindowOptions
from luke.entity_vocab import EntityVocab
from luke.errors import UserError
from luke.model import PackedBatch
from luke.progress import Progress
from luke.tokenization import LinkedTextTokenizer, load_tokenizer

MODES = ("local", "global", "beam")


@dataclass(frozen=True)
class InferenceOptions:
    """How mentions are resolved.

    Attributes:
        mode: ``local``: each from the words; ``global``: in the order of confidence, each seeing those before; ``beam``: as
            global, with several sets of answers followed.
        beam_size: Sets of answers that a beam follows.
        windows: How documents become windows.
        token_budget: Words and mentions of a batch; it decides speed and memory only.
    """

    mode: str = "global"
    beam_size: int = 4
    windows: WindowOptions = field(default_factory=WindowOptions)
    token_budget: int = 8192

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UserError(f"--inference {self.mode}: must be {', '.join(MODES)}")
        if self.beam_size < 1 or self.token_budget < 1:
            raise UserError("--beam-size and --token-budget must be at least 1")

    def rule(self) -> Callable[[Window], Rule]:
        """The order in which mentions are resolved."""
        return {"local": local, "global": confidence_order, "beam": beam(self.beam_size)}[self.mode]


class Prediction(NamedTuple):
    """The answer for a mention: its candidate's number and title, None if it has no candidates; the probability that the
    model gave it among the candidates."""

    candidate: int | None
    title: str | None
    probability: float


class Disambiguator:
    """A model with its tokenizer and vocabulary.

    Args:
        model: The model; it is used in evaluation mode.
        device: Where it runs.
    """

    def __init__(
        self,
        model: LukeForEntityDisambiguation,
        tokenizer: LinkedTextTokenizer,
        vocab: EntityVocab,
        device: torch.device | str = "cpu",
    ) -> None:
        if len(vocab) != model.config.entity_vocab_size:
            raise UserError(
                f"{vocab.path}: has {len(vocab)} entities, but the model has {model.config.entity_vocab_size}; "
                "give the vocabulary that it was trained with"
            )
        self.model = model.eval().to(device)
        self.tokenizer, self.vocab = tokenizer, vocab
        self.device = torch.device(device)

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: torch.device | str = "cpu") -> "Disambiguator":
        """The model of a folder that ``luke convert-checkpoint`` or fine-tuning wrote."""
        folder = Path(folder)
        model = LukeForEntityDisambiguation.from_pretrained(folder)
        return cls(model, load_tokenizer(folder / TOKENIZER_FOLDER), EntityVocab(folder / VOCAB_FILE), device)

    def predict(
        self, documents: Sequence[Document], options: InferenceOptions | None = None, show_progress: bool = False
    ) -> list[list[Prediction]]:
        """An answer for each mention of each document."""
        options = options or InferenceOptions()
        maker = WindowMaker(self.tokenizer, self.vocab, self._window_options(options))
        answers: list[list[Prediction]] = [[Prediction(None, None, 0.0)] * len(document.mentions) for document in documents]
        windows = [(number, window) for number, document in enumerate(documents) for window in maker.windows(document)]
        # Those with most rounds first, so that the last rounds are not of a few windows alone.
        windows.sort(key=lambda entry: -len(entry[1].mentions))
        with _progress(show_progress, sum(len(document.mentions) for document in documents)) as progress:
            for (number, window), answer in self._resolve(windows, options):
                for place in np.flatnonzero(window.is_target).tolist():
                    mention = int(window.mentions[place])
                    answers[number][mention] = _prediction(documents[number], mention, answer, place)
                progress.advance(int(window.is_target.sum()))
        return answers

    def _window_options(self, options: InferenceOptions) -> WindowOptions:
        """The options, within what the model's position table holds."""
        longest = self.model.config.max_position_embeddings - self.model.luke.embeddings.position_offset
        if options.windows.max_seq_length <= longest:
            return options.windows
        return WindowOptions(**vars(options.windows) | {"max_seq_length": longest})

    def _resolve(
        self, windows: Iterable[tuple[int, Window]], options: InferenceOptions
    ) -> Iterable[tuple[tuple[int, Window], Answers]]:
        """Runs the rules of all windows side by side: a batch holds the next state of as many as fit."""
        rule = options.rule()
        waiting = deque(windows)
        active: deque[tuple[tuple[int, Window], Rule, list[Ints]]] = deque()
        while waiting or active:
            batch: list[tuple[tuple[int, Window], Rule, list[Ints]]] = []
            tokens = 0
            while (active or waiting) and tokens < options.token_budget:
                if active:
                    entry = active.popleft()
                else:
                    source = waiting.popleft()
                    running = rule(source[1])
                    try:
                        entry = source, running, next(running)
                    except StopIteration as finished:
                        yield source, finished.value
                        continue
                batch.append(entry)
                tokens += entry[0][1].num_tokens * len(entry[2])
            scored = iter(self.score([(source[1], state) for source, _, states in batch for state in states]))
            for source, running, states in batch:
                results = [next(scored) for _ in states]
                try:
                    active.append((source, running, running.send(results)))
                except StopIteration as finished:
                    yield source, finished.value

    @torch.inference_mode()
    def score(self, states: Sequence[tuple[Window, Ints]]) -> list[Floats]:
        """For each window with entity ids: the log probabilities (E, C) of the candidates of its masked mentions."""
        if not states:
            return []
        asked = [_asked_mentions(window, entity_ids) for window, entity_ids in states]
        batch = make_batch(states, asked).to(self.device)
        flat = torch.log_softmax(self.model.logits(batch).double(), dim=-1).cpu().numpy()
        return _spread(states, asked, flat)


def _spread(states: Sequence[tuple[Window, Ints]], asked: Sequence[Ints], flat: Any) -> list[Floats]:
    results, place = [], 0
    for (window, _), mentions in zip(states, asked, strict=True):
        table: Any = np.full(window.candidate_ids.shape, -np.inf)
        table[mentions] = flat[place : place + len(mentions), : table.shape[1]]
        place += len(mentions)
        results.append(table)
    return results


def _asked_mentions(window: Window, entity_ids: Ints) -> Ints:
    """Masked mentions with a choice."""
    return np.flatnonzero((entity_ids == MASK_ID) & ((window.candidate_ids > 0).sum(1) > 1))


def make_batch(states: Sequence[tuple[Window, Ints]], asked: Sequence[Ints]) -> CandidateBatch:
    """Windows with the entity ids that the model is to see, and the mentions of each that are asked about."""
    windows = [window for window, _ in states]
    word_lengths = np.array([len(window.word_ids) for window in windows])
    entity_lengths = np.array([len(window.mentions) for window in windows])
    is_entity = np.repeat(np.tile([False, True], len(windows)), np.stack([word_lengths, entity_lengths], 1).ravel())
    token_order = np.empty(len(is_entity), np.int64)
    token_order[~is_entity] = np.arange(word_lengths.sum())
    token_order[is_entity] = np.arange(word_lengths.sum(), len(is_entity))
    first_entity = np.cumsum(word_lengths + entity_lengths) - entity_lengths
    position_counts = np.concatenate([np.diff(window.offsets) for window in windows])
    width = max(window.candidate_ids.shape[1] for window in windows)
    candidate_ids = np.zeros((sum(map(len, asked)), width), np.int64)
    row = 0
    for window, mentions in zip(windows, asked, strict=True):
        candidate_ids[row : row + len(mentions), : window.candidate_ids.shape[1]] = window.candidate_ids[mentions]
        row += len(mentions)
    nothing = torch.zeros(0, dtype=torch.int64)
    packed = PackedBatch(
        word_ids=torch.from_numpy(np.concatenate([window.word_ids for window in windows])),
        word_position_ids=torch.from_numpy(np.concatenate([np.arange(length) for length in word_lengths])),
        entity_ids=torch.from_numpy(np.concatenate([entity_ids for _, entity_ids in states])),
        mention_position_ids=torch.from_numpy(np.concatenate([window.position_ids for window in windows])),
        mention_offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(position_counts)])),
        token_order=torch.from_numpy(token_order),
        word_lengths=word_lengths.tolist(),
        entity_lengths=entity_lengths.tolist(),
        masked_word_index=nothing,
        masked_word_labels=nothing,
        masked_entity_index=nothing,
        masked_entity_labels=nothing,
        page_index=nothing,
        page_entity_ids=nothing,
    )
    index = np.concatenate([first + mentions for first, mentions in zip(first_entity, asked, strict=True)])
    return CandidateBatch(packed, torch.from_numpy(index), torch.from_numpy(candidate_ids))


def _prediction(document: Document, mention: int, answer: Answers, place: int) -> Prediction:
    column = int(answer.columns[place])
    if column < 0:
        return Prediction(None, None, 0.0)
    return Prediction(column, document.mentions[mention].candidates[column].title, float(answer.probabilities[place]))


class _NoProgress:
    def __enter__(self) -> "_NoProgress":
        return self

    def advance(self, units: int = 1) -> None:
        """Nothing to show."""

    def __exit__(self, *_: object) -> None:
        pass


def _progress(show: bool, total: int) -> Progress | _NoProgress:
    return Progress("mentions", total, "mentions") if show else _NoProgress()
