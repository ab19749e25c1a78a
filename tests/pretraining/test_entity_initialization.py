from pathlib import Path

import torch

from luke.backbones import load_backbone
from luke.model import LukeForPretraining
from luke.pretraining.entity_initialization import start_entities_from_words
from luke.tokenization import LinkedTextTokenizer, load_tokenizer

from ..tiny_bases import make_base

TITLES = ["[PAD]", "[UNK]", "[MASK]", "Tokyo", "Athens (city)", "Athens"]


def started(folder: Path, size: int) -> tuple[LukeForPretraining, LinkedTextTokenizer]:
    make_base("bert", folder)
    backbone = load_backbone(folder)
    model = LukeForPretraining(backbone.luke_config(len(TITLES), size))
    model.load_state_dict(backbone.luke_state_dict(), strict=False)
    model.tie_weights()
    tokenizer = load_tokenizer(folder)
    start_entities_from_words(model, TITLES, tokenizer)
    return model, tokenizer


def test_rows_are_the_mean_of_their_titles_words(tmp_path: Path) -> None:
    model, tokenizer = started(tmp_path, 32)  # the base's hidden size: nothing is projected
    table = model.luke.embeddings.word_embeddings.weight
    rows = model.luke.entity_embeddings.entity_embeddings.weight
    for entity, text in ((3, "Tokyo"), (4, "Athens"), (5, "Athens")):
        torch.testing.assert_close(rows[entity], table[tokenizer.tokenize(text)[0]].mean(0))
    torch.testing.assert_close(rows[2], table[tokenizer.mask_id])
    assert rows[0].abs().sum() == 0, "the padding row stays zero"


def test_a_smaller_table_keeps_the_words_principal_directions(tmp_path: Path) -> None:
    model, tokenizer = started(tmp_path, 16)
    entities, table = model.luke.entity_embeddings, model.luke.embeddings.word_embeddings.weight
    assert entities.entity_embedding_dense is not None
    directions = entities.entity_embedding_dense.weight
    torch.testing.assert_close(directions.T @ directions, torch.eye(16), atol=1e-5, rtol=0)
    wanted = table[tokenizer.tokenize("Tokyo")[0]].mean(0)
    torch.testing.assert_close(entities.entity_embeddings.weight[3], wanted @ directions)


def test_an_entity_is_embedded_like_the_word_at_its_position(tmp_path: Path) -> None:
    """The entity [MASK] with one position is exactly the base's mask token there."""
    model, tokenizer = started(tmp_path, 32)
    model.eval()
    position = torch.tensor([5])
    word = model.luke.embeddings(torch.tensor([tokenizer.mask_id]), position)
    entity = model.luke.entity_embeddings(torch.tensor([2]), position, torch.tensor([0, 1]))
    torch.testing.assert_close(entity, word)
