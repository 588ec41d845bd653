"""Names, what is built from them, and that it is always the same."""

from pathlib import Path

import pytest
import torch

from attnscope import AttnscopeError, scan
from attnscope_zoo.architectures import ARCHITECTURES
from attnscope_zoo.catalogue import CIRCUITS, build, names


def test_there_are_planted_models_of_every_form_and_architecture():
    every = names()
    assert len(set(every)) == len(every) >= 50
    some = [build(name) for name in every if name.startswith("relay")]
    assert {(one.form, one.architecture) for one in some} == {
        (form, architecture) for form, architectures in ARCHITECTURES.items() for architecture in architectures
    }


def test_every_kind_is_described():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "planted-models.md").read_text(encoding="utf-8")
    assert [kind for kind in CIRCUITS if f"| `{kind}`" not in page and f", `{kind}`" not in page] == []


def test_a_planted_model_is_the_same_at_every_build_and_leaves_random_numbers_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, other = build("gate-encoder-2"), build("gate-encoder-2")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.ids, other.ids)
    assert build("gate-encoder-4").seed != one.seed
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)


@pytest.mark.parametrize("name", ["induction", "induction-decoder-0", "next-encoder-x"])
def test_an_unknown_name_is_rejected(name):
    with pytest.raises(AttnscopeError, match="no planted model"):
        build(name)


@pytest.mark.parametrize("name", ["previous-decoder-1", "previous-encoder-1"])
def test_scan_names_the_planted_head(name):
    planted = build(name)
    found = scan(planted.model, planted.ids, tokenizer=planted.tokenizer, window=planted.ids.shape[1])
    ((layer, head),) = planted.heads.nonzero().tolist()
    labels = found.attrs["labels"], found.profile.mean("window").sel(layer=layer, head=head)
    assert int(labels[1].idxmax("offset")) == -1
    assert float(labels[1].sel(offset=-1)) > 0.8
