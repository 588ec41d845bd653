"""Every command on 16-bit, quantised and adapted models, next to float32: makes docs/reference/dtypes.md.

    python benchmarks/dtypes.py                      # all families and formats, a process a core
    python benchmarks/dtypes.py llama --formats nf4  # some, printed

The reference of a cell is a float32 model whose linear layers have the numbers that the layers of the other give for
the identity; that of float32 is float64. `--rows FILE` stores what was found, line by line, and resumes from there. It
needs bitsandbytes, peft and torchao.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# ruff: noqa: E402 the tests stand beside this folder, and threads are set up before PyTorch is loaded
import numpy as np
import torch
import transformers
from tests.tiny_models import tiny_reader
from torch import nn

import attnscope
import attnscope_cards
import attnscope_circuits
from attnscope.capture.weights import linear_layers
from attnscope.support.errors import AttnscopeError, reason_of
from attnscope_circuits.score_parts import RELATIONS

FAMILIES = (
    "gpt2", "opt", "gpt_neox", "llama", "mistral", "gemma2", "qwen3", "gpt_oss", "bert", "albert", "modernbert", "t5",
)  # fmt: skip
_MASKED, _TWO = {"bert", "albert", "modernbert"}, {"t5"}
TEXTS = [
    "The tide comes in twice a day. Nobody watches the lighthouse.",
    "The tide goes out again, and nobody watches it from the lighthouse.",
]
STEPS = 8  # of rounding: three standard deviations of 28 roundings of half a step, those of a pass of two layers
#: Largest difference that counts as equal, as a share of the largest number that the verb subtracts; the int8 of
#: bitsandbytes rounds the inputs of layers to 8 bits.
LIMITS = {"float16": STEPS * 2**-10, "bfloat16": STEPS * 2**-7, "int8 (bitsandbytes)": STEPS * 2**-7}
#: A model may amplify rounding: the limit is at least this multiple of the difference of logits without attnscope.
_OF_PASS = 2
PLAIN = "plain pass"
#: Products of two numbers that are rounded: of gradients and changes, of queries and keys.
_PRODUCTS, _FACTORS = {"edges", "attribute --head"}, 2
_EXACT = 1e-3  # of float32 sums in another order, after a softmax
_OF_WEIGHTS = 1e-4  # of what is computed from weights alone, in every dtype


def _bits(dtype: torch.dtype) -> Callable[[nn.Module], nn.Module]:
    return lambda model: copy.deepcopy(model).to(dtype)


def _replaced(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """A copy with other linear layers in the blocks, as quantisers do it: the last layer stays."""
    model = copy.deepcopy(model)
    head, wide = model.get_output_embeddings(), model._keep_in_fp32_modules or ()  # noqa: SLF001 transformers
    for name, module in list(linear_layers(model)):
        parent, _, key = name.rpartition(".")
        if module is not head and key not in wide and min(module.weight.shape) >= 16:
            setattr(model.get_submodule(parent), key, make(_as_linear(module)))
    return model.eval()


def _as_linear(module: Any) -> nn.Linear:
    """A linear layer, also in place of GPT-2's, which stores its matrix the other way round."""
    if isinstance(module, nn.Linear):
        return module
    layer = nn.Linear(*module.weight.shape)
    layer.weight, layer.bias = nn.Parameter(module.weight.T.contiguous()), module.bias
    return layer


def _int8(model: nn.Module) -> nn.Module:
    from bitsandbytes.nn import Int8Params, Linear8bitLt

    def make(layer: nn.Linear) -> nn.Module:
        made = Linear8bitLt(layer.in_features, layer.out_features, bias=layer.bias is not None, has_fp16_weights=False)
        made.weight = Int8Params(layer.weight.data.clone(), requires_grad=False, has_fp16_weights=False)
        made.bias = layer.bias
        return made.to("cpu")

    return _replaced(model, make)


def _nf4(model: nn.Module) -> nn.Module:
    from bitsandbytes.nn import Linear4bit, Params4bit

    def make(layer: nn.Linear) -> nn.Module:
        made = Linear4bit(
            layer.in_features, layer.out_features, bias=layer.bias is not None, compute_dtype=torch.float32
        )
        made.weight = Params4bit(layer.weight.data.clone(), requires_grad=False, quant_type="nf4")
        made.bias = layer.bias
        return made.to("cpu")

    return _replaced(model, make)


def _torchao(model: nn.Module) -> nn.Module:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = copy.deepcopy(model)
    quantize_(model, Int8WeightOnlyConfig(), filter_fn=lambda one, _: isinstance(one, nn.Linear))
    return model


def _lora(model: nn.Module) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(2)
    settings = LoraConfig(r=3, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(copy.deepcopy(model), settings).eval().get_base_model()


FORMATS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "float32": copy.deepcopy,
    "bfloat16": _bits(torch.bfloat16),
    "float16": _bits(torch.float16),
    "int8 (bitsandbytes)": _int8,
    "nf4 (bitsandbytes)": _nf4,
    "int8 (torchao)": _torchao,
    "LoRA (peft)": _lora,
}


@torch.no_grad()
def reference(form: str, made: nn.Module, model: nn.Module) -> nn.Module:
    """A float32 model with the weights of another form of it; of float32 itself, a float64 model."""
    if form == "float32":
        wide = copy.deepcopy(model).double()
        wide.set_experts_implementation("eager")  # others have no float64
        return wide
    if made.dtype != torch.float32:
        return copy.deepcopy(made).float()
    plain = copy.deepcopy(model)
    for name, layer in linear_layers(plain):
        other = made.get_submodule(name)
        width = layer.nx if hasattr(layer, "nx") else layer.in_features
        rows = other(torch.cat([torch.eye(width), torch.zeros(1, width)])[None])[0]
        matrix = rows[:-1] - rows[-1]
        layer.weight = nn.Parameter(matrix if hasattr(layer, "nx") else matrix.T.contiguous())
    return plain.eval()


def verbs(family: str, tokenizer: Any) -> dict[str, Callable[[Any], Any]]:
    """Functions of a model that return numbers, by verb."""
    given: dict[str, Any] = {"tokenizer": tokenizer}
    mask = "<mask>" if family in _MASKED else ""
    pair = {"clean": f"It was part{mask}", "corrupted": f"It was due{mask}", "answer": " of", "wrong": " to"}
    pairs = [pair | ({"target": "The"} if family in _TWO else {})]

    def logits_of(model: Any, text: str) -> np.ndarray:
        ids = tokenizer(text, return_tensors="pt").input_ids
        both = {"decoder_input_ids": ids} if family in _TWO else {}
        with torch.no_grad():
            return model(input_ids=ids, **both).logits.double().numpy().ravel()

    def example(model: Any) -> Any:
        """Scores by rank: which of two examples with nearly the same score is the first is a matter of a step."""
        return attnscope.examples(model, TEXTS, heads=(0, 1), k=1, **given).score.values

    def edited(model: Any) -> Any:
        with attnscope.edit(model, {(1, 2): torch.zeros_like}):
            return logits_of(model, TEXTS[0])

    def circuits(model: Any) -> Any:
        found = attnscope_circuits.circuits(model, **given)
        return [found[name].values for name in ("copying_sum", "same_token", "composition")]

    def patched(model: Any) -> Any:
        """Logits that are not patched, and the patched differences of two of them: both have the logits' step."""
        effects = attnscope.patch(model, pairs, **given)["patched"].effect.values
        return np.concatenate([effects.ravel(), logits_of(model, pairs[0]["clean"])])

    def scores(model: Any) -> Any:
        """Parts at keys that positions and tokens choose: which key is the strongest is a matter of a step."""
        found = attnscope_circuits.attribute(model, TEXTS, head=(1, 1), **given)["scores"]
        return found.part.sel(relation=[*RELATIONS[1:]]).values

    def intervened(model: Any) -> Any:
        """Losses, and their changes."""
        found = attnscope.intervene(model, TEXTS, ablations=["zero"], steps=0, why=False, **given)["effects"]
        return np.concatenate([found.loss_change.values.ravel(), found.loss.values])

    settings: dict[str, Any] = {"method": "eap", "sizes": [0.0, 1.0], "draws": 1}
    return {
        PLAIN: lambda model: [logits_of(model, text) for text in TEXTS],
        "scan": lambda model: attnscope.scan(model, TEXTS, **given).entropy.values,
        "roles": lambda model: attnscope.roles(model, TEXTS, controls="none", **given).score.values,
        "explain": lambda model: attnscope.explain(model, TEXTS * 3, window=12, **given)["verdict"].peak_weight.values,
        "circuits": circuits,
        "attribute": lambda model: attnscope_circuits.attribute(model, TEXTS, **given)["predictions"].part.values,
        "attribute --head": scores,
        "edges": lambda model: attnscope_circuits.edges(model, pairs, **settings, **given).score.values,
        "patch": patched,
        "intervene": intervened,
        "head_outputs": lambda model: attnscope.head_outputs(model, TEXTS, layer=1, **given).values,
        "edit": edited,
        "examples": example,
        "generate": lambda model: attnscope.generate(model, TEXTS, new_tokens=1, **given).entropy.values,
        "card": lambda model: attnscope_cards.card(model, TEXTS * 2, controls="none", **given).score.values,
    }


def attempt(verb: Callable[[Any], Any], model: Any) -> tuple[Any, str, bool]:
    """Numbers, or the reason and whether attnscope gave it."""
    try:
        found = verb(model)
    except AttnscopeError as error:
        return None, reason_of(error), True
    except Exception as error:  # noqa: BLE001 the table shows it
        return None, f"{type(error).__name__}: {error}"[:300], False
    return found if isinstance(found, list) else [found], "", True


def difference(own: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Largest difference, as a share of the largest number; infinite if others are defined."""
    worst = 0.0
    for one, other in zip(own, expected, strict=True):
        if one.shape != other.shape or (np.isfinite(one) != np.isfinite(other)).any():
            return float("inf")
        known = np.isfinite(other)
        if known.any():
            worst = max(worst, float(np.abs(one - other)[known].max()) / max(float(np.abs(other[known]).max()), 1e-6))
    return worst


def rows_of(family: str, form: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each of these verbs."""
    rows: list[dict[str, Any]] = []
    model, tokenizer = tiny_reader(family)
    for table in (model.get_input_embeddings(), model.get_output_embeddings()):
        nn.init.normal_(table.weight, std=0.5)
    made = FORMATS[form](model)
    expected = reference(form, made, model)
    for name, verb in verbs(family, tokenizer).items():
        if name not in names:
            continue
        row = {"family": family, "format": form, "verb": name}
        (own, reason, ours), (other, also, _) = attempt(verb, made), attempt(verb, expected)
        if own is not None and other is not None:
            rows.append(row | {"status": "compared", "difference": difference(own, other)})
        elif own is None:
            status = "crash" if not ours else "rejected" if other is not None else "rejected in both"
            rows.append(row | {"status": status, "reason": reason})
        else:
            rows.append(row | {"status": "differs", "reason": f"only the reference: {also}"})
    return rows


def judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, with numbers as equal or different."""
    passes = {(row["family"], row["format"]): row["difference"] for row in rows if row["verb"] == PLAIN}

    def limit(row: dict[str, Any]) -> float:
        """Of a plain pass there is none: it is the model's own rounding."""
        if row["verb"] in {"circuits", PLAIN}:
            return _OF_WEIGHTS if row["verb"] == "circuits" else float("inf")
        of_pass = _OF_PASS * passes[row["family"], row["format"]]
        return max(LIMITS.get(row["format"], _EXACT), of_pass) * (_FACTORS if row["verb"] in _PRODUCTS else 1)

    return [
        row | {"status": "equal" if row["difference"] <= limit(row) else "differs"} if "difference" in row else row
        for row in rows
    ]


_INTRODUCTION = """\
# Number formats

Fourteen commands and functions on 16-bit, quantised and adapted models, next to a float32 model with the same,
already rounded weights (float32 next to float64), by `python benchmarks/dtypes.py`
(transformers {version}, PyTorch {torch}).
Models are tiny and random.

A number is the largest difference over the largest value of the reference. **Bold** numbers exceed the limit. A letter
is a [reason](#reasons) for which attnscope rejects the model; in italics, it rejects the reference too.

| numbers | limit |
|---|---|
| of weights alone (`circuits`) | {weights:g} |
| of float32 passes | {exact:g} |
| of float16 | {steps} rounding steps, {float16:.2g} |
| of bfloat16, and of bitsandbytes' int8, which rounds inputs to 8 bits | {bfloat16:.2g} |
| of a model that amplifies rounding | twice the difference of its own logits without attnscope (*plain pass*) |
| products of two rounded numbers: `edges`, `attribute --head` | twice that |

Effects of less than a few rounding steps of a logit (`patch`) or a loss (`intervene`) are rounding. Choices between
near ties are not compared: `attribute --head` leaves out the strongest key, `examples` has scores by rank, and
`generate` makes one token.
"""


def page(rows: list[dict[str, Any]]) -> str:
    """The documentation page."""
    lines = [
        _INTRODUCTION.format(
            version=transformers.__version__, torch=torch.__version__.split("+")[0], weights=_OF_WEIGHTS,
            exact=_EXACT, steps=STEPS, float16=LIMITS["float16"], bfloat16=LIMITS["bfloat16"],
        )
    ]  # fmt: skip
    reasons = list(dict.fromkeys(row["reason"] for row in rows if "reason" in row))
    names = list(dict.fromkeys(row["verb"] for row in rows))
    for form in dict.fromkeys(row["format"] for row in rows):
        own = {(row["family"], row["verb"]): row for row in rows if row["format"] == form}
        families = list(dict.fromkeys(family for family, _ in own))
        lines += [f"## {form}", "", "| family | " + " | ".join(names) + " |", "|---" * (1 + len(names)) + "|"]
        lines += [
            f"| {one} | " + " | ".join(_cell(own[one, name], reasons) for name in names) + " |" for one in families
        ]
        lines.append("")
    if reasons:
        lines += ["## Reasons", "", "| | reason |", "|---|---|"]
        lines += [*(f"| {_letter(at)} | {reason} |" for at, reason in enumerate(reasons)), ""]
    return "\n".join(lines)


def _letter(number: int) -> str:
    return chr(ord("a") + number)


def _cell(row: dict[str, Any], reasons: list[str]) -> str:
    marks = {"equal": "", "rejected": "", "rejected in both": "*", "differs": "**", "crash": "**"}
    if "reason" in row:
        text = _letter(reasons.index(row["reason"]))
    else:
        text = f"{row['difference']:.0e}" if row["difference"] else "0"
    mark = marks[row["status"]]
    return f"{mark}{text}{mark}"


def prepare() -> None:
    """Settings of a process."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=FAMILIES)
    parser.add_argument("--formats", nargs="*", default=[*FORMATS])
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "reference" / "dtypes.md")
    given = parser.parse_args()
    prepare()
    stored = given.rows.read_text(encoding="utf-8").splitlines() if given.rows and given.rows.exists() else []
    found: list[dict[str, Any]] = [json.loads(line) for line in stored]
    done = {(row["family"], row["format"], row["verb"]) for row in found}
    names = [*verbs("gpt2", None)]
    chosen = [form for form in FORMATS if any(form.startswith(name) for name in given.formats)]
    cells = [
        (family, form, missing)
        for family in given.families
        for form in chosen
        if (missing := [name for name in names if (family, form, name) not in done])
    ]
    with ProcessPoolExecutor(given.processes, get_context("spawn"), prepare) as pool:
        for future in as_completed([pool.submit(rows_of, *cell) for cell in cells]):
            found += future.result()
            lines = [json.dumps(row) + "\n" for row in future.result()]
            print(*lines, sep="", end="", flush=True)
            if given.rows:
                with given.rows.open("a", encoding="utf-8") as file:
                    file.writelines(lines)
    if len(given.families) == len(FAMILIES) and len(chosen) == len(FORMATS):
        order = [(form, family) for form in FORMATS for family in FAMILIES]
        found.sort(key=lambda row: (order.index((row["format"], row["family"])), names.index(row["verb"])))
        given.out.write_text(page(judged(found)), encoding="utf-8")
