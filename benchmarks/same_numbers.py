"""Every verb before and after a change of the code: the arrays must be equal bit for bit.

    python benchmarks/same_numbers.py COMMIT [--only REGEX]

Both trees run the same calls (float32, CPU, one thread), each in its own process with its own source and test helpers,
which make the models. `RENAMED` maps names of COMMIT to names of today. The command ends with the number
of equal arrays and exits with 1 if any differs.
"""

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
#: Old name of a variable, coordinate or dimension -> today's.
RENAMED: dict[str, str] = {}
#: Regular expression of arrays that were changed on purpose.
EXPECTED_TO_DIFFER = r"seconds|tokens_per_second"

FAMILIES = [
    "bert",
    "roberta",
    "albert",
    "distilbert",
    "electra",
    "modernbert",
    "gpt2",
    "gpt_neox",
    "opt",
    "llama",
    "mistral",
    "gemma2",
    "gpt_oss",
    "qwen3",
    "t5",
    "bart",
    "marian",
    "whisper",
    "deberta",
    "deberta_v2",
    "vit",
    "bloom",
]
TEXTS = [
    "The tide comes in over the sand, and the boats rise with it. The tide goes out again, and the boats lie down.",
    "A dog ran along the harbour wall; nobody knew whose dog it was, but every child knew its name.",
    "When the bell rings, the fishermen put on their coats. When it rings twice, they run.",
    "The lamp on the wall is older than the house. The house is older than the road.",
    "She reads a book about the sea. The book about the sea reads like a letter.",
    "One, two, three, four, one, two, three, four, one, two, three, four.",
    "In winter the ferry does not come on Sundays, and on Mondays it comes late.",
    "The old man counted the gulls: seven on the roof, seven on the wall, one on his hat.",
]
IDS = np.random.default_rng(0).integers(3, 60, (8, 20))


def cases(folder: Path):
    """Name and call of each case; the calls of COMMIT and of today may differ here, their arrays not."""
    import torch
    from tests import tiny_models
    from tests.measure.generation.causal_models import writer

    import attnscope

    try:
        from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer

        import attnscope_lineage as lineage
    except ImportError:  # a COMMIT in which they are part of attnscope
        from tests.lineage.translation.small_translators import small_model, small_tokenizer

        lineage = attnscope
    scan, models = attnscope.scan, Path(os.environ.get("ATTNSCOPE_MODELS", ROOT.parent / "shared" / "models"))
    data = Path(os.environ.get("ATTNSCOPE_DATA", ROOT.parent / "shared" / "data"))
    bundled = {"model": "bundled", "texts": TEXTS, "device": "cpu"}
    for name, more in {
        "plain": {},
        "window": {"window": 24},
        "stride": {"window": 24, "stride": 12},
        "batch": {"window": 24, "batch_size": 5},
        "limit": {"window": 16, "limit": 5},
        "rows": {"rows": 16, "window": 48},
        "pool": {"window": 16, "pool": 2},
        "band": {"band": 4},
        "offsets": {"offsets": [-20, -3, 5]},
        "statistics": {"statistics": ["entropy", "first_token"]},
        "clusters": {"clusters": 3, "window": 16},
        "seed": {"seed": 7},
        "observation": {"observation": 8},
        "until": {"until": 0.2, "window": 16},
        "words": {"words": "space"},
        "groups": {"groups": "types"},
        "show": {"show": [(0, 1), (2, 3)]},
        "bfloat16": {"dtype": "bfloat16"},
        "float64": {"dtype": "float64"},
    }.items():
        yield f"scan-{name}", lambda more=more: scan(**bundled | more)

    reactions = (ROOT / "examples" / "reactions.txt").read_text().splitlines()[:12]
    stories = "\n".join(TEXTS * 2)
    albert, llama = str(models / "rxnmapper-albert"), str(models / "stories260K-llama")
    yield "scan-albert", lambda: scan(albert, reactions, device="cpu")
    yield "scan-llama", lambda: scan(llama, stories, window=64, device="cpu")
    yield "roles-llama", lambda: attnscope.roles(llama, stories, limit=6, window=64, device="cpu")
    yield "explain-albert", lambda: explained(albert, reactions, limit=8, window=24, device="cpu")
    yield "explain-llama", lambda: explained(llama, stories, limit=6, window=64, device="cpu")
    yield "intervene-llama", lambda: attnscope.intervene(llama, stories, limit=6, window=48, device="cpu")
    yield "intervene-albert", lambda: attnscope.intervene(albert, reactions, limit=6, device="cpu")
    for name, more in {
        "plain": {},
        "interventions": {"interventions": True, "intervention_texts": 4},
        "haar": {"completion": "haar"},
        "frequencies": {"frequencies": (2, 6)},
        "paper": {"layer": 1, "head": 2},
    }.items():
        yield f"explain-{name}", lambda more=more: explained(limit=8, device="cpu", **more)
    for name, more in {
        "plain": {},
        "search": {"search": True},
        "curves": {"curves": True},
        "together": {"together": [[(0, 1), (1, 2)]]},
        "forbid": {"forbid_offsets": [-1], "forbid_first": True},
        "kept": {"forbid_offsets": [-1], "renormalise": False},
        "no-why": {"why": False, "ablations": ("mean",)},
    }.items():
        yield f"intervene-{name}", lambda more=more: attnscope.intervene(limit=8, device="cpu", **more)
    for name, more in {
        "plain": {},
        "positions": {"by_position": True},
        "residual": {"what": "residual"},
        "receiver": {"receiver": "1.3"},
    }.items():
        yield f"patch-{name}", lambda more=more: attnscope.patch(device="cpu", **more)
    for verb in ("roles", "card"):
        yield verb, lambda verb=verb: of_verb(verb)(limit=8, device="cpu")
    yield "card-llama", lambda: of_verb("card")(llama, stories, limit=6, window=64, device="cpu")
    yield "examples", lambda: attnscope.examples(heads=[(0, 1), (2, 3)], limit=8, device="cpu")
    yield "examples-llama", lambda: attnscope.examples(llama, stories, heads=[(0, 1), (3, 2)], window=64, device="cpu")
    for name, model in (("bundled", None), ("albert", albert), ("llama", llama)):
        yield f"circuits-{name}", lambda m=model: of_verb("circuits")(m, device="cpu")
        for verb in ("attribute", "edges"):
            if name == "bundled":
                yield verb, lambda verb=verb: of_verb(verb)(device="cpu")
    yield "attribute-llama", lambda: of_verb("attribute")(llama, stories, limit=6, window=32, device="cpu")
    yield "attribute-head", lambda: of_verb("attribute")(texts=TEXTS, head=(0, 3), limit=4, device="cpu")
    yield "edges-exact", lambda: of_verb("edges")(method="exact", draws=1, device="cpu")
    yield "weights", lambda: attnscope.weights(texts=TEXTS[0], device="cpu")
    yield "received", lambda: attnscope.received(texts=TEXTS[0], device="cpu")
    yield "walk", lambda: lineage.walk(texts=TEXTS[1], device="cpu")
    yield "diff", lambda: attnscope.diff(scan(**bundled), scan(**bundled | {"dtype": "bfloat16"}))

    def by_field():
        lines = [json.dumps({"text": text, "part": "ab"[n % 2]}) for n, text in enumerate(TEXTS)]
        (folder / "by.jsonl").write_text("\n".join(lines))
        return scan("bundled", folder / "by.jsonl", field="text", by="part", device="cpu")

    yield "scan-by", by_field
    yield "contrasts", lambda: attnscope.contrasts(by_field())

    english, german = ["a bad cat.", "the dog bath.", "a hat"] * 2, ["das bad.", "der hund.", "ein hut"] * 2
    for family in FAMILIES:
        if family in {"vit", "whisper"}:
            continue
        model = tiny_models.tiny(family)
        pairs = family in {"t5", "bart", "marian"}
        ids = english if pairs else [row.tolist() for row in IDS]
        given = {"targets": german, "tokenizer": small_tokenizer()} if pairs else {"tokenizer": "bundled"}
        whole = {"device": "cpu", "window": 20, "limit": 8} | given
        yield f"{family}-scan", lambda m=model, w=whole, i=ids: scan(m, i, **w)
        yield f"{family}-rows", lambda m=model, w=whole, i=ids: scan(m, i, rows=16, **w)
        if not pairs:
            yield f"{family}-explain", lambda m=model, w=whole, i=ids: explained(m, i, band=4, **w)
            yield f"{family}-roles", lambda m=model, w=whole, i=ids: attnscope.roles(m, i, **w)
        yield f"{family}-intervene", lambda m=model, w=whole, i=ids: attnscope.intervene(m, i, steps=2, **w)

    def watched(family):
        model = tiny_models.tiny(family)
        given, _ = tiny_models.inputs(family, padded=False)
        with torch.no_grad(), attnscope.watch(model, band=4) as seen:
            model(**given)
        return seen.result() if callable(getattr(seen, "result", None)) else seen.dataset

    for family in FAMILIES:
        yield f"{family}-watch", lambda f=family: watched(f)
    rows = torch.rand(2, 4, 12, 12, generator=torch.Generator().manual_seed(0)).softmax(-1)
    yield "measure", lambda: attnscope.measure_weights([rows, rows.flip(1)], band=4)
    yield ("measure-lengths", lambda: attnscope.measure_weights([rows.tril() / rows.tril().sum(-1, True)], band=4))

    def generated(**more):
        model, tokenizer = writer()
        prompts = ["The tide comes in.", "A dog ran along the wall."]
        return attnscope.generate(model, prompts, tokenizer=tokenizer, new_tokens=6, device="cpu", **more)

    yield "generate", generated
    yield "generate-beams", lambda: generated(beams=2)
    yield "generate-sample", lambda: generated(sample=True, seed=3)
    yield "generate-groups", lambda: generated(groups="types")

    for kind in ("t5", "bart", "marian"):
        with suppress(KeyError, ValueError, TypeError):
            model, tokenizer = small_model(kind), small_tokenizer()
            yield (
                f"{kind}-translate",
                lambda m=model, t=tokenizer: lineage.translate(m, english, tokenizer=t, device="cpu"),
            )
            yield (
                f"{kind}-align",
                lambda m=model, t=tokenizer: lineage.align(m, english, german, tokenizer=t, device="cpu"),
            )
            yield (
                f"{kind}-targets",
                lambda m=model, t=tokenizer: scan(m, english, targets=german, tokenizer=t, window=40, device="cpu"),
            )
    yield ("score", lambda: lineage.score({"one": english, "two": german}, german, texts=english, by_length=(2, 3)))

    def trained(**settings):
        for language in ("de", "en"):
            lines = (data / "multi30k" / f"val.{language}").read_text(encoding="utf-8").splitlines()[:200]
            (folder / f"t.{language}").write_text("\n".join(lines), encoding="utf-8")
        texts = {
            f"{part}{side}": str(folder / f"t.{language}")
            for part in ("", "valid_")
            for side, language in (("source", "de"), ("target", "en"))
        }
        out = folder / "-".join(map(str, settings.values()))
        result = lineage.train(None, out, **texts, vocabulary=400, updates=6, **settings)
        return result, {path.name: np.fromfile(path, np.uint8) for path in out.rglob("model.safetensors")}

    for attention in ("none", "additive", "bilinear", "dot"):
        yield f"train-{attention}", lambda a=attention: trained(model="recurrent", attention=a)
    yield "train-transformer", lambda: trained(model="transformer")

    with suppress(ImportError):
        from tests.image_models import save_vision_model, write_pictures
        from tests.image_text_models import save_pictured_model, write_pictured
        from tests.speech_models import save_wav2vec2, save_whisper, write_sounds

        pictures, sounds = write_pictures(folder / "pictures"), write_sounds(folder / "sounds")
        for family in ("vit", "dinov2", "clip", "siglip", "swin"):
            where = save_vision_model(family, folder / family)
            yield f"images-{family}", lambda w=where: scan(w, pictures, device="cpu")
        yield "sounds-wav2vec2", lambda: scan(save_wav2vec2(folder / "wav2vec2"), sounds, device="cpu")
        yield "sounds-whisper", lambda: scan(save_whisper(folder / "whisper"), sounds, device="cpu")
        text = write_pictured(folder / "pictured")
        for family in ("llava", "qwen2_vl", "idefics3", "internvl", "gemma3"):
            where = folder / f"saved-{family}"
            yield (
                f"image-text-{family}",
                lambda f=family, w=where: scan(save_pictured_model(f, w), text, device="cpu"),
            )


def arrays_of(result, at=""):
    """Every array, number and string in a result, by its path."""
    import torch
    import xarray as xr

    if isinstance(result, xr.DataTree):
        for node in result.subtree:
            yield from arrays_of(node.to_dataset(), f"{at}{node.path}")
    elif isinstance(result, (xr.Dataset, xr.DataArray)):
        held = result.variables if isinstance(result, xr.Dataset) else {"": result.variable, **result.coords}
        for name, array in held.items():
            dims = ",".join(RENAMED.get(str(one), str(one)) for one in array.dims)
            yield f"{at}/{RENAMED.get(str(name), name)}({dims})", np.asarray(array.values)
    elif dataclasses.is_dataclass(result):
        for field in dataclasses.fields(result):
            yield from arrays_of(getattr(result, field.name), f"{at}.{field.name}")
    elif isinstance(result, dict):
        for name, part in result.items():
            yield from arrays_of(part, f"{at}[{name}]")
    elif isinstance(result, (list, tuple)) or type(result).__name__ == "Translations":
        for number, part in enumerate(result):
            yield from arrays_of(part, f"{at}[{number}]")
    elif isinstance(result, torch.Tensor):
        yield at, result.detach().float().numpy()
    elif isinstance(result, (np.ndarray, int, float, str)) and "signature" not in at:
        yield at, np.asarray(result)


def collect(folder: Path, only: str) -> None:
    """Run the cases and write the arrays of each to a file; an error is a result of its own."""
    import torch

    torch.set_num_threads(1)
    folder.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        for name, call in cases(Path(scratch)):
            if re.search(only, name):
                start = time.perf_counter()
                try:
                    found = dict(arrays_of(call()))
                except Exception as error:  # noqa: BLE001 - compared like any other answer
                    found = {"error": np.asarray(f"{type(error).__name__}: {error}".replace(scratch, ""))}
                plain = {k: v.astype(str) if v.dtype == object else v for k, v in found.items()}
                np.savez(folder / f"{name}.npz", **{k.replace("/", "|"): v for k, v in plain.items()})
                print(f"  {name}: {len(found)} arrays, {time.perf_counter() - start:.1f} s", flush=True)


def compared(before: Path, after: Path) -> tuple[int, list[str]]:
    """The number of equal arrays, and a line for each that differs."""
    equal, other = 0, []
    for path in sorted(before.glob("*.npz")):
        old, new = (dict(np.load(path)), dict(np.load(after / path.name)) if (after / path.name).exists() else {})
        for key in sorted(old.keys() | new.keys()):
            name = f"{path.stem} {key.replace('|', '/')}"
            if re.search(EXPECTED_TO_DIFFER, name):
                continue
            if key not in old or key not in new:
                other.append(f"{name}: {'only before' if key in old else 'only after'}")
            elif old[key].dtype == new[key].dtype and old[key].tobytes() == new[key].tobytes():
                equal += 1
            elif old[key].shape != new[key].shape or old[key].dtype.kind in "OUS":
                other.append(f"{name}: {str(old[key])[:100]} -> {str(new[key])[:100]}")
            else:
                gap = np.nanmax(np.abs(old[key].astype(float) - new[key].astype(float)), initial=0)
                other.append(f"{name}: largest difference {gap:.3g}, {old[key].dtype} -> {new[key].dtype}")
    return equal, other


def of_verb(name):
    """A verb of attnscope, or of the package that has it today."""
    import attnscope

    package = "attnscope_cards" if name == "card" else "attnscope_circuits"
    return getattr(attnscope, name, None) or getattr(import_module(package), name)


def explained(*inputs, completion="minimal", **settings):
    """`explain` with the analyses of position embeddings, which are part of it or of a package."""
    import attnscope

    try:
        from attnscope_yamamoto2023.analyses import OF_POSITIONS
        from attnscope_yamamoto2023.positions.rotation import completed
    except ImportError:  # a COMMIT in which they are part of attnscope
        return attnscope.explain(*inputs, completion=completion, **settings)
    analyses = [completed(completion) if one.name == "phase_map" else one for one in OF_POSITIONS]
    return attnscope.explain(*inputs, analyses=analyses, **settings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", help="the commit to compare with")
    parser.add_argument("--only", default="", help="regular expression of the cases to run")
    parser.add_argument("--keep", type=Path, help="folder that keeps the arrays of COMMIT between calls")
    parser.add_argument("--collect", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.collect:
        collect(args.collect, args.only)
        return 0
    scratch = Path(tempfile.mkdtemp())
    old = scratch / "old"
    subprocess.run(["git", "-C", ROOT, "worktree", "add", "-q", "--detach", old, args.commit], check=True)
    try:
        kept = args.keep or scratch / "before"
        for tree, out in ((old, kept), (ROOT, scratch / "after")):
            if out == kept and out.exists():
                continue
            print(f"{tree.name} ({'before' if tree == old else 'after'})", flush=True)
            environment = os.environ | {
                "PYTHONPATH": os.pathsep.join(map(str, [tree / "src", *tree.glob("packages/*/src"), tree])),
                "PYTHONSAFEPATH": "1",
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
            }
            command = [sys.executable, __file__, "--collect", out, "--only", args.only]
            subprocess.run(command, env=environment, check=True, cwd=scratch)
        equal, other = compared(kept, scratch / "after")
    finally:
        subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", old], check=True)
        shutil.rmtree(scratch, ignore_errors=True)
    print("\n".join(other))
    print(f"{equal} arrays equal, {len(other)} differ")
    return bool(other)


if __name__ == "__main__":
    sys.exit(main())
