"""All kinds, and the list of those that are built."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import torch

from attnscope.support.arguments import validated
from attnscope.support.checks import check_whole
from attnscope.support.errors import AttnscopeError
from attnscope.testing import kinds as composed
from attnscope.testing import kinds as content
from attnscope.testing import kinds as deceivers
from attnscope.testing import kinds as places
from attnscope.testing.architectures import ARCHITECTURES, Setting, model_of, weights_of
from attnscope.testing.distractors import fill
from attnscope.testing.heads import Head, ZooTask
from attnscope.testing.zoo import Draft, Looking, PlantedModel

_ONE = ("decoder", "encoder")
_ALL = (*_ONE, "encoder-decoder")
_NOISES = (0.02, 0.05, 0.08)


@dataclass(frozen=True)
class Kind:
    """How a kind of animal is drawn."""

    draw: Callable[[Setting], tuple[Draft, ZooTask]]  # heads and texts
    forms: tuple[str, ...] = _ONE  # forms that it comes in
    without: tuple[str, ...] = ()  # architectures that cannot hold it
    # kinds of noise of which one is drawn; what is loud or faint bears less
    noises: tuple[float, ...] = _NOISES


KINDS: dict[str, Kind] = {
    "previous": Kind(places.previous),
    "next": Kind(places.following, ("encoder",)),
    "offset": Kind(places.another),
    "pair": Kind(places.pair),
    "relay": Kind(places.relay, _ALL),
    "chain": Kind(places.chain),
    "same-place": Kind(places.same_place, ("encoder-decoder",)),
    "reverse": Kind(places.reverse, ("encoder-decoder",)),
    "induction": Kind(composed.induction, _ALL),
    # RoPE's waves are too long to leave out one place alone
    "duplicate": Kind(content.duplicate, without=("llama",)),
    "copying": Kind(content.copying),
    "lookup": Kind(composed.lookup, _ALL),
    "gate": Kind(composed.gate, _ALL),
    "rare": Kind(content.rare),
    "diffuse": Kind(content.diffuse),
    "redundant": Kind(deceivers.redundant, _ALL),
    "spare": Kind(composed.spare, _ALL),
    "cancel": Kind(deceivers.cancel, _ALL, noises=_NOISES[:2]),
    "suppress": Kind(deceivers.suppress, noises=_NOISES[:1]),
    "sinks": Kind(deceivers.sinks),
    "sharp-null": Kind(deceivers.sharp_null, _ALL),
    "quiet": Kind(deceivers.quiet, _ALL, noises=_NOISES[:1]),
}
_NAME = re.compile(r"(?P<kind>[a-z-]+?)-(?P<form>encoder-decoder|encoder|decoder)-(?P<number>[1-9][0-9]*)")


@validated
def names(each: int = 2) -> tuple[str, ...]:
    """Name every animal: kind, form and number.

    Parameters
    ----------
    each
        How many of each kind and form.

    Examples
    --------
    >>> len(names()), names()[0], names()[-1]
    (100, 'previous-decoder-1', 'quiet-encoder-decoder-2')
    """
    check_whole(1, each=each)
    return tuple(
        f"{kind}-{form}-{number}"
        for kind, made in KINDS.items()
        for form in made.forms
        for number in range(1, each + 1)
    )


@validated
def build(name: str) -> PlantedModel:
    """Build one animal, the same at every call.

    Parameters
    ----------
    name
        Kind, form and number; any number from 1. Numbers take turns between the architectures of a form.

    Raises
    ------
    AttnscopeError
        If there is no such kind, or not in that form.

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
    kind = KINDS.get(read["kind"]) if read else None
    if read is None or kind is None or read["form"] not in kind.forms:
        raise AttnscopeError(
            f"no planted model {name!r}: expected one of names(),\n"
            "such as 'induction-decoder-1', or another number"
        )
    form, number = read["form"], int(read["number"]) - 1
    architectures = [architecture for architecture in ARCHITECTURES[form] if architecture not in kind.without]
    seed = zlib.crc32(name.encode())
    noise = kind.noises[seed % len(kind.noises)]
    setting = Setting(form, architectures[number % len(architectures)], noise, seed)
    draft, task = kind.draw(setting)
    fill(draft)
    plan = draft.plan()
    model = model_of(plan, weights_of(plan, draft.rng))
    looks: dict[tuple[int, int], tuple[Looking, ...]] = {}
    for head, looking in draft.looks:
        looks[head.place] = (*looks.get(head.place, ()), looking)
    return PlantedModel(
        name=name,
        kind=read["kind"],
        form=form,
        architecture=setting.architecture,
        seed=seed,
        noise=setting.noise,
        model=model,
        ids=torch.from_numpy(task.ids),
        target=None if task.target is None else torch.from_numpy(task.target),
        labels=torch.from_numpy(task.labels),
        groups=torch.from_numpy(draft.groups),
        heads=torch.tensor([[head.matters for head in call] for call in plan.calls]),
        roles=tuple(tuple(head.role for head in call) for call in plan.calls),
        tokens=None if task.hangs_on is None else torch.from_numpy(task.hangs_on),
        redundant=_backups(plan.calls),
        looks=looks,
    )


def _backups(calls: list[list[Head]]) -> tuple[tuple[tuple[int, int], ...], ...]:
    groups: dict[str, list[tuple[int, int]]] = {}
    for head in (head for call in calls for head in call if head.backup):
        groups.setdefault(head.backup, []).append(head.place)
    return tuple(tuple(group) for group in groups.values())


class Zoo(Sequence[PlantedModel]):
    """Animals by name, each built when it is asked for and not kept."""

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


@validated
def zoo(each: int = 2) -> Zoo:
    """All animals, `each` of every kind and form; see `names`.

    Examples
    --------
    >>> next(iter(zoo())).kind
    'previous'
    """
    return Zoo(names(each))
