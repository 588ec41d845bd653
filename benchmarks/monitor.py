"""What `HeadMonitor` costs: the time of a training with it, over the same time without what the monitor took.

    python benchmarks/monitor.py --turns 2
    python benchmarks/monitor.py --turns 2 --own-pass
    python benchmarks/monitor.py --width 768 --layers 12 --heads 12 --device cuda

transformers' Trainer trains a Llama with random weights on random tokens, with a monitor that reads a held batch of the
training's size at the start and every k steps, or (--own-pass) measures the training's own batch. The ratio is the
median over the turns, with the lowest and the highest; of processor time on the CPU. A short training comes first,
because the first pass compiles.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import numpy as np
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from attnscope_monitor import HeadMonitor


def ratio(settings: argparse.Namespace, every: int, steps: int) -> float:
    """Time of one training, over that without the monitor's part."""
    cuda = settings.device == "cuda"
    inside = 0.0

    def clock() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() if cuda else time.process_time()

    def timed(inner: Any) -> Any:
        def run(*arguments: Any) -> Any:
            nonlocal inside
            begun = clock()
            made = inner(*arguments)
            inside += clock() - begun
            return made

        return run

    class Timed(HeadMonitor):
        if settings.own_pass:
            measure_next = timed(HeadMonitor.measure_next)
            _measure = timed(HeadMonitor._measure)  # noqa: SLF001
            _recorded = timed(HeadMonitor._recorded)  # noqa: SLF001
        else:
            __call__ = timed(HeadMonitor.__call__)

    torch.manual_seed(0)
    sizes = {
        "hidden_size": settings.width,
        "num_hidden_layers": settings.layers,
        "intermediate_size": 4 * settings.width,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=8000, num_attention_heads=settings.heads, **sizes))
    ids = torch.randint(8000, (4 * settings.batch, settings.tokens))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=settings.batch,
            use_cpu=not cuda,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=steps + 1,
        )
        monitor = Timed(None if settings.own_pass else {"input_ids": ids[: settings.batch]}, every=every)
        trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in ids])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.add_callback(monitor)
        begun = clock()
        trainer.train()
        whole = clock() - begun
    return whole / (whole - inside)


def main() -> None:
    """Train in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"width": 256, "layers": 4, "heads": 4, "tokens": 128, "batch": 8, "steps": 100, "turns": 2}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--every", type=int, nargs="+", default=[100, 10])
    parser.add_argument("--own-pass", action="store_true")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    settings = parser.parse_args()
    transformers.logging.set_verbosity_error()
    ratio(settings, 1, 2)
    turns = np.array(
        [[ratio(settings, every, settings.steps) for every in settings.every] for _ in range(settings.turns)]
    )
    for every, found in zip(settings.every, turns.T, strict=True):
        print(f"every {every} steps: {np.median(found):.3f} ({found.min():.3f} to {found.max():.3f})")


if __name__ == "__main__":
    main()
