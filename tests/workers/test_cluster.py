"""What is no cluster is refused, before anything is started."""

import pytest

from attnscope import AttnscopeError
from attnscope.store.workers import Cluster


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"address": "nonsense"}, "ray .--ray. is 'nonsense'; expected local, auto or HOST:PORT"),
        ({"address": ""}, "expected local, auto or HOST:PORT"),
        ({"workers": 0}, "workers .--workers. is 0; expected a whole number of 1 or more"),
        ({"gpus": -1.0}, "ray_gpus .--ray-gpus. is -1.0"),
        ({"gpus": 1.5}, "expected a part of one GPU, or a whole number"),
    ],
)
def test_what_is_none_is_refused(given, said):
    with pytest.raises(AttnscopeError, match=said):
        Cluster(**given)


@pytest.mark.parametrize(
    ("machine", "wanted", "room"),
    [((8.0, 0.0), 0.0, 8), ((8.0, 2.0), 1.0, 2), ((8.0, 2.0), 0.1, 8), ((64.0, 2.0), 1 / 3, 6), ((8.0, 3.0), 2.0, 1)],
)
def test_workers_share_a_gpu_and_never_parts_of_two(machine, wanted, room):
    assert Cluster().room(*machine, wanted) == room
