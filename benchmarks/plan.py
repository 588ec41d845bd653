"""What a dry run says beside what the run takes: memory of six scans and eight other runs, each in its own process.

    python benchmarks/plan.py                # all, about fifteen minutes on two cores
    python benchmarks/plan.py scan:wide edges:short

Weights are random and text is random tokens. The plan is made from the config alone. Measured is the largest resident
memory of a process, minus what it holds after the same on a bundled model: Python, its packages, the compiled pass. As
the C library has it, freed memory is returned late; with `MALLOC_MMAP_THRESHOLD_=65536` it is returned at once, so that
the resident memory is that of the tensors that are alive.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import transformers as T  # noqa: N812

from attnscope.bundled import MODELS
from attnscope.catalogue import function_of
from attnscope.report.render import as_json

TASKS = MODELS["bundled:tasks"]


def _llama(vocabulary: int, width: int, layers: int, heads: int, key_heads: int, length: int) -> T.PreTrainedModel:
    config = T.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        intermediate_size=8 * width // 3,
        max_position_embeddings=length,
    )
    return T.LlamaForCausalLM(config)


#: By name: how the model is made, tokens of a window, and windows of a batch.
SHAPES = {
    "gpt2": (lambda: T.GPT2LMHeadModel(T.GPT2Config(n_layer=6)), 512, 2),
    "grouped": (partial(_llama, 32_000, 1024, 6, 16, 4, 1024), 1024, 1),
    "bert": (lambda: T.BertForMaskedLM(T.BertConfig(num_hidden_layers=6)), 256, 8),
    "t5": (lambda: T.T5ForConditionalGeneration(T.T5Config()), 512, 2),
    "long": (partial(_llama, 8_000, 512, 4, 8, 2, 4096), 4096, 1),
    "short": (lambda: T.GPT2LMHeadModel(T.GPT2Config(n_layer=4)), 128, 2),
    "narrow": (partial(_llama, 32_000, 512, 4, 8, 4, 256), 256, 1),
    "wide": (partial(_llama, 128_256, 512, 2, 8, 8, 1024), 1024, 1),
}


#: By verb: its shapes, and what it is given besides texts or pairs, so that it takes a minute.
VERBS: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
    "scan": (("gpt2", "grouped", "bert", "t5", "long", "wide"), {}),
    "intervene": (("gpt2", "grouped"), {"heads": [(0, 0), (1, 1)], "ablations": ["zero"], "steps": 0, "why": False}),
    "attribute": (("gpt2", "grouped"), {}),
    "patch": (("gpt2", "grouped"), {"heads": [(0, 0), (1, 1)]}),
    "edges": (("short", "narrow"), {"steps": 2, "sizes": [0.1], "draws": 1}),
}


def windows(length: int, count: int) -> list[list[int]]:
    """Random tokens of the bundled tokenizer."""
    return np.random.default_rng(0).integers(5, 200, (count, length)).tolist()


def called(verb: str, folder: Path, length: int, count: int, **more: Any) -> Any:
    """A verb on the model in a folder, or its plan."""
    settings: Any = {"batch_size": count, **VERBS[verb][1], **more}
    if verb not in {"patch", "edges"}:
        return function_of(verb)(folder, windows(length, count), window=length, **settings)
    same = " the" * (length - 3)  # and a token for the beginning, two for the first word
    pairs = [{"clean": f"the{same}", "corrupted": f"the a{same[4:]}", "answer": " the", "wrong": " a"}] * count
    return function_of(verb)(folder, pairs, **settings)


def resident(field: str) -> int:
    """Bytes of this process, from the system."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(field)))


def measure(verb: str, folder: Path, length: int, count: int) -> None:
    """Print the bytes that a verb adds to this process."""
    called(verb, Path(TASKS), 16, 1)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the largest is that from here on
    called(verb, folder, length, count)
    print(resident("VmHWM") - before)


def main() -> None:
    """Print a row a verb and shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs = [f"{verb}:{shape}" for verb, (shapes, _) in VERBS.items() for shape in shapes]
    parser.add_argument("runs", nargs="*", default=runs)
    parser.add_argument("--in-process", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        measure(**json.loads(options.in_process))
        return
    print("| run | parameters | batch | plan (MB) | measured (MB) | plan / measured | as the C library has it (MB) |")
    print("|---|---|---|---|---|---|---|")
    for run in options.runs:
        verb, _, shape = run.partition(":")
        make, length, count = SHAPES[shape]
        with tempfile.TemporaryDirectory() as folder:
            model = make()
            model.config.architectures = [type(model).__name__]
            model.config.save_pretrained(folder)
            T.AutoTokenizer.from_pretrained(TASKS, model_max_length=length).save_pretrained(folder)
            table = as_json(called(verb, Path(folder), length, count, dry_run=True), "")["tables"]["memory"]
            plan = 1000 * table[0]["total"]
            model.save_pretrained(folder)
            job = json.dumps({"verb": verb, "folder": folder, "length": length, "count": count})
            millions = model.num_parameters() / 1e6
            del model
            found: list[float] = []
            for more in ({"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}, {}):
                command = [sys.executable, __file__, "--in-process", job]
                done = subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True, check=True)
                found.append(int(done.stdout) / 1e6)
        size = f"{count} x {length:,}"
        ratio = plan / found[0]
        print(f"| {run} | {millions:.0f} M | {size} | {plan:,.0f} | {found[0]:,.0f} | {ratio:.2f} | {found[1]:,.0f} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
