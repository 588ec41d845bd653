"""Head ablation and attribution patching beside TransformerLens, on the same tiny GPT-2: equal numbers, and the time.

python benchmarks/peer_heads.py model peer                  # writes a random GPT-2 and token ids into the folder
PEER/bin/python benchmarks/peer_heads.py theirs peer        # in an environment of its own: pip install transformer_lens
python benchmarks/peer_heads.py ours peer                   # compares
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

_LAYERS, _HEADS, _TEXTS, _TOKENS, _VOCABULARY = 6, 8, 8, 64, 512


def main() -> None:
    """One of the three steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("model", "theirs", "ours"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    {"model": make, "theirs": theirs, "ours": ours}[given.step](given.folder)


def make(folder: Path) -> None:
    """A GPT-2 with weights large enough for its heads to matter, and texts of random tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=64, n_head=_HEADS, n_layer=_LAYERS, vocab_size=_VOCABULARY, n_positions=_TOKENS
    )
    model = GPT2LMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.1 if "wte" not in name else 0.3)
    model.save_pretrained(folder)
    ids = torch.randint(0, _VOCABULARY, (_TEXTS, _TOKENS)).tolist()
    (folder / "ids.json").write_text(json.dumps(ids), encoding="utf-8")


def theirs(folder: Path) -> None:
    """TransformerLens: a hook on each head's output, one pass a head; its gradient for attribution patching."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    bridge: Any = TransformerBridge.boot_transformers(str(folder), hf_model=model, device="cpu")
    ids = torch.tensor(json.loads((folder / "ids.json").read_text(encoding="utf-8")))

    def losses(logits: torch.Tensor) -> torch.Tensor:
        logs = torch.log_softmax(logits[:, :-1].float(), -1)
        return -logs.gather(-1, ids[:, 1:, None])[..., 0].mean(1)

    def zero(head: int) -> Any:
        def hook(value: torch.Tensor, hook: Any) -> torch.Tensor:  # noqa: ARG001
            value = value.clone()
            value[:, :, head] = 0
            return value

        return hook

    names = [f"blocks.{layer}.attn.hook_z" for layer in range(_LAYERS)]
    with torch.no_grad():
        before = losses(bridge(ids, return_type="logits"))
        began = time.process_time()
        ablated = [
            (
                losses(bridge.run_with_hooks(ids, return_type="logits", fwd_hooks=[(name, zero(head))]))
                - before
            ).tolist()
            for name in names
            for head in range(_HEADS)
        ]
        seconds = time.process_time() - began
    kept: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Any:
        def hook(value: torch.Tensor, hook: Any) -> torch.Tensor:  # noqa: ARG001
            kept[name] = value
            value.retain_grad()
            return value

        return hook

    logits = bridge.run_with_hooks(
        ids, return_type="logits", fwd_hooks=[(name, keep(name)) for name in names]
    )
    losses(logits).sum().backward()
    estimated = [
        (-kept[name][:, :, head] * kept[name].grad[:, :, head]).sum((1, 2)).tolist()
        for name in names
        for head in range(_HEADS)
    ]
    found = {"before": before.tolist(), "ablated": ablated, "estimated": estimated, "seconds": seconds}
    (folder / "theirs.json").write_text(json.dumps(found), encoding="utf-8")
    print(f"TransformerLens: {_LAYERS * _HEADS} heads taken out in {seconds:.2f} s of processor time")


def ours(folder: Path) -> None:
    """Ours, beside what TransformerLens found."""
    import numpy as np
    from intervene import _Tokenizer

    from attnscope.capture import LoadedModel, load_model
    from attnscope.corpus import Window
    from attnscope.faithfulness import Inquiry, effects

    model = load_model(folder, device="cpu", need_tokenizer=False).model
    rows = json.loads((folder / "ids.json").read_text(encoding="utf-8"))
    windows = [
        Window(tuple(ids), (False,) * len(ids), ((0, 0),) * len(ids), f"text {number}", 0, ("",) * len(ids))
        for number, ids in enumerate(rows)
    ]
    inquiry = Inquiry(LoadedModel(model, _Tokenizer(), "tiny", {}), windows, "next", batch_size=len(windows))
    next(
        effects(inquiry, ["zero"], steps=0)
    )  # compiles nothing, but fills caches as the peer's first pass did
    began = time.process_time()
    next(effects(inquiry, ["zero"], steps=0))
    seconds = time.process_time() - began
    found = next(effects(inquiry, ["zero"], steps=1))
    peer = json.loads((folder / "theirs.json").read_text(encoding="utf-8"))
    for name, values in (
        ("before", found.loss.values),
        ("ablated", found.loss_change.sel(ablation="zero").values.reshape(len(rows), -1).T),
        (
            "estimated",
            found.estimate.sel(estimator="attribution", ablation="zero").values.reshape(len(rows), -1).T,
        ),
    ):
        other = np.array(peer[name])
        print(
            f"{name}: largest difference {np.abs(values - other).max():.1e}, largest value {np.abs(other).max():.3f}"
        )
    print(
        f"ours {seconds:.2f} s, TransformerLens {peer['seconds']:.2f} s: {peer['seconds'] / seconds:.1f} times as fast"
    )


if __name__ == "__main__":
    main()
