"""The walk of a recurrent translator: every number is the model's own, and its gradient is that of its loss."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from attnscope import AttnscopeError
from attnscope.capture.borrow import LoadedModel
from attnscope.read.windows import Window
from attnscope_lineage.recurrent_walk import Equations, walk_recurrent
from attnscope_lineage.steps import markdown
from tests.packages.lineage.models.small_lineage import RECURRENT, small

SOURCE, TARGET = [3, 4, 5, 6, 2], [7, 8, 9, 2]


class Names:
    """A tokenizer whose tokens have numbers for names."""

    all_special_ids = ()

    def decode(self, ids, **_):
        return "".join(f"w{one}" for one in ids)

    def convert_ids_to_tokens(self, ids):
        return [f"w{one}" for one in ids] if isinstance(ids, list) else f"w{ids}"


def window(ids):
    marks = (False,) * len(ids)
    return Window(tuple(ids), marks, ((0, 0),) * len(ids), "", 0, tuple(f"w{i}" for i in ids))


def followed(name, target=TARGET, **others):
    model = small(name, **others)
    loaded = LoadedModel(model, Names(), name, {})
    return model, walk_recurrent(loaded, window(SOURCE), target and window(target), None)


@pytest.mark.parametrize(("attention", "cell"), RECURRENT)
def test_the_product_of_the_factors_is_the_models_probability(attention, cell):
    model, walk = followed(f"{attention}-{cell}")
    assert max(walk.errors.values()) < 1e-5  # states, scores' weights, contexts, logits, loss
    with torch.no_grad():
        loss = model(torch.tensor([SOURCE]), labels=torch.tensor([TARGET])).loss
    assert_allclose(walk["cross_entropy"].sum(), len(TARGET) * float(loss), rtol=1e-5)
    assert ("alpha" in walk) == (attention != "none")
    if "alpha" in walk:
        assert_allclose(walk["context"], walk["alpha"] @ walk["h"], atol=1e-12)
        assert_allclose(walk["alpha"], np.exp(walk["e"]) / np.exp(walk["e"]).sum(1, keepdims=True), atol=1e-12)


@pytest.mark.parametrize("name", ["none-gru", "additive-lstm"])
def test_the_gradient_by_source_position_is_that_of_finite_differences(name):
    model, walk = followed(name, encoder_layers=2)
    equations = Equations(model)
    x = equations.of["embedding.weight"][SOURCE]

    def loss(x):
        h, c = equations.encode(x[None])
        log_p = equations.decode(h[0], c[0], [model.config.decoder_start_token_id, *TARGET[:-1]])["log_p"]
        return -float(log_p[range(len(TARGET)), TARGET].sum())

    for position in range(len(SOURCE)):
        moves = 1e-5 * torch.eye(x.shape[1], dtype=x.dtype)
        rows = torch.zeros(len(SOURCE), 1, dtype=x.dtype)
        rows[position] = 1
        slopes = [(loss(x + rows * move) - loss(x - rows * move)) / 2e-5 for move in moves]
        assert_allclose(np.linalg.norm(slopes), walk["gradient"][position], rtol=1e-5)


def test_without_a_target_both_run_alike():
    _, walk = followed("bilinear-gru", None)
    assert walk.tokens == walk.free
    assert walk.parting is None
    assert_allclose(walk["cross_entropy"], walk["free_cross_entropy"])
    text = markdown(walk, "ja")
    for term in ("教師強制", "文脈ベクトル", "自己回帰", "交差エントロピー"):
        assert term in text
    assert "固定長ベクトルのボトルネック" in markdown(followed("none-lstm")[1], "ja")


def test_the_step_where_target_and_own_translation_part_is_the_first_different_token():
    own = [int(name[1:]) for name in followed("additive-gru", None)[1].free]
    other = [*own[:2], *(token % 17 + 3 for token in own[2:4])]
    assert followed("additive-gru", other)[1].parting == 2


def test_other_numbers_are_an_error():
    model = small("additive-gru")
    model.decoder.readout.register_forward_hook(lambda *of: of[2] + 0.1)
    with pytest.raises(AttnscopeError, match="the steps and the model differ in log_p"):
        walk_recurrent(LoadedModel(model, Names(), "", {}), window(SOURCE), window(TARGET), None)
