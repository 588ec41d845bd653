"""Names of kinds, from profiles that are given."""

import numpy as np
import pytest
import torch
import xarray as xr

from attnscope.kernels.call import call_of_weights
from attnscope.measure.geometry import Grid
from attnscope.measure.images import measure_patches, summarize_images

SIDE = 6


def scan_of(weights, images=3, side=SIDE):
    """A scan in which every image has these weights, (head, query, key)."""
    grid = Grid(side, side, 1, side * side + 1, 0)
    uniform = torch.full((1, *weights.shape[1:]), 1 / weights.shape[-1], dtype=torch.float64)
    found = [measure_patches(call_of_weights(one[None]), grid, 2) for one in (weights, uniform)]
    entropy = [torch.special.entr(one).sum(-1).mean(-1) for one in (weights, uniform)]
    beside = ("row_offset", "column_offset")
    variables = {}
    for prefix, own, value in zip(("", "equal_"), found, entropy, strict=True):
        own["entropy"] = value[None]
        for name, array in own.items():
            dims = ("window", "layer", *(() if prefix else ("head",)), *(beside if array.ndim == 4 else ()))
            if not (prefix and name.endswith("mean")):
                one = array.numpy()[:, 0] if prefix else array.numpy()
                variables[prefix + name] = (dims, np.repeat(one[:, None], images, 0))
    sizes = dict.fromkeys(("rows", "columns"), ("window", [side] * images))
    return xr.Dataset(variables | sizes, dict.fromkeys(beside, np.arange(-2, 3)))


def weights_by(score, side=SIDE):
    """Weights of patches by a score of (rows down, columns right) and of the class token."""
    place = torch.arange(side * side)
    down = place[None] // side - place[:, None] // side
    right = place[None] % side - place[:, None] % side
    inner, on_class = score(down, right)
    whole = torch.full((side * side + 1,) * 2, 1.0, dtype=torch.float64)
    whole[1:, 1:], whole[1:, 0] = inner, on_class
    return whole / whole.sum(-1, keepdim=True)


SCORES = {
    "self": lambda down, right: (((down == 0) & (right == 0)) * 50.0 + 0.1, 0.1),
    "right": lambda down, right: (((down == 0) & (right == 1)) * 50.0 + 0.1, 0.1),
    "2 up": lambda down, right: (((down == -2) & (right == 0)) * 50.0 + 0.1, 0.1),
    "class token": lambda down, right: (down * 0 + 1.0, 40.0),
    "same row": lambda down, right: ((down == 0) * 50.0 + 0.1, 0.1),
    "same column": lambda down, right: ((right == 0) * 50.0 + 0.1, 0.1),
    "local": lambda down, right: (((down.abs() <= 1) & (right.abs() <= 1)) * 50.0 + 0.1, 0.1),
    "within 2": lambda down, right: ((down.abs().maximum(right.abs()) == 2) * 50.0 + 0.1, 0.1),
    "uniform": lambda down, right: (down * 0 + 1.0, 1.0),
}


def test_each_kind_is_found_where_it_was_put():
    found = summarize_images(scan_of(torch.stack([weights_by(score) for score in SCORES.values()])))
    names = found.cluster.values[found.label_share.argmax("cluster").values[0]]
    assert names.tolist() == list(SCORES)
    assert (found.majority_share == 1).all()


def test_random_weights_have_no_names():
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(32, SIDE * SIDE + 1, SIDE * SIDE + 1, generator=generator, dtype=torch.float64) ** 4
    found = summarize_images(scan_of(weights / weights.sum(-1, keepdim=True), images=1))
    assert found.labels.startswith("No head labels beyond chance")


def test_a_head_without_patches_has_no_label():
    results = scan_of(torch.stack([weights_by(SCORES["self"])] * 2))
    for name in ("patch_profile", "same_row", "same_column", "class_token", "registers"):
        results[name][:, :, 1] = np.nan
    found = summarize_images(results)
    assert found.label.values[:, 0].tolist() == [[0, -1]] * 3
    assert np.isnan(found.majority_share.values[0, 1])


@pytest.mark.parametrize(("images", "kind"), [(1, "mixed"), (10, "class token")])
def test_what_few_rows_show_by_chance_is_no_name(images, kind):
    """9 patches whose weight on the class token is 0.45 may do so by chance; 90 may not."""
    weights = weights_by(lambda down, right: (down * 0 + 1.0, 9 * 0.45 / 0.55), side=3)
    found = summarize_images(scan_of(weights[None], images, side=3))
    assert found.cluster.values.tolist() == [kind]


def test_what_equal_weights_nearly_give_is_no_name():
    """Of 3 x 3 patches more than half are about each: 0.8 of the weight there is less than twice as much."""

    def score(down, right):
        near = (down.abs() <= 1) & (right.abs() <= 1)
        return near * 4.0 + 1.0, 1.0

    results = scan_of(weights_by(score, side=3)[None], 30, side=3)
    found = summarize_images(results)
    assert found.cluster.values.tolist() == ["mixed"]
