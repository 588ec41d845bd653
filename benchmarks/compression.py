"""Loss of a model whose key-value heads keep only the latest and the first keys, as its card says and at random.

    attnscope card MODEL TEXT --kept 32+4,64+4 --out card
    python benchmarks/compression.py MODEL OTHER_TEXT --card card --window 256 --limit 24
    python benchmarks/compression.py MODEL OTHER_TEXT --card card --kvpress PEER/bin/python --read TEXT
    python benchmarks/compression.py MODEL OTHER_TEXT --card card --minference PEER/bin/python

Keys are limited by masks, which is exact. Heads are limited in the order of the card, those of the largest kept share
first, and in random orders; a key-value head has the lowest kept share of its query heads. If the card has effects,
they predict the loss: the effect of each head times the weight that it loses, summed; and heads are limited
in the order of these products too.

With `--kvpress`, heads are limited in the order of its scores too: `DuoAttentionPress(on_the_fly_scoring=True)` on the
windows that the card read. Of scores and kept shares, the agreement of two halves of the windows is printed. With
`--minference`, MInference reads the exported pattern and runs a Llama model with it on the CPU: the heads that it
streams are those of the card, and the loss changes as by our masks. Its environment, without CUDA:

    pip install torch transformers==4.49.0 triton==3.6.0 einops 'numpy<2.4' setuptools wheel psutil ninja packaging
    export MINFERENCE_SKIP_CUDA_BUILD=TRUE MINFERENCE_FORCE_BUILD=TRUE
    pip install --no-deps --no-build-isolation minference==0.1.6.0
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from rich.console import Console

import attnscope
from attnscope.capture.borrow import LoadedModel
from attnscope.capture.load import check_same_model, load_model
from attnscope.intervention.open_predictions import prediction_session
from attnscope.intervention.predictions import PredictionSession
from attnscope.measure.texts import first_windows
from attnscope.read.encoded import texts_of
from attnscope.report.signature import Signature
from attnscope.results.figures.style import save_figure
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Tell, no_progress
from attnscope_cards.figures import limited_keys
from attnscope_cards.head_files import STREAMS, head_files
from attnscope_cards.limits import changes_by_limits, key_heads, loss_by_size
from attnscope_cards.measure import ANSWERS, stability


def curves_of(
    session: PredictionSession,
    card: xr.Dataset,
    peer: np.ndarray | None = None,
    *,
    orders: int = 5,
    seed: int = 0,
    tell: Tell = no_progress,
) -> xr.Dataset:
    """Change of the loss over ``cache, order, point`` for the caches of the card that all windows exceed."""
    shortest, names = min(map(len, session.windows)), [str(name) for name in card.role.values]
    sizes = [re.fullmatch(r"kept_(\d+)_(\d+)", name) for name in names]
    known = [(int(size[1]), int(size[2])) for size in sizes if size is not None]
    caches = [cache for cache in known if sum(cache) < shortest]
    if not caches:
        raise AttnscopeError(f"a window has {shortest} tokens, and no cache of the card has fewer: use longer texts")
    shared, causal = card.query_heads.values, card.layer_kind.values == "causal"
    cells, member = tuple(np.array(session.cells).T), key_heads(session, shared)
    predicted: dict[tuple[int, int], np.ndarray] = {}  # by cache, for each key-value head

    def costs_of(cache: tuple[int, int]) -> dict[str, list[np.ndarray]]:
        lost = 1.0 - card.score.sel(role="kept_{}_{}".format(*cache)).values
        costs = {"card": [lost]}
        if peer is not None:  # low scores need the latest keys alone
            costs["kvpress"] = [np.repeat(peer, shared[0], 1)]
        each = _predicted(card, cells, member, np.nan_to_num(lost[cells]), "limit_{}_{}".format(*cache))
        if each is not None:  # what a key-value head is predicted to cost
            predicted[cache] = np.bincount(member, each)
            costs["effects"] = [np.full(lost.shape, np.nan)]
            costs["effects"][0][cells] = predicted[cache][member]
        return costs

    made = loss_by_size(session, shared, causal, caches, costs_of, draws=orders, seed=seed, tell=tell)
    if not predicted:
        return made
    sums = np.full(made.effect.shape, np.nan)  # of the heads that are limited, in each order
    for number, cache in enumerate(caches):
        heads = np.unique(member[causal[cells[0]]])
        for order, (cost,) in enumerate(costs_of(cache).values()):
            ranked = heads[np.argsort([cost[cells][member == head].max() for head in heads], kind="stable")]
            sums[number, order] = [predicted[cache][ranked[:count]].sum() for count in made.limited.values]
        sums[number, -1] = predicted[cache][heads].sum() * made.limited / len(heads)
    return made.assign(predicted=(made.effect.dims, sums))


def _predicted(
    card: xr.Dataset, cells: tuple[np.ndarray, ...], member: np.ndarray, lost: np.ndarray, limit: str
) -> np.ndarray | None:
    """What limiting each head is predicted to cost: measured alone, or its effect times the weight that it loses."""
    known = card.ablation.values.tolist() if "effect" in card else []
    if limit in known:  # that of the key-value head, once
        return card.effect.sel(ablation=limit).values[cells] / np.bincount(member)[member]
    ablations = [name for name in known if name not in ANSWERS and not name.startswith("limit_")]
    return lost * card.effect.sel(ablation=ablations[-1]).values[cells] if ablations else None


_KVPRESS = """
import itertools, json, sys
import numpy as np, pandas, torch
from transformers import AutoModelForCausalLM
from kvpress.presses import duo_attention_press as press

folder = sys.argv[1]
texts, length = json.load(open(f"{folder}/given.json"))
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
if hasattr(model.model.rotary_emb, "layer_types"):  # of Gemma 3, which asks for the layer's type; kvpress gives none
    layers, own = itertools.cycle(model.config.layer_types), model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, positions, kind=None: own(x, positions, kind or next(layers))

class Data:
    def __init__(self, text): self.text = text
    def to_pandas(self): return pandas.DataFrame({"chapter": [self.text]})

found = []
for text in texts:
    press.load_dataset = lambda *_, **__: Data(text)
    found.append(press.duo_attention_on_the_fly.__wrapped__(model, num_samples=1, q_len=length))
json.dump(np.stack(found).tolist(), open(f"{folder}/made.json", "w"))
"""

# On a CPU: Triton interprets the kernel of streaming heads, in one configuration. Other heads attend to all keys, as
# their pattern does in short texts; its kernel needs CUDA. Heads of fewer than 16 dimensions are padded.
_MINFERENCE = """
import contextlib, json, os, sys, types
os.environ["TRITON_INTERPRET"] = "1"
from torch.nn.functional import cross_entropy, pad, scaled_dot_product_attention
from transformers import AutoModelForCausalLM

sys.modules["minference.cuda"] = types.SimpleNamespace(convert_vertical_slash_indexes=None)
arange, torch.cuda.device = torch.arange, lambda _: contextlib.nullcontext()
torch.arange = lambda *sizes, device=None: arange(*sizes)
from minference import MInference
from minference.modules import minference_forward as own
from minference.ops import streaming_kernel
torch.arange = arange
del streaming_kernel._attn_fwd.configs[1:]

folder = sys.argv[1]
windows = [torch.tensor(ids) for ids in json.load(open(f"{folder}/given.json"))]
model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval()
calls = []

def stream(query, key, value, sinks, recent, kernel=own.streaming_forward):
    calls.append(("stream_llm", sinks, recent))
    size, missing = query.shape[-1], max(0, 16 - query.shape[-1])
    scaled = query * ((size + missing) / size) ** 0.5
    return kernel(*(pad(each, (0, missing)) for each in (scaled, key, value)), sinks, recent)[..., :size]

def full(query, key, value, vertical, slash):
    calls.append(("vertical_and_slash",))
    return scaled_dot_product_attention(query, key, value, is_causal=True)

def losses():
    with torch.no_grad():
        logits = [model(ids[None], use_cache=False).logits[0, :-1] for ids in windows]
    return torch.stack([cross_entropy(each, ids[1:]) for each, ids in zip(logits, windows)])

plain = losses()
own.streaming_forward, own.vertical_slash_sparse_attention = stream, full
model = MInference("minference", folder, config_path=f"{folder}/best_pattern.json")(model)
json.dump([calls, (losses() - plain).tolist()], open(f"{folder}/made.json", "w"))
"""


def of_peer(python: str, script: str, loaded: LoadedModel, given: Any, files: Mapping[str, str] | None = None) -> Any:
    """What the script of another tool makes, in its own Python, of the model and of what is given."""
    with tempfile.TemporaryDirectory() as folder:
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        for name, text in {"given.json": json.dumps(given), **(files or {})}.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        run = subprocess.run([python, "-c", script, folder], check=False, capture_output=True, text=True)
        if run.returncode:
            raise AttnscopeError(f"{python} failed: {run.stderr[-2000:]}")
        return json.loads((Path(folder) / "made.json").read_text(encoding="utf-8"))


def beside_minference(python: str, loaded: LoadedModel, session: PredictionSession, card: xr.Dataset, role: str) -> str:
    """A line on the heads that MInference streams, and on the change of the loss, beside the card and our masks."""
    recent, sinks = (int(size) for size in role.split("_")[1:])
    calls, theirs = of_peer(
        python, _MINFERENCE, loaded, [window.ids for window in session.windows], head_files(card, "minference", role)
    )
    streams = card.score.sel(role=role).values[tuple(np.array(session.cells).T)] >= STREAMS
    expected = [["stream_llm", sinks, recent] if one else ["vertical_and_slash"] for one in streams]
    if calls != expected * len(session.windows):
        raise AttnscopeError("MInference streams other heads than the card")
    ours = changes_by_limits(session, streams[None], recent, sinks)[:, 0]
    return (
        f"MInference streams the {streams.sum()} of {len(streams)} heads of a {role} from {STREAMS}: loss "
        f"{np.mean(theirs):+.4f}, by masks {ours.mean():+.4f}, largest difference {np.abs(theirs - ours).max():.1e}"
    )


def main() -> None:
    """Print the table of one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--card", required=True, help="run folder of attnscope card, on other texts")
    parser.add_argument("--kvpress", help="a Python with kvpress, whose scores order the heads too")
    parser.add_argument("--read", help="with --kvpress: the texts that the card read")
    parser.add_argument("--minference", help="a Python with MInference, which gets the pattern of each kept share")
    parser.add_argument("--figure", help="draw the curves too: a file without its ending")
    for name, default in {"window": 256, "limit": 24, "orders": 5, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    loaded, card = load_model(given.model), attnscope.open_run(given.card)
    check_same_model(card, loaded, "card (--card)")
    corpus = texts_of(Path(given.text), field=None, by_line=False)
    session = prediction_session(loaded, corpus, window=given.window, limit=given.limit, seed=given.seed)
    session.check()
    peer, reaches = None, [str(role) for role in card.role.values if str(role).startswith("kept_")]
    if given.kvpress:
        settings = Signature.from_json(card.attrs["signature"]).settings or {}
        read = texts_of(Path(given.read), field=None, by_line=False)
        windows = first_windows(loaded, read, None, length=settings["window"], limit=settings["limit"])
        of_card = [window for window in windows if len(window) == settings["window"]] or windows
        texts = [loaded.tokenizer.decode(window.ids, skip_special_tokens=True) for window in of_card]
        of_texts = np.array(of_peer(given.kvpress, _KVPRESS, loaded, [texts, settings["window"]]))
        peer = of_texts.mean(0)
        _, whole, low, high = stability(of_texts, [window.source for window in of_card])
        print(f"halves of {len(texts)} windows agree: kvpress {whole:.2f} ({low:.2f} to {high:.2f})")
        for role in reaches:
            own = card.sel(role=role)
            ends = f"{float(own.stability_low):.2f} to {float(own.stability_high):.2f}"
            print(f"  {role} of the card {float(own.stability):.2f} ({ends})")
    for role in reaches if given.minference else ():
        print(beside_minference(given.minference, loaded, session, card, role))
    with Console(stderr=True).status("measuring") as status:
        made = curves_of(
            session, card, peer, orders=given.orders, seed=given.seed, tell=lambda at: status.update(f"{at.share:.0%}")
        )
    if given.figure:
        save_figure(
            limited_keys(made.rename({name: f"check_{name}" for name in made.data_vars})), given.figure, ("png",)
        )
    print(f"{len(session.windows)} windows of {given.model}; change of the loss in nats, 95% intervals")
    for cache in made.cache.values:
        for point, limited in enumerate(made.limited.values):
            at = made.sel(cache=cache).isel(point=point)
            print(f"{cache:>8}  {limited} of {made.attrs['heads']} heads  {float(at['size']):4.0%} of the keys", end="")
            for order in made.order.values:
                one = at.sel(order=order)
                print(f"  {order} {float(one.effect):.3f}", end="")
                print(f" ({float(one.effect_low):.3f} to {float(one.effect_high):.3f})" * (order != "random"), end="")
            print(f"  difference {float(at.difference):.3f}{' significant' * bool(at.difference_shown)}", end="")
            print(f"  predicted {float(at.predicted[0]):.3f}" if "predicted" in made else "")


if __name__ == "__main__":
    main()
