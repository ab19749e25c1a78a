"""Exported folders: the public code's conversion bit for bit, and what transformers alone computes from them."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, LukeForMaskedLM, XLMRobertaTokenizer

from luke import cli
from luke.artifacts import read_metadata
from luke.backbones import load_backbone
from luke.errors import UserError
from luke.export import Checkpoint, convert_checkpoint, export_huggingface_model
from luke.model import LukeForPretraining, pack_padded, unpack_hidden
from luke.pretraining.checkpoint import CheckpointWriter, checkpoint_folder
from tests.tiny_bases import FAMILIES, make_base, padded_words

GOLDEN = Path(__file__).parent / "golden"
PUBLIC = GOLDEN / "convert"
TINY_TOKENIZER = str(PUBLIC / "tiny-roberta")
SPECIAL = ["[PAD]", "[UNK]", "[MASK]"]
TITLES = ["Tokyo", "東京", "Athens", "Stagira", "None:Trap"]
# The masked-word decoder, which transformers 4 tied and 5 does not.
WRITTEN_OUT = {"lm_head.decoder.weight", "lm_head.decoder.bias"}

# Loads folders with transformers alone, in a process that never sees this project.
FRESH = """
import json, sys
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, LukeForMaskedLM, LukeModel

report = {}
for folder, text, title, start, end in json.loads(sys.argv[1]):
    inputs = load_file(folder + ".inputs")
    auto = AutoModel.from_pretrained(folder)
    base, base_info = LukeModel.from_pretrained(folder, output_loading_info=True)
    masked, masked_info = LukeForMaskedLM.from_pretrained(folder, output_loading_info=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        words = {k: v for k, v in inputs.items() if not k.startswith("entity")}
        both, heads, alone = base.eval()(**inputs), masked.eval()(**inputs), auto.eval()(**words)
    outputs = {
        "words_alone": alone.last_hidden_state,
        "words": both.last_hidden_state,
        "entities": both.entity_last_hidden_state,
        "logits": heads.logits,
        "entity_logits": heads.entity_logits,
    }
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder + ".outputs")
    entry = report[folder] = {"auto": type(auto).__name__, "tokenizer": type(tokenizer).__name__}
    for name, info in (("base", base_info), ("masked", masked_info)):
        entry[name] = {key: sorted(map(str, info[key])) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    entry["plain"] = tokenizer(text)["input_ids"]
    entry["markers"] = tokenizer.convert_tokens_to_ids(["<ent>", "<ent2>"])
    if entry["tokenizer"] in ("LukeTokenizer", "MLukeTokenizer"):
        entry["encoded"] = dict(tokenizer(text, entities=[title], entity_spans=[(start, end)]))
        pair = AutoTokenizer.from_pretrained(folder, task="entity_pair_classification")
        entry["pair"] = dict(pair(text, entity_spans=[(0, 5), (start, end)]))
assert "luke" not in sys.modules
print(json.dumps(report))
"""


def write_vocabulary(path: Path, titles: list[str], language: str | None = None) -> Path:
    names = [[title, None] for title in SPECIAL] + [[title, language] for title in titles]
    lines = [json.dumps({"id": i, "entities": [name], "count": 0}) for i, name in enumerate(names)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@dataclass
class Exported:
    """A base on which a random LUKE was put, its checkpoint, its export, and what both compute on the same input."""

    family: str
    base_words: Tensor
    mask: Tensor
    ours: dict[str, Tensor]
    folder: Path
    base_folder: Path
    report: dict[str, Any]
    outputs: dict[str, Tensor]


def make_checkpoint(family: str, root: Path, entity_aware: bool = False) -> tuple[Path, LukeForPretraining, Any]:
    """A checkpoint folder as `luke pretrain` leaves it."""
    base = make_base(family, root / "base")
    backbone = load_backbone(root / "base")
    config = backbone.luke_config(len(SPECIAL) + len(TITLES), 16, use_entity_aware_attention=entity_aware)
    torch.manual_seed(1)
    model = LukeForPretraining(config, cls_entity_prediction=True).eval()
    model.load_state_dict(backbone.luke_state_dict(entity_aware), strict=False)
    torch.nn.init.normal_(model.entity_predictions.bias)
    shutil.copytree(root / "base", root / "tokenizer", ignore=shutil.ignore_patterns("model*", "config.json"))
    vocabulary = write_vocabulary(root / "entity_vocab.jsonl", TITLES, "ja" if family == "xlm-roberta" else "en")
    state = {name: value.detach() for name, value in model.state_dict().items() if not name.endswith("s.decoder.weight")}
    state = {name: value for name, value in state.items() if name != "lm_head.decoder.weight"}
    folder = checkpoint_folder(root, 12)
    writer = CheckpointWriter(folder, config.to_dict(), [root / "tokenizer", vocabulary])
    writer.write(state, {"step": torch.ones(1)}, {"options": {}, "inputs": {}}, step=12)
    return folder, model, base


@torch.no_grad()
def run_ours(model: LukeForPretraining, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    names = ("input_ids", "attention_mask", "entity_ids", "entity_attention_mask", "entity_position_ids")
    batch = pack_padded(*(inputs[name] for name in names))
    words, entities = unpack_hidden(model.luke(batch), batch)
    return {
        "words": words,
        "entities": entities,
        "logits": model.lm_head(words),
        "entity_logits": model.entity_predictions(entities),
    }


def run_command(*arguments: str | Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["luke", "convert-luke-to-huggingface-model", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


def run_fresh(cases: list[tuple[str, str, str, int, int]]) -> dict[str, Any]:
    """What transformers alone makes of exported folders, whose inputs lie beside them."""
    environment = {"HF_HUB_OFFLINE": "1", "PATH": ""}
    result = subprocess.run(
        [sys.executable, "-I", "-c", FRESH, json.dumps(cases)], capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return report


def entity_inputs(vocab_size: int) -> dict[str, Tensor]:
    """Entities (3, 2) for `padded_words`: one of two words, one without a position, one pad."""
    positions = torch.full((3, 2, 4), -1)
    positions[0, 0, :2] = torch.tensor([2, 3])
    positions[1, 0, :1], positions[2, 0, :1] = 1, 0
    return {
        "entity_ids": torch.tensor([[3, 2], [4, 0], [vocab_size - 1, 0]]),
        "entity_attention_mask": torch.tensor([[1, 1], [1, 0], [1, 0]]),
        "entity_position_ids": positions,
    }


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The public code's checkpoint, converted whole and lite, with the golden inputs beside it."""
    root = tmp_path_factory.mktemp("public")
    for name in ("hf_tiny", "hf_tiny_lite"):
        convert_checkpoint(PUBLIC, root / name, tokenizer=TINY_TOKENIZER, remove_entity_embeddings=name.endswith("lite"))
    golden = load_file(PUBLIC / "batch_and_outputs.safetensors")
    names = {"input_ids": "word_ids", "attention_mask": "word_attention_mask"}
    names |= {name: name for name in ("entity_ids", "entity_attention_mask", "entity_position_ids")}
    save_file({ours: golden[theirs] for ours, theirs in names.items()}, f"{root / 'hf_tiny'}.inputs")
    return {name: root / name for name in ("hf_tiny", "hf_tiny_lite")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ...]]:
    """The three families, and one trained with entity-aware attention: backbone, checkpoint, command."""
    parts: dict[str, tuple[Any, ...]] = {}
    for case in (*FAMILIES, "entity-aware"):
        family = "roberta" if case == "entity-aware" else case
        root = tmp_path_factory.mktemp(case)
        checkpoint, model, base = make_checkpoint(family, root, entity_aware=case == "entity-aware")
        if case == "entity-aware":
            for layer in model.luke.encoder.layer:
                torch.nn.init.normal_(layer.attention.self.w2e_query.weight, std=0.3)
            rewrite_weights(checkpoint, model)
        folder = root / "exported"
        with pytest.MonkeyPatch.context() as monkeypatch:
            assert run_command(checkpoint, folder, monkeypatch=monkeypatch) == 0
        word_ids, mask = padded_words(base)
        inputs = {"input_ids": word_ids, "attention_mask": mask, **entity_inputs(len(SPECIAL) + len(TITLES))}
        save_file(inputs, f"{folder}.inputs")
        with torch.no_grad():
            base_words = base.base_model(word_ids, attention_mask=mask).last_hidden_state
        parts[case] = (family, base_words, mask, run_ours(model, inputs), folder, root / "base")
    return parts


@pytest.fixture(scope="module")
def report(made: dict[str, tuple[Any, ...]], converted: dict[str, Path]) -> dict[str, Any]:
    """What a fresh process makes of all folders."""
    cases = [(str(converted["hf_tiny"]), "The Soviet Union", "Soviet Union", 4, 16)]
    for family, *_, folder, _ in made.values():
        if family == "xlm-roberta":
            cases.append((str(folder), "Tokyo is 東京", "ja:東京", 9, 11))
        else:
            cases.append((str(folder), "Tokyo in Athens", "Athens", 9, 15))
    return run_fresh(cases)


@pytest.fixture(scope="module")
def exported(made: dict[str, tuple[Any, ...]], report: dict[str, Any]) -> dict[str, Exported]:
    """The folders of `made` with what transformers alone computes from them."""
    return {case: Exported(*parts, report[str(parts[4])], load_file(f"{parts[4]}.outputs")) for case, parts in made.items()}


def rewrite_weights(checkpoint: Path, model: LukeForPretraining) -> None:
    """Writes other weights into a checkpoint, checksums and all."""
    config = json.loads((checkpoint / "config.json").read_text())
    companions = [path for path in checkpoint.iterdir() if path.name in ("tokenizer", "entity_vocab.jsonl")]
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}  # decoders repeated
    kept = checkpoint.parent / "companions"
    kept.mkdir()
    for path in companions:
        shutil.move(path, kept / path.name)
    writer = CheckpointWriter(checkpoint, config, list(kept.iterdir()))
    writer.write(state, {"step": torch.ones(1)}, {"options": {}, "inputs": {}}, step=12)


CASES = pytest.mark.parametrize("case", [*FAMILIES, "entity-aware"])


@CASES
def test_transformers_loads_every_parameter(exported: dict[str, Exported], case: str) -> None:
    report = exported[case].report
    assert report["auto"] == "LukeModel"
    for loaded, rest in (("masked", ()), ("base", ("lm_head.", "entity_predictions."))):
        assert report[loaded]["missing_keys"] == [] and report[loaded]["mismatched_keys"] == []
        left = [name for name in report[loaded]["unexpected_keys"] if not name.startswith(rest)]
        # Queries that plain attention does not use: they are there for those who switch entity-aware attention on.
        assert all("2w_query" in name or "2e_query" in name for name in left)
        assert len(left) == (0 if case == "entity-aware" else 12)


@CASES
@torch.no_grad()
def test_transformers_computes_what_our_model_computes(exported: dict[str, Exported], case: str) -> None:
    one = exported[case]
    real = {"words": one.mask.bool(), "entities": torch.tensor([[1, 1], [1, 0], [1, 0]]).bool()}
    for name, of in (("words", "words"), ("entities", "entities"), ("logits", "words"), ("entity_logits", "entities")):
        ours, theirs = one.ours[name], one.outputs[name]
        theirs = theirs[..., : ours.size(-1)]  # the added tokens and entity have logits of their own
        assert (ours - theirs)[real[of]].abs().max() < 1e-5 * max(1.0, float(ours.abs().max())), name


@pytest.mark.parametrize("family", FAMILIES)
def test_word_hidden_states_are_the_bases(exported: dict[str, Exported], family: str) -> None:
    one = exported[family]
    assert (one.outputs["words_alone"] - one.base_words)[one.mask.bool()].abs().max() < 1e-5


@CASES
def test_tokenizer(exported: dict[str, Exported], case: str) -> None:
    one = exported[case]
    base = AutoTokenizer.from_pretrained(one.base_folder)
    expected = {"bert": "BertTokenizer", "roberta": "LukeTokenizer", "xlm-roberta": "MLukeTokenizer"}[one.family]
    assert one.report["tokenizer"] == expected
    text = "Tokyo is 東京" if one.family == "xlm-roberta" else "Tokyo in Athens"
    assert one.report["plain"] == base(text)["input_ids"]
    first, second = one.report["markers"]
    assert (first, second) == (len(base), len(base) + 1)
    config = json.loads((one.folder / "config.json").read_text())
    assert config["vocab_size"] == len(base) + 2
    if one.family == "bert":
        return
    encoded = one.report["encoded"]
    assert encoded["entity_ids"] == [len(SPECIAL) + TITLES.index("東京" if one.family == "xlm-roberta" else "Athens")]
    positions = [p for p in encoded["entity_position_ids"][0] if p != -1]
    mention = base.decode([encoded["input_ids"][p] for p in positions]).strip()
    assert mention == ("東京" if one.family == "xlm-roberta" else "Athens")
    pair = one.report["pair"]
    assert pair["input_ids"].count(first) == 2 and pair["input_ids"].count(second) == 2
    assert pair["entity_ids"] == [2, len(SPECIAL) + len(TITLES)]  # [MASK], [MASK2]


def test_ids_of_any_text_from_the_exported_multilingual_folder(exported: dict[str, Exported]) -> None:
    """transformers' MLukeTokenizer reads the file without its normalizer and unknown token: it keeps runs of spaces, and
    without entities turns an unknown word into ``<s>``. The file itself is the base's; its own class reads it exactly."""
    one = exported["xlm-roberta"]
    base = AutoTokenizer.from_pretrained(one.base_folder)
    text = "Tokyo  is\t東京 ☃ <mask>."
    expected = base(text)["input_ids"]
    assert base.unk_token_id in expected and base.mask_token_id in expected
    assert XLMRobertaTokenizer.from_pretrained(one.folder)(text)["input_ids"] == expected
    text = "Tokyo is☃<mask>."
    with_entities = AutoTokenizer.from_pretrained(one.folder)(text, entity_spans=[(0, 5)])
    assert with_entities["input_ids"] == base(text)["input_ids"]


@pytest.mark.parametrize("family", FAMILIES)
def test_added_rows_come_from_the_tokens_they_stand_for(exported: dict[str, Exported], family: str) -> None:
    one = exported[family]
    base = AutoTokenizer.from_pretrained(one.base_folder)
    tensors = load_file(one.folder / "model.safetensors")
    sources = base.convert_tokens_to_ids(["@", "#"])
    assert base.unk_token_id not in sources
    for name in ("luke.embeddings.word_embeddings.weight", "lm_head.bias", "lm_head.decoder.weight", "lm_head.decoder.bias"):
        assert torch.equal(tensors[name][-2:], tensors[name][sources]), name
    entities = tensors["luke.entity_embeddings.entity_embeddings.weight"]
    assert torch.equal(entities[-1], entities[2])


def test_entity_keys(exported: dict[str, Exported]) -> None:
    for case, one in exported.items():
        vocabulary = json.loads((one.folder / "entity_vocab.json").read_text(encoding="utf-8"))
        prefix = "ja:" if case == "xlm-roberta" else ""
        titles = [*SPECIAL, *(prefix + title for title in TITLES), "[MASK2]"]
        assert vocabulary == {title: i for i, title in enumerate(titles)}


def test_trained_queries_are_kept(exported: dict[str, Exported]) -> None:
    tensors = load_file(exported["entity-aware"].folder / "model.safetensors")
    prefix = "luke.encoder.layer.0.attention.self."
    assert not torch.equal(tensors[prefix + "w2e_query.weight"], tensors[prefix + "query.weight"])
    config = json.loads((exported["entity-aware"].folder / "config.json").read_text())
    assert config["use_entity_aware_attention"] is True


def test_copied_queries_give_the_same_with_entity_aware_attention(exported: dict[str, Exported]) -> None:
    one = exported["roberta"]
    model = LukeForMaskedLM.from_pretrained(one.folder, use_entity_aware_attention=True).eval()
    with torch.no_grad():
        output = model.luke(**load_file(f"{one.folder}.inputs"))
    assert (output.last_hidden_state - one.outputs["words"])[one.mask.bool()].abs().max() < 1e-5


def test_weights_are_as_readable_as_the_rest(exported: dict[str, Exported]) -> None:
    folder = exported["bert"].folder
    assert (folder / "model.safetensors").stat().st_mode == (folder / "config.json").stat().st_mode


# -- the public code's conversion ---------------------------------------------------------------------------------------


def read_vocabulary(folder: Path) -> dict[str, int]:
    vocabulary: dict[str, int] = json.loads((folder / "entity_vocab.json").read_text(encoding="utf-8"))
    return vocabulary


def test_conversion_equals_the_public_codes_bit_for_bit(converted: dict[str, Path]) -> None:
    ours = load_file(converted["hf_tiny"] / "model.safetensors")
    theirs = load_file(PUBLIC / "hf_tiny" / "model.safetensors")
    assert ours.keys() - theirs.keys() == WRITTEN_OUT and not theirs.keys() - ours.keys()
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    assert torch.equal(ours["lm_head.decoder.weight"], ours["luke.embeddings.word_embeddings.weight"])
    assert torch.equal(ours["lm_head.decoder.bias"], ours["lm_head.bias"])


def test_lite_conversion_equals_the_public_codes_but_for_the_order_of_rows(converted: dict[str, Path]) -> None:
    """The public code leaves the ids of the special tokens to hash order ([MASK] is 0 there, the padding row of the
    model); here they are those of every vocabulary."""
    ours = load_file(converted["hf_tiny_lite"] / "model.safetensors")
    theirs = load_file(PUBLIC / "hf_tiny_lite" / "model.safetensors")
    vocabulary, their_vocabulary = read_vocabulary(converted["hf_tiny_lite"]), read_vocabulary(PUBLIC / "hf_tiny_lite")
    assert vocabulary == {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "[MASK2]": 3}
    order = torch.tensor([their_vocabulary[token] for token in vocabulary])
    for name, value in theirs.items():
        by_entity = name in ("luke.entity_embeddings.entity_embeddings.weight", "entity_predictions.bias")
        assert torch.equal(ours[name], value[order] if by_entity else value), name


def test_entity_keys_have_no_none_in_front(converted: dict[str, Path]) -> None:
    """The public code writes ``None:Aristotle`` for a vocabulary without a language, which no tokenizer finds."""
    theirs = read_vocabulary(PUBLIC / "hf_tiny")
    assert read_vocabulary(converted["hf_tiny"]) == {key.removeprefix("None:"): i for key, i in theirs.items()}


@pytest.mark.parametrize("name", ["hf_tiny", "hf_tiny_lite"])
def test_configuration_equals_the_public_codes(converted: dict[str, Path], name: str) -> None:
    ours = json.loads((converted[name] / "config.json").read_text())
    theirs = json.loads((PUBLIC / name / "config.json").read_text())
    # Of the run or of older versions of transformers; dtype was called torch_dtype.
    not_meant = {"_name_or_path", "bert_model_name", "cls_entity_prediction", "position_embedding_type", "torch_dtype"}
    not_meant |= {"transformers_version", "use_cache"}
    assert {key: ours.get(key) for key in theirs.keys() - not_meant} == {
        key: value for key, value in theirs.items() if key not in not_meant
    }
    assert ours["dtype"] == "float32"


def test_converted_model_computes_what_the_public_code_computes(converted: dict[str, Path], report: dict[str, Any]) -> None:
    golden = load_file(PUBLIC / "batch_and_outputs.safetensors")
    folder = converted["hf_tiny"]
    outputs = load_file(f"{folder}.outputs")
    for kind, mask in (("word", "word_attention_mask"), ("entity", "entity_attention_mask")):
        theirs = outputs["words" if kind == "word" else "entities"]
        assert (theirs - golden[f"out.{kind}"])[golden[mask].bool()].abs().max() < 1e-5
    state = torch.load(PUBLIC / "mp_rank_00_model_states.pt", weights_only=True)["module"]
    tensors = load_file(folder / "model.safetensors")
    hidden = torch.nn.functional.gelu(
        torch.nn.functional.linear(outputs["words"], state["lm_head.dense.weight"], state["lm_head.dense.bias"])
    )
    hidden = torch.nn.functional.layer_norm(
        hidden, (32,), state["lm_head.layer_norm.weight"], state["lm_head.layer_norm.bias"], eps=1e-5
    )
    logits = torch.nn.functional.linear(hidden, tensors["luke.embeddings.word_embeddings.weight"], tensors["lm_head.bias"])
    assert torch.allclose(outputs["logits"], logits, atol=1e-5)
    assert report[str(folder)]["encoded"]["entity_ids"] == [3]


def test_public_checkpoint_on_a_bert_base(tmp_path: Path) -> None:
    """The public code converts RoBERTa bases only; its outputs on a BERT base are the reference."""
    weights = load_file(GOLDEN / "model" / "bert_emb16.weights.safetensors")
    torch.save({"module": weights}, tmp_path / "mp_rank_00_model_states.pt")
    config = json.loads((GOLDEN / "model" / "bert_emb16.config.json").read_text())
    metadata = {"model_config": config, "arguments": {"bert_model_name": "tiny-bert"}}
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    write_vocabulary(tmp_path / "entity_vocab.jsonl", [f"Title {i}" for i in range(47)])
    words = write_word_piece(tmp_path / "words", config["vocab_size"])
    convert_checkpoint(tmp_path, tmp_path / "out", tokenizer=str(words))

    model = LukeForMaskedLM.from_pretrained(tmp_path / "out").eval()
    inputs = load_file(GOLDEN / "model" / "bert_emb16.inputs.safetensors")
    expected = load_file(GOLDEN / "model" / "bert_emb16.outputs.safetensors")
    arguments = {
        "input_ids": inputs["word_ids"],
        "attention_mask": inputs["word_attention_mask"],
        "token_type_ids": inputs["word_segment_ids"],
        "entity_ids": inputs["entity_ids"],
        "entity_attention_mask": inputs["entity_attention_mask"],
        "entity_token_type_ids": inputs["entity_segment_ids"],
        "entity_position_ids": inputs["entity_position_ids"],
    }
    with torch.no_grad():
        hidden, heads = model.luke(**arguments), model(**arguments)
    for name, ours in (("word", hidden.last_hidden_state), ("entity", hidden.entity_last_hidden_state)):
        mask = inputs[f"{name}_attention_mask"].bool()
        assert (ours - expected[f"{name}_sequence_output"])[mask].abs().max() < 1e-5
    assert torch.allclose(hidden.pooler_output, expected["pooled_output"], atol=1e-5)
    for kind, logits, size in (("masked_lm", heads.logits, 100), ("masked_entity", heads.entity_logits, 50)):
        labels = inputs[f"{kind}_labels"]  # without the added tokens and entity
        loss = torch.nn.functional.cross_entropy(logits[..., :size].flatten(0, 1), labels.flatten(), ignore_index=-1)
        assert loss.item() == pytest.approx(expected[f"{kind}_loss"].item(), abs=1e-5)


def write_word_piece(folder: Path, size: int) -> Path:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "@", "#"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*tokens, *(f"word{i}" for i in range(size - len(tokens)))]))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return folder


def test_table_with_spare_rows(tmp_path: Path) -> None:
    """A table may have more rows than the tokenizer has tokens: the added tokens take the first spare ones."""
    make_base("bert", tmp_path / "base")
    backbone = load_backbone(tmp_path / "base")
    vocabulary = write_vocabulary(tmp_path / "entity_vocab.jsonl", TITLES)
    model = LukeForPretraining(backbone.luke_config(len(SPECIAL) + len(TITLES), 16))
    model.load_state_dict(backbone.luke_state_dict(), strict=False)
    words = write_word_piece(tmp_path / "words", 20)
    export_huggingface_model(
        Checkpoint(tmp_path, model.state_dict(), model.config, str(words), vocabulary), tmp_path / "out"
    )
    old = model.luke.embeddings.word_embeddings.weight
    new = load_file(tmp_path / "out" / "model.safetensors")["luke.embeddings.word_embeddings.weight"]
    assert len(new) == len(old) > 22
    assert torch.equal(new[20:22], old[5:7]) and torch.equal(new[:20], old[:20]) and torch.equal(new[22:], old[22:])
    assert AutoTokenizer.from_pretrained(tmp_path / "out").convert_tokens_to_ids(["<ent>", "<ent2>"]) == [20, 21]


# -- one command, run again and wrongly ---------------------------------------------------------------------------------


def test_same_command_again_does_nothing_and_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    options = ("--checkpoint-path", PUBLIC / "mp_rank_00_model_states.pt", "--transformers-model-save-path", out)
    options += ("--tokenizer", TINY_TOKENIZER, "--tokenizer-class", "LukeTokenizer")
    options += ("--set-entity-aware-attention-default=true",)
    assert run_command(*options, monkeypatch=monkeypatch) == 0
    assert json.loads((out / "config.json").read_text())["use_entity_aware_attention"] is True
    written = (out / "model.safetensors").stat().st_mtime_ns
    assert run_command(*options, monkeypatch=monkeypatch) == 0
    assert (out / "model.safetensors").stat().st_mtime_ns == written
    assert read_metadata(out, "huggingface-model")["counts"] == {"words": 2002, "entities": 5001}
    assert run_command(*options, "--remove-entity-embeddings", monkeypatch=monkeypatch) == 2
    assert (out / "model.safetensors").stat().st_mtime_ns == written


def test_newest_checkpoint_of_a_run(tmp_path: Path) -> None:
    checkpoint, _, _ = make_checkpoint("bert", tmp_path)
    torn = checkpoint.with_name("step00000013")
    shutil.copytree(checkpoint, torn)
    (torn / "entity_vocab.jsonl").unlink()
    convert_checkpoint(tmp_path, tmp_path / "out")
    assert read_metadata(tmp_path / "out", "huggingface-model")["inputs"]["weights"]["path"] == str(checkpoint)


def edit_json(path: Path, edit: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def edit_lines(path: Path, edit: Callable[[list[str]], object]) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    edit(lines)
    path.write_text("\n".join(lines), encoding="utf-8")


def save_public(folder: Path, **content: object) -> None:
    torch.save(content, folder / "mp_rank_00_model_states.pt")


def module_of(folder: Path) -> dict[str, Tensor]:
    module: dict[str, Tensor] = torch.load(folder / "mp_rank_00_model_states.pt", weights_only=True)["module"]
    return module


class Dangerous:
    """What unpickling must not build."""


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing there": (lambda f: shutil.rmtree(f), "no such checkpoint"),
    "no weights": (lambda f: (f / "mp_rank_00_model_states.pt").unlink(), "not a checkpoint"),
    "two parts": (
        lambda f: shutil.copy(f / "mp_rank_00_model_states.pt", f / "mp_rank_01_model_states.pt"),
        "not a checkpoint: neither model.safetensors",
    ),
    "code in the pickle": (lambda f: save_public(f, module=Dangerous()), "not unpickled"),
    "no model": (lambda f: save_public(f, optimizer={}), "holds no model"),
    "a parameter is missing": (
        lambda f: save_public(f, module={k: v for k, v in module_of(f).items() if "layer.1.output.dense" not in k}),
        "lack luke.encoder.layer.1.output.dense",
    ),
    "a parameter too many": (
        lambda f: save_public(f, module={**module_of(f), "adapter.weight": torch.ones(1)}),
        "luke.adapter.weight is not a parameter of LUKE",
    ),
    "no metadata": (lambda f: (f / "metadata.json").unlink(), "give --metadata-path"),
    "metadata of something else": (lambda f: (f / "metadata.json").write_text("{}"), "not the metadata of a checkpoint"),
    "other sizes": (
        lambda f: edit_json(f / "metadata.json", lambda m: m["model_config"].update(entity_emb_size=8)),
        "but the configuration says",
    ),
    "no vocabulary": (lambda f: (f / "entity_vocab.jsonl").unlink(), "give --entity-vocab-path"),
    "vocabulary is not JSON": (
        lambda f: edit_lines(f / "entity_vocab.jsonl", lambda x: x.insert(6, "?")),
        "line 7 is not an",
    ),
    "vocabulary of another model": (lambda f: edit_lines(f / "entity_vocab.jsonl", lambda x: x.pop()), "has 4999 entities"),
    "vocabulary with gaps": (lambda f: edit_lines(f / "entity_vocab.jsonl", lambda x: x.pop(9)), "the entity ids have gaps"),
    "vocabulary without special tokens": (
        lambda f: edit_lines(f / "entity_vocab.jsonl", lambda x: x.__setitem__(2, x[2].replace("[MASK]", "Mask"))),
        "no special token [MASK]",
    ),
    "tokenizer without merges": (lambda f: (f / "words" / "merges.txt").unlink(), "merges.txt is missing"),
    "empty tokenizer folder": (
        lambda f: (shutil.rmtree(f / "words"), (f / "words").mkdir()),
        "not the folder of a tokenizer",
    ),
    "no tokenizer folder": (lambda f: shutil.rmtree(f / "words"), "not a tokenizer that"),
    "damaged tokenizer": (
        lambda f: (f / "words" / "tokenizer.json").write_text("{"),
        "not a tokenizer that transformers loads",
    ),
    "bigger tokenizer": (
        lambda f: edit_json(f / "words" / "vocab.json", lambda v: v.update({"zzz": 2000})),
        "has 2001 tokens, but the model",
    ),
    "output is something else": (lambda f: (f / "out").mkdir() or (f / "out" / "x").touch(), "holds something else"),
    "output is a file": (lambda f: (f / "out").touch(), "exists and is not a folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder, out = tmp_path / "a" / "checkpoint", tmp_path / "a" / "checkpoint" / "out"
    folder.mkdir(parents=True)
    for name in ("mp_rank_00_model_states.pt", "metadata.json", "entity_vocab.jsonl"):
        shutil.copy(PUBLIC / name, folder / name)
    shutil.copytree(TINY_TOKENIZER, folder / "words")
    spoil, message = BAD[case]
    spoil(folder)
    before = sorted(folder.rglob("*"))
    assert run_command(folder, out, "--tokenizer", folder / "words", monkeypatch=monkeypatch) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("luke: error: ")]
    assert len(lines) == 1 and message in lines[0]
    assert sorted(folder.rglob("*")) == before


def test_full_disk(tmp_path: Path) -> None:
    """A tmpfs of 700 kB in a mount namespace of its own, where the system lets a user make one."""
    script = 'mount -t tmpfs -o size=700k tmpfs "$1" && "$2" -m luke.cli "${@:3}"; status=$?; ls "$1"; exit $status'
    command = ["convert-luke-to-huggingface-model", str(PUBLIC), str(tmp_path / "out"), "--tokenizer", TINY_TOKENIZER]
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "mount -t tmpfs tmpfs /mnt"], check=False).returncode:
        pytest.skip("no mount namespaces here")
    result = subprocess.run(
        [*unshare, script, "-", str(tmp_path), sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("luke: error: no space left on the disk")
    assert "Traceback" not in result.stderr and "out" not in result.stdout.split()


def test_damaged_checkpoint_of_ours(tmp_path: Path) -> None:
    checkpoint, _, _ = make_checkpoint("bert", tmp_path)
    with (checkpoint / "model.safetensors").open("r+b") as stream:
        stream.seek(-4, 2)
        stream.write(b"\x00\x00\x80\x3f")
    with pytest.raises(UserError, match="does not have its checksum"):
        convert_checkpoint(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tokenizer_class_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a tokenizer for MLukeTokenizer; LukeTokenizer fits"):
        convert_checkpoint(PUBLIC, tmp_path / "out", tokenizer=TINY_TOKENIZER, tokenizer_class="MLukeTokenizer")
    assert list(tmp_path.iterdir()) == []


def test_usage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(monkeypatch=monkeypatch) == 2
    assert "give CHECKPOINT or --checkpoint-path" in capsys.readouterr().err
    assert run_command("a", "b", "--checkpoint-path", "c", monkeypatch=monkeypatch) == 2
    assert "give CHECKPOINT or --checkpoint-path, not both" in capsys.readouterr().err


def test_several_languages_keep_their_titles_apart(tmp_path: Path) -> None:
    """``Paris`` of two languages are two keys of one entity or of two; a lone language needs no prefix."""
    names = [
        [["[PAD]", None]],
        [["[UNK]", None]],
        [["[MASK]", None]],
        [["Paris", "fr"], ["Paris", "en"]],
        [["Lutèce", "fr"]],
    ]
    lines = [json.dumps({"id": i, "entities": entry, "count": 1}) for i, entry in enumerate(names)]
    (tmp_path / "vocab.jsonl").write_text("\n".join(lines))
    base = make_base("roberta", tmp_path / "base")
    backbone = load_backbone(tmp_path / "base")
    model = LukeForPretraining(backbone.luke_config(5, 32))
    model.load_state_dict(backbone.luke_state_dict(), strict=False)
    source = Checkpoint(tmp_path, model.state_dict(), model.config, str(tmp_path / "base"), tmp_path / "vocab.jsonl")
    export_huggingface_model(source, tmp_path / "out")
    assert read_vocabulary(tmp_path / "out") == {
        "[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "fr:Paris": 3, "en:Paris": 3, "fr:Lutèce": 4, "[MASK2]": 5
    }  # fmt: skip
    # An entity embedding as wide as the hidden size needs no projection.
    assert "luke.entity_embeddings.entity_embedding_dense.weight" not in load_file(tmp_path / "out" / "model.safetensors")
    assert LukeForMaskedLM.from_pretrained(tmp_path / "out").config.hidden_size == base.config.hidden_size
