"""Lines of Python, and a command, that give the numbers of a live view."""

from __future__ import annotations

import json
import shlex
from typing import NamedTuple

from attnscope.options import is_sentence
from attnscope.read.windows import Window
from attnscope_live.questions import Code, Look


class Shown(NamedTuple):
    """A live view's state."""

    source: str  # the model, as `attnscope.view` was given it
    kind: str  # of prediction
    question: Look
    window: Window
    other: Window | None
    at: Code  # the open head, and the position of the predictions
    answers: tuple[str, str] | None  # the other text's and this one's, where they can be compared


def command_of(shown: Shown) -> str:
    """A command line; empty if no command does it."""
    question, source = shown.question, shown.source
    if question.written or shown.window.target is not None:
        return ""
    is_typed = is_sentence(question.text)  # else it would be the name of a file
    read = "" if is_typed else f"printf %s {shlex.quote(question.text)} | "
    text = question.text if is_typed else "-"
    if not question.removed:
        head = ["--layer", str(shown.at.layer), "--head", str(shown.at.head)]
        return read + shlex.join(["attnscope", "view", source, text, *head])
    heads = ",".join(f"{layer}.{head}" for layer, head in question.removed)
    if shown.kind not in {"next", "masked"}:
        return ""
    if question.by != "other":
        options = ["--heads", "none", "--together", heads, "--ablations", question.by, "--steps", "0"]
        options += ["--window", str(len(shown.window))]
        return read + shlex.join(["attnscope", "intervene", source, text, *options])
    if shown.answers is None:
        return ""
    pair = shlex.quote(json.dumps(_pair(shown), ensure_ascii=False))
    together = f" --together {heads}" if len(question.removed) > 1 else ""
    return (
        f'pair=$(mktemp -d)/pair.jsonl && echo {pair} > "$pair" && '
        f'attnscope patch {shlex.quote(source)} "$pair" --heads {heads}{together} --steps 0'
    )


def python_of(shown: Shown) -> str:
    """A script that prints the log-probabilities before and after, or the weights of the open head."""
    layer, head = shown.at.layer, shown.at.head
    lines = ["import attnscope"]
    if not shown.question.removed:
        source = _of_ids(shown.window) if shown.question.written else repr(shown.question.text)
        texts = f"{{'input_ids': [{source}]}}" if shown.question.written else source
        call = f"attnscope.weights({shown.source!r}, {texts}, layer={layer}, head={head})"
        return "\n".join([*lines, "", f"weights = {call}", f"print(weights.isel(query={shown.at.position}))", ""])
    lines += ["import torch", "from attnscope.capture.load import load_model", ""]
    lines += [
        f"loaded = load_model({shown.source!r})",
        f"# {shown.question.text!r}",
        f"inputs = {_inputs(shown.window)}",
    ]
    if shown.question.by == "other" and shown.other is not None:
        lines += [f"# {shown.question.other!r}", f"other = {_inputs(shown.other)}"]
    if shown.kind == "masked" and shown.at.mask:
        read = ("inputs", "other") if shown.question.by == "other" else ("inputs",)
        lines += [f"{name}['input_ids'][0, {shown.at.position}] = loaded.tokenizer.mask_token_id" for name in read]
    lines += _replacements(shown)
    which = "[0]" if shown.kind in {"label", "output"} else f"[0, {shown.at.position}]"
    returned = "last_hidden_state" if shown.kind == "output" else "logits"
    lines += [
        "with torch.no_grad():",
        f"    before = loaded.model(**inputs).{returned}{which}",
        "    with attnscope.edit(loaded.model, changes, on='z') as model:",
        f"        after = model(**inputs).{returned}{which}",
    ]
    if shown.kind == "output":
        return "\n".join([*lines, "print((after - before).norm() / before.norm())", ""])
    named = "loaded.model.config.id2label" if shown.kind == "label" else "loaded.tokenizer.convert_ids_to_tokens"
    named += "[i]" if shown.kind == "label" else "(i)"
    return "\n".join(
        [
            *lines,
            "before, after = before.float().log_softmax(-1), after.float().log_softmax(-1)",
            "for i in after.topk(min(10, len(after))).indices.tolist():",
            f"    print(i, repr({named}), float(before[i]), float(after[i]))",
            "",
        ]
    )


def _pair(shown: Shown) -> dict[str, str]:
    answer, wrong = shown.answers or ("", "")
    return {"clean": shown.question.other or "", "corrupted": shown.question.text, "answer": answer, "wrong": wrong}


def _of_ids(window: Window) -> str:
    return repr([*window.ids])


def _inputs(window: Window) -> str:
    ids = [f"'input_ids': torch.tensor([{_of_ids(window)}])"]
    if window.target is not None:
        ids.append(f"'decoder_input_ids': torch.tensor([{_of_ids(window.target)}])")
    return "{" + ", ".join(ids) + "}"


def _replacements(shown: Shown) -> list[str]:
    """Lines that define what the heads return instead."""
    heads = ", ".join(f"({layer}, {head})" for layer, head in shown.question.removed)
    if shown.question.by == "zero":
        return [f"changes = dict.fromkeys([{heads}], torch.zeros_like)"]
    read = "inputs" if shown.question.by == "mean" else "other"
    returned = "returned[head].mean(1, keepdim=True).expand_as(z)" if shown.question.by == "mean" else "returned[head]"
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
