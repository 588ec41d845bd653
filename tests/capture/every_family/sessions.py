"""Models that track objects through a video: what they read is a session, which each pass changes."""

import copy
from importlib import import_module

import torch

WITH_SESSION = ("edgetam_video", "sam2_video", "sam3_tracker_video", "sam3_video")
_FRAMES, _LAST = 2, 1


def session_of(model):
    """Arguments for the second frame of a video: it attends to what was kept of the first, which is done already.

    From then on every pass of the model reads a copy of the session, so that all passes are the same.
    """
    torch.manual_seed(0)
    session = _begun(model)
    forward = model.forward
    with torch.no_grad():
        for frame in range(_LAST):
            forward(session, frame_idx=frame)

    def anew(inference_session, frame_idx):
        return forward(copy.deepcopy(inference_session), frame_idx=frame_idx)

    model.forward = anew
    return {"inference_session": session, "frame_idx": _LAST}


def _begun(model):
    module = import_module(type(model).__module__)
    kind = next(getattr(module, name) for name in dir(module) if name.endswith("VideoInferenceSession"))
    whole = getattr(model.config, "tracker_config", model.config)
    size = whole.prompt_encoder_config.image_size
    session = kind(torch.randn(_FRAMES, 3, size, size), size, size, dtype=torch.float32)
    if hasattr(session, "add_prompt"):
        prompt = session.add_prompt("a dog")
        session.prompt_input_ids[prompt] = torch.randint(3, 60, (1, 8))
        session.prompt_attention_masks[prompt] = torch.ones(1, 8, dtype=torch.long)
        return session
    point = torch.rand(1, 1, 1, 2) * size
    labels = torch.ones(1, 1, 1, dtype=torch.long)
    inputs = {"point_coords": point, "point_labels": labels}
    session.add_point_inputs(session.obj_id_to_idx(1), 0, inputs)
    session.obj_with_new_inputs = [1]
    return session
