"""Every verb on 16-bit, quantised and adapted models, next to float32: makes docs/reference/dtypes.md.

    python benchmarks/dtypes.py                      # all families and formats: some 20 minutes on 2 cores
    python benchmarks/dtypes.py llama --formats nf4  # some, printed

The reference of a cell is a float32 model whose linear layers have the numbers that the layers of the other give for
the identity. `--rows FILE` stores what was found, line by line, and resumes from there. It needs bitsandbytes, peft and
torchao.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# ruff: noqa: E402 the tests stand beside this folder, and threads are set up before PyTorch is loaded
import numpy as np
import torch
import transformers
from tests.families import tiny_reader
from torch import nn

import attnscope
from attnscope.capture.weights import linear_layers
from attnscope.support.errors import AttnscopeError, reason_of

FAMILIES = (
    "gpt2", "opt", "gpt_neox", "llama", "mistral", "gemma2", "qwen3", "gpt_oss", "bert", "albert", "modernbert", "t5",
)  # fmt: skip
_MASKED, _TWO = {"bert", "albert", "modernbert"}, {"t5"}
TEXTS = [
    "The tide comes in twice a day. Nobody watches the lighthouse.",
    "The tide goes out again, and nobody watches it from the lighthouse.",
]
#: Largest difference, as a share of the largest number, that counts as equal: 16 steps of the dtype.
LIMITS = {"float16": 16 * 2**-10, "bfloat16": 16 * 2**-7}
_EXACT = 1e-3  # of float32 sums in another order, after a softmax
_OF_WEIGHTS = 1e-4  # of what is computed from weights alone, in every dtype


def _bits(dtype: torch.dtype) -> Callable[[nn.Module], nn.Module]:
    return lambda model: copy.deepcopy(model).to(dtype)


def _replaced(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """A copy with other linear layers in the blocks, as quantisers do it: the last layer stays."""
    model, head = copy.deepcopy(model), None
    head = model.get_output_embeddings()
    for name, module in list(linear_layers(model)):
        if isinstance(module, nn.Linear) and module is not head and min(module.weight.shape) >= 16:
            parent, _, key = name.rpartition(".")
            setattr(model.get_submodule(parent), key, make(module))
    return model.eval()


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
    "bfloat16": _bits(torch.bfloat16), "float16": _bits(torch.float16), "int8 (bitsandbytes)": _int8,
    "nf4 (bitsandbytes)": _nf4, "int8 (torchao)": _torchao, "LoRA (peft)": _lora,
}  # fmt: skip
_ROUNDS_INPUT = {"int8 (bitsandbytes)": 0.1}  # LLM.int8 rounds the input of each layer to 8 bits


@torch.no_grad()
def in_float32(made: nn.Module, model: nn.Module) -> nn.Module:
    """The float32 model with the weights of another form of it."""
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
    ids = tokenizer(TEXTS[0], return_tensors="pt").input_ids

    def edited(model: Any) -> Any:
        both = {"decoder_input_ids": ids} if family in _TWO else {}
        with attnscope.edit(model, {(1, 2): torch.zeros_like}), torch.no_grad():
            return model(input_ids=ids, **both).logits.float().numpy()

    def circuits(model: Any) -> Any:
        found = attnscope.circuits(model, **given)
        return [found[name].values for name in ("copying_sum", "same_token", "composition")]

    settings: dict[str, Any] = {"method": "eap", "sizes": [0.0, 1.0], "draws": 1}
    effects: dict[str, Any] = {"ablations": ["zero"], "steps": 0, "why": False}
    return {
        "scan": lambda model: attnscope.scan(model, TEXTS, **given).entropy.values,
        "roles": lambda model: attnscope.roles(model, TEXTS, controls="none", **given).score.values,
        "explain": lambda model: attnscope.explain(model, TEXTS * 3, window=12, **given)["verdict"].peak_weight.values,
        "circuits": circuits,
        "attribute": lambda model: attnscope.attribute(model, TEXTS, **given)["predictions"].part.values,
        "attribute --head": lambda model: attnscope.attribute(model, TEXTS, head=(1, 1), **given)["scores"].part.values,
        "edges": lambda model: attnscope.edges(model, pairs, **settings, **given).score.values,
        "patch": lambda model: attnscope.patch(model, pairs, **given)["patched"].effect.values,
        "intervene": lambda model: attnscope.intervene(model, TEXTS, **effects, **given)["effects"].loss_change.values,
        "head_outputs": lambda model: attnscope.head_outputs(model, TEXTS, layer=1, **given).values,
        "edit": edited,
        "examples": lambda model: attnscope.examples(model, TEXTS, head=(0, 1), k=1, **given).weight.values,
        "generate": lambda model: attnscope.generate(model, TEXTS, new_tokens=2, **given).entropy.values,
        "card": lambda model: attnscope.card(model, TEXTS * 2, controls="none", **given).score.values,
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


def rows_of(family: str, form: str) -> Iterable[dict[str, Any]]:
    """A row for each verb."""
    model, tokenizer = tiny_reader(family)
    for table in {model.get_input_embeddings(), model.get_output_embeddings()}:
        nn.init.normal_(table.weight, std=0.5)
    made = FORMATS[form](model)
    expected = in_float32(made, model)
    for name, verb in verbs(family, tokenizer).items():
        row = {"family": family, "format": form, "verb": name}
        (own, reason, ours), (other, also, _) = attempt(verb, made), attempt(verb, expected)
        limit = _OF_WEIGHTS if name == "circuits" else _ROUNDS_INPUT.get(form, LIMITS.get(form, _EXACT))
        if own is not None and other is not None:
            apart = difference(own, other)
            yield row | {"status": "equal" if apart <= limit else "differs", "difference": apart, "limit": limit}
        elif own is None:
            status = "crash" if not ours else "rejected" if other is not None else "rejected in float32 too"
            yield row | {"status": status, "reason": reason}
        else:
            yield row | {"status": "differs", "reason": f"only in float32: {also}"}


_INTRODUCTION = """\
# Number formats

Every verb on 16-bit, quantised and adapted models, next to a float32 model with the same weights, by
`python benchmarks/dtypes.py` (transformers {version}, PyTorch {torch}). Models are tiny and random.

* A number is the largest difference, as a share of the largest number of the verb. Numbers of weights alone
  (`circuits`) must agree within {weights:g}. Others must agree within 16 rounding steps of the dtype
  ({float16:.2g} in float16, {bfloat16:.2g} in bfloat16), within {exact:g} where layers compute in float32, and within
  {int8:g} for bitsandbytes' int8, which rounds the input of each layer to 8 bits.
* **Bold** numbers exceed that. A letter is a reason for which attnscope rejects the model, listed below.
* *also in float32*: the verb rejects the float32 model for the same reason.
"""


def page(rows: list[dict[str, Any]]) -> str:
    """The documentation page."""
    lines = [
        _INTRODUCTION.format(
            version=transformers.__version__, torch=torch.__version__.split("+")[0], weights=_OF_WEIGHTS,
            exact=_EXACT, int8=_ROUNDS_INPUT["int8 (bitsandbytes)"], **LIMITS,
        )
    ]  # fmt: skip
    reasons = list(dict.fromkeys(row["reason"] for row in rows if row["status"] in {"rejected", "crash"}))
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
        lines += ["## Reasons", "", *(f"* {_letter(at)}: {reason}" for at, reason in enumerate(reasons)), ""]
    return "\n".join(lines)


def _letter(number: int) -> str:
    return chr(ord("a") + number)


def _cell(row: dict[str, Any], reasons: list[str]) -> str:
    if row["status"] == "rejected in float32 too":
        return "*also in float32*"
    if "difference" not in row:
        return _letter(reasons.index(row["reason"])) if row["reason"] in reasons else f"**{row['reason']}**"
    apart = f"{row['difference']:.0e}" if row["difference"] else "0"
    return apart if row["status"] == "equal" else f"**{apart}**"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=FAMILIES)
    parser.add_argument("--formats", nargs="*", default=[*FORMATS])
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "reference" / "dtypes.md")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    stored = given.rows.read_text(encoding="utf-8").splitlines() if given.rows and given.rows.exists() else []
    found: list[dict[str, Any]] = [json.loads(line) for line in stored]
    done = {(row["family"], row["format"]) for row in found}
    chosen = [form for form in FORMATS if any(form.startswith(name) for name in given.formats)]
    for family, form in ((family, form) for form in chosen for family in given.families):
        if (family, form) in done:
            continue
        new = list(rows_of(family, form))
        found += new
        for row in new:
            print(json.dumps(row), flush=True)
        if given.rows:
            with given.rows.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)
    if len(given.families) == len(FAMILIES) and len(chosen) == len(FORMATS):
        order = [(form, family) for form in FORMATS for family in FAMILIES]
        found.sort(key=lambda row: order.index((row["format"], row["family"])))
        given.out.write_text(page(found), encoding="utf-8")
