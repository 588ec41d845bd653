"""Draw when the waves of the position table appear during training.

    python scripts/plot_history.py runs/bundled docs/images/history

Reads the position tables of all checkpoints (`keep` in the settings says how many stay) and the held-out losses from
the log, and writes SVG, PDF and PNG.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from attnscope.results.figures.style import save_figure
from attnscope.store.folder import OwnedFolder
from attnscope_lineage.checkpoints import Checkpoints, read_log

TABLE = "encoder.add_positions.position_embeddings.weight"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("stem", type=Path)
    options = parser.parse_args()
    checkpoints = Checkpoints(OwnedFolder(options.run, "train").look())
    steps = checkpoints.updates()
    tables = np.stack([checkpoints.mean_weights([step])[TABLE].double().numpy() for step in steps])
    spectra = np.abs(np.fft.rfft(tables, axis=1)).mean(-1)[:, 1:]  # (step, frequency), without the mean
    losses = np.array([(line["update"], line["valid_loss"]) for line in read_log(options.run) if "valid_loss" in line])

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1, 2])
    top.plot(losses[:, 0], losses[:, 1], color="#0072b2")
    top.set_ylabel("held-out loss (nats)")
    top.spines[["top", "right"]].set_visible(False)
    frequency = np.arange(1, spectra.shape[1] + 1)
    image = bottom.pcolormesh(steps, frequency, spectra.T, cmap="viridis", shading="nearest", rasterized=True)
    bottom.set_xlabel("update")
    bottom.set_ylabel("cycles per 128 positions")
    figure.colorbar(image, ax=bottom, label="mean amplitude of the table's columns")
    options.stem.parent.mkdir(parents=True, exist_ok=True)
    for path in save_figure(figure, options.stem):
        print(path)


if __name__ == "__main__":
    main()
