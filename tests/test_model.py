"""The model against the public code's outputs, against itself in other forms, and against transformers."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import LukeConfig, LukeForMaskedLM

from luke.attention import attend_by_segment, attend_padded
from luke.model import (
    LukeForPretraining,
    LukeModel,
    PackedBatch,
    pack_padded,
    unpack_hidden,
)

GOLDEN = Path(__file__).parent / "golden" / "model"
HEAD_NAMES = {
    "cls.predictions.transform.dense.": "lm_head.dense.",
    "cls.predictions.transform.LayerNorm.": "lm_head.layer_norm.",
    "cls.predictions.bias": "lm_head.bias",
}


def luke_name(name: str) -> str:
    """The public code's parameter name -> ours."""
    for theirs, ours in HEAD_NAMES.items():
        if name.startswith(theirs):
            return name.replace(theirs, ours)
    return name if name.startswith(("lm_head.", "entity_predictions.")) else f"luke.{name}"


class Golden:
    """A tiny model of the public code: configuration, weights under our names, inputs, outputs."""

    def __init__(self, name: str, entity_aware: bool = False) -> None:
        kind = f"{name}.entity_aware" if entity_aware else name
        config = json.loads((GOLDEN / f"{name}.config.json").read_text())
        self.is_bert = name.startswith("bert")
        kept = ("vocab_size", "entity_vocab_size", "hidden_size", "entity_emb_size", "num_hidden_layers")
        kept += ("num_attention_heads", "intermediate_size", "type_vocab_size", "layer_norm_eps", "pad_token_id")
        self.config = LukeConfig(
            **{key: config[key] for key in kept},
            max_position_embeddings=config["max_position_embeddings"] + self.is_bert,
            use_entity_aware_attention=entity_aware,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.weights = {luke_name(k): self.shift(k, v) for k, v in load_file(GOLDEN / f"{kind}.weights.safetensors").items()}
        self.inputs = load_file(GOLDEN / f"{name}.inputs.safetensors")
        self.outputs = load_file(GOLDEN / f"{kind}.outputs.safetensors")

    def shift(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """BERT counts positions from 0, LUKE's configuration from pad_token_id + 1 (spec 1)."""
        if self.is_bert and name == "embeddings.position_embeddings.weight":
            return torch.cat([value[:1] * 0, value])
        if self.is_bert and name == "entity_embeddings.position_embeddings.weight":
            return torch.cat([value, value[:1] * 0])
        return value

    def model(self) -> LukeForPretraining:
        model = LukeForPretraining(self.config)
        missing, unexpected = model.load_state_dict(self.weights, strict=False)
        assert all(name.startswith(("lm_head", "entity_predictions")) for name in missing), missing
        assert all(".seq_relationship." in name or ".decoder." in name for name in unexpected), unexpected
        return model

    def packed(self, labels: bool = False) -> PackedBatch:
        i = self.inputs
        batch = pack_padded(
            i["word_ids"],
            i["word_attention_mask"],
            i["entity_ids"],
            i["entity_attention_mask"],
            i["entity_position_ids"],
        )
        return add_labels(batch, i["masked_lm_labels"], i["masked_entity_labels"], i) if labels else batch


def add_labels(
    batch: PackedBatch, word_labels: torch.Tensor, entity_labels: torch.Tensor, inputs: dict[str, torch.Tensor]
) -> PackedBatch:
    """Labels (B, W) and (B, E), -1 where nothing is masked, put on the flat axis."""
    both = torch.cat([word_labels, entity_labels], 1)
    real = torch.cat([inputs["word_attention_mask"], inputs["entity_attention_mask"]], 1).bool()
    is_entity = torch.cat([torch.zeros_like(word_labels), torch.ones_like(entity_labels)], 1)[real]
    flat = both[real]
    for kind, name in ((0, "word"), (1, "entity")):
        index = ((flat != -1) & (is_entity == kind)).nonzero()[:, 0]
        setattr(batch, f"masked_{name}_index", index)
        setattr(batch, f"masked_{name}_labels", flat[index])
    return batch


NAMES = ["bert_emb16", "roberta_emb32"]


@pytest.mark.parametrize("name", NAMES)
def test_encoder_equals_public_code(name: str) -> None:
    golden = Golden(name)
    model = golden.model().eval()
    with torch.no_grad():
        batch = golden.packed()
        words, entities = unpack_hidden(model.luke(batch), batch)
        pooled = model.luke.pooler(words[:, 0])
    word_mask, entity_mask = (golden.inputs[f"{kind}_attention_mask"].bool() for kind in ("word", "entity"))
    expected = golden.outputs
    torch.testing.assert_close(words[word_mask], expected["word_sequence_output"][word_mask], atol=1e-5, rtol=0)
    torch.testing.assert_close(entities[entity_mask], expected["entity_sequence_output"][entity_mask], atol=1e-5, rtol=0)
    torch.testing.assert_close(pooled, expected["pooled_output"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_words_alone_equal_public_code(name: str) -> None:
    golden = Golden(name)
    with torch.no_grad():
        batch = pack_padded(golden.inputs["word_ids"], golden.inputs["word_attention_mask"])
        words, entities = unpack_hidden(golden.model().eval().luke(batch), batch)
    mask = golden.inputs["word_attention_mask"].bool()
    expected = golden.outputs["word_only_word_sequence_output"]
    torch.testing.assert_close(words[mask], expected[mask], atol=1e-5, rtol=0)
    assert entities.numel() == 0


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_equal_public_code(name: str) -> None:
    golden = Golden(name)
    model = golden.model()
    batch = golden.packed(labels=True)
    sums = model(batch)
    word_loss = sums["masked_lm_loss"] / batch.masked_word_labels.numel()
    entity_loss = sums["masked_entity_loss"] / batch.masked_entity_labels.numel()
    (word_loss + entity_loss).backward()
    expected = golden.outputs
    torch.testing.assert_close(word_loss.detach(), expected["masked_lm_loss"].squeeze(), atol=1e-5, rtol=0)
    torch.testing.assert_close(entity_loss.detach(), expected["masked_entity_loss"].squeeze(), atol=1e-5, rtol=0)
    parameters = dict(model.named_parameters())
    gradients = {k.removeprefix("grad."): v for k, v in expected.items() if k.startswith("grad.")}
    assert len(gradients) > 40
    for theirs, gradient in gradients.items():
        ours = parameters[luke_name(theirs)].grad
        assert ours is not None, theirs
        torch.testing.assert_close(ours, golden.shift(theirs, gradient), atol=1e-5, rtol=1e-4, msg=theirs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("copied", [False, True])
def test_entity_aware_attention_equals_public_code(name: str, copied: bool) -> None:
    golden = Golden(name, entity_aware=True)
    if copied:
        for key in [key for key in golden.weights if ".query." in key]:
            for kind in ("w2e", "e2w", "e2e"):
                golden.weights[key.replace(".query.", f".{kind}_query.")] = golden.weights[key]
    with torch.no_grad():
        batch = golden.packed()
        words, entities = unpack_hidden(golden.model().eval().luke(batch), batch)
    prefix = "copied_" if copied else ""
    for kind, value in (("word", words), ("entity", entities)):
        mask = golden.inputs[f"{kind}_attention_mask"].bool()
        expected = golden.outputs[f"{prefix}{kind}_sequence_output"][mask]
        torch.testing.assert_close(value[mask], expected, atol=1e-5, rtol=0)


def test_copied_queries_make_entity_aware_attention_plain() -> None:
    aware, plain = Golden("bert_emb16", entity_aware=True), Golden("bert_emb16")
    assert torch.equal(aware.inputs["word_ids"], plain.inputs["word_ids"])
    mask = aware.inputs["word_attention_mask"].bool()
    difference = aware.outputs["word_sequence_output"] - plain.outputs["word_sequence_output"]
    assert difference[mask].abs().max() > 1e-3, "own query matrices must change the outputs"


def random_batch(
    config: LukeConfig, lengths: list[tuple[int, int]], seed: int = 0
) -> tuple[PackedBatch, dict[str, torch.Tensor]]:
    """Items of (W, E) with random ids, mentions and labels; returns the packed form and the padded inputs."""
    rng = torch.Generator().manual_seed(seed)
    longest, most = max(w for w, _ in lengths), max(e for _, e in lengths)
    shape_w, shape_e = (len(lengths), longest), (len(lengths), most)
    word_mask = torch.arange(longest) < torch.tensor([w for w, _ in lengths])[:, None]
    entity_mask = torch.arange(most) < torch.tensor([e for _, e in lengths])[:, None]
    inputs = {
        "word_ids": torch.randint(3, config.vocab_size, shape_w, generator=rng),
        "word_attention_mask": word_mask.long(),
        "entity_ids": torch.randint(1, config.entity_vocab_size, shape_e, generator=rng),
        "entity_attention_mask": entity_mask.long(),
        "entity_position_ids": torch.full((*shape_e, 4), -1),
    }
    pad = int(config.pad_token_id or 0)
    inputs["word_ids"][~word_mask] = pad
    for b, (words, entities) in enumerate(lengths):
        for e in range(entities):
            size = int(torch.randint(0, min(words, 4) + 1, (), generator=rng))
            start = int(torch.randint(0, words - size + 1, (), generator=rng))
            inputs["entity_position_ids"][b, e, :size] = torch.arange(start, start + size)
    labels = []
    for mask, size, shape in (
        (word_mask, config.vocab_size, shape_w),
        (entity_mask, config.entity_vocab_size, shape_e),
    ):
        chosen = torch.randint(1, size, shape, generator=rng)
        labels.append(torch.where(mask & (torch.rand(shape, generator=rng) < 0.4), chosen, -1))
    inputs["word_labels"], inputs["entity_labels"] = labels
    batch = pack_padded(*(inputs[k] for k in list(inputs)[:5]))
    return add_labels(batch, *labels, inputs), inputs


def tiny_config(**changes: object) -> LukeConfig:
    settings_: dict[str, object] = {
        "vocab_size": 60,
        "entity_vocab_size": 40,
        "hidden_size": 32,
        "entity_emb_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 70,
        "use_entity_aware_attention": False,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return LukeConfig(**{**settings_, **changes})  # type: ignore[arg-type]


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(2, 60), st.integers(0, 9)), min_size=1, max_size=5),
    entity_aware=st.booleans(),
    padded_attention=st.booleans(),
)
def test_agrees_with_transformers(lengths: list[tuple[int, int]], entity_aware: bool, padded_attention: bool) -> None:
    """The unpadded forward, in both forms of attention, equals transformers' padded one, in every head."""
    if not any(entities for _, entities in lengths):
        lengths = [*lengths, (5, 1)]
    torch.manual_seed(0)
    config = tiny_config(use_entity_aware_attention=entity_aware)
    model = LukeForPretraining(config).eval()
    model.luke.attention = attend_padded if padded_attention else attend_by_segment
    theirs = LukeForMaskedLM(config).eval()
    state = {**model.state_dict(), "lm_head.decoder.bias": model.lm_head.bias}
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not missing and not unexpected
    batch, inputs = random_batch(config, lengths)
    with torch.no_grad():
        output = theirs(
            input_ids=inputs["word_ids"],
            attention_mask=inputs["word_attention_mask"],
            entity_ids=inputs["entity_ids"],
            entity_attention_mask=inputs["entity_attention_mask"],
            entity_position_ids=inputs["entity_position_ids"],
        )
        hidden = model.luke(batch)
        sums = model(batch)
    words = inputs["word_labels"] != -1
    if words.any():
        logits = model.lm_head(hidden[batch.masked_word_index])
        torch.testing.assert_close(logits, output.logits[words], atol=1e-5, rtol=1e-5)
        expected = torch.nn.functional.cross_entropy(output.logits[words], inputs["word_labels"][words], reduction="sum")
        torch.testing.assert_close(sums["masked_lm_loss"], expected, atol=1e-4, rtol=1e-5)
        right = (output.logits[words].argmax(-1) == inputs["word_labels"][words]).sum()
        assert sums["masked_lm_correct"] == right
    entities = inputs["entity_labels"] != -1
    if entities.any():
        logits = model.entity_predictions(hidden[batch.masked_entity_index])
        torch.testing.assert_close(logits, output.entity_logits[entities], atol=1e-5, rtol=1e-5)


def test_head_splits_rows_without_changing_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = LukeForPretraining(tiny_config())
    batch, _ = random_batch(model.config, [(50, 8), (40, 8)])
    whole = model(batch)
    monkeypatch.setattr("luke.model.HEAD_ROWS", 7)
    for name, value in model(batch).items():
        torch.testing.assert_close(value, whole[name])


def test_gradient_checkpointing_changes_no_gradient() -> None:
    """Dropout included: what is computed again drops the same."""
    torch.manual_seed(0)
    model = LukeForPretraining(tiny_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2)).train()
    batch, _ = random_batch(model.config, [(30, 4), (12, 2)])
    gradients = []
    for on in (False, True):
        model.luke.encoder.gradient_checkpointing = on
        model.zero_grad()
        torch.manual_seed(1)
        sum(model(batch).values()).backward()  # type: ignore[union-attr]
        gradients.append({k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name])


def test_page_entity_head_trains_from_cls_and_skips_unknown_pages() -> None:
    torch.manual_seed(0)
    model = LukeForPretraining(tiny_config(), cls_entity_prediction=True)
    batch, _ = random_batch(model.config, [(10, 2), (12, 3)])
    assert model(batch)["cls_entity_loss"] == 0
    batch.page_index, batch.page_entity_ids = torch.tensor([0]), torch.tensor([7])
    loss = model(batch)["cls_entity_loss"]
    hidden = model.luke(batch)
    target = model.luke.entity_embeddings.entity_embeddings.weight[7]
    expected = ((model.cls_entity_predictions(hidden[:1])[0] - target) ** 2).mean()  # type: ignore[misc]
    torch.testing.assert_close(loss, expected)


def test_heads_run_without_targets_so_that_every_parameter_has_a_gradient() -> None:
    """Processes that train together sum their gradients: none may lack one because its items have no entity."""
    model = LukeForPretraining(tiny_config(), cls_entity_prediction=True)
    model.luke.pooler.requires_grad_(False)
    batch, _ = random_batch(model.config, [(10, 0), (12, 0)])
    batch.masked_word_index = batch.masked_word_labels = batch.word_ids[:0]
    sum(model(batch).values()).backward()  # type: ignore[union-attr]
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def test_mention_without_positions_contributes_nothing() -> None:
    model = LukeModel(tiny_config())
    empty = model.entity_embeddings._mention_positions(torch.tensor([3, 4]), torch.tensor([0, 0, 2]))
    assert torch.equal(empty[0], torch.zeros(32))
    table = model.entity_embeddings.position_embeddings.weight
    torch.testing.assert_close(empty[1], (table[3] + table[4]) / 2)
