"""Long windows: time and memory of a scan beside the model's own pass, and beside writing all weights out.

    python benchmarks/long.py ../shared/models/stories260K-llama ../shared/data/wikitext-2/train.txt
    python benchmarks/long.py random TEXT --lengths 2048 8192 32768 --rows 128
    python benchmarks/long.py sliding TEXT --lengths 4096 8192 --ways plain scan
    python benchmarks/long.py random TEXT --lengths 4096 8192 --ways plain scan --padded
    python benchmarks/long.py t5 TEXT --lengths 4096 8192 --ways plain scan

`random` is a Llama of 4 layers, `sliding` a Mistral of the same sizes that looks back 1,024 tokens, `t5` an encoder of
attnscope's own, of the same sizes, with T5's relative bias. One window of each
length, or two with `--padded`, the second of half the length and padded; each way in a process of its own, of two
threads: `plain`, the model's pass with PyTorch's fused attention; `scan`, with the default statistics of all queries;
`rows`, of some; `eager`, with ``output_attentions=True``, the whole-matrix way, until it needs more memory than
`--most` MiB. Positions beyond those that the model was trained on are rescaled (linear scaling of the rotary angles):
its numbers there are those of a model that was not made for such lengths; its times and its memory are as of any.
Memory is the highest above the loaded model, which has read a short window before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    LlamaConfig,
    MistralConfig,
)

from attnscope.bundled import MODEL
from attnscope.capture.forward import forward
from attnscope.capture.watching import watching
from attnscope.measure.passes import StatisticsObserver, WindowBatch, stacked
from attnscope.measure.quantities import DEFAULT
from attnscope.measure.row_samples import RowSample
from attnscope.models.configs import EncoderConfig
from attnscope.models.transformer import EncoderForMaskedLM
from attnscope.read.texts import Corpus
from attnscope.read.windows import Windows, collate

WAYS = ("plain", "scan", "rows", "eager")
RANDOM = {"random": LlamaConfig, "sliding": partial(MistralConfig, sliding_window=1024)}
OWN = "t5"
WARM = 64  # tokens that load what is loaded once


def model_of(name: str, length: int, attention: str):
    torch.manual_seed(0)
    if name == OWN:
        config = EncoderConfig(vocab_size=4096, width=256, feed_forward=1024, encoder_layers=4, heads=4, positions="t5")
        return AutoModelForMaskedLM.from_config(config, attn_implementation=attention).eval()
    if name in RANDOM:
        config = RANDOM[name](
            vocab_size=4096,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=length,
        )
        return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    config = AutoConfig.from_pretrained(name)
    known = config.max_position_embeddings
    if length > known:
        theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10000.0)
        config.rope_parameters = {"rope_type": "linear", "factor": length / known, "rope_theta": theta}
        config.max_position_embeddings = length
    return AutoModelForCausalLM.from_pretrained(name, config=config, attn_implementation=attention).eval()


def window_of(name: str, text: Path, length: int):
    tokenizer = AutoTokenizer.from_pretrained(MODEL if name in {*RANDOM, OWN} else name)
    cut = next(iter(Windows(Corpus.from_sources([text]), tokenizer, length=length, limit=1)))
    if len(cut) < length:
        sys.exit(f"{text} has {len(cut)} tokens in one document, and {length} are wanted")
    return cut


def run(model, batch, way: str, rows: int) -> None:
    length = batch.input_ids.shape[1]
    given = batch.arguments(model.dtype)
    last = {} if isinstance(model, EncoderForMaskedLM) else {"logits_to_keep": 1}
    if last and way in {"eager", "plain"}:
        given["use_cache"] = False
    if way == "eager":
        model(**given, output_attentions=True)
    elif way == "plain":
        model(**given, **last)
    else:
        sample = RowSample(rows) if way == "rows" else None
        observer = StatisticsObserver(DEFAULT, 10, WindowBatch(batch, batch), length - 1, sample=sample)
        with watching(model, observer):
            forward(model, {**given, **last}, str)
        stacked(observer.layers())


def resident(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name))) / 1024


@torch.no_grad()
def one_way(options: argparse.Namespace) -> None:
    """Print seconds and MiB of one way at one length."""
    torch.set_num_threads(2)
    length = options.lengths[0]
    if options.way == "eager":
        most = options.most << 20
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    model = model_of(options.model, length, "eager" if options.way == "eager" else "sdpa")
    windows = [window_of(options.model, options.text, length)]
    if options.padded:
        windows.append(window_of(options.model, options.text, length // 2))
    batch = collate(windows, 0)
    short = type(batch)(batch.input_ids[:, :WARM], batch.valid[:, :WARM], batch.special[:, :WARM])
    run(model, short, options.way, options.rows)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    before, began = resident("VmRSS"), time.perf_counter()
    run(model, batch, options.way, options.rows)
    print(json.dumps([time.perf_counter() - began, resident("VmHWM") - before]))


def told(options: argparse.Namespace, way: str, length: int) -> list[float] | None:
    """Seconds and MiB in a process of its own; None where it fails for want of memory."""
    command = [sys.executable, __file__, options.model, str(options.text), "--lengths", str(length), "--way", way]
    command += ["--rows", str(options.rows), "--most", str(options.most)]
    command += ["--padded"] * options.padded
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    if "allocate" in done.stderr or "MemoryError" in done.stderr or done.returncode < 0:
        return None
    sys.exit(done.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192, 32768])
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--most", type=int, default=8192, help="MiB that the whole-matrix way may take")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--padded", action="store_true", help="a batch of two windows, one padded")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way is not None:
        one_way(options)
        return
    print(f"| tokens | {' | '.join(f'{way}, s | MiB' for way in options.ways)} |", flush=True)
    print(f"|---|{'---|' * 2 * len(options.ways)}")
    failed = False
    for length in options.lengths:
        cells: list[str] = []
        for way in options.ways:
            found = None if way == "eager" and failed else told(options, way, length)
            failed |= found is None
            cells += ["failed", f"> {options.most}"] if found is None else [f"{found[0]:.1f}", f"{found[1]:.0f}"]
        print(f"| {length} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
