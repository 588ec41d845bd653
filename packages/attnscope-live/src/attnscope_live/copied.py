"""Lines of Python, and a command, that give the numbers of a live view."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnscope.options import is_sentence
from attnscope.read.windows import Window
from attnscope_live.questions import Code, Look

PLACED = ("device_map", "max_memory")  # of a model on several devices
LOADED = ("revision", "trust_remote_code", "device", "dtype", "tokenizer", *PLACED)  # options that code repeats


class Source(NamedTuple):
    """The model as `attnscope.view` was given it, with the options that loaded it."""

    name: str
    options: Mapping[str, Any] = {}

    def arguments(self, *others: str) -> str:
        """Arguments of verbs, with others behind the name."""
        options = (f"{name}={value!r}" for name, value in self.options.items())
        return ", ".join([repr(self.name), *others, *options])

    def loaded(self) -> str:
        """Arguments of `load_model`, which takes the options of placement as one."""
        options = [f"{name}={value!r}" for name, value in self.options.items() if name not in PLACED]
        if "device_map" in self.options:
            where = ", ".join(repr(self.options[name]) for name in PLACED if name in self.options)
            options.append(f"placement=Placement({where})")
        return ", ".join([repr(self.name), *options])

    def loading(self, *others: str) -> str:
        """Arguments of the loaders of models that read more than texts, with others behind the name."""
        without = Source(self.name, {name: value for name, value in self.options.items() if name != "tokenizer"})
        options = without.loaded().removeprefix(repr(self.name)).removeprefix(", ")
        return ", ".join([repr(self.name), *others, f"loading=Loading({options})"])

    @property
    def flags(self) -> list[str]:
        """Options of a command."""
        flags: list[str] = []
        for name, value in self.options.items():
            flags.append(f"--{name.replace('_', '-')}")
            if isinstance(value, Mapping):
                flags.append(",".join(f"{device}={most}" for device, most in value.items()))
            elif value is not True:
                flags.append(str(value))
        return flags


UNNAMED = Source("model")  # an object


class Shown(NamedTuple):
    """A live view's state."""

    source: Source
    kind: str  # of prediction
    question: Look
    window: Window
    other: Window | None
    at: Code  # the open head, and the position of the predictions
    answers: tuple[str, str] | None  # the other text's and this one's, where they can be compared


class Inputs(NamedTuple):
    """Lines that define ``model``, ``tokenizer`` and its ``inputs``, for a picture or a sound."""

    lines: Sequence[str]
    heads: str = "model"  # the part whose heads are numbered
    of_heads: str = "inputs"  # arguments of that part
    generate: str = ""  # arguments of `generate` with which the model writes a transcript


def command_of(shown: Shown) -> str:
    """A command line; empty if no command does it."""
    question, source = shown.question, shown.source
    if question.written or shown.window.target is not None:
        return ""
    is_typed = is_sentence(question.text)  # else it would be the name of a file
    read = "" if is_typed else f"printf %s {shlex.quote(question.text)} | "
    text = question.text if is_typed else "-"
    if not question.removed:
        return read + view_command(source, text, at=shown.at)
    heads = ",".join(f"{layer}.{head}" for layer, head in question.removed)
    if shown.kind not in {"next", "masked"}:
        return ""
    if question.by != "other":
        options = ["--heads", "none", "--together", heads, "--ablations", question.by, "--steps", "0"]
        options += ["--window", str(len(shown.window)), *source.flags]
        return read + shlex.join(["attnscope", "intervene", source.name, text, *options])
    if shown.answers is None:
        return ""
    pair = shlex.quote(json.dumps(_pair(shown), ensure_ascii=False))
    together = f" --together {heads}" if len(question.removed) > 1 else ""
    options = "".join(f" {shlex.quote(flag)}" for flag in source.flags)
    return (
        f'pair=$(mktemp -d)/pair.jsonl && echo {pair} > "$pair" && '
        f'attnscope patch {shlex.quote(source.name)} "$pair" --heads {heads}{together} --steps 0{options}'
    )


def view_command(source: Source, *given: str, at: Code) -> str:
    """The command that opens a view with a head."""
    head = ["--layer", str(at.layer), "--head", str(at.head)]
    return shlex.join(["attnscope", "view", source.name, *given, *head, *source.flags])


def python_of(shown: Shown) -> str:
    """A script that prints the log-probabilities before and after, or the weights of the open head."""
    layer, head = shown.at.layer, shown.at.head
    if not shown.question.removed:
        source = _of_ids(shown.window) if shown.question.written else repr(shown.question.text)
        texts = f"{{'input_ids': [{source}]}}" if shown.question.written else source
        call = f"attnscope.weights({shown.source.arguments(texts, f'layer={layer}', f'head={head}')})"
        return _script(["import attnscope"], [f"weights = {call}", f"print(weights.isel(query={shown.at.position}))"])
    lines = [f"loaded = load_model({shown.source.loaded()})", "model, tokenizer = loaded.model, loaded.tokenizer"]
    lines += [f"# {shown.question.text!r}", f"inputs = {_inputs(shown.window)}"]
    if shown.question.by == "other" and shown.other is not None:
        lines += [f"# {shown.question.other!r}", f"other = {_inputs(shown.other)}"]
    if shown.kind == "masked" and shown.at.mask:
        read = ("inputs", "other") if shown.question.by == "other" else ("inputs",)
        lines += [f"{name}['input_ids'][0, {shown.at.position}] = tokenizer.mask_token_id" for name in read]
    imports = ["import attnscope", "import torch", "from attnscope.capture.load import load_model"]
    return _script(imports, [*lines, *_edited(shown.question, shown.kind, shown.at, Inputs([]))])


def python_with_inputs(question: Look, kind: str, at: Code, given: Inputs, imports: Sequence[str]) -> str:
    """The same of a picture or a sound; without a removed head it prints the weights of the open one."""
    body = [*given.lines]
    if question.removed:
        body += _edited(question, kind, at, given)
    else:
        body += [
            "seen = []",
            "",
            "def keep(weights):",
            "    seen.append(weights)",
            "    return weights",
            "",
            f"changes = {{({at.layer}, {at.head}): keep}}",
            f"with torch.no_grad(), attnscope.edit({given.heads}, changes, on='weights', inputs={given.of_heads}):",
            "    model(**inputs)",
            f"print(seen[-1][0, {at.position}])",
        ]
    return _script(["import attnscope", "import torch", *imports], body)


def _script(imports: Sequence[str], body: Sequence[str]) -> str:
    placed = any("Placement(" in line for line in body)
    more = ["from attnscope.capture.placement import Placement"] if placed else []
    return "\n".join([*imports, *more, "", *body, ""])


def _edited(question: Look, kind: str, at: Code, given: Inputs) -> list[str]:
    """Lines that print the predictions, and the transcript of a sound, with all heads and with the changed ones."""
    which = "[0]" if kind in {"label", "output"} else f"[0, {at.position}]"
    returned = "last_hidden_state" if kind == "output" else "logits"
    inputs = f", inputs={given.of_heads}" if given.lines else ""
    lines = [
        *_replacements(question, given.heads, inputs),
        f"with torch.no_grad(), attnscope.edit({given.heads}, changes, on='z'{inputs}):",
        f"    after = model(**inputs).{returned}{which}",
        "with torch.no_grad():",
        f"    before = model(**inputs).{returned}{which}",
    ]
    if kind == "output":
        return [*lines, "print((after - before).norm() / before.norm())"]
    named = "model.config.id2label[i]" if kind == "label" else "tokenizer.convert_ids_to_tokens(i)"
    lines += [
        "before, after = before.float().log_softmax(-1), after.float().log_softmax(-1)",
        "for i in after.topk(min(10, len(after))).indices.tolist():",
        f"    print(i, repr({named}), float(before[i]), float(after[i]))",
    ]
    if given.generate:
        lines += [
            f"print(tokenizer.decode(model.generate({given.generate})[0], skip_special_tokens=True))",
            f"with attnscope.edit({given.heads}, changes, on='z'{inputs}):",
            f"    print(tokenizer.decode(model.generate({given.generate})[0], skip_special_tokens=True))",
        ]
    return lines


def _pair(shown: Shown) -> dict[str, str]:
    answer, wrong = shown.answers or ("", "")
    return {"clean": shown.question.other or "", "corrupted": shown.question.text, "answer": answer, "wrong": wrong}


def _of_ids(window: Window) -> str:
    return repr([*window.ids])


def _inputs(window: Window) -> str:
    return "{" + ", ".join(ids_of(name, one) for name, one in _sides(window)) + "}"


def _sides(window: Window) -> list[tuple[str, Window]]:
    return [("input_ids", window)] + ([] if window.target is None else [("decoder_input_ids", window.target)])


def ids_of(name: str, window: Window) -> str:
    """The tokens of a text as an argument of the model."""
    return f"{name!r}: torch.tensor([{_of_ids(window)}], device=model.device)"


def _replacements(question: Look, model: str, inputs: str) -> list[str]:
    """Lines that define what the heads return instead."""
    heads = ", ".join(f"({layer}, {head})" for layer, head in question.removed)
    if question.by == "zero":
        return [f"changes = dict.fromkeys([{heads}], torch.zeros_like)"]
    read = "inputs" if question.by == "mean" else "other"
    returned = "returned[head].mean(1, keepdim=True).expand_as(z)" if question.by == "mean" else "returned[head]"
    return [
        f"heads, returned = [{heads}], {{}}",
        "",
        "def keep(head):",
        "    return lambda z: returned.setdefault(head, z)",
        "",
        f"with torch.no_grad(), attnscope.edit({model}, {{head: keep(head) for head in heads}}, on='z'{inputs}):",
        f"    model(**{read})",
        f"changes = {{head: lambda z, head=head: {returned} for head in heads}}",
    ]
