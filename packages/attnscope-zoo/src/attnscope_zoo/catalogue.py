"""All circuits, and their models."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import overload

import torch

from attnscope.support.checked import checked
from attnscope.support.checks import check_whole
from attnscope.support.errors import AttnscopeError
from attnscope_zoo import circuits
from attnscope_zoo.architectures import ARCHITECTURES, model_of, weights_of
from attnscope_zoo.heads import Task
from attnscope_zoo.zoo import AttendedKeys, Draft, PlantedModel, Setting, fill

_ONE = ("decoder", "encoder")
_ALL = (*_ONE, "encoder-decoder")
_NOISES = (0.02, 0.05, 0.08)


@dataclass(frozen=True)
class Circuit:
    """Settings of a circuit."""

    draw: Callable[[Setting], tuple[Draft, Task]]  # heads and texts
    forms: tuple[str, ...] = _ONE  # possible forms
    without: tuple[str, ...] = ()  # architectures that cannot implement it
    # sizes of noise to draw from; loud and faint circuits tolerate less
    noises: tuple[float, ...] = _NOISES


CIRCUITS: dict[str, Circuit] = {
    "previous": Circuit(partial(circuits.at_one, offset=-1)),
    "next": Circuit(partial(circuits.at_one, offset=1), ("encoder",)),
    "offset": Circuit(partial(circuits.at_one, offset=None)),
    "pair": Circuit(circuits.pair),
    "relay": Circuit(circuits.relay, _ALL),
    "chain": Circuit(partial(circuits.relay, heads=3)),
    "same-place": Circuit(partial(circuits.at_one, offset=0), ("encoder-decoder",)),
    "reverse": Circuit(circuits.reverse, ("encoder-decoder",)),
    "induction": Circuit(circuits.induction, _ALL),
    # RoPE's waves are too long to leave out a single position
    "duplicate": Circuit(circuits.duplicate, without=("llama",)),
    "copying": Circuit(circuits.copying),
    "lookup": Circuit(circuits.lookup, _ALL),
    "gate": Circuit(partial(circuits.lookup, is_composed=True), _ALL),
    "rare": Circuit(circuits.rare),
    "diffuse": Circuit(circuits.diffuse),
    "redundant": Circuit(circuits.redundant, _ALL),
    "spare": Circuit(partial(circuits.induction, notes=2), _ALL),
    "cancel": Circuit(circuits.cancel, _ALL, noises=_NOISES[:2]),
    "suppress": Circuit(circuits.suppress, noises=_NOISES[:1]),
    "sinks": Circuit(circuits.sinks),
    "sharp-null": Circuit(circuits.sharp_null, _ALL),
    "quiet": Circuit(circuits.quiet, _ALL, noises=_NOISES[:1]),
}
_NAME = re.compile(r"(?P<circuit>[a-z-]+?)-(?P<form>encoder-decoder|encoder|decoder)-(?P<number>[1-9][0-9]*)")


def names(each: int = 2) -> tuple[str, ...]:
    """The names of planted models: circuit, form and number; `each` is the number of each circuit and form."""
    check_whole(1, each=each)
    return tuple(
        f"{name}-{form}-{number}"
        for name, circuit in CIRCUITS.items()
        for form in circuit.forms
        for number in range(1, each + 1)
    )


@checked
def build(name: str) -> PlantedModel:
    """Build a planted model, the same at every call.

    Parameters
    ----------
    name
        Circuit, form and number, from 1. Numbers alternate between the architectures of a form.

    Raises
    ------
    AttnscopeError
        If the circuit or its form does not exist.

    Examples
    --------
    >>> build("induction-decoder-2").architecture
    'llama'
    >>> build("induction-recurrent-1")
    Traceback (most recent call last):
    ...
    attnscope.AttnscopeError: no planted model 'induction-recurrent-1': expected one of names(),
    such as 'induction-decoder-1', or another number
    """
    read = _NAME.fullmatch(name)
    circuit = CIRCUITS.get(read["circuit"]) if read else None
    if read is None or circuit is None or read["form"] not in circuit.forms:
        raise AttnscopeError(
            f"no planted model {name!r}: expected one of names(),\nsuch as 'induction-decoder-1', or another number"
        )
    form, number = read["form"], int(read["number"]) - 1
    architectures = [each for each in ARCHITECTURES[form] if each not in circuit.without]
    seed = zlib.crc32(name.encode())
    noise = circuit.noises[seed % len(circuit.noises)]
    setting = Setting(form, architectures[number % len(architectures)], noise, seed)
    draft, task = circuit.draw(setting)
    fill(draft)
    attended: dict[tuple[int, int], tuple[AttendedKeys, ...]] = {}
    for head, keys in draft.attended:
        attended[head.index] = (*attended.get(head.index, ()), keys)
    backups: dict[str, list[tuple[int, int]]] = {}
    for head in (head for call in draft.calls for head in call if head.backup):
        backups.setdefault(head.backup, []).append(head.index)
    return PlantedModel(
        name=name,
        circuit=read["circuit"],
        form=form,
        architecture=setting.architecture,
        seed=seed,
        noise=noise,
        model=model_of(draft, weights_of(draft, draft.rng)),
        ids=torch.from_numpy(task.ids),
        target=None if task.target is None else torch.from_numpy(task.target),
        labels=torch.from_numpy(task.labels),
        groups=torch.from_numpy(draft.groups),
        heads=torch.tensor([[head.matters for head in call] for call in draft.calls]),
        roles=tuple(tuple(head.role for head in call) for call in draft.calls),
        tokens=None if task.depends is None else torch.from_numpy(task.depends),
        redundant=tuple(map(tuple, backups.values())),
        attended=attended,
    )


class Zoo(Sequence[PlantedModel]):
    """Planted models by name, each built at every access."""

    def __init__(self, chosen: Sequence[str]) -> None:
        self.names = tuple(chosen)

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> PlantedModel: ...
    @overload
    def __getitem__(self, index: slice) -> Zoo: ...
    def __getitem__(self, index: int | slice) -> PlantedModel | Zoo:
        chosen = self.names[index]
        return build(chosen) if isinstance(chosen, str) else Zoo(chosen)

    def __iter__(self) -> Iterator[PlantedModel]:
        return map(build, self.names)


@checked
def zoo(each: int = 2) -> Zoo:
    """All planted models, `each` of every circuit and form; see `names`."""
    return Zoo(names(each))
