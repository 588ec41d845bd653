"""An alignment as it is learned: the maps of a training's checkpoints."""

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import attnscope
from attnscope_lineage import alignment_in_training, train
from attnscope_lineage.links import Forcing

PAIR = "monday march twenty one", "21 III Mo"
SMALL = {
    "model": "recurrent", "attention": "additive", "embedding_width": 8, "encoder_width": 8, "decoder_width": 16,
    "task_pairs": 100, "task_longest": 4, "vocabulary": 330, "batch_tokens": 300, "updates": 6, "validate_every": 2,
    "average": 1, "keep": 3, "threads": 1, "metric": "loss",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    train(out=out, **SMALL)
    return out


def test_a_map_of_each_checkpoint(folder, tmp_path):
    """Three maps that differ; the last one has the weights of the model with the last checkpoint's parameters."""
    from attnscope.capture.load import load_model

    figure = alignment_in_training(folder, *PAIR, tmp_path / "strip.svg")
    maps = {axes.get_title(): np.asarray(axes.get_images()[0].get_array()) for axes in figure.axes if axes.get_title()}
    assert list(maps) == ["Update 2", "Update 4", "Update 6"]
    assert not np.allclose(maps["Update 2"], maps["Update 6"], atol=1e-4)
    loaded = load_model(folder)
    loaded.model.load_state_dict(load_file(folder / "checkpoints" / "00000006" / "model.safetensors"), strict=False)
    (pair,) = Forcing(loaded.model, loaded.tokenizer, *([text] for text in PAIR)).pairs(range(1))
    np.testing.assert_allclose(maps["Update 6"], pair.words(None, None))
    assert (tmp_path / "strip.svg").is_file()


def test_a_damaged_checkpoint_is_named(folder):
    """A checkpoint with other weights than were written is an error."""
    file = folder / "checkpoints" / "00000004" / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file)
    with pytest.raises(attnscope.AttnscopeError, match="00000004"):
        alignment_in_training(folder, *PAIR)
