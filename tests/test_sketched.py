"""What a sketch of a figure tells apart."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.sketched import sketched


def sketch(change=lambda _: None):
    figure = Figure()
    axes = figure.add_subplot()
    axes.plot([1, 2, 3])
    axes.imshow(np.eye(2))
    axes.scatter([0, 1], [1, 0])
    axes.bar([0], [1])
    axes.set_title("Heads")
    change(axes)
    file = io.BytesIO()
    with sketched():
        figure.savefig(file, format="svg")
    return file.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda axes: axes.set_title("Head"),
        lambda axes: axes.lines[0].set_ydata([1, 2, 4]),
        lambda axes: axes.images[0].set_data(np.eye(2)[::-1]),
        lambda axes: axes.collections[0].set_offsets([[0, 1], [1, 1]]),
        lambda axes: axes.collections[0].set_facecolor("red"),
        lambda axes: axes.patches[0].set_facecolor("red"),
        lambda axes: axes.text(0, 0, "1"),
    ],
)
def test_another_figure_is_another_sketch(change):
    assert sketch() == sketch()
    assert sketch(change) != sketch()
