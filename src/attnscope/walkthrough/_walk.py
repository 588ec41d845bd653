"""One head of any model over one sentence: what it computes, taken apart and put together again."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope._arguments import typed
from attnscope.attention import AttentionCall, Rotation, output_of
from attnscope.bundled import MODEL
from attnscope.capture import TOLERANCE, Site, borrowing, inner_model, load_model, verify
from attnscope.errors import AttnscopeError
from attnscope.mechanism.evidence import Projections, projections, watching_inputs
from attnscope.progress import Progress, Tell, tell_nobody
from attnscope.walkthrough._compute import HeadInputs, check_number, difference, follow, with_matrices
from attnscope.walkthrough._module import walk_module
from attnscope.walkthrough._read import read_texts
from attnscope.walkthrough._result import Walk

if TYPE_CHECKING:
    from collections.abc import Generator

    from attnscope.capture import Model, Tokenizer

SENTENCE = "The animal didn't cross the street because it was too tired."
_FOLLOWED = "it"  # in that sentence
_BUNDLED_LAYER = 1  # its heads are soft


@typed
@borrowing
def walk(
    model: Model | None = None,
    texts: str | Tensor | None = None,
    *,
    targets: str | None = None,
    layer: int | None = None,
    head: int = 0,
    query_token: int | str | None = None,
    tokenizer: Tokenizer = None,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Tell | None = None,
) -> Walk:
    r"""Follow one head of a model over one sentence, from its input X to the output of its layer.

    Each number is computed here in float64, by the equations of Vaswani et al. (2017, section 3.2), and compared with
    what the model itself computes; what does not agree is refused.

    Parameters
    ----------
    model
        See `attnscope.scan`; or a module of one head, with linear layers for queries, keys and values, which takes X
        and returns its output, or that and its weights.
    texts
        One sentence, of at least two tokens; by default the one about the tired animal. For a module, X of shape
        ``(text, token, width)``, of which the first text is followed.
    targets
        What the decoder of an encoder-decoder says; it reads this one token late, as in training. By default the
        model's own greedy translation of the sentence.
    layer, head
        Counted from 0; layers are attention calls, as in `attnscope.scan`. By default layer 0, and of the bundled model
        layer 1: heads of its first layer look at one token each, so that the division by √d_k would change little.
    query_token
        Whose row is followed: a position, or a piece of the sentence (of the target in layers of its decoder). By
        default the last token that is not special, and in the default sentence "it".
    tokenizer, device, dtype, revision, trust_remote_code
        See `attnscope.scan`.
    progress
        Called with a `Progress` before the model is loaded, before it reads, and at the end.

    Returns
    -------
    Walk
        The numbers. `attnscope.walkthrough.steps` puts them into words, `markdown` and `terminal` into form.

    Raises
    ------
    AttnscopeError
        If the steps do not give the model's or module's own numbers, a text is empty or too long, there is no such
        layer, head or token, there is a target for a model that is no encoder-decoder, or an encoder-decoder that
        cannot translate has none.

    Examples
    --------
    >>> steps = walk(texts="The tide is out.", layer=1, head=2, device="cpu")
    >>> steps["weights"].shape == (len(steps.tokens), len(steps.tokens))
    True
    >>> bool(np.allclose(steps["weights"] @ steps["V"], steps["head_output"]))
    True
    >>> max(steps.errors.values()) < 1e-4
    True
    """
    if isinstance(inner := inner_model(model), nn.Module) and not isinstance(inner, PreTrainedModel):
        loading = (tokenizer, device, dtype, revision, trust_remote_code or None, targets)
        if not isinstance(texts, Tensor) or any(given is not None for given in loading):
            raise AttnscopeError(
                f"{type(model).__name__} is not a model of transformers: give X, a tensor (text, token, width), in "
                "place of the sentence, and leave out what belongs to a model (tokenizer, device, ...)"
            )
        check_number("layer", layer or 0, 1)
        check_number("head", head, 1)
        return walk_module(inner, texts, token=query_token)
    if isinstance(texts, Tensor):
        raise AttnscopeError("texts is a tensor, which a module of your own reads; a model reads a sentence")
    if layer is None:
        bundled = model is None or (isinstance(model, str | Path) and model in {"bundled", MODEL})
        layer = _BUNDLED_LAYER if bundled else 0
    tell = progress or tell_nobody
    tell(Progress("loading the model", 0.0))
    loaded = load_model(
        model,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    tell(Progress("walk", 0.5))
    read = read_texts(SENTENCE if texts is None else texts, targets, loaded)
    walked = walk_inputs(loaded.model, read.inputs(loaded.model), layer=layer, head=head, name=loaded.name)
    tell(Progress("walk", 1.0))
    queries, keys = read.sides(walked.kind)
    if query_token is None and texts in {None, SENTENCE} and queries is read.source:
        query_token = _FOLLOWED
    return replace(
        walked,
        tokens=queries.window.tokens,
        keys=keys.window.tokens,
        token=queries.position(query_token),
        target="" if read.target is None else read.target.text,
        translated=read.translated,
    )


@torch.no_grad()
def walk_inputs(
    model: PreTrainedModel,
    inputs: dict[str, Any],
    *,
    layer: int = 0,
    head: int = 0,
    token: int = 0,
    tokens: tuple[str, ...] | None = None,
    name: str | None = None,
) -> Walk:
    """Do the same for the arguments of a forward pass, with a batch of one.

    Parameters
    ----------
    model
        In eval mode.
    inputs
        Arguments of its forward pass.
    layer, head, token
        Which layer, which head, and whose row is followed; counted from 0.
    tokens
        What to show for each query; by default their numbers.
    name
        Name of the model.

    Raises
    ------
    AttnscopeError
        If there is no such layer, head or token, the model has no self-attention, or the steps do not give its own
        numbers.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> _ = torch.manual_seed(0)
    >>> model = GPT2Model(GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=9, n_positions=8)).eval()
    >>> steps = walk_inputs(model, {"input_ids": torch.tensor([[5, 6, 7, 8]])}, head=1)
    >>> steps.kind, steps["allowed"][0].tolist()
    ('causal', [True, False, False, False])
    """
    sites, _ = verify(model, inputs, text="the sentence")
    if all(site.kind == "cross" for site in sites):
        raise AttnscopeError(
            f"{type(model).__name__} has no self-attention, and so it is no Transformer, whose steps these are. Where "
            "it looks, scan (with --target) and align say"
        )
    layers = list(projections(model, inputs).items())
    site, matrices = layers[check_number("layer", layer, len(layers))]
    seen = _look(model, inputs, site)
    heads = seen.call.query.shape[1]
    check_number("head", head, heads)
    check_number("token", token, seen.call.query.shape[2])
    parts = _Parts.of(seen, matrices, head)
    arrays = follow(parts.operands).assign(with_matrices(parts.X, parts.memory, parts.matrices))
    errors = {
        **parts.errors,
        "head_output": difference(arrays["head_output"].values, _numbers(seen.output[0, head])),
    }
    together = _numbers(seen.output[0].transpose(0, 1).flatten(1))
    arrays["concatenated"] = (("query", "all_heads"), together)
    if matrices.output is not None and matrices.output_bias is not None:
        W_O = matrices.output.reshape(together.shape[1], -1)
        arrays = arrays.assign(
            W_O=(("all_heads", "model_width"), W_O),
            b_O=(("model_width",), matrices.output_bias),
            result=(("query", "model_width"), together @ W_O + matrices.output_bias),
        )
        errors["result"] = difference(
            arrays["result"].values, _own_result(model, inputs, layers, site, matrices.names["output"])
        )
    _refuse(errors, seen.call.query.dtype)
    queries, keys = (tuple(map(str, range(side.shape[2]))) for side in (seen.call.query, seen.call.key))
    queries = queries if tokens is None else tokens
    return Walk(
        model=name or type(model).__name__,
        module=site.name,
        layer=layer,
        kinds=tuple(site.kind for site, _ in layers),
        head=head,
        heads=heads,
        kv_heads=seen.call.key.shape[1],
        form=matrices.form,
        reason=matrices.reason,
        scale=parts.operands.scale,
        softcap=seen.call.softcap,
        tokens=queries,
        keys=keys if site.kind == "cross" else queries,
        token=token,
        arrays=arrays,
        errors=errors,
    )


@dataclass(frozen=True, eq=False)
class _Seen:
    """One attention call as the model makes it, what it is made of, and its output."""

    call: AttentionCall
    states: tuple[Tensor, Tensor]
    output: Tensor


def _look(model: PreTrainedModel, inputs: dict[str, Any], wanted: Site) -> _Seen:
    seen: list[_Seen] = []

    def observe(site: Site, call: AttentionCall, own: Tensor, other: Tensor) -> Tensor:
        output = output_of(call)
        if site == wanted:
            seen.append(_Seen(call, (own, other), output))
        return output

    with watching_inputs(model, observe):
        model(**inputs)
    return seen[0]


@dataclass(frozen=True, eq=False)
class _Parts:
    """One head: its operands, and the matrices that are known to make them."""

    X: np.ndarray
    memory: np.ndarray
    matrices: dict[str, tuple[np.ndarray, np.ndarray]]
    operands: HeadInputs
    errors: dict[str, float]

    @classmethod
    def of(cls, seen: _Seen, projected: Projections, head: int) -> _Parts:
        call = seen.call
        X = _numbers(seen.states[0][0])
        memory = X if seen.states[1] is seen.states[0] else _numbers(seen.states[1][0])
        other = head // call.group
        captured = {
            "Q": _numbers(call.query[0, head]),
            "K": _numbers(call.key[0, other]),
            "V": _numbers(call.value[0, other]),
        }
        matrices: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        if projected.form in {"bilinear", "rope"}:
            W_Q, b_Q, W_K, b_K = projected.of_head(head)
            matrices = {"Q": (W_Q, b_Q), "K": (W_K, b_K)}
        if (
            projected.value is not None
            and projected.value_bias is not None
            and projected.value.shape[1] == memory.shape[1]
        ):
            matrices["V"] = (projected.value[other], projected.value_bias[other])
        own, errors, scale = dict(captured), {}, call.scale
        for symbol, (matrix, bias) in matrices.items():
            made = (X if symbol == "Q" else memory) @ matrix + bias
            if projected.rotation is not None and symbol != "V":
                made = _turned(made, projected.rotation)
            # some models divide the query, not the scores: the factor moves to the scale
            factor = 1.0 if symbol == "V" else _factor(captured[symbol], made)
            own[symbol], scale = made, scale * factor
            errors[symbol] = difference(factor * made, captured[symbol])
        allowed, bias = _mask_and_bias(call, head)
        operands = HeadInputs(
            **own,
            scale=scale,
            allowed=allowed,
            bias=bias,
            softcap=call.softcap,
            sink=None if call.sinks is None else float(call.sinks[head]),
        )
        return cls(X, memory, matrices, operands, errors)


def _turned(x: np.ndarray, turn: Rotation) -> np.ndarray:
    return Rotation(turn.cos.cpu(), turn.sin.cpu(), turn.layout)(torch.from_numpy(x)).numpy()


def _factor(target: np.ndarray, made: np.ndarray) -> float:
    """What the model multiplied by; exactly 1 where it is 1 up to rounding."""
    power = float((made * made).sum())
    factor = float((target * made).sum()) / power if power else 1.0
    return 1.0 if abs(factor - 1) < 1e-2 else factor  # noqa: PLR2004 no model has such a factor; half types round


def _mask_and_bias(call: AttentionCall, head: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Who may look where, of the mask, of causality, and of a bias so low that it forbids."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    allowed = torch.ones(queries, keys, dtype=torch.bool)
    if call.causal:
        allowed = allowed.tril()
    if call.mask is not None:
        allowed &= _of_head(call.mask, head)
    if call.bias is None:
        return allowed.numpy(), None
    bias = _of_head(call.bias, head)
    forbidden = bias <= torch.finfo(bias.dtype).min / 2
    added = _numbers(bias.masked_fill(forbidden, 0.0).expand(queries, keys))
    return (allowed & ~forbidden).numpy(), added if added.any() else None


def _of_head(tensor: Tensor, head: int) -> Tensor:
    return tensor[0, head if tensor.shape[1] > 1 else 0].cpu()


def _numbers(tensor: Tensor) -> np.ndarray:
    return tensor.double().cpu().numpy().copy()


def _own_result(
    model: PreTrainedModel,
    inputs: dict[str, Any],
    layers: list[tuple[Site, Projections]],
    site: Site,
    name: str,
) -> np.ndarray:
    """What the output projection gives when the model runs on its own attention."""
    same = [
        site for site, made in layers if made.names.get("output") == name
    ]  # a module may serve several layers
    with _outputs_of(model.get_submodule(name)) as given:
        model(**inputs)
    returned = given[same.index(site)]
    return _numbers(returned.reshape(-1, returned.shape[-1]))


@contextmanager
def _outputs_of(module: nn.Module) -> Generator[list[Tensor]]:
    given: list[Tensor] = []

    def note(_: nn.Module, __: Any, returned: Any) -> None:
        given.append(returned)

    hook = module.register_forward_hook(note)
    try:
        yield given
    finally:
        hook.remove()


def _refuse(errors: dict[str, float], dtype: torch.dtype) -> None:
    limit = TOLERANCE.get(dtype, 1e-4)
    for name, error in errors.items():
        if not error <= limit:
            raise AttnscopeError(
                f"the steps give another {name} than the model (largest difference {error:.0e} of the largest, allowed "
                f"{limit:.0e}): its attention does something that is not known here. Try --dtype float32"
            )
