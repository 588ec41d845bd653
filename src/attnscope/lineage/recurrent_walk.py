"""A recurrent translator over one sentence pair, computed step by step in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.verify import TOLERANCE
from attnscope.lineage.steps import (
    Named,
    Step,
    Table,
    corner,
    decimals_for,
    number,
    plain,
    short,
    shown_columns,
    shown_tokens,
    spoken,
    square,
    visible,
    words,
)
from attnscope.lineage.walk import Followed, check_number, difference
from attnscope.models.recurrent import RecurrentForConditionalGeneration
from attnscope.read.shown import IdNames
from attnscope.read.windows import Window
from attnscope.support.errors import AttnscopeError


class Equations:
    """The equations of a recurrent translator in float64, apart from the code that trains it."""

    def __init__(self, model: RecurrentForConditionalGeneration) -> None:
        self.config = model.config
        self.of = {name: parameter.detach().cpu().double() for name, parameter in model.named_parameters()}
        self.scale = float(getattr(model.decoder.score, "scale", 1.0))

    def cell(self, place: str, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One step of a GRU (Cho et al. 2014) or LSTM; `place` has a gap for the name of a parameter."""
        ours = x @ self.of[place.format("weight_ih")].T + self.of[place.format("bias_ih")]
        theirs = state[0] @ self.of[place.format("weight_hh")].T + self.of[place.format("bias_hh")]
        if self.config.cell == "gru":
            (r, z, n), (of_r, of_z, of_n) = ours.chunk(3, -1), theirs.chunk(3, -1)
            z = (z + of_z).sigmoid()
            return ((1 - z) * (n + (r + of_r).sigmoid() * of_n).tanh() + z * state[0],)
        i, f, g, o = (ours + theirs).chunk(4, -1)
        memory = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * memory.tanh(), memory

    def encode(self, x: Float[Tensor, "batch source width"]) -> tuple[Tensor, Tensor]:
        """Annotations ``(batch, source, annotation)`` and the fixed vector ``(batch, annotation)``."""
        half = self.config.encoder_width
        for layer in range(self.config.encoder_layers):
            sides: list[Tensor] = []
            for suffix in ("", "_reverse"):
                place, state = f"encoder.network.{{}}_l{layer}{suffix}", (x.new_zeros(len(x), half),) * 2
                states: list[Tensor] = []
                for one in x.unbind(1) if not suffix else x.flip(1).unbind(1):
                    state = self.cell(place, one, state)
                    states.append(state[0])
                sides.append(torch.stack(states if not suffix else states[::-1], 1))
            x = torch.cat(sides, -1)
        return x, torch.cat([x[:, -1, :half], x[:, 0, half:]], -1)

    def score(self, s: Float[Tensor, " state"], h: Float[Tensor, "source annotation"]) -> Float[Tensor, " source"]:
        """Scores of one state: dot, bilinear or additive."""
        if self.config.attention == "bilinear":
            return s @ self.of["decoder.score.weight.weight"] @ h.T
        if self.config.attention == "additive":
            query = self.of["decoder.score.query.weight"] @ s + self.of["decoder.score.query.bias"]
            return (query + h @ self.of["decoder.score.key.weight"].T).tanh() @ self.of[
                "decoder.score.direction.weight"
            ][0]
        return self.scale * h @ s

    def decode(self, h: Tensor, c: Tensor, read: Sequence[int]) -> dict[str, Tensor]:
        """States, scores, weights, contexts and log-probabilities of all steps; `read` starts with the start token."""
        first = torch.tanh(self.of["decoder.first_state.weight"] @ c + self.of["decoder.first_state.bias"])
        state, embedding = (first, torch.zeros_like(first)), self.of["embedding.weight"]
        steps: dict[str, list[Tensor]] = {name: [] for name in ("s", "e", "alpha", "context", "log_p")}
        for token in read:
            y = embedding[token]
            state = self.cell("decoder.cell.{}", torch.cat([y, c]), state)
            if self.config.attention != "none":
                steps["e"].append(self.score(state[0], h))
                steps["alpha"].append(steps["e"][-1].softmax(0))
                c = steps["alpha"][-1] @ h
            steps["s"].append(state[0])
            steps["context"].append(c)
            together = self.of["decoder.readout.weight"] @ torch.cat([state[0], c, y])
            steps["log_p"].append((embedding @ torch.tanh(together + self.of["decoder.readout.bias"])).log_softmax(0))
        return {name: torch.stack(rows) for name, rows in steps.items() if rows}


def walk_recurrent(loaded: LoadedModel, source: Window, target: Window | None, token: int | None) -> RecurrentWalk:
    """Every step of a recurrent translator in eval mode, checked against its own numbers.

    Without a target, the model's own greedy translation is the target.
    """
    model: Any = loaded.model
    ids, start = torch.tensor([list(source.ids)], device=model.device), int(model.config.decoder_start_token_id)
    made = model.generate(ids, num_beams=1, do_sample=False, max_new_tokens=2 * len(source) + 20)[0, 1:].tolist()
    name_of = IdNames(loaded.tokenizer).of
    own_names = name_of(made)
    wanted, names = (made, own_names) if target is None else (list(target.ids), target.tokens)
    equations = Equations(model)
    with torch.enable_grad():
        x = equations.of["embedding.weight"][list(source.ids)][None].requires_grad_()
        h, c = equations.encode(x)
        forced = equations.decode(h[0], c[0], [start, *wanted[:-1]])
        losses = -forced["log_p"].gather(1, torch.tensor(wanted)[:, None])[:, 0]
        (gradient,) = torch.autograd.grad(losses.sum(), x)
    x, h, c = (tensor[0].detach() for tensor in (x, h, c))
    free = equations.decode(h, c, [start, *made[:-1]])["log_p"]
    chosen = free.gather(1, torch.tensor(made)[:, None])[:, 0]
    exchanged = x.repeat(len(x), 1, 1)
    exchanged[range(len(x)), range(len(x))] = x.mean(0)
    numbers = {name: tensor.detach() for name, tensor in forced.items()}
    errors = _differences(model, ids, wanted, {"h": h, "loss": losses.detach().mean()} | numbers)
    errors["free"] = float((free.amax(1) - chosen).max())  # log-probability that greedy decoding gave away
    limit = TOLERANCE.get(model.dtype, 1e-4)
    for name, error in errors.items():
        if not error <= limit:
            raise AttnscopeError(
                f"the steps and the model differ in {name} (difference {error:.0e}, allowed {limit:.0e}): "
                "try --dtype float32"
            )
    rows = {
        "h": ("source,annotation", h),
        "c": ("annotation", c),
        "gradient": ("source", gradient[0].norm(dim=-1)),
        "exchange": ("source", (equations.encode(exchanged)[1] - c).norm(dim=-1) / c.norm()),
        "s": ("step,state", numbers["s"]),
        "context": ("step,annotation", numbers["context"]),
        "cross_entropy": ("step", losses.detach()),
        "free_cross_entropy": ("free_step", -chosen),
    }
    rows |= {name: ("step,source", numbers[name]) for name in ("e", "alpha") if name in numbers}
    return RecurrentWalk(
        model=loaded.name,
        attention=model.config.attention,
        cell=model.config.cell.upper(),
        keys=source.tokens,
        tokens=names,
        best=name_of(numbers["log_p"].argmax(1).tolist()),
        free=own_names,
        translated=target is None,
        parting=next((t for t, pair in enumerate(zip(wanted, made, strict=False)) if len({*pair}) > 1), None),
        token=check_number("token", max(0, len(names) - 2) if token is None else token, len(names)),
        arrays=xr.Dataset({name: (dims.split(","), tensor.numpy()) for name, (dims, tensor) in rows.items()}),
        errors=errors,
    )


@torch.no_grad()
def _differences(model: Any, ids: Tensor, labels: list[int], mine: dict[str, Tensor]) -> dict[str, float]:
    """Differences from the model's own numbers, which come from a forward pass with its loss."""
    reads: list[Tensor] = []
    with model.decoder.readout.register_forward_pre_hook(lambda _, inputs: reads.append(inputs[0])):
        output = model(ids, labels=torch.tensor([labels], device=ids.device))
    states, contexts = model.config.decoder_width, 2 * model.config.encoder_width
    own = {
        "h": output.encoder_last_hidden_state[0],
        "s": reads[0][0, :, :states],
        "context": reads[0][0, :, states : states + contexts],
        "log_p": output.logits[0].double().log_softmax(-1),
        "loss": output.loss[None],
    }
    if output.cross_attentions:
        own["alpha"] = output.cross_attentions[0][0, 0]
    return {name: difference(mine[name].numpy(), tensor.double().cpu().numpy()) for name, tensor in own.items()}


_OF = "recurrent."  # the beginning of its keys in the file of words
_FORMULAS = {
    "tokens": (r"p(y \mid x) = \prod_t p(y_t \mid y_{<t}, x)", "p(y | x) = Π_t p(y_t | y_<t, x)"),
    "h": (r"h_i = [\overrightarrow{h}_i; \overleftarrow{h}_i]", "h_i = [→h_i ; ←h_i]"),
    "fixed": (
        r"c = [\overrightarrow{h}_{n-1}; \overleftarrow{h}_0], \quad s_{-1} = \tanh(W c + b)",
        "c = [→h_n−1 ; ←h_0],  s_−1 = tanh(W c + b)",
    ),
    "s": (r"s_t = \mathrm{RNN}(s_{t-1}, [y_{t-1}; c_{t-1}])", "s_t = RNN(s_t−1, [y_t−1 ; c_t−1])"),
    "dot": (r"e_{t,i} = s_t \cdot h_i", "e_ti = s_t · h_i"),
    "scaled_dot": (r"e_{t,i} = s_t \cdot h_i / \sqrt{d}", "e_ti = s_t · h_i / √d"),
    "bilinear": (r"e_{t,i} = s_t^\top W h_i", "e_ti = s_tᵀ W h_i"),
    "additive": (r"e_{t,i} = v^\top \tanh(W_1 s_t + W_2 h_i + b)", "e_ti = vᵀ tanh(W₁ s_t + W₂ h_i + b)"),
    "alpha": (r"\alpha_{t,i} = \frac{\exp e_{t,i}}{\sum_j \exp e_{t,j}}", "α_ti = exp(e_ti) / Σ_j exp(e_tj)"),
    "context": (r"c_t = \sum_i \alpha_{t,i} h_i", "c_t = Σ_i α_ti h_i"),
    "p": (r"-\log p(y \mid x) = -\sum_t \log p(y_t \mid y_{<t}, x)", "−log p(y | x) = −Σ_t log p(y_t | y_<t, x)"),
}
_LONGEST_NAME = 12


@dataclass(frozen=True, eq=False, repr=False)
class RecurrentWalk(Followed):
    """A recurrent translator over one sentence pair, step by step; float64, checked against the model's own numbers.

    Attributes
    ----------
    model, attention, cell
        Name of the model; its score function, or ``none`` for one fixed vector; ``GRU`` or ``LSTM``.
    keys, tokens, token
        Tokens of the source and of the target; position of the target token that is followed.
    best, free
        The most probable token of each step under teacher forcing; the tokens of the model's own translation.
    translated
        Whether the target is the model's own translation.
    parting
        The first step where target and own translation differ.
    arrays
        By symbol: ``h`` (source, annotation), ``c`` (the fixed vector), ``s``, ``e``, ``alpha``, ``context``
        (:math:`c_t`), ``cross_entropy`` (step, nats) and ``free_cross_entropy``; ``gradient`` (source): norm of the
        loss's gradient by the embedding of each source token; ``exchange`` (source): change of c, as a share of its
        length, if a token's embedding is replaced by the sentence's mean.
    errors
        Largest difference from the model's own numbers, as a share of the largest of these.
    """

    model: str
    attention: str
    cell: str
    keys: tuple[str, ...]
    tokens: tuple[str, ...]
    best: tuple[str, ...]
    free: tuple[str, ...]
    translated: bool
    parting: int | None
    token: int
    arrays: xr.Dataset
    errors: dict[str, float]

    def heading(self, language: str) -> tuple[str, tuple[str, ...]]:
        """The title, and the lines below it."""
        wording = words(language)
        kind = "none" if self.attention == "none" else "attention"
        target = "target.own" if self.translated else "target.given"
        facts = {"model": self.model, "cell": self.cell, "attention": self.attention}
        below = [wording[_OF + kind].format(**facts), wording[_OF + target]]
        return wording[_OF + "title"].format(**facts), tuple(below)

    def steps(self, language: str, columns: int, most: int) -> list[Step]:
        """The steps in words."""
        say, at, attends = words(language), self.token, "alpha" in self
        c, losses, free = self["c"], self["cross_entropy"], self["free_cross_entropy"]
        row = self["alpha"][at] if attends else self["exchange"]
        best, total, width = int(row.argmax()), float(losses.sum()), len(c)
        facts: dict[str, Any] = {"n": len(self.keys), "steps": len(self.tokens), "width": width}
        facts |= {"numbers": len(self.keys) * width, "name": spoken(self.tokens[at]), "best": spoken(self.keys[best])}
        numbers = {"total": total, "mean": losses.mean(), "free": free.sum(), "weight": row[best]}
        facts |= {name: plain(float(value)) for name, value in numbers.items()} | {"product": f"{np.exp(-total):.3g}"}
        sources, targets = _named(self.keys), _named(self.tokens)
        rows = [targets[i] for i in shown_tokens(losses, at, most)]
        across = shown_columns(row, None, columns)

        def step(name: str, *tables: Table, more: Sequence[str] = ()) -> Step:
            keys = [key for key in (f"{name}.text", f"{name}.{'attention' if attends else 'none'}") if _OF + key in say]
            written = (*(say[_OF + key].format(**facts) for key in keys), *more)
            return Step(
                say[_OF + name], *_FORMULAS.get(self.attention if name == "e" else name, ("", "")), written, tables
            )

        def caption(name: str, symbol: str, rows: Named) -> str:
            key = "of" if len(rows) == len(self[name]) else "part"
            return say[key].format(symbol=symbol, shape=self[name].shape, rows=len(rows))

        def part(name: str, symbol: str, rows: Named, marked: int | None = None) -> Table:
            return corner(self[name], caption(name, symbol, rows), rows, columns - 1, marked=marked)

        def across_keys(name: str, symbol: str) -> Table:
            values = self[name]
            digits = 3 if name == "alpha" else decimals_for(values)
            return square(
                caption(name, symbol, rows),
                rows,
                across,
                self.keys,
                lambda t, i: number(values[t, i], digits),
                say["column.others"],
                marked=rows.index(targets[at]),
                distribution=values if name == "alpha" else None,
            )

        def titles(*names: str) -> tuple[str, ...]:
            return tuple(say[f"{_OF}column.{name}"] for name in names)

        both = [" · ".join(f"{i} {visible(one)}" for i, one in enumerate(side)) for side in (self.keys, self.tokens)]
        left = [(name, *(plain(float(self[key][i])) for key in ("exchange", "gradient"))) for i, name in sources]
        lost = Table(say[_OF + "lost"], (say["column.token"], *titles("exchange", "gradient")), tuple(left))
        fixed = corner(c[None], f"c: {c.shape}", [(0, "c")], columns - 1)
        written = [step("tokens", more=both), step("h", part("h", "h", sources)), step("fixed", fixed, lost)]
        written.append(step("s", part("s", "s", rows, at)))
        if attends:
            written += [step("e", across_keys("e", "e")), step("alpha", across_keys("alpha", "α"))]
            written.append(step("context", part("context", "c_t", rows, at)))
        forced = [(str(t), *self._read(self.tokens, "cross_entropy", t)) for t in range(len(losses))]
        products = [(*line, number(float(losses[t]), 3)) for t, line in enumerate(forced)]
        products.append((say["row.sum"], "", "", facts["product"], number(total, 3)))
        common = ("step", "read", "target", "p")
        forced += [(str(t), "", "", "") for t in range(len(losses), len(free))]
        beside = tuple(
            (*line, _name(self.best[t]) if t < len(self.best) else "", *self._read(self.free, "free_cross_entropy", t))
            for t, line in enumerate(forced)
        )
        parting = say[_OF + ("same" if self.parting is None else "parts")].format(step=self.parting)
        facts["errors"] = say["errors.comma"].join(
            f"{say['errors.' + name]} {error:.0e}" for name, error in self.errors.items()
        )
        headings = titles(*common, "best", "own_read", "own", "own_p")
        return [
            *written,
            step("p", Table("p(y_t | y_<t, x)", titles(*common, "loss"), tuple(products), at)),
            step("forcing", Table("y_t, ŷ_t", headings, beside, at), more=[parting]),
            step("check", more=[say["caution"]]),
        ]

    def _read(self, tokens: Sequence[str], losses: str, t: int) -> tuple[str, ...]:
        """The token read, the next one and its probability, of a step."""
        if t >= len(tokens):
            return "", "", ""
        return _name(tokens[t - 1] if t else "<s>"), _name(tokens[t]), number(float(np.exp(-self[losses][t])), 3)


def _name(token: str) -> str:
    return short(visible(token), _LONGEST_NAME)


def _named(tokens: tuple[str, ...]) -> Named:
    return [(i, short(f"{i} {visible(token)}", _LONGEST_NAME)) for i, token in enumerate(tokens)]
