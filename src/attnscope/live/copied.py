"""What a live view shows, as lines of Python and as a command that give the same numbers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from attnscope.read.windows import Window


class State(NamedTuple):
    """What is shown."""

    source: str  # the model, as `attnscope.view` was given it
    window: Window
    other_window: Window | None
    text: str
    other: str | None
    removed: Sequence[tuple[int, int]]
    by: str
    head: tuple[int, int]
    position: int
    kind: str
    is_written: bool  # whether the model wrote the last tokens
    answers: tuple[str, str] | None  # the other text's and this one's, where they can be compared


def command_of(state: State) -> str:
    """A command line; empty if no command does it."""
    target = [] if state.window.target is None else ["--target", "TARGET"]
    if state.is_written or target:
        return ""
    if not state.removed:
        layer, head = state.head
        return shlex.join(["attnscope", "view", state.source, state.text, "--layer", str(layer), "--head", str(head)])
    heads = ",".join(f"{layer}.{head}" for layer, head in state.removed)
    if state.by == "other":
        if state.answers is None or state.kind not in {"next", "masked"}:
            return ""
        pair = json.dumps(_pair(state), ensure_ascii=False)
        alone = len(state.removed) == 1
        chosen = f"--heads {heads}" if alone else f"--heads {heads} --together {heads}"
        return (
            f"echo {shlex.quote(pair)} > pair.jsonl && "
            f"attnscope patch {shlex.quote(state.source)} pair.jsonl {chosen} --steps 0"
        )
    if state.kind not in {"next", "masked"}:
        return ""
    options = ["--heads", "none", "--together", heads, "--ablations", state.by, "--steps", "0"]
    options += ["--window", str(len(state.window))]
    return shlex.join(["attnscope", "intervene", state.source, state.text, *options])


def python_of(state: State) -> str:
    """A script that prints the log-probabilities before and after, or the weights of the open head."""
    layer, head = state.head
    lines = ["import attnscope"]
    if not state.removed:
        source = _of_ids(state.window) if state.is_written else repr(state.text)
        texts = f"{{'input_ids': [{source}]}}" if state.is_written else source
        call = f"attnscope.weights({state.source!r}, {texts}, layer={layer}, head={head})"
        return "\n".join([*lines, "", f"weights = {call}", f"print(weights.isel(query={state.position}))", ""])
    lines += ["import torch", "from attnscope.capture.load import load_model", ""]
    lines += [f"loaded = load_model({state.source!r})", f"inputs = {_inputs(state.window)}"]
    if state.by == "other" and state.other_window is not None:
        lines.append(f"other = {_inputs(state.other_window)}")
    if state.kind == "masked":
        read = ("inputs", "other") if state.by == "other" else ("inputs",)
        lines += [f"{name}['input_ids'][0, {state.position}] = loaded.tokenizer.mask_token_id" for name in read]
    lines += _replacements(state)
    which = "[0]" if state.kind in {"label", "output"} else f"[0, {state.position}]"
    returned = "last_hidden_state" if state.kind == "output" else "logits"
    lines += [
        "with torch.no_grad():",
        f"    before = loaded.model(**inputs).{returned}{which}",
        "    with attnscope.edit(loaded.model, changes, on='z') as model:",
        f"        after = model(**inputs).{returned}{which}",
    ]
    if state.kind == "output":
        return "\n".join([*lines, "print((after - before).norm() / before.norm())", ""])
    named = "loaded.model.config.id2label" if state.kind == "label" else "loaded.tokenizer.convert_ids_to_tokens"
    named += "[i]" if state.kind == "label" else "(i)"
    return "\n".join(
        [
            *lines,
            "before, after = before.float().log_softmax(-1), after.float().log_softmax(-1)",
            "for i in after.topk(min(10, len(after))).indices.tolist():",
            f"    print(i, repr({named}), float(before[i]), float(after[i]))",
            "",
        ]
    )


def _pair(state: State) -> dict[str, str]:
    answer, wrong = state.answers or ("", "")
    return {"clean": state.other or "", "corrupted": state.text, "answer": answer, "wrong": wrong}


def _of_ids(window: Window) -> str:
    return repr([*window.ids])


def _inputs(window: Window) -> str:
    ids = [f"'input_ids': torch.tensor([{_of_ids(window)}])"]
    if window.target is not None:
        ids.append(f"'decoder_input_ids': torch.tensor([{_of_ids(window.target)}])")
    return "{" + ", ".join(ids) + "}"


def _replacements(state: State) -> list[str]:
    """Lines that define what the heads return instead."""
    heads = ", ".join(f"({layer}, {head})" for layer, head in state.removed)
    if state.by == "zero":
        return [f"changes = dict.fromkeys([{heads}], torch.zeros_like)"]
    read = "inputs" if state.by == "mean" else "other"
    returned = "returned[head].mean(1, keepdim=True).expand_as(z)" if state.by == "mean" else "returned[head]"
    return [
        f"heads, returned = [{heads}], {{}}",
        "",
        "def keep(head):",
        "    return lambda z: returned.setdefault(head, z)",
        "",
        "with torch.no_grad(), attnscope.edit(loaded.model, {head: keep(head) for head in heads}, on='z') as model:",
        f"    model(**{read})",
        f"changes = {{head: lambda z, head=head: {returned} for head in heads}}",
    ]
