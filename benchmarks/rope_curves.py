"""Does a Transformer with rotary positions learn faster than one with a learned table? Curves over several trainings.

    python benchmarks/rope_curves.py runs/rope --out rope.json

Two small Transformers that differ in their position scheme alone learn the generated task, once for each seed
(`attnscope compare rope learned --seeds 8`). Intervals are over trainings, by Student's t. The lesson `positions` draws
the numbers.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

import attnscope_lineage

SYSTEMS = ("rope", "learned")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Folder for the trainings; what is there is not trained again")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True, help="File for the numbers, as JSON")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    tree = attnscope_lineage.compare([*SYSTEMS], out=options.folder, seeds=options.seeds, beams=1, resamples=0)
    curves = tree["curves"].to_dataset()
    first = curves.loss_of_seed.sel(system=SYSTEMS[0]).mean("validation")
    second = curves.loss_of_seed.sel(system=SYSTEMS[1]).mean("validation")
    lower = int((first < second).sum())
    ends = [curves[f"difference_{end}"].sel(system=SYSTEMS[1]) for end in ("lower", "upper")]
    found = {
        "command": "python benchmarks/rope_curves.py FOLDER",
        "seeds": options.seeds,
        "updates": curves.updates.sel(system=SYSTEMS[0]).values.tolist(),
        "loss": {
            name: {
                "mean": np.round(curves.loss.sel(system=name).values, 4).tolist(),
                "ends": np.round(
                    np.stack([curves[f"loss_{end}"].sel(system=name) for end in ("lower", "upper")], 1), 4
                ).tolist(),
            }
            for name in SYSTEMS
        },
        "difference": [round(float(value), 4) for value in (curves.difference.sel(system=SYSTEMS[1]), *ends)],
        "rope_lower_in": lower,
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"learned minus rope: {found['difference']}, rope lower in {lower} of {options.seeds}")


if __name__ == "__main__":
    main()
