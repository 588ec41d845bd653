"""Models that track objects through a video: a pass reads a session of it, and attends to what was kept of it."""

import torch

from attnscope.capture.verify import verify
from attnscope.capture.watching import watching
from tests.capture.every_family.judge import FAST, judge
from tests.capture.every_family.models import tiny_model
from tests.capture.every_family.sessions import session_of


def test_a_tracker_is_captured_as_its_eager_attention():
    row = judge("sam3_tracker_video")
    assert (row.status, row.layers) == (FAST, "13 self")
    assert row.difference < 5e-5


def test_the_second_frame_attends_to_the_memory_of_the_first():
    """64 places of a picture 8 by 8; the memory holds as many of the first frame, and one pointer in two parts."""
    model = tiny_model("sam3_tracker_video")
    given = session_of(model)
    sizes = {}

    def observe(site, call):
        sizes[site.name] = (call.query.shape[2], call.key.shape[2])
        return torch.nn.functional.scaled_dot_product_attention(call.query, call.key, call.value, scale=call.scale)

    verify(model, given, weights_suffice=True)
    with torch.no_grad(), watching(model, observe):
        model(**given)
    assert sizes["memory_attention.layers.0.self_attn"] == (64, 64)
    assert sizes["memory_attention.layers.0.cross_attn_image"] == (64, 64 + 2)
