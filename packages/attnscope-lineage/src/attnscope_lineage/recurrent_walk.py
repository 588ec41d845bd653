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
from attnscope.read.shown import IdNames
from attnscope.read.windows import Window
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.head_walk import Followed, check_number, difference
from attnscope_lineage.models.recurrent import RecurrentForConditionalGeneration
from attnscope_lineage.steps import (
    Named,
    Step,
    Table,
    corner,
    decimals_for,
    number,
    plain,
    rows_within,
    short,
    shown_columns,
    shown_tokens,
    spoken,
    square,
    visible,
    words,
)


class Equations:
    """The equations of a recurrent translator in float64, apart from the code that trains it."""

    def __init__(self, model: RecurrentForConditionalGeneration) -> None:
        self.config = model.config
        self.of = {name: parameter.detach().cpu().double() for name, parameter in model.named_parameters()}
        self.scale = float(getattr(model.decoder.score, "scale", 1.0))

    def cell(self, pattern: str, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One step of a GRU (Cho et al. 2014) or LSTM; `pattern` has a gap for the name of a parameter."""
        of_x = x @ self.of[pattern.format("weight_ih")].T + self.of[pattern.format("bias_ih")]
        of_state = state[0] @ self.of[pattern.format("weight_hh")].T + self.of[pattern.format("bias_hh")]
        if self.config.cell == "gru":
            x_r, x_z, x_n = of_x.chunk(3, -1)
            s_r, s_z, s_n = of_state.chunk(3, -1)
            z = (x_z + s_z).sigmoid()
            n = (x_n + (x_r + s_r).sigmoid() * s_n).tanh()
            return ((1 - z) * n + z * state[0],)
        i, f, g, o = (of_x + of_state).chunk(4, -1)
        memory = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * memory.tanh(), memory

    def encode(self, x: Float[Tensor, "batch source width"]) -> tuple[Tensor, Tensor]:
        """Annotations ``(batch, source, annotation)`` and the fixed vector ``(batch, annotation)``."""
        half = self.config.encoder_width
        for layer in range(self.config.encoder_layers):
            sides: list[Tensor] = []
            for suffix in ("", "_reverse"):
                state = (x.new_zeros(len(x), half),) * 2
                states: list[Tensor] = []
                for token in x.flip(1).unbind(1) if suffix else x.unbind(1):
                    state = self.cell(f"encoder.network.{{}}_l{layer}{suffix}", token, state)
                    states.append(state[0])
                sides.append(torch.stack(states[::-1] if suffix else states, 1))
            x = torch.cat(sides, -1)
        # the last state of each direction
        return x, torch.cat([x[:, -1, :half], x[:, 0, half:]], -1)

    def score(self, s: Float[Tensor, " state"], h: Float[Tensor, "source annotation"]) -> Float[Tensor, " source"]:
        """Scores of one state: dot, bilinear or additive."""
        if self.config.attention == "bilinear":
            return s @ self.of["decoder.score.weight.weight"] @ h.T
        if self.config.attention == "additive":
            query = self.of["decoder.score.query.weight"] @ s + self.of["decoder.score.query.bias"]
            hidden = (query + h @ self.of["decoder.score.key.weight"].T).tanh()
            return hidden @ self.of["decoder.score.direction.weight"][0]
        return self.scale * h @ s

    def decode(self, h: Tensor, c: Tensor, read: Sequence[int]) -> dict[str, Tensor]:
        """States, scores, weights, contexts and log-probabilities of all steps; `read` starts with the start token."""
        first = torch.tanh(self.of["decoder.first_state.weight"] @ c + self.of["decoder.first_state.bias"])
        state = (first, torch.zeros_like(first))
        embedding = self.of["embedding.weight"]
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
            readout = self.of["decoder.readout.weight"] @ torch.cat([state[0], c, y]) + self.of["decoder.readout.bias"]
            steps["log_p"].append((embedding @ readout.tanh()).log_softmax(0))
        return {name: torch.stack(rows) for name, rows in steps.items() if rows}


def walk_recurrent(loaded: LoadedModel, source: Window, target: Window | None, token: int | None) -> RecurrentWalk:
    """Every step of a recurrent translator in eval mode, checked against its own numbers.

    Without a target, the model's own greedy translation is the target.
    """
    model: Any = loaded.model
    ids = torch.tensor([list(source.ids)], device=model.device)
    start = int(model.config.decoder_start_token_id)
    translated = model.generate(ids, num_beams=1, do_sample=False, max_new_tokens=2 * len(source) + 20)[0, 1:].tolist()
    names_of = IdNames(loaded.tokenizer).of
    translated_names = names_of(translated)
    labels, names = (translated, translated_names) if target is None else (list(target.ids), target.tokens)
    equations = Equations(model)
    with torch.enable_grad():
        x = equations.of["embedding.weight"][list(source.ids)][None].requires_grad_()
        h, c = equations.encode(x)
        forced = equations.decode(h[0], c[0], [start, *labels[:-1]])
        losses = -forced["log_p"].gather(1, torch.tensor(labels)[:, None])[:, 0]
        (gradient,) = torch.autograd.grad(losses.sum(), x)
    x, h, c = (tensor[0].detach() for tensor in (x, h, c))
    free = equations.decode(h, c, [start, *translated[:-1]])["log_p"]
    chosen = free.gather(1, torch.tensor(translated)[:, None])[:, 0]
    # one copy of the sentence for each token, with the sentence's mean in its place
    exchanged = x.repeat(len(x), 1, 1)
    exchanged[range(len(x)), range(len(x))] = x.mean(0)
    numbers = {name: tensor.detach() for name, tensor in forced.items()}
    errors = _differences(model, ids, labels, {"h": h, "loss": losses.detach().mean()} | numbers)
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
    differing = (t for t, (label, token) in enumerate(zip(labels, translated, strict=False)) if label != token)
    return RecurrentWalk(
        model=loaded.name,
        attention=model.config.attention,
        cell=model.config.cell.upper(),
        keys=source.tokens,
        tokens=names,
        best=names_of(numbers["log_p"].argmax(1).tolist()),
        free=translated_names,
        translated=target is None,
        parting=next(differing, None),
        token=check_number("token", max(0, len(names) - 2) if token is None else token, len(names)),
        arrays=xr.Dataset({name: (dims.split(","), tensor.numpy()) for name, (dims, tensor) in rows.items()}),
        errors=errors,
    )


@torch.no_grad()
def _differences(model: Any, ids: Tensor, labels: list[int], computed: dict[str, Tensor]) -> dict[str, float]:
    """Differences from the model's own numbers, which come from a forward pass with its loss."""
    reads: list[Tensor] = []
    with model.decoder.readout.register_forward_pre_hook(lambda _, inputs: reads.append(inputs[0])):
        output = model(ids, labels=torch.tensor([labels], device=ids.device))
    # the readout reads state, context and embedding side by side
    states, contexts = model.config.decoder_width, 2 * model.config.encoder_width
    of_model = {
        "h": output.encoder_last_hidden_state[0],
        "s": reads[0][0, :, :states],
        "context": reads[0][0, :, states : states + contexts],
        "log_p": output.logits[0].double().log_softmax(-1),
        "loss": output.loss[None],
    }
    if output.cross_attentions:
        of_model["alpha"] = output.cross_attentions[0][0, 0]
    return {
        name: difference(computed[name].numpy(), tensor.double().cpu().numpy()) for name, tensor in of_model.items()
    }


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
        writer = _Writer(self, words(language), columns, most)
        steps = [writer.step("tokens", more=writer.both_sentences()), writer.annotations(), writer.fixed_vector()]
        steps.append(writer.step("s", writer.of_steps("s", "s")))
        if writer.attends:
            steps.append(writer.step("e", writer.across_keys("e", "e")))
            steps.append(writer.step("alpha", writer.across_keys("alpha", "α")))
            steps.append(writer.step("context", writer.of_steps("context", "c_t")))
        return [*steps, writer.probabilities(), writer.teacher_forcing(), writer.check()]


class _Writer:
    """Writes the steps of a recurrent walk."""

    def __init__(self, walk: RecurrentWalk, wording: dict[str, str], columns: int, most: int) -> None:
        self.walk, self.wording, self.columns = walk, wording, columns
        self.attends = "alpha" in walk
        self.losses, self.free_losses = walk["cross_entropy"], walk["free_cross_entropy"]
        row = walk["alpha"][walk.token] if self.attends else walk["exchange"]
        self.sources, targets = _named(walk.keys), _named(walk.tokens)
        rows = shown_tokens(self.losses, [walk.token], most)
        if self.attends:
            self.key_columns = shown_columns(walk["alpha"], [walk.token, *rows], [], columns)
            rows = rows_within(walk["alpha"], rows, self.key_columns)
        self.rows = [targets[i] for i in rows]
        self.marked = self.rows.index(targets[walk.token])
        best, width = int(row.argmax()), len(walk["c"])
        self.total = float(self.losses.sum())
        self.facts: dict[str, Any] = {
            "n": len(walk.keys),
            "steps": len(walk.tokens),
            "width": width,
            "numbers": len(walk.keys) * width,
            "name": spoken(walk.tokens[walk.token]),
            "best": spoken(walk.keys[best]),
            "total": plain(self.total),
            "mean": plain(float(self.losses.mean())),
            "free": plain(float(self.free_losses.sum())),
            "weight": plain(float(row[best])),
            "product": f"{np.exp(-self.total):.3g}",
        }

    def step(self, name: str, *tables: Table, more: Sequence[str] = ()) -> Step:
        """A step: its sentences for all models, those for this kind of model, and `more`."""
        kind = "attention" if self.attends else "none"
        keys = [f"{_OF}{name}.text", f"{_OF}{name}.{kind}"]
        text = [self.wording[key].format(**self.facts) for key in keys if key in self.wording]
        formulas = _FORMULAS.get(self.walk.attention if name == "e" else name, ("", ""))
        return Step(self.wording[_OF + name], *formulas, (*text, *more), tables)

    def both_sentences(self) -> list[str]:
        """Source and target, each with the positions of its tokens."""
        sides = self.walk.keys, self.walk.tokens
        return [" · ".join(f"{i} {visible(token)}" for i, token in enumerate(side)) for side in sides]

    def annotations(self) -> Step:
        """The annotations of the source."""
        caption = self._caption("h", "h", self.sources)
        return self.step("h", corner(self.walk["h"], caption, self.sources, self.columns - 1))

    def fixed_vector(self) -> Step:
        """The fixed vector, and what each token of the source does to it."""
        c = self.walk["c"]
        numbers = corner(c[None], f"c: {c.shape}", [(0, "c")], self.columns - 1)
        effects = ("exchange", "gradient")
        rows = [(name, *(plain(float(self.walk[effect][i])) for effect in effects)) for i, name in self.sources]
        headings = (self.wording["column.token"], *self._titles(*effects))
        return self.step("fixed", numbers, Table(self.wording[_OF + "lost"], headings, tuple(rows)))

    def of_steps(self, name: str, symbol: str) -> Table:
        """Rows of an array with a row for each step."""
        caption = self._caption(name, symbol, self.rows)
        return corner(self.walk[name], caption, self.rows, self.columns - 1, marked=self.walk.token)

    def across_keys(self, name: str, symbol: str) -> Table:
        """Rows and columns of a matrix of steps by tokens of the source."""
        values = self.walk[name]
        digits = 3 if name == "alpha" else decimals_for(values)
        return square(
            self._caption(name, symbol, self.rows),
            self.rows,
            self.key_columns,
            self.walk.keys,
            lambda t, i: number(values[t, i], digits),
            self.wording["column.others"],
            marked=self.marked,
            distribution=values if name == "alpha" else None,
        )

    def probabilities(self) -> Step:
        """The probability of each target token, and their product."""
        rows = [(*line, number(float(loss), 3)) for line, loss in zip(self._forced(), self.losses, strict=True)]
        rows.append((self.wording["row.sum"], "", "", self.facts["product"], number(self.total, 3)))
        headings = self._titles("step", "read", "target", "p", "loss")
        return self.step("p", Table("p(y_t | y_<t, x)", headings, tuple(rows), self.walk.token))

    def teacher_forcing(self) -> Step:
        """The target that is read under teacher forcing next to the model's own translation."""
        walk = self.walk
        forced = self._forced()
        forced += [(str(t), "", "", "") for t in range(len(forced), len(self.free_losses))]
        best = [_name(token) for token in walk.best] + [""] * (len(forced) - len(walk.best))
        rows = [
            (*line, name, *self._read(walk.free, self.free_losses, t))
            for t, (line, name) in enumerate(zip(forced, best, strict=True))
        ]
        headings = self._titles("step", "read", "target", "p", "best", "own_read", "own", "own_p")
        key = "same" if walk.parting is None else "parts"
        parting = self.wording[_OF + key].format(step=walk.parting)
        return self.step("forcing", Table("y_t, ŷ_t", headings, tuple(rows), walk.token), more=[parting])

    def check(self) -> Step:
        """The differences from the model's own numbers."""
        errors = (f"{self.wording['errors.' + name]} {error:.0e}" for name, error in self.walk.errors.items())
        self.facts["errors"] = self.wording["errors.comma"].join(errors)
        return self.step("check", more=[self.wording["caution"]])

    def _forced(self) -> list[tuple[str, ...]]:
        """Step, token read, target and its probability, under teacher forcing."""
        return [(str(t), *self._read(self.walk.tokens, self.losses, t)) for t in range(len(self.losses))]

    def _read(self, tokens: Sequence[str], losses: np.ndarray, t: int) -> tuple[str, ...]:
        """The token read, the next one and its probability, of a step."""
        if t >= len(tokens):
            return "", "", ""
        return _name(tokens[t - 1] if t else "<s>"), _name(tokens[t]), number(float(np.exp(-losses[t])), 3)

    def _caption(self, name: str, symbol: str, rows: Named) -> str:
        key = "of" if len(rows) == len(self.walk[name]) else "part"
        return self.wording[key].format(symbol=symbol, shape=self.walk[name].shape, rows=len(rows))

    def _titles(self, *names: str) -> tuple[str, ...]:
        return tuple(self.wording[f"{_OF}column.{name}"] for name in names)


def _name(token: str) -> str:
    return short(visible(token), _LONGEST_NAME)


def _named(tokens: tuple[str, ...]) -> Named:
    return [(i, short(f"{i} {visible(token)}", _LONGEST_NAME)) for i, token in enumerate(tokens)]
