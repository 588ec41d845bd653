"""Draw when the waves of the position table appear during training.

    python scripts/plot_history.py runs/bundled docs/images/history

Reads `history.npz` (the position table every 250 steps) and the held-out loss from the last checkpoint's
state, as scripts/train_bundled.py leaves them, and writes SVG, PDF and PNG.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from attnscope.figures import save_figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("stem", type=Path)
    options = parser.parse_args()
    with np.load(options.run / "history.npz") as stored:
        steps, tables = stored["step"], stored["table"].astype(np.float64)
    spectra = np.abs(np.fft.rfft(tables, axis=1)).mean(-1)[:, 1:]  # (step, frequency), without the mean
    states = sorted((options.run / "checkpoints").glob("checkpoint-*/trainer_state.json"))
    logged = json.loads(max(states, key=lambda path: path.stat().st_mtime).read_text())["log_history"]
    losses = np.array([(entry["step"], entry["loss"]) for entry in logged if "loss" in entry])

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1, 2])
    top.plot(losses[:, 0], losses[:, 1], color="#0072b2")
    top.set_ylabel("training loss (nats)")
    top.spines[["top", "right"]].set_visible(False)
    frequency = np.arange(1, spectra.shape[1] + 1)
    image = bottom.pcolormesh(steps, frequency, spectra.T, cmap="viridis", shading="nearest", rasterized=True)
    bottom.set_xlabel("training step")
    bottom.set_ylabel("cycles per 128 positions")
    figure.colorbar(image, ax=bottom, label="mean amplitude of the table's columns")
    options.stem.parent.mkdir(parents=True, exist_ok=True)
    for path in save_figure(figure, options.stem):
        print(path)


if __name__ == "__main__":
    main()
