"""Which claims of Yamamoto and Matsuzaki (2023) hold in other models with a table of positions, next to their nulls.

    python benchmarks/paper_claims.py ~/attnscope-models --out claims.json
    python benchmarks/paper_claims.py ~/attnscope-models --shown shown.json   # arrays of the lesson's figures

Models are the bundled one and those of the folder (`scripts/real_models.py`). Each claim is a row of
`attnscope_yamamoto2023.claims`, with 19 untrained copies of the model on the same texts. The decoders of Whisper have
tables of positions too; of them the table alone is measured (the paper's appendix A, on GPT-2).
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import transformers
from published import ANTIBODIES, TEXTS
from reactions import reactions

from attnscope.capture.load import load_model
from attnscope.explanation.analyses.position_content import position_content
from attnscope.explanation.arrays.decomposition import reparametrize
from attnscope.explanation.study import Study
from attnscope.explanation.tables import position_table, word_table
from attnscope.read.encoded import texts_of, windows_of
from attnscope_yamamoto2023.arrays.components import principal_components
from attnscope_yamamoto2023.arrays.phase_map import phase_map
from attnscope_yamamoto2023.arrays.rotation import head_rotation
from attnscope_yamamoto2023.arrays.spectrum import amplitude_spectrum
from attnscope_yamamoto2023.claims import CLAIMS, NEAR, claims, head_profiles
from attnscope_yamamoto2023.models import SHARP, SLOW_PERIOD, Subject
from attnscope_yamamoto2023.positions.waves import spectra_by_layer
from attnscope_yamamoto2023.relearn import head_maps

#: Heads whose queries and keys the lesson `positions` draws, layer and number, and the tokens of their text.
SHOWN = {"rxnmapper-albert": (((0, 3), (0, 7)), 256), "bundled": (((0, 3), (0, 1)), 128)}
#: Folder of a model, its texts, tokens of a text.
MODELS = {
    "bundled": ("english", 128),
    "rxnmapper-albert": ("reactions", 256),
    "all-MiniLM-L6-v2": ("english", 256),
    "antiberty": ("antibodies", 64),
}
DECODERS = ("whisper-tiny.en", "whisper-base")
DRAWN_BY_LAYER = ("rxnmapper-albert", "all-MiniLM-L6-v2")
DIMENSIONS = 24  # principal components of a table that the lesson draws
LIMIT = 4


def texts(kind: str) -> list[str]:
    """Texts of a kind that a model was trained on."""
    if kind == "antibodies":
        return [*ANTIBODIES]
    if kind == "reactions":
        return [".".join(reactions())]
    return ["\n".join(path.read_text(encoding="utf-8") for path in sorted(TEXTS.glob("0[1-8]*.txt")))]


def of_model(folder: str, kind: str, length: int, copies: int) -> dict[str, Any]:
    """The claims on one model."""
    loaded = load_model(folder)
    cut = windows_of(texts_of(texts(kind)), loaded.tokenizer, length=length, limit=None)
    windows = list(islice((each for each in cut if len(each) == length), LIMIT))
    found = claims(Study(loaded.model, windows, loaded=loaded), copies=copies)
    rows = [
        {"claim": each.claim.name, "verdict": each.verdict, "text": each.text, "p": each.chance, "copies": each.copies}
        for each in found
    ]
    return {"read": f"{len(windows)} × {length} tokens", "claims": rows}


def significant(values: np.ndarray, digits: int = 5) -> Any:
    """Nested lists of rounded numbers."""
    power = 10.0 ** (digits - 1 - np.floor(np.log10(np.maximum(np.abs(values), 1e-12))))
    return (np.round(values * power) / power).tolist()


def shown_heads(folder: str, kind: str, heads: Sequence[tuple[int, int]], length: int) -> dict[str, Any]:
    """What the lesson draws of some heads, on the first text and without biases, as the paper has it."""
    loaded = load_model(folder)
    cut = windows_of(texts_of(texts(kind)), loaded.tokenizer, length=length, limit=None)
    windows = list(islice((each for each in cut if len(each) == length), 2))
    study = Study(loaded.model, windows, loaded=loaded)
    subject, first = Subject(study), windows[0]
    maps = head_maps(loaded.model, list(first.ids), first.tokens, heads, rows=15)
    found: list[dict[str, Any]] = []
    for number, (layer, head) in enumerate(heads):
        place = subject.evidence.layer(layer)
        query, key = place.matrices(head, affine=False)
        parts, phases = reparametrize(query, key), phase_map(place.sample, query, key, completion="lapack")
        rotation = head_rotation(query, key, completion="lapack")
        sums = place.band_sums[0][head]
        found.append(
            {
                "name": f"{layer}.{head}",
                "weights": significant(maps.weight.isel(shown=number).transpose("query", "rank").values[:, :15], 4),
                "sums": significant(sums),  # tr_t of the weights at t = -10..10
                "s": significant(parts.values),
                "q": significant((place.sample @ parts.query).T, 4),
                "k": significant((place.sample @ parts.key).T, 4),
                "angles": significant(np.sort(rotation.angles)),
                "energy": significant(phases.energy.transpose("frequency", "angle").values[: length // 4], 3),
                "line": float(phases.line_shift),
            }
        )
    table, ids = subject.table.rows, list(first.ids)
    spectra = {"table": amplitude_spectrum(table), "words": amplitude_spectrum(word_table(loaded.model)[ids])}
    rows = table.shape[0]
    strongest = np.argsort(-table.var(0))[:: max(1, table.shape[1] // 8)][:6]
    return {
        "tokens": [token.replace("▁", "␣") for token in first.tokens[:15]],
        "length": length,
        "heads": found,
        "rows": rows,
        "columns": significant(table[:, strongest].T),
        "spectrum": {name: significant(each["mean"].values) for name, each in spectra.items()},
        "noise": {name: float(each.null_mean) for name, each in spectra.items()},
    }


def study_of(name: str, folder: str, limit: int = LIMIT) -> Study:
    """A model on the first texts of its kind."""
    loaded = load_model(folder)
    kind, length = MODELS[name]
    cut = windows_of(texts_of(texts(kind)), loaded.tokenizer, length=length, limit=None)
    return Study(loaded.model, list(islice((each for each in cut if len(each) == length), limit)), loaded=loaded)


def four_heads(study: Study) -> list[dict[str, Any]]:
    """Figure 2: two sharp heads and two soft ones, to the left and to the right, those that are most so."""
    subject, first = Subject(study), study.windows[0]
    every = [(layer.site.index, head) for layer in study.evidence.layers for head in range(layer.heads)]
    profiles = head_profiles(subject)
    lean = profiles[:, NEAR + 1 :].sum(1) - profiles[:, :NEAR].sum(1)
    soft = np.where(profiles.max(1) < SHARP, lean, 0.0)
    chosen = {
        "sharp left": profiles[:, NEAR - 1].argmax(),
        "sharp right": profiles[:, NEAR + 1].argmax(),
        "soft left": soft.argmin(),
        "soft right": soft.argmax(),
    }
    heads = [every[head] for head in chosen.values()]
    maps = head_maps(study.model, list(first.ids), first.tokens, heads, rows=15)
    return [
        {
            "kind": kind,
            "name": f"{heads[number][0]}.{heads[number][1]}",
            "weights": significant(maps.weight.isel(shown=number).transpose("query", "rank").values[:, :15], 3),
            "profile": significant(profiles[head], 3),
        }
        for number, (kind, head) in enumerate(chosen.items())
    ]


def by_layer(study: Study) -> dict[str, Any]:
    """Figure 5: largest amplitudes of X, Q and K in each layer, as multiples of noise; and the share of position."""
    spectra = spectra_by_layer(study)
    ratio = (spectra.maximum / spectra.null_99).transpose("layer", "side", "frequency")
    share = position_content(study).position_share.median("head").values
    return {
        "length": len(study.windows[0]),
        "sides": [str(side) for side in ratio.side.values],
        "ratio": significant(ratio.values, 3),
        "position": significant(share, 3),
    }


def of_table(rows: np.ndarray) -> dict[str, Any]:
    """Figures 8 and 9: the mean spectrum of a table as multiples of noise, and the variance of its first dimensions."""
    spectrum = amplitude_spectrum(rows)
    return {
        "rows": len(rows),
        "spectrum": significant(spectrum["mean"].values / float(spectrum.null_mean), 3),
        "share": significant(principal_components(rows).cumulative_share.values[:DIMENSIONS], 4),
    }


def shown_figures(folders: Sequence[Path]) -> dict[str, Any]:
    """The figures of the lesson that compare heads, layers and models."""
    encoders = {name: position_table(load_model(folder_of(name, folders)).model).rows for name in MODELS}
    loaded = {name: load_model(folder_of(name, folders), need_tokenizer=False) for name in DECODERS}
    decoders = {name: position_table(each.model, "decoder").rows for name, each in loaded.items()}
    studies = {name: study_of(name, folder_of(name, folders)) for name in DRAWN_BY_LAYER}
    return {
        "four": {name: four_heads(study) for name, study in studies.items()},
        "layers": {name: by_layer(study) for name, study in studies.items()},
        "tables": {
            name: {**of_table(rows), "kind": "decoder" if name in decoders else "encoder"}
            for name, rows in (encoders | decoders).items()
        },
    }


def slow_share(rows: np.ndarray) -> float:
    """Share of a table's power at periods above 51.2 tokens, without the columns' means."""
    spectrum = amplitude_spectrum(rows)
    power, frequency = spectrum.power.values[1:], spectrum.frequency.values[1:]
    twice = power * np.where(2 * frequency == len(rows), 1.0, 2.0)  # negative frequencies
    return float(twice[len(rows) / frequency > SLOW_PERIOD].sum() / twice.sum())


def of_decoder(folder: str) -> dict[str, Any]:
    """Slow waves of a decoder's table, and of noise of its shape."""
    loaded = load_model(folder, need_tokenizer=False)
    rows = position_table(loaded.model, "decoder").rows
    random = np.random.default_rng(0)
    noise = [slow_share(random.normal(size=rows.shape)) for _ in range(19)]
    return {"rows": len(rows), "slow": slow_share(rows), "noise": max(noise)}


def folder_of(name: str, folders: Sequence[Path]) -> str:
    """Where a model is; bundled models have no folder."""
    return next((str(folder / name) for folder in folders if (folder / name).is_dir()), name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", help="Folders that hold folders of models")
    parser.add_argument("--only", nargs="+", choices=[*MODELS, *DECODERS], default=[*MODELS, *DECODERS])
    parser.add_argument("--copies", type=int, default=19, help="Untrained copies of each model")
    parser.add_argument("--shown", type=Path, help="File for the arrays of some heads, as JSON; nothing else runs")
    parser.add_argument("--out", type=Path, help="File for the numbers, as JSON; other models in it stay")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if options.shown is not None:
        arrays = {
            name: shown_heads(folder_of(name, options.models), MODELS[name][0], heads, length)
            for name, (heads, length) in SHOWN.items()
        }
        written = {"models": arrays, **shown_figures(options.models)}
        text = json.dumps(written, ensure_ascii=False, separators=(",", ":"))
        options.shown.write_text(text + "\n", encoding="utf-8")
        return
    found: dict[str, Any] = {"models": {}, "decoders": {}}
    if options.out is not None and options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))
    found["claims"] = [
        {name: getattr(claim, name) for name in ("name", "place", "statement", "criterion", "null")} for claim in CLAIMS
    ]
    found["command"] = "python benchmarks/paper_claims.py MODELS"
    for name in options.only:
        folder = folder_of(name, options.models)
        if name in DECODERS:
            found["decoders"][name] = of_decoder(folder)
            print(f"{name}: {found['decoders'][name]}")
        else:
            found["models"][name] = of_model(folder, *MODELS[name], options.copies)
            for row in found["models"][name]["claims"]:
                print(f"{name} | {' | '.join(map(str, row.values()))}", flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
