"""Loss of a model whose key-value heads keep only the latest and the first keys, as its card says and at random.

    attnscope card MODEL TEXT --kept 32+4,64+4 --out card
    python benchmarks/compression.py MODEL OTHER_TEXT --card card --window 256 --limit 24
    python benchmarks/compression.py MODEL OTHER_TEXT --card card --peer PEER/bin/python --read TEXT  # beside kvpress

Keys are limited by masks, which is exact. Heads are limited in the order of the card, those of the largest reach
first, and in random orders; a key-value head has the lowest reach of the query heads that share it. If the card has
effects, they predict the loss: the effect of each head times the weight that it loses, summed. With `--peer`, a Python
with kvpress, heads are limited in the order of its scores too: those of `DuoAttentionPress(on_the_fly_scoring=True)`
on the windows that the card read. Of scores and reaches, the agreement of two halves of the windows is printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from rich.console import Console
from torch import Tensor

import attnscope
from attnscope.capture.load import check_same_model, load_model
from attnscope.detection.card import stability
from attnscope.intervention.effects import effect_variables
from attnscope.intervention.predictions import PredictionSession, prediction_session
from attnscope.intervention.stack import Edit, replacing_sets
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.measure.documents import units_of
from attnscope.read.encoded import texts_of, windows_of
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress

_STEPS = 4  # points of a curve after the first


def loss_by_size(
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
    known = [(int(one[1]), int(one[2])) for name in names if (one := name.split("_"))[0] == "reach"]
    caches = [cache for cache in known if sum(cache) < shortest]
    if not caches:
        raise AttnscopeError(f"a window has {shortest} tokens, and no cache of the card has fewer: use longer texts")
    return _measured(session, card, caches, peer, orders, seed, tell)


def _measured(
    session: PredictionSession,
    card: xr.Dataset,
    caches: Sequence[tuple[int, int]],
    peer: np.ndarray | None,
    random_orders: int,
    seed: int,
    tell: Tell,
) -> xr.Dataset:
    # number of the key-value head of each query head, layer by layer; those of cross-attention are never limited
    shared, causal = card.query_heads.values, card.layer_kind.values == "causal"
    groups = np.array([(layer, head // shared[layer]) for layer, head in session.cells])
    _, member = np.unique(groups, axis=0, return_inverse=True)
    free = np.array([causal[layer] for layer, _ in session.cells])
    heads = np.unique(member[free])
    limited = np.unique(np.linspace(0, len(heads), _STEPS + 1).round().astype(int))[1:]
    generator = np.random.default_rng(seed)
    shuffles = [generator.permutation(heads) for _ in range(random_orders)]
    cells = tuple(np.array(session.cells).T)
    lengths = np.array([len(window) for window in session.windows])
    by_cache, predicted, sizes = [], [], []
    for number, (recent, sinks) in enumerate(caches):
        lost = 1.0 - card.score.sel(role=f"reach_{recent}_{sinks}").values[cells]
        most = np.array([lost[member == head].max() for head in heads])
        chosen = [heads[np.argsort(most, kind="stable")]]
        if peer is not None:  # low scores need the latest keys alone
            own_scores = np.array([peer[tuple(groups[member == head][0])] for head in heads])
            chosen.append(heads[np.argsort(own_scores, kind="stable")])
        orders = [*chosen, *shuffles]
        sets = np.stack([np.isin(member, order[:count]) for order in orders for count in limited])

        def progress(at: Progress, number: int = number) -> None:
            tell(replace(at, share=(number + at.share) / len(caches)))

        changes = changes_by_limits(session, sets, recent, sinks, progress=progress)
        changes = changes.reshape(len(changes), len(orders), len(limited))
        by_cache.append(np.stack([*changes.swapaxes(0, 1)[: len(chosen)], changes[:, len(chosen) :].mean(1)], 1))
        if "effect" in card:
            each = np.nan_to_num(lost) * card.effect.isel(ablation=-1).values[cells]
            sums = (sets @ each).reshape(len(orders), len(limited))
            predicted.append(np.stack([*sums[: len(chosen)], sums[len(chosen) :].mean(0)]))
        share = np.minimum(1.0, (recent + sinks) / lengths).mean()
        sizes.append(1 - limited / len(heads) * (1 - share))
    change, units = np.stack(by_cache, 1), units_of(session.documents)[0]
    dims, words = ("cache", "order", "point"), "Change of the loss with limited keys"
    apart = effect_variables(
        change[:, :, 0] - change[:, :, -1], units, ("cache", "point"), f"{words}, beyond that of random heads",
        name="difference", prefix="difference_", corrected="all caches and points", seed=seed,
    )  # fmt: skip
    made = xr.Dataset(
        {
            "loss_change": (("window", *dims), change, {"long_name": words, "units": "nats"}),
            **effect_variables(change, units, dims, words, corrected="all caches, orders and points", seed=seed),
            **apart,
            "size": (("cache", "point"), np.stack(sizes), {"long_name": "Share of the keys kept", "units": "share"}),
            "limited": ("point", limited, {"long_name": "Key-value heads that are limited", "units": "heads"}),
        },
        {
            "source": ("window", np.array(session.documents, dtype=object)),
            "cache": [f"{recent}+{sinks}" for recent, sinks in caches],
            "order": ["card", *["kvpress"] * (peer is not None), "random"],
        },
        {"heads": len(heads), "random_orders": random_orders},
    )
    return made.assign(predicted=(dims, np.stack(predicted))) if predicted else made


def limiting(chosen: Tensor, recent: int, sinks: int) -> Edit:
    """An edit: the chosen heads, ``(variant, head)``, attend only to the latest and the first tokens."""

    def edit(call: AttentionCall, output: Tensor) -> Tensor:
        keys = torch.arange(call.key.shape[2], device=call.key.device)
        near = ((keys > call.query_positions[..., None] - recent) | (keys < sinks))[:, None]
        limited = output_of(replace(call, mask=near if call.mask is None else call.mask & near))
        return replacing_sets(chosen, limited.unflatten(0, (-1, output.shape[1])))(call, output)

    return edit


def changes_by_limits(
    session: PredictionSession, sets: np.ndarray, recent: int, sinks: int, *, progress: Tell = no_progress
) -> np.ndarray:
    """Change of the loss of each text when the heads of each set, ``(set, head)``, are limited: ``(text, set)``."""
    changes: list[np.ndarray] = []
    for part in session.slices():
        with session.passes(part) as batch:

            def edits(some: range) -> dict[int, Edit]:
                chosen = torch.from_numpy(sets[some.start : some.stop]).split(session.heads, -1)
                return {call: limiting(own, recent, sinks) for call, own in enumerate(chosen) if bool(own.any())}

            found = batch.passes.sweep(range(len(sets)), batch.most, edits, batch.loss_change)
            changes.append(found.T.double().cpu().numpy())
        progress(Progress("limiting keys", part.stop / len(session.windows), {"windows": part.stop}))
    return np.concatenate(changes)


_PEER = """
import json, sys
import numpy as np, pandas, torch
from transformers import AutoModelForCausalLM
from kvpress.presses import duo_attention_press as press

path, read, written = sys.argv[1:]
texts, length = json.load(open(read))
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

class Data:
    def __init__(self, text): self.text = text
    def to_pandas(self): return pandas.DataFrame({"chapter": [self.text]})

found = []
for text in texts:
    press.load_dataset = lambda *_, **__: Data(text)
    found.append(press.duo_attention_on_the_fly.__wrapped__(model, num_samples=1, q_len=length))
np.save(written, np.stack(found))
"""


def peer_scores(python: str, model: str, texts: Sequence[str], length: int) -> np.ndarray:
    """The scores of kvpress, ``(text, layer, key-value head)``."""
    with tempfile.TemporaryDirectory() as folder:
        read, written = Path(folder) / "texts.json", Path(folder) / "scores.npy"
        read.write_text(json.dumps([list(texts), length]), encoding="utf-8")
        subprocess.run([python, "-c", _PEER, str(Path(model).resolve()), str(read), str(written)], check=True)
        return np.load(written)


def main() -> None:
    """Print the table of one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--card", required=True, help="run folder of attnscope card, on other texts")
    parser.add_argument("--peer", help="a Python with kvpress")
    parser.add_argument("--read", help="with --peer: the texts that the card read")
    for name, default in {"window": 256, "limit": 24, "orders": 5, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    loaded, card = load_model(given.model), attnscope.open_run(given.card)
    check_same_model(card, loaded, "card (--card)")
    corpus = texts_of(Path(given.text), field=None, by_line=False)
    session = prediction_session(loaded, corpus, window=given.window, limit=given.limit, seed=given.seed)
    session.check()
    peer = None
    if given.peer:
        windows = windows_of(
            texts_of(Path(given.read), field=None, by_line=False), loaded.tokenizer, length=given.window
        )
        of_card = [window for window, _ in zip(windows, range(given.limit), strict=False)]
        texts = [loaded.tokenizer.decode(window.ids, skip_special_tokens=True) for window in of_card]
        of_texts = peer_scores(given.peer, given.model, texts, given.window)
        peer = of_texts.mean(0)
        _, whole, low, high = stability(of_texts, [window.source for window in of_card])
        print(f"halves of {len(texts)} windows agree: kvpress {whole:.2f} ({low:.2f} to {high:.2f})")
        for role in card.role.values:
            if str(role).startswith("reach"):
                own = card.sel(role=role)
                ends = f"{float(own.stability_low):.2f} to {float(own.stability_high):.2f}"
                print(f"  {role} of the card {float(own.stability):.2f} ({ends})")
    with Console(stderr=True).status("measuring") as status:
        made = loss_by_size(
            session, card, peer, orders=given.orders, seed=given.seed, tell=lambda at: status.update(f"{at.share:.0%}")
        )
    print(f"{len(session.windows)} windows of {given.model}; change of the loss in nats, 95% intervals")
    for cache in made.cache.values:
        for point, limited in enumerate(made.limited.values):
            at = made.sel(cache=cache).isel(point=point)
            own, free = at.sel(order="card"), at.sel(order="random")
            significant = " significant" * bool(at.difference_shown)
            print(
                f"{cache:>8}  {limited} of {made.attrs['heads']} heads  {float(at['size']):4.0%} of the keys  "
                f"card {float(own.effect):.3f} ({float(own.effect_low):.3f} to {float(own.effect_high):.3f})  "
                + (f"kvpress {float(at.sel(order='kvpress').effect):.3f}  " if peer is not None else "")
                + f"random {float(free.effect):.3f}  difference {float(at.difference):.3f}{significant}"
                + (f"  predicted {float(own.predicted):.3f}" if "predicted" in made else "")
            )


if __name__ == "__main__":
    main()
