"""Base encoders of the three families: a LUKE on top computes what the base computes, and bad folders are named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from luke.backbones import Backbone, load_backbone
from luke.errors import UserError
from luke.model import LukeForPretraining, pack_padded, unpack_hidden
from tests.tiny_bases import FAMILIES, MAX_POSITIONS, make_base, padded_words

ENTITIES = 9


@pytest.fixture(scope="module", params=FAMILIES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    return make_base(request.param, folder), folder


def build(backbone: Backbone) -> LukeForPretraining:
    model = LukeForPretraining(backbone.luke_config(ENTITIES, 16)).eval()
    model.load_state_dict(backbone.luke_state_dict(), strict=False)
    return model


@torch.no_grad()
def word_hidden_states(model: LukeForPretraining, word_ids: Tensor, mask: Tensor) -> Tensor:
    batch = pack_padded(word_ids, mask)
    return unpack_hidden(model.luke(batch), batch)[0]


@torch.no_grad()
def assert_same_words(model: LukeForPretraining, base: PreTrainedModel) -> None:
    word_ids, mask = padded_words(base)
    expected = base.base_model(word_ids, attention_mask=mask).last_hidden_state
    ours = word_hidden_states(model, word_ids, mask)
    assert (ours - expected)[mask.bool()].abs().max() < 1e-5


def test_hidden_states_are_the_bases(base: tuple[PreTrainedModel, Path]) -> None:
    model, folder = base
    assert_same_words(build(load_backbone(folder)), model)


def test_longest_input_has_a_position(base: tuple[PreTrainedModel, Path]) -> None:
    model, folder = base
    ours = build(load_backbone(str(folder)))
    longest = MAX_POSITIONS if model.config.model_type == "bert" else MAX_POSITIONS - 2
    word_ids = torch.full((1, longest), 7)
    with torch.no_grad():
        expected = model.base_model(word_ids).last_hidden_state
    assert torch.allclose(word_hidden_states(ours, word_ids, torch.ones_like(word_ids)), expected, atol=1e-5)


@torch.no_grad()
def test_masked_word_head_is_the_bases(base: tuple[PreTrainedModel, Path]) -> None:
    model, folder = base
    backbone = load_backbone(folder)
    assert backbone.has_mlm_head
    ours, (word_ids, mask) = build(backbone), padded_words(model)
    expected = model(word_ids, attention_mask=mask).logits
    logits = ours.lm_head(word_hidden_states(ours, word_ids, mask))
    assert (logits - expected)[mask.bool()].abs().max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_bare_encoder_gets_a_fresh_head(family: str, tmp_path: Path) -> None:
    base = make_base(family, tmp_path, with_head=False)
    backbone = load_backbone(tmp_path)
    assert backbone.prefix == "" and not backbone.has_mlm_head
    assert backbone.has_pooler == any(name.startswith("pooler.") for name in base.state_dict())
    assert not any(name.startswith("lm_head.") for name in backbone.luke_state_dict())
    model = build(backbone)
    assert_same_words(model, base)
    assert model.lm_head.decoder.weight is model.luke.embeddings.word_embeddings.weight
    assert model.lm_head.dense.weight.std().item() == pytest.approx(base.config.initializer_range, rel=0.1)
    assert not model.lm_head.bias.any() and not model.lm_head.dense.bias.any()


def test_pooler_is_taken_where_there_is_one(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    base = BertModel(
        BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    )
    base.save_pretrained(tmp_path)
    state = load_backbone(tmp_path).luke_state_dict()
    assert torch.equal(state["luke.pooler.dense.weight"], base.pooler.dense.weight)


def test_entity_side_is_left_to_the_model(base: tuple[PreTrainedModel, Path]) -> None:
    """As in the public code, whose entity position table starts random and not as the base's (measured on its checkpoint:
    correlation with the base's table under 0.01 at every shift, 0.99 for the word table)."""
    state = load_backbone(base[1]).luke_state_dict()
    assert not any("entity" in name for name in state)


def test_bert_positions_are_shifted_by_one_row(tmp_path: Path) -> None:
    base = make_base("bert", tmp_path)
    backbone = load_backbone(tmp_path)
    config = backbone.luke_config(ENTITIES, 16)
    table = backbone.luke_state_dict()["luke.embeddings.position_embeddings.weight"]
    assert config.pad_token_id == 0 and config.max_position_embeddings == MAX_POSITIONS + 1 == len(table)
    assert not table[0].any()
    assert torch.equal(table[1:], base.bert.embeddings.position_embeddings.weight)


def test_entity_aware_queries_start_as_copies(base: tuple[PreTrainedModel, Path]) -> None:
    backbone = load_backbone(base[1])
    state = backbone.luke_state_dict(use_entity_aware_attention=True)
    for query in ("w2e_query", "e2w_query", "e2e_query"):
        for kind in ("weight", "bias"):
            name = f"luke.encoder.layer.1.attention.self.{query}.{kind}"
            assert torch.equal(state[name], state[name.replace(query, "query")])
    model = LukeForPretraining(backbone.luke_config(ENTITIES, 16, use_entity_aware_attention=True))
    assert not model.load_state_dict(state, strict=False).unexpected_keys


def resave_as_bin(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def resave_as_bin_shards(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    names = sorted(state)
    shards = {"pytorch_model-1.bin": names[::2], "pytorch_model-2.bin": names[1::2]}
    for file, part in shards.items():
        torch.save({name: state[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


def resave_as_safetensors_shards(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    names = sorted(state)
    save_file({name: state[name] for name in names[:9]}, folder / "model-1.safetensors")
    save_file({name: state[name] for name in names[9:]}, folder / "model-2.safetensors")
    weight_map = {name: f"model-{1 if name in names[:9] else 2}.safetensors" for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


def resave_with_old_norm_names(folder: Path) -> None:
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    state = load_file(folder / "model.safetensors")
    for new_name, old_name in old.items():
        state = {name.replace(new_name, old_name): value for name, value in state.items()}
    save_file(state, folder / "model.safetensors")


@pytest.mark.parametrize(
    "resave", [resave_as_bin, resave_as_bin_shards, resave_as_safetensors_shards, resave_with_old_norm_names]
)
def test_every_form_of_weight_files(resave: Callable[[Path], None], tmp_path: Path) -> None:
    base = make_base("bert", tmp_path)
    expected = load_backbone(tmp_path).luke_state_dict()
    resave(tmp_path)
    state = load_backbone(tmp_path).luke_state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert_same_words(build(load_backbone(tmp_path)), base)


def test_half_precision_weights_become_single(tmp_path: Path) -> None:
    make_base("roberta", tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    save_file({name: value.half() for name, value in state.items()}, tmp_path / "model.safetensors")
    assert {value.dtype for value in load_backbone(tmp_path).luke_state_dict().values()} == {torch.float32}


def test_untied_head_is_not_taken(tmp_path: Path) -> None:
    """LUKE's decoder is the word embedding; a head trained for another decoder would only mislead."""
    make_base("roberta", tmp_path, tie_word_embeddings=False)
    assert "lm_head.decoder.weight" in load_file(tmp_path / "model.safetensors")
    assert not load_backbone(tmp_path).has_mlm_head


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def drop(folder: Path, ending: str) -> None:
    state = load_file(folder / "model.safetensors")
    save_file({name: value for name, value in state.items() if not name.endswith(ending)}, folder / "model.safetensors")


class Dangerous:
    """What unpickling must not build."""


BAD_BASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "config is not JSON": (lambda f: (f / "config.json").write_text("{"), "config.json: not a configuration"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "config.json: not a configuration"),
    "other family": (
        lambda f: edit_config(f, model_type="gpt2"),
        "'gpt2', but LUKE can be put on bert, roberta,",
    ),
    "wrong type": (lambda f: edit_config(f, hidden_size="wide"), "config.json: not a configuration"),
    "relative positions": (lambda f: edit_config(f, position_embedding_type="relative_key"), "needs absolute positions"),
    "no padding token": (lambda f: edit_config(f, pad_token_id=None), "has no pad_token_id"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
    "truncated weights": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-50]),
        "not a whole safetensors file",
    ),
    "a layer is missing": (
        lambda f: drop(f, "layer.1.output.dense.weight"),
        "lack roberta.encoder.layer.1.output.dense",
    ),
    "no encoder": (lambda f: drop(f, "word_embeddings.weight"), "this is not an encoder"),
    "half a head": (lambda f: drop(f, "lm_head.layer_norm.bias"), "lack lm_head.layer_norm.bias"),
    "other sizes": (
        lambda f: edit_config(f, max_position_embeddings=41),
        "position_embeddings.weight has the shape (40, 32), but config.json says (41, 32)",
    ),
    "shard is missing": (
        lambda f: (resave_as_bin_shards(f), (f / "pytorch_model-2.bin").unlink()),
        "pytorch_model-2.bin, which pytorch_model.bin.index.json names, is missing",
    ),
    "index without map": (
        lambda f: (resave_as_bin_shards(f), (f / "pytorch_model.bin.index.json").write_text("{}")),
        "not an index of weight files",
    ),
    "code in the pickle": (
        lambda f: (resave_as_bin(f), torch.save({"weight": Dangerous()}, f / "pytorch_model.bin")),
        "not unpickled",
    ),
    "not a torch file": (lambda f: (resave_as_bin(f), (f / "pytorch_model.bin").write_bytes(b"")), "pytorch_model.bin: "),
    "no names": (lambda f: (resave_as_bin(f), torch.save([1], f / "pytorch_model.bin")), "holds a list, not named tensors"),
}


@pytest.mark.parametrize("case", BAD_BASES)
def test_bad_base_is_named_in_one_line(case: str, tmp_path: Path) -> None:
    make_base("roberta", tmp_path)
    spoil, message = BAD_BASES[case]
    spoil(tmp_path)
    with pytest.raises(UserError) as raised:
        load_backbone(tmp_path).luke_state_dict()
    assert message in str(raised.value)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("name", ["no-such-folder", "no/such", "./no/such/folder", "/no/such/folder", "a b"])
def test_missing_base(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="no such folder here, and no such model"):
        load_backbone(name)


def test_file_in_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "base").write_text("")
    with pytest.raises(UserError, match="a file, not the folder"):
        load_backbone(tmp_path / "base")
