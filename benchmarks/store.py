"""What a run of a million windows takes on a disk, and how long it is read: synthetic statistics of a large model.

    python benchmarks/store.py                       # 32 layers of 32 heads, 257 offsets, 20 pools of 1,024 windows
    python benchmarks/store.py --pools 4 --layers 8

Numbers are random, so that nothing compresses that would not. The layout is that of `scan --pool`; bytes are counted
for these pools and scaled to a million windows.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import xarray as xr

from attnscope.measure.pools import heads_of_run
from attnscope.measure.stored import HEADS, WINDOWS, load_heads
from attnscope.results.describe import describe
from attnscope.results.export import write_zarr
from attnscope.results.open import Node
from attnscope.store.runs import RunFolder

SCALARS = (
    "outside",
    "entropy",
    "first_token",
    "special_tokens",
    "mean_offset",
    "offset_spread",
    "max_weight",
    "gini_simpson",
)
MILLION = 1_000_000


def windows_of(rng: np.random.Generator, count: int, layers: int, heads: int) -> xr.Dataset:
    """The statistics of every window of a pool, in short."""
    dims = ("pooled_window", "layer", "head")
    return xr.Dataset(
        {f"window_{name}": (dims, rng.random((count, layers, heads), dtype=np.float32)) for name in SCALARS}
        | {
            "window_length": ("pooled_window", np.full(count, 2048)),
            "window_start": ("pooled_window", np.arange(count)),
        }
        | {
            "window_source": (
                "pooled_window",
                np.array([f"corpus.jsonl:{number}" for number in range(count)], dtype=object),
            )
        }
    )


def pool_of(rng: np.random.Generator, number: int, given: argparse.Namespace) -> xr.Dataset:
    """A pool."""
    layers, heads, band = given.layers, given.heads, given.band
    of_head = ("window", "layer", "head")

    def drawn(*more: int) -> np.ndarray:
        return rng.random((1, layers, heads, *more))

    bins = 2 * int(np.ceil(np.log2(2048))) + 1
    sums = {"band_sum": ("offset", 2 * band + 1), "bin_sum": ("offset_bin", bins)}
    found = {name: ((*of_head, dim), drawn(size)) for name, (dim, size) in sums.items()}
    found |= {f"drawn_{name}": ((*of_head, dim), drawn(size)) for name, (dim, size) in sums.items()}
    found |= {f"equal_{name}": (("window", "layer", dim), drawn(size)[:, :, 0]) for name, (dim, size) in sums.items()}
    for name in SCALARS:
        found |= {name: (of_head, drawn()), f"{name}_variance": (of_head, drawn())}
        found |= {f"equal_{name}": (("window", "layer"), drawn()[..., 0])}
    return xr.Dataset(
        found | {"length": ("window", [2048 * given.pool]), "window_count": ("window", [given.pool])},
        {"offset": np.arange(-band, band + 1), "window": [number], "source": ("window", [f"corpus.jsonl:{number}"])},
    )


def main() -> None:
    """Write, count, read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"layers": 32, "heads": 32, "band": 128, "pool": 1024, "pools": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as place:
        run = RunFolder(
            Path(place, "run"),
            {"command": "scan", "settings": {"pool": given.pool, "statistics": ["band_sum", "bin_sum", *SCALARS]}},
        )
        began = time.perf_counter()
        with run:
            for number in range(given.pools):
                short = windows_of(rng, given.pool, given.layers, given.heads)
                run.append(pool_of(rng, number, given), number, **{WINDOWS: short})
            run.finish()
        windows = given.pools * given.pool
        wrote = time.perf_counter() - began
        sizes = {
            kind: sum(path.stat().st_size for path in Path(place, "run", kind).iterdir())
            for kind in ("pieces", WINDOWS)
        }
        for kind, size in sizes.items():
            a_million = size / windows * MILLION / 1e9
            print(f"{kind}: {size / windows:,.0f} bytes a window, {a_million:.1f} GB for a million")
        print(f"together {sum(sizes.values()) / windows * MILLION / 1e9:.1f} GB for a million windows")
        print(f"written in {wrote / given.pools * 1000:.0f} ms a pool of {given.pool} windows")
        began = time.perf_counter()
        found = heads_of_run(run)
        each = (time.perf_counter() - began) / given.pools * MILLION / given.pool
        with run:
            run.save(HEADS, found)
        print(f"what all come to is made once in {each:.0f} s for a million windows")
        began = time.perf_counter()
        summary = load_heads(run)
        seconds = time.perf_counter() - began
        size = Path(place, "run", f"{HEADS}.npz").stat().st_size / 1e6
        print(
            f"and read in {seconds:.2f} s, however many windows there are: "
            f"{len(summary or ())} variables, {size:.0f} MB"
        )
        began = time.perf_counter()
        describe(run.path)
        seconds = time.perf_counter() - began
        print(f"attnscope runs show tells of the run in {seconds:.2f} s, however many pools there are")
        began = time.perf_counter()
        run.results()
        each = (time.perf_counter() - began) / given.pools
        a_million = each * MILLION / given.pool
        print(f"all pools are read in {each * 1000:.0f} ms each, {a_million:.1f} s for a million windows")

        store = Path(place, "run.zarr")
        nodes = [
            Node("", lambda: map(run.piece, run.pieces)),
            Node(WINDOWS, lambda: (run.apart(WINDOWS, texts) for texts in run.pieces), along="window"),
        ]
        began = time.perf_counter()
        write_zarr(nodes, store, lambda _: None)
        minutes = (time.perf_counter() - began) / windows * MILLION / 60
        size = sum(path.stat().st_size for path in store.rglob("*") if path.is_file()) / windows * MILLION / 1e9
        print(f"as a Zarr store {size:.1f} GB, made in {minutes:.0f} minutes")
        for what, group, name in (
            ("one statistic of one head, every window", WINDOWS, "window_entropy"),
            ("the sums over offsets of one head, every pool", None, "band_sum"),
        ):
            began = time.perf_counter()
            xr.open_zarr(store, group=group, chunks=None)[name][:, -1, -1].load()
            seconds = time.perf_counter() - began
            a_million = seconds * MILLION / windows
            print(f"{what}: {seconds:.2f} s; if all of it grows, {a_million:.1f} s for a million windows")


if __name__ == "__main__":
    main()
