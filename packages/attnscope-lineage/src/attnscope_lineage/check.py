"""Checking a module of attention that a student wrote: right, or which known mistake explains its output.

The module runs on random X. Its own layers then give the output that attention would have, and the output under each
known mistake; the one that is equal names the mistake.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import runpy
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from attnscope.report.language import PLACEHOLDER, SENTENCES, translate
from attnscope.support.errors import AttnscopeError, explaining
from attnscope.support.numbers import count

TEXTS, TOKENS, WIDTH, HEADS = 2, 7, 8, 2  # seven tokens, as few heads have a width of 7
_LIMIT = 1e-4  # largest difference from an output, relative to its size: float32
_PAIRS = 2  # mistakes at once

Scale = Literal["root", "none", "width", "model", "tokens", "times", "after"]
Softmax = Literal["keys", "queries", "texts", "heads", "none"]
Scores = Literal["QK", "KQ", "QQ"]
Content = Literal["V", "K", "Q", "X"]
Mask = Literal["none", "causal", "after", "zero", "itself", "earlier", "inverted"]
Split = Literal["heads", "one", "rows"]
Merge = Literal["columns", "rows", "mean", "sum", "no"]
Output = Literal["map", "none"]
Residual = Literal["none", "added"]
Axis = Literal["tokens", "texts"]


@dataclass(frozen=True)
class Way:
    """How attention is computed; the first of each kind is right."""

    scores: Scores = "QK"
    scale: Scale = "root"
    mask: Mask = "none"
    softmax: Softmax = "keys"
    content: Content = "V"
    split: Split = "heads"
    merge: Merge = "columns"
    output: Output = "map"
    residual: Residual = "none"
    axis: Axis = "tokens"


class Mistake(NamedTuple):
    """A sentence that names a mistake, one that explains it, and patterns of the line to look for, the surest first."""

    name: str
    reason: str
    lines: tuple[str, ...]


_PRODUCTS = (r"@|matmul|bmm|einsum",)
_SCORES = (r"(@|matmul|bmm).*(transpose|permute|\.m?T\b)|einsum", *_PRODUCTS)
_DIVIDED = (r"(?<!/)/(?!/)", r"\*")
_ROOT = (r"sqrt|\*\* ?\(?-? ?(0?\.5|1 ?/ ?2)|pow\(", *_DIVIDED)
_HIDDEN = (r"masked_fill|where\(|\* ?\w*mask|mask\w* ?\*", r"mask|tril|triu")
_TRIANGLE = (r"tril|triu", *_HIDDEN)
_VIEW = (r"view|reshape|rearrange",)
_SOFTMAX = (r"softmax|Softmax",)


MISTAKES: dict[tuple[str, str], Mistake] = {
    ("scores", "KQ"): Mistake(
        "The scores are transposed: KQᵀ instead of QKᵀ.",
        "Rows of S belong to queries. Row i has the inner products of query i with every key: Q @ K.transpose(-2, -1).",
        _SCORES,
    ),
    ("scores", "QQ"): Mistake(
        "The scores compare queries with queries.",
        "S = QKᵀ needs the keys; with QQᵀ token i scores j as j scores i.",
        _SCORES,
    ),
    ("scale", "none"): Mistake(
        "The scores are not scaled.",
        "Divide QKᵀ by √d_k before softmax. Without it the variance of the scores grows with d_k, softmax saturates, "
        "and gradients vanish.",
        _SCORES,
    ),
    ("scale", "width"): Mistake(
        "The scores are divided by d_k instead of √d_k.",
        "An inner product of d_k terms has variance d_k, so its size grows with √d_k.",
        _DIVIDED,
    ),
    ("scale", "model"): Mistake(
        "The scores are divided by √d_model instead of √d_k.",
        "Inner products are taken within a head, over d_k = d_model / heads terms.",
        _ROOT,
    ),
    ("scale", "alike"): Mistake(
        "The scores are divided by d_k or by √d_model, which are the same number here, instead of by √d_k.",
        "The width of a head is d_k = d_model / heads, and its root belongs here. Another width tells the two apart.",
        (*_ROOT, *_DIVIDED),
    ),
    ("scale", "tokens"): Mistake(
        "The scores are divided by √T, of the T tokens, instead of √d_k.",
        "Inner products have d_k terms, however long the text is: d_k is Q.shape[-1], and x.shape[1] is T.",
        _ROOT,
    ),
    ("scale", "times"): Mistake(
        "The scores are multiplied by √d_k instead of divided.", "Scaling makes scores smaller: QKᵀ / √d_k.", _ROOT
    ),
    ("scale", "after"): Mistake(
        "The weights are divided by √d_k after softmax.",
        "Scale the scores, before softmax. Weights that are divided no longer add up to 1.",
        _ROOT,
    ),
    ("mask", "none"): Mistake(
        "The mask that forward takes is not used.", "Add it to the scores before softmax.", ("mask",)
    ),
    ("mask", "after"): Mistake(
        "The mask is applied after softmax.",
        "Hidden tokens have taken their share by then, and rows no longer add up to 1. Set their scores to −∞ before "
        "softmax.",
        _HIDDEN,
    ),
    ("mask", "zero"): Mistake(
        "Hidden scores become 0 instead of −∞.",
        "A score of 0 still gets weight, since e⁰ = 1. Add −∞ to the scores, or use masked_fill(hidden, -inf), instead "
        "of multiplying by the mask.",
        _HIDDEN,
    ),
    ("mask", "itself"): Mistake(
        "The mask hides each token from itself.",
        "A causal mask hides later tokens alone: the diagonal stays visible.",
        _TRIANGLE,
    ),
    ("mask", "earlier"): Mistake(
        "The mask hides earlier tokens instead of later ones.",
        "Rows are queries and columns are keys: −∞ is above the diagonal, where the key comes later.",
        _TRIANGLE,
    ),
    ("mask", "inverted"): Mistake(
        "The mask is inverted: it hides the tokens that a query may attend to.",
        "In nn.MultiheadAttention and masked_fill, True hides a token; in scaled_dot_product_attention, True shows it.",
        _TRIANGLE,
    ),
    ("softmax", "queries"): Mistake(
        "Softmax runs over the queries (dim=-2) instead of the keys.",
        "The weights of one query have to add up to 1: softmax(S, dim=-1).",
        _SOFTMAX,
    ),
    ("softmax", "texts"): Mistake(
        "Softmax runs over the texts of the batch (dim=0).",
        "Texts of a batch must not change each other. Use softmax(S, dim=-1).",
        _SOFTMAX,
    ),
    ("softmax", "heads"): Mistake(
        "Softmax runs over the heads (dim=1).",
        "Each head has weights of its own, which add up to 1 over the keys: softmax(S, dim=-1).",
        _SOFTMAX,
    ),
    ("softmax", "none"): Mistake(
        "There is no softmax.",
        "Scores can be negative and do not add up to 1. Softmax makes weights of them.",
        _SCORES,
    ),
    ("content", "K"): Mistake(
        "The output averages keys instead of values.",
        "Keys decide where to attend, values what is brought: A @ V.",
        _PRODUCTS,
    ),
    ("content", "Q"): Mistake(
        "The output averages queries instead of values.",
        "Queries decide where to attend, values what is brought: A @ V.",
        _PRODUCTS,
    ),
    ("content", "X"): Mistake(
        "The output averages X instead of the values.",
        "V = X W_V has a matrix of its own, so that a head can choose what it brings: A @ V.",
        _PRODUCTS,
    ),
    ("split", "one"): Mistake(
        "The heads are not separate: one softmax serves all of them.",
        "Split the d_model columns into heads, and compute scores and softmax in each.",
        (r"view|reshape|chunk|split|rearrange",),
    ),
    ("split", "rows"): Mistake(
        "The heads mix tokens: view(text, heads, token, d_k) without a transpose.",
        "Split the columns, then move the heads: view(text, token, heads, d_k).transpose(1, 2).",
        _VIEW,
    ),
    ("merge", "rows"): Mistake(
        "The heads are merged without moving them back.",
        "The heads' outputs are (text, head, token, d_k). Move the heads next to their columns first: "
        "transpose(1, 2).reshape(text, token, d_model).",
        _VIEW,
    ),
    ("merge", "mean"): Mistake(
        "The heads are averaged instead of concatenated.",
        "W_O reads the outputs of all heads side by side.",
        (r"mean|sum",),
    ),
    ("merge", "sum"): Mistake(
        "The heads are added instead of concatenated.", "W_O reads the outputs of all heads side by side.", (r"sum|\+",)
    ),
    ("merge", "no"): Mistake(
        "The heads are not merged.",
        "The output is (text, head, token, d_k). Concatenate the heads to (text, token, d_model).",
        ("return",),
    ),
    ("output", "none"): Mistake(
        "The output layer is never applied.",
        "After concatenation, W_O mixes what the heads bring.",
        ("return",),
    ),
    ("residual", "added"): Mistake(
        "X is added to the output.",
        "The residual connection belongs to the block around attention: return the output without + x.",
        (r"\+", "return"),
    ),
    ("axis", "texts"): Mistake(
        "Texts attend to each other: the axes of texts and tokens are exchanged.",
        "nn.MultiheadAttention reads (token, text, d_model), unless it is made with batch_first=True.",
        ("MultiheadAttention", r"transpose|permute"),
    ),
}  # fmt: skip


class Layers(NamedTuple):
    """The queries, keys and values that the layers of a module give on X, and its output layer."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: nn.Linear | None
    heads: tuple[int, ...]  # as many as there may be


class Verdict(NamedTuple):
    """The mistakes that explain the output of a module, none for a right one; None if nothing explains it."""

    name: str
    mistakes: tuple[Mistake, ...] | None
    lines: tuple[str, ...]  # of the source, one a mistake; empty where none is found
    heads: int
    masked: bool  # whether later tokens are hidden, always or by the mask that it takes
    difference: float  # relative to the size of the output
    batched: bool = True  # whether it takes several texts at once
    convention: str = ""  # of the mask that it takes, in a sentence

    def sentences(self) -> list[str]:
        """The verdict in words, a line each."""
        if self.mistakes is None:
            known = _said(
                "None of the {0} known mistakes explains it, alone or with another; the nearest output differs by {1} "
                "of its size.",
                len(MISTAKES) - 1,  # "alike" is one of two others
                f"{self.difference:.1g}",
            )
            advice = _said("Compare yours with every step of a right one: attnscope walk --toy")
            return [_said("{0}: wrong.", self.name), known, advice]
        convention = [_said(self.convention)] if self.convention else []
        if not self.mistakes:
            lines = [_said("{0}: right.", self.name), _said("Its output is softmax(QKᵀ/√d_k)V.")]
            lines.append(_said("Heads: {0}.", self.heads))
            lines += [_said("Later tokens are hidden, always or by the mask that it takes.")] * self.masked
            lines += [_said("It takes one text at a time: K.transpose(-2, -1) in place of K.T takes several.")] * (
                not self.batched
            )
            return [_joined(lines), *convention]
        lines = [_said("{0}: wrong.", self.name)]
        for mistake, line in zip(self.mistakes, self.lines, strict=True):
            lines.append(_joined([_said(mistake.name), _said(mistake.reason)]))
            lines += [_said("Look at line {0}", line)] if line else []
        return lines + convention


def _said(message: str, *values: object) -> str:
    """A message in the user's language. Its values, which are code and names, stay as they are."""
    sentences = _joined(map(translate, SENTENCES.split(message)))
    return PLACEHOLDER.sub(lambda number: str(values[int(number[1])]), sentences)


def _joined(sentences: Iterable[str]) -> str:
    return re.sub("(?<=。) ", "", " ".join(sentences))


# --- the student's module ---


def module_of(path: Path) -> tuple[nn.Module, str]:
    """The module that a file makes or defines, and the source of its class."""
    if not path.exists():
        raise AttnscopeError(f"there is no file {path}: give --check the Python file with your module of attention")
    if not path.is_file() or path.suffix != ".py":
        raise AttnscopeError(f"--check is {path}; expected a Python file with a module of attention")
    with explaining(f"{path} failed", "Correct the file", quoted=True), contextlib.redirect_stdout(io.StringIO()):
        names = runpy.run_path(str(path))
    text = path.read_text(encoding="utf-8")
    made = [one for one in names.values() if isinstance(one, nn.Module) and type(one).__module__ == "<run_path>"]
    classes = [one for one in names.values() if _is_module_class(one)]
    if made:
        return _last(made), text
    if not classes:
        raise AttnscopeError(
            f"{path} defines no class of torch.nn.Module; expected one, such as class SelfAttention. For "
            "nn.MultiheadAttention, write a class whose forward(x) calls it"
        )
    chosen = _last([one for one in classes if "attention" in one.__name__.lower()] or classes)
    return _made(chosen), text


def _last(found: list[Any]) -> Any:
    """The last, which uses those before it."""
    return found[-1]


def _is_module_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == "<run_path>"


def _made(kind: type[nn.Module]) -> nn.Module:
    """An instance of a class, by what its parameters are called."""
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        lowered = name.lower()
        if parameter.kind in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}:
            continue
        if re.search(r"dropout|drop|p$", lowered) and parameter.default is not parameter.empty:
            arguments[name] = 0.0
        elif parameter.default is not parameter.empty:
            continue
        elif re.search(r"drop", lowered):
            arguments[name] = 0.0
        elif re.search(r"bias|causal|mask", lowered):
            arguments[name] = False
        elif re.search(r"head|^h$", lowered) and not re.search(r"dim|size|width|d_", lowered):
            arguments[name] = HEADS
        elif re.search(r"head|^d_?[kqv]$|dim_?[kqv]$|[kqv]_?dim$", lowered):
            arguments[name] = WIDTH // HEADS
        else:  # the width of the model; a longest length too
            arguments[name] = WIDTH
    call = f"{kind.__name__}({','.join(f'{name}={value}' for name, value in arguments.items())})"
    with explaining(
        f"{call!r} failed",
        "Add a line at the end of the file that makes one, such as attention = SelfAttention(8)",
        quoted=True,
    ):
        return kind(**arguments)


# --- what it should give ---

_NAMES = {"q": "q|query|queries", "k": "k|key|keys", "v": "v|value|values"}


def _letter(name: str) -> str:
    """Which of q, k, v the name of a layer says; empty for others."""
    words = re.split(r"[._\d]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    joined = {re.sub(r"^w|^to|proj$|linear$|layer$|s$", "", word) for word in words} | {*words}
    return next((letter for letter, forms in _NAMES.items() if joined & {*forms.split("|")}), "")


def layers_of(module: nn.Module, x: Tensor) -> Layers:
    """The maps of a module, by the names of its layers, else in their order; those of its nn.MultiheadAttention."""
    ready_made = next((one for one in module.modules() if isinstance(one, nn.MultiheadAttention)), None)
    if ready_made is not None:
        if getattr(ready_made, "in_proj_weight", None) is None:
            raise AttnscopeError(
                f"{type(module).__name__!r} has nn.MultiheadAttention with kdim or vdim; expected one for "
                "self-attention: nn.MultiheadAttention(d_model, heads, batch_first=True)"
            )
        q, k, v = nn.functional.linear(x, ready_made.in_proj_weight, ready_made.in_proj_bias).chunk(3, -1)
        return Layers(q, k, v, ready_made.out_proj, (ready_made.num_heads,))
    linear = {name: one for name, one in module.named_modules() if isinstance(one, nn.Linear)}
    maps: dict[str, Any] = {name: one for name, one in linear.items() if one.in_features == x.shape[-1]}
    maps |= {
        name: matrix
        for name, matrix in module.named_parameters()
        if matrix.ndim == 2 and name.rpartition(".")[0] not in linear and len(matrix) == x.shape[-1]  # noqa: PLR2004
    }
    named = {letter: [one for name, one in maps.items() if _letter(name) == letter] for letter in "qkv"}
    fused = [one for one in linear.values() if one.out_features == 3 * one.in_features]
    rest = [one for one in linear.values() if one not in fused]
    if all(named.values()) and len({len(one) for one in named.values()}) == 1:
        used = [one for ones in named.values() for one in ones]
        rest = [one for one in rest if not any(one is other for other in used)]
    elif fused:
        named = {letter: [fused[0]] for letter in "qkv"}
    elif len(rest) in {3, 4}:
        named = {letter: [one] for letter, one in zip("qkv", rest, strict=False)}
        rest = rest[3:]
    else:
        raise AttnscopeError(
            f"{type(module).__name__!r} has {count(len(linear), 'linear layer')}; expected layers named for queries, "
            "keys and values, one for all three, or three in this order"
        )
    q, k, v = (torch.cat([_mapped(one, x) for one in ones], -1) for ones in named.values())
    if fused and named["q"] == [fused[0]]:
        q, k, v = q.chunk(3, -1)
    groups = len(named["q"])
    heads = (groups,) if groups > 1 else _numbers_of_heads(module, q.shape[-1])
    return Layers(q, k, v, rest[-1] if rest else None, heads)


def _mapped(layer: Any, x: Tensor) -> Tensor:
    return x @ layer if isinstance(layer, Tensor) else layer(x)


def _numbers_of_heads(module: nn.Module, width: int) -> tuple[int, ...]:
    """The number of heads that a module states, else each that divides its width."""
    stated = [
        value
        for name, value in vars(module).items()
        if isinstance(value, int)
        and not isinstance(value, bool)
        and re.search(r"head|^h$", name.lower())
        and not re.search(r"dim|size|width|d_", name.lower())
    ]
    return tuple(stated[:1]) or tuple(one for one in range(1, width + 1) if width % one == 0)


def attend(layers: Layers, way: Way, heads: int, x: Tensor, fill: float) -> Tensor:
    """The output in a way, of shape ``(text, token, width)``, or with heads where they are not merged."""
    if way.axis == "texts":
        q, k, v = (part.transpose(0, 1) for part in layers[:3])
        exchanged = layers._replace(q=q, k=k, v=v)
        return attend(exchanged, replace(way, axis="tokens"), heads, x.transpose(0, 1), fill).transpose(0, 1)
    texts, tokens, _ = x.shape

    def split(part: Tensor) -> Tensor:
        parts = 1 if way.split == "one" else heads
        if way.split == "rows":
            return part.reshape(texts, parts, tokens, -1)
        return part.reshape(texts, tokens, parts, -1).transpose(1, 2)

    q, k = split(layers.q), split(layers.k)
    content = split({"V": layers.v, "K": layers.k, "Q": layers.q, "X": x}[way.content])
    first, second = {"QK": (q, k), "KQ": (k, q), "QQ": (q, q)}[way.scores]
    width = q.shape[-1] if way.split != "one" else q.shape[-1] // heads
    factors: dict[Scale, float] = {
        "root": width**-0.5,
        "none": 1.0,
        "width": 1 / width,
        "model": x.shape[-1] ** -0.5,
        "tokens": tokens**-0.5,
        "times": width**0.5,
        "after": 1.0,
    }
    scores = first @ second.mT * factors[way.scale]
    later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    if way.mask in {"causal", "itself", "earlier", "inverted"}:
        hidden = {"causal": later, "itself": ~later.mT, "earlier": later.mT, "inverted": ~later}[way.mask]
        scores = scores.masked_fill(hidden, fill)
    if way.mask == "zero":
        scores = scores.masked_fill(later, 0.0)
    dims: dict[Softmax, int] = {"keys": -1, "queries": -2, "texts": 0, "heads": 1}
    weights = scores if way.softmax == "none" else torch.softmax(scores, dims[way.softmax])
    if way.mask == "after":
        weights = weights.masked_fill(later, 0.0)
    if way.scale == "after":
        weights = weights * width**-0.5
    gathered = weights @ content
    if way.merge == "no":
        return gathered
    merged = {
        "columns": lambda: gathered.transpose(1, 2).reshape(texts, tokens, -1),
        "rows": lambda: gathered.reshape(texts, tokens, -1),
        "mean": lambda: gathered.mean(1),
        "sum": lambda: gathered.sum(1),
    }[way.merge]()
    output = merged if way.output == "none" or layers.out is None else layers.out(merged)
    return output + x if way.residual == "added" else output


def ways(layers: Layers, heads: int, *, masked: bool) -> Iterator[Way]:
    """Every way with at most two mistakes, the right one first."""
    right = Way(mask="causal" if masked else "none")
    kinds: Mapping[str, Any] = {
        "scores": get_args(Scores), "scale": get_args(Scale), "softmax": get_args(Softmax),
        "content": get_args(Content), "split": get_args(Split), "merge": get_args(Merge), "output": get_args(Output),
        "residual": get_args(Residual), "axis": get_args(Axis),
        "mask": ("none", "after", "zero", "itself", "earlier", "inverted") if masked else (),
    }  # fmt: skip
    single = [(name, value) for name, values in kinds.items() for value in values if value != getattr(right, name)]
    of_heads = {("split", "one"), ("split", "rows"), ("merge", "rows"), ("scale", "model")}
    of_heads |= {("softmax", "heads"), *(("merge", value) for value in get_args(Merge))}
    single = [one for one in single if heads > 1 or one not in of_heads]
    single = [one for one in single if layers.out is not None or one[0] != "output"]
    yield right
    for number in range(1, _PAIRS + 1):
        for chosen in combinations(single, number):
            if len({name for name, _ in chosen}) == number:
                yield replace(right, **dict(chosen))


def check(module: nn.Module, source: str = "") -> Verdict:
    """Find the known mistakes that explain the output of a module, none for a right one."""
    module = module.eval()
    x = torch.randn(TEXTS, TOKENS, _width_of(module), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        layers = layers_of(module, x)
        try:
            output, batched = _output_of(module, x)
        except AttnscopeError:
            mask_name = _mask_name(module)
            if mask_name is None or inspect.signature(module.forward).parameters[mask_name].default is None:
                raise
            verdict = _under_masks(module, layers, x, source)
            if verdict is None:
                raise
            return verdict
        verdict = _explained(module, layers, x, {"": [output]}, masked=(False, True), source=source)
        if verdict.mistakes is not None and not verdict.masked and batched and _mask_name(module) is not None:
            return _under_masks(module, layers, x, source) or verdict._replace(convention=_UNKNOWN_MASK)
    return verdict._replace(batched=batched)


_UNKNOWN_MASK = "With a causal mask in any of the usual forms its output is not one of the known ones."


def _under_masks(module: nn.Module, layers: Layers, x: Tensor, source: str) -> Verdict | None:
    """The verdict on a module under the masks that it may take; None if nothing explains its outputs."""
    outputs = {convention: [_output_under(module, x, mask) for mask in masks] for convention, masks in _masks().items()}
    verdict = _explained(module, layers, x, outputs, masked=(True,), source=source)
    return None if verdict.mistakes is None else verdict


def _explained(
    module: nn.Module,
    layers: Layers,
    x: Tensor,
    outputs: Mapping[str, list[Tensor | None]],
    *,
    masked: tuple[bool, ...],
    source: str,
) -> Verdict:
    """The explanation with the fewest mistakes of one of some outputs, which are grouped by the mask's convention."""
    name, nearest = type(module).__name__, inf
    best: Verdict | None = None
    different: list[tuple[str, Tensor]] = []  # forms of one mask mostly give one output
    for convention, group in outputs.items():
        for output in group:
            if output is not None and not any(_are_same(output, earlier) for _, earlier in different):
                different.append((convention, output))
    for (convention, output), is_masked, heads in product(different, masked, layers.heads):
        for way in ways(layers, heads, masked=is_masked):
            difference = _difference(layers, way, heads, x, output)
            nearest = min(nearest, difference)
            if difference <= _LIMIT:
                mistakes = _mistakes_of(way, masked=is_masked, is_square=heads**2 == x.shape[-1] > 1)
                if best is None or len(mistakes) < len(best.mistakes or ()):
                    lines = _lines(mistakes, name, source)
                    best = Verdict(name, mistakes, lines, heads, is_masked, difference)
                    best = best._replace(convention="" if is_masked and way.mask == "none" else convention)
                break  # those that follow have more mistakes
    return best or Verdict(name, None, (), 0, False, nearest)


def _are_same(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs have the same numbers, NaN at the same places among them."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _mistakes_of(way: Way, *, masked: bool, is_square: bool) -> tuple[Mistake, ...]:
    """The mistakes of a way; `is_square`: d_model is the square of the heads, so that d_k is √d_model."""
    chosen = [one for one in vars(way).items() if one in MISTAKES and one != ("mask", "none")]
    if is_square and way.scale in {"width", "model"}:
        chosen = [("scale", "alike") if kind == "scale" else (kind, value) for kind, value in chosen]
    ignored = [MISTAKES["mask", "none"]] if masked and way.mask == "none" else []
    return (*ignored, *(MISTAKES[one] for one in chosen))


def _difference(layers: Layers, way: Way, heads: int, x: Tensor, output: Tensor) -> float:
    """The largest difference of an output from a way, relative to its size; infinite for another shape."""
    least = inf
    for fill in (-inf, -1e9) if way.mask in {"causal", "itself", "earlier", "inverted"} else (-inf,):
        try:
            expected = attend(layers, way, heads, x, fill)
        except RuntimeError:  # a way that these shapes do not have
            continue
        if expected.shape != output.shape or not torch.equal(expected.isnan(), output.isnan()):
            continue
        size = expected.nan_to_num().abs().max().item()
        least = min(least, (expected - output).nan_to_num().abs().max().item() / (size or 1.0))
    return least


def _width_of(module: nn.Module) -> int:
    """The width that the first map of a module reads."""
    for name, one in [*module.named_modules(), *module.named_parameters()]:
        if isinstance(one, nn.Linear):
            return one.in_features
        if isinstance(one, Tensor) and one.ndim == 2 and not name.endswith("weight"):  # noqa: PLR2004
            return len(one)
    raise AttnscopeError(f"{type(module).__name__!r} has no linear layer; expected maps for queries, keys and values")


def _parameters_of(module: nn.Module) -> list[inspect.Parameter]:
    return [*inspect.signature(module.forward).parameters.values()]


def _mask_name(module: nn.Module) -> str | None:
    return next((one.name for one in _parameters_of(module) if "mask" in one.name.lower()), None)


def _masks() -> dict[str, list[Tensor]]:
    """A causal mask in all forms, by its convention."""
    visible = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    added = torch.zeros(TOKENS, TOKENS).masked_fill(~visible, -inf)
    forms = {
        "Convention of its mask: 1 (True) where a query may attend.": (visible, visible.float()),
        "Convention of its mask: 1 (True) where a query may not attend, as in nn.MultiheadAttention.": (
            ~visible,
            (~visible).float(),
        ),
        "Convention of its mask: it is added to the scores, 0 where a query may attend and −∞ elsewhere.": (
            added,
            added.clamp(min=-1e9),
        ),
    }
    sizes = (TOKENS, TOKENS), (TEXTS, TOKENS, TOKENS), (TEXTS, 1, TOKENS, TOKENS)
    return {
        convention: [form.expand(size) for form, size in product(group, sizes)] for convention, group in forms.items()
    }


#: Errors of a student's code, those of tensors with unexpected dimensions among them.
_FAILURES = (RuntimeError, LookupError, ValueError, TypeError, NameError, AttributeError, AssertionError)


def _output_of(module: nn.Module, x: Tensor) -> tuple[Tensor, bool]:
    """The output of a module, and whether it takes a batch; one that does not is called text by text."""
    try:
        return _called(module, x), True
    except _FAILURES as failure:
        try:
            return torch.stack([_called(module, text) for text in x]), False
        except _FAILURES:
            what = f"X of shape {tuple(x.shape)} makes {type(module).__name__!r} fail"
            with explaining(what, _advice(failure, module), quoted=True):
                raise failure from None


def _advice(failure: Exception, module: nn.Module) -> str:
    """How to correct the line of a student's code that failed, by the error and by what the line computes."""
    file = type(module).forward.__code__.co_filename
    frames = [frame for frame in traceback.extract_tb(failure.__traceback__) if frame.filename == file]
    if not frames:
        return "Correct its forward"
    number, code, error = frames[-1].lineno, frames[-1].line or "", str(failure)
    if "Dimension out of range" in error:
        return f"Correct line {number}: dim is the number of an axis; softmax over the keys has dim=-1"
    if re.search(_PRODUCTS[0], code) and re.search(r"size|shape", error):
        if re.search(r"transpose|permute|\.m?T\b|einsum", code):
            return f"Correct line {number}: K.transpose(-2, -1) exchanges the last two axes of K, tokens and d_k"
        return f"Correct line {number}: a product with the keys needs their transpose, Q @ K.transpose(-2, -1)"
    return f"Correct line {number}"


def _output_under(module: nn.Module, x: Tensor, mask: Tensor) -> Tensor | None:
    """The output of a module under a mask; None if the mask has a form that it does not take."""
    try:
        return _called(module, x, mask)
    except _FAILURES:
        return None


def _called(module: nn.Module, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The output of a module: the first of what it returns."""
    name = _mask_name(module)
    needed = [
        one
        for one in _parameters_of(module)
        if one.default is one.empty and one.name != name and one.kind not in {one.VAR_POSITIONAL, one.VAR_KEYWORD}
    ]
    inputs: dict[str, Any] = {one.name: x for one in needed}  # queries, keys and values of one text
    if name is not None:
        inputs[name] = mask
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        returned: Any = module(**inputs)
    output = returned[0] if isinstance(returned, tuple | list) and returned else returned
    if not isinstance(output, Tensor):
        raise AttnscopeError(
            f"{type(module).__name__!r} returns {type(output).__name__}; expected its output, a tensor"
        )
    return output


_LAST = ("content", "merge", "output", "residual")  # kinds whose line is the last that fits


def _lines(mistakes: tuple[Mistake, ...], name: str, source: str) -> tuple[str, ...]:
    """For each mistake the line of the source to look for, with its number."""
    lines = source.split("\n")
    code = [line.partition("#")[0].rstrip() for line in lines]
    start = next((number for number, line in enumerate(code) if re.match(rf"class {name}\b", line)), 0)
    end = next((number for number in range(start + 1, len(code)) if re.match(r"\w|@", code[number])), len(code))
    forward = next((number for number in range(start, end) if "def forward" in code[number]), start)
    in_class, elsewhere = ((forward + 1, end), (start, end)), ((0, len(code)),)
    kinds = {mistake: kind for (kind, _), mistake in MISTAKES.items()}

    def line_of(mistake: Mistake) -> str:
        for is_block, parts in product((False, True), (in_class, elsewhere)):
            for pattern, (first, last) in product(mistake.lines, parts):
                fitting = [
                    number
                    for number in range(first, last)
                    if code[number].endswith(":") == is_block
                    and not re.match(r"import |from ", code[number])
                    and re.search(pattern, code[number])
                ]
                if fitting:
                    number = fitting[-1 if kinds[mistake] in _LAST else 0]
                    return f"{number + 1}: {lines[number].strip()}"
        return ""

    return tuple(map(line_of, mistakes))
