"""How a model is loaded: which revision, on which device, in which type."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnscope.capture._placement import Placement
from attnscope.capture._quantised import INTEGERS
from attnscope.capture._team import check_launched
from attnscope.errors import AttnscopeError, explaining

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Loading:
    """How a model is loaded: see `load_model`.

    Examples
    --------
    >>> Loading(device="cpu").check()  # goes together
    >>> Loading(device="cpu", placement=Placement("auto")).check()
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: device_map (--device-map) does not go with device (--device): leave out one of them
    """

    revision: str | None = None
    device: str | None = None
    dtype: str | None = None
    trust_remote_code: bool = False
    placement: Placement | None = None
    tp_plan: str | None = None

    def check(self) -> None:
        """Refuse what does not go together.

        Raises
        ------
        AttnscopeError
            Names both.

        Examples
        --------
        >>> Loading(tp_plan="all").check()
        Traceback (most recent call last):
        ...
        attnscope.errors.AttnscopeError: tp_plan (--tp-plan) is 'all'; expected auto
        """
        if self.tp_plan is not None:
            _check_plan(self)
        if self.placement is not None and (self.device is not None or self.dtype in INTEGERS):
            other = "device (--device)" if self.device is not None else f"dtype (--dtype) {self.dtype}"
            raise AttnscopeError(f"device_map (--device-map) does not go with {other}: leave out one of them")


AS_SAVED = Loading()


def usable_device(name: str | None) -> torch.device:
    """The device of that name; without one a GPU if there is one, else the processor.

    Raises
    ------
    AttnscopeError
        If there is no such device, or it cannot be used here.

    Examples
    --------
    >>> usable_device("gpu0")
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: device 'gpu0' cannot be used: ...
    """
    advice = "Choose cpu, or cuda where there is a GPU"
    with explaining(f"device {name!r} cannot be used", advice):
        default = "cuda" if torch.cuda.is_available() else "cpu"
        device = torch.device(default if name is None else name)
        torch.empty(0, device=device)
    if device.type == "meta" or (device.type == "cpu" and device.index):
        what = "it holds no numbers" if device.type == "meta" else "there is one cpu, number 0"
        raise AttnscopeError(f"device {name!r} cannot be used: {what}. {advice}")
    return device


def _check_plan(loading: Loading) -> None:
    if loading.tp_plan != "auto":
        raise AttnscopeError(f"tp_plan (--tp-plan) is {loading.tp_plan!r:.40}; expected auto")
    for name, given in (
        ("device (--device)", loading.device),
        ("device_map (--device-map)", loading.placement),
        (f"dtype (--dtype) {loading.dtype}", loading.dtype in INTEGERS or None),
    ):
        if given is not None:
            raise AttnscopeError(f"tp_plan (--tp-plan) does not go with {name}: leave out one of them")
    check_launched()
