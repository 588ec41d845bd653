"""The same numbers of the same model by other tools, in turns: time, memory and the size of the page, until each fails.

    python -m venv TL && TL/bin/pip install torch==2.13.0 transformers transformer_lens  # NN: nnsight, BV: bertviz
    python benchmarks/peers.py model peers                        # writes a random GPT-2 of 124M parameters
    python benchmarks/peers.py run peers --python transformer_lens=TL/bin/python --python nnsight=NN/bin/python \
        --python bertviz=BV/bin/python                            # prints the table

Asked of each is what `scan` gives of one window of n tokens: the mean weight of every head at each offset from -10 to
10, and the mean entropy of its rows. The others give whole matrices, from which both follow. Each run is a process of
its own with one thread and at most `--memory` GiB of addresses; processor time and memory are those beyond the loaded
model. attnscope's first window holds the hash of the weights and its checks against eager attention. Of BertViz the
page is made (`model_view`), of attnscope the page that `attnscope scan` writes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BAND = 10
LENGTHS = (128, 512, 2048, 8192, 16384)
PEERS = ("attnscope", "transformers", "transformer_lens", "nnsight", "bertviz")


def make(folder: Path) -> None:
    """GPT-2's smallest shape, random, for as many positions as are asked for."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_positions=max(LENGTHS), vocab_size=1000, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("c_attn.weight"):
            torch.nn.init.normal_(parameter, std=0.06)  # so that weights are far from equal
    model.save_pretrained(folder)


def measure(peer: str, folder: Path, length: int) -> dict[str, Any]:
    """One window by one tool, in this process."""
    import torch

    torch.set_num_threads(1)
    ids = torch.randint(0, 1000, (1, length), generator=torch.Generator().manual_seed(length))
    run = globals()[f"_by_{peer}"](folder, ids)
    start, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    profile, entropy, page = run(1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = first = time.process_time() - began
    if page is None:
        began = time.process_time()
        run(2)
        seconds = time.process_time() - began - first
    return {
        "first": first,
        "seconds": seconds,
        "mib": (peak - start) / 1024,
        "page": page,
        "profile": None if profile is None else profile.tolist(),
        "entropy": None if entropy is None else entropy.tolist(),
    }


def _by_attnscope(folder: Path, ids: Any) -> Any:
    import attnscope
    from attnscope.capture.load import load_model
    from attnscope.measure.stored import SAMPLE
    from attnscope.results.page.scan import write_with
    from attnscope.results.reports import report_of
    from attnscope.store.runs import RunFolder

    model = load_model(folder, device="cpu", need_tokenizer=False).model  # before the clock starts
    tokenizer = _tokenizer()
    attnscope.scan(model, ids[:, :16], tokenizer=tokenizer, window=16)  # what is compiled is compiled

    def run(windows: int) -> Any:
        found = attnscope.scan(
            model,
            ids.repeat(windows, 1),
            tokenizer=tokenizer,
            window=ids.shape[1],
            batch_size=1,
            statistics="band_sum,profile,entropy",
            show=False,
        )
        return found.profile.values[0], found.entropy.values[0], None

    def with_page(_: int) -> Any:
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "run"
            found = attnscope.scan(model, ids, tokenizer=tokenizer, window=ids.shape[1], out=out, show=[])
            with RunFolder(out, json.loads(found.attrs["signature"])) as kept:
                write_with(report_of("scan", found), kept.load(SAMPLE), Path(place) / "page.html")
            return None, None, (Path(place) / "page.html").stat().st_size

    return with_page if os.environ.get("PEERS_PAGE") else run


def _by_transformers(folder: Path, ids: Any) -> Any:
    import torch

    model = _eager(folder)

    def one() -> Any:
        with torch.no_grad():
            weights = model(ids, output_attentions=True).attentions
        return *_numbers([layer[0] for layer in weights]), None

    return lambda windows: _last(one, windows)


def _by_transformer_lens(folder: Path, ids: Any) -> Any:
    import torch
    from transformer_lens.model_bridge import TransformerBridge

    bridge: Any = TransformerBridge.boot_transformers(str(folder), hf_model=_eager(folder), device="cpu")

    def one() -> Any:
        with torch.no_grad():
            _, cache = bridge.run_with_cache(ids, names_filter=lambda name: name.endswith("hook_pattern"))
        return *_numbers([cache[f"blocks.{i}.attn.hook_pattern"][0] for i in range(12)]), None

    return lambda windows: _last(one, windows)


def _by_nnsight(folder: Path, ids: Any) -> Any:
    import nnsight
    import torch

    model: Any = nnsight.NNsight(_eager(folder))

    def one() -> Any:
        with torch.no_grad(), model.trace(ids):
            weights = nnsight.save([block.attn.output[1] for block in model.transformer.h])
        return *_numbers([layer[0] for layer in weights]), None

    return lambda windows: _last(one, windows)


def _by_bertviz(folder: Path, ids: Any) -> Any:
    import torch
    from bertviz import model_view

    model = _eager(folder)

    def run(_: int) -> Any:
        with torch.no_grad():
            weights = model(ids, output_attentions=True).attentions
        html: Any = model_view(weights, [str(one) for one in ids[0].tolist()], html_action="return")
        return None, None, len(html.data.encode())

    return run


def _last(one: Callable[[], Any], windows: int) -> Any:
    for _ in range(windows - 1):
        one()
    return one()


def _eager(folder: Path) -> Any:
    from transformers import GPT2LMHeadModel

    return GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager").eval()


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({str(one): one for one in range(1000)}, unk_token="0"))  # noqa: S106
    )


def _numbers(layers: list[Any]) -> tuple[Any, Any]:
    """Profile and entropy from whole matrices, layer by layer."""
    import torch

    profile = torch.stack(
        [
            torch.stack(
                [layer.diagonal(offset, 1, 2).mean(-1, dtype=torch.float64) for offset in range(-BAND, BAND + 1)], -1
            )
            for layer in layers
        ]
    )
    entropy = torch.stack([torch.special.entr(layer).sum(-1).mean(-1, dtype=torch.float64) for layer in layers])
    return profile.numpy(), entropy.numpy()


def table(folder: Path, pythons: dict[str, str], rounds: int, memory: float, lengths: tuple[int, ...]) -> None:
    """All tools in turns; a tool that failed is not asked for more."""
    import numpy as np

    left = [peer for peer in PEERS if peer == "attnscope" or peer in pythons or peer == "transformers"]
    print(
        "| n | tool | seconds, first window | each more | MiB beyond the model | page | largest difference |",
        "|---|---|---|---|---|---|---|",
        sep="\n",
    )
    for length in lengths:
        found: dict[str, list[dict[str, Any]]] = {peer: [] for peer in left}
        for _ in range(rounds):
            for peer in list(found):
                one = _in_process(peer, folder, length, pythons, memory)
                if one is None:
                    found.pop(peer)
                    left.remove(peer)
                    print(f"| {length:,} | {peer} | failed at {memory:g} GiB | | | | |", flush=True)
                else:
                    found[peer].append(one)
        for peer, runs in found.items():
            page = runs[0]["page"]
            if peer == "attnscope":
                made = _in_process(peer, folder, length, pythons, memory, page=True)
                page = None if made is None else made["page"]
            apart = ""
            if runs[0]["profile"] is not None and "attnscope" in found and peer != "attnscope":
                ours = found["attnscope"][0]
                apart = max(
                    float(np.abs(np.array(runs[0][name]) - np.array(ours[name])).max())
                    for name in ("profile", "entropy")
                )
                apart = f"{apart:.0e}"
            first, seconds = (float(np.median([one[name] for one in runs])) for name in ("first", "seconds"))
            more = "" if page is not None and peer == "bertviz" else f"{seconds:.2f}"
            mib = float(np.median([one["mib"] for one in runs]))
            size = "" if page is None else f"{page / 1e6:.1f} MB"
            print(f"| {length:,} | {peer} | {first:.2f} | {more} | {mib:,.0f} | {size} | {apart} |", flush=True)


def _in_process(
    peer: str, folder: Path, length: int, pythons: dict[str, str], memory: float, *, page: bool = False
) -> dict[str, Any] | None:
    """A run's numbers; None where it failed."""
    limit = int(memory * (1 << 30))
    words = [pythons.get(peer, sys.executable), __file__, "one", str(folder), "--peer", peer, "--length", str(length)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"PEERS_PAGE": "1"} if page else {})
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    if done.returncode:
        print(done.stderr.strip().splitlines()[-1:], file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("model", "run", "one"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", action="append", default=[], metavar="TOOL=PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=float, default=14.0)
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--length", type=int, action="append")
    given = parser.parse_args()
    if given.step == "model":
        make(given.folder)
    elif given.step == "one":
        print(json.dumps(measure(given.peer, given.folder, given.length[0])))
    else:
        pythons, lengths = dict(one.split("=", 1) for one in given.python), tuple(given.length or LENGTHS)
        table(given.folder, pythons, given.rounds, given.memory, lengths)
