"""What each process of a team does, with a model, a folder for the run, and one for what it says."""

from pathlib import Path

import numpy as np
import torch.distributed as dist

import attnscope
from attnscope import AttnscopeError
from attnscope.capture.load import load_model

TEXTS = ["Once upon a time there was a girl called Lily.", "A dog.", "She liked the tide, and it liked her."]


def main(model, run, said):
    given = {"texts": TEXTS, "tp_plan": "auto", "window": 32, "batch_size": 1, "groups": "kinds"}
    found = attnscope.scan(model, **given)
    rank = dist.get_rank()
    np.savez(
        Path(said) / f"{rank}.npz",
        **{name: one.values for name, one in found.items() if one.dtype.kind == "f"},
    )

    def stop(progress):
        if progress.told.get("windows") == 2:
            raise KeyboardInterrupt

    try:
        attnscope.scan(model, **given, out=run, show=[(0, 1)], progress=stop)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    kept = attnscope.scan(model, **given, out=run, show=[(0, 1)])
    print(f"rank {rank} has {len(kept.data_vars) > 0}", flush=True)
    try:
        attnscope.weights(load_model(model, tp_plan="auto", in_parts=True).model, "A dog.")
    except AttnscopeError as error:
        print(error, flush=True)
    dist.destroy_process_group()
