"""Which machines of Ray's work, as a user names them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.checks import check_real, check_whole, shortly
from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCAL, HERE = "local", "auto"
_HOST_AND_PORT = re.compile(r"[A-Za-z0-9._-]+:[0-9]{1,5}")


@dataclass(frozen=True)
class Cluster:
    """Ray's machines, and what each worker takes of them.

    Attributes
    ----------
    address
        ``local`` starts Ray on this machine, for this one command; ``auto`` is the cluster that this machine is part
        of; or the address of its head, ``HOST:PORT``.
    workers
        How many; by default as many as there is room for.
    gpus
        GPUs of each worker: a whole number, or a part of one that workers share. By default one where the cluster has
        any.

    Raises
    ------
    AttnscopeError
        Something else is given.

    Examples
    --------
    >>> Cluster("ray://head:10001")
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: ray (--ray) is 'ray://head:10001'; expected local, auto or HOST:PORT
    """

    address: str = LOCAL
    workers: int | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        if self.address not in {LOCAL, HERE} and _HOST_AND_PORT.fullmatch(self.address) is None:
            raise AttnscopeError(f"ray (--ray) is {shortly(self.address)}; expected local, auto or HOST:PORT")
        check_whole(1, workers=self.workers)
        check_real(0.0, ray_gpus=self.gpus)
        if self.gpus is not None and self.gpus > 1 and self.gpus % 1:
            raise AttnscopeError(
                f"ray_gpus (--ray-gpus) is {self.gpus:g}; expected a part of one GPU, or a whole number of them"
            )

    def room(self, cpus: float, gpus: float, wanted: float) -> int:
        """How many workers a machine has room for, of which each takes one core and so many GPUs.

        Examples
        --------
        >>> Cluster().room(16.0, 2.0, 0.5), Cluster().room(16.0, 2.0, 2.0), Cluster().room(16.0, 0.0, 0.0)
        (4, 1, 16)
        """
        if not wanted:
            return int(cpus)
        by_gpu = int(gpus) * int(1 / wanted + 1e-9) if wanted <= 1 else int(gpus // wanted)
        return min(int(cpus), by_gpu)


def cluster_of(
    ray: str | None, workers: int | None, gpus: float | None, *, besides: Mapping[str, object]
) -> Cluster | None:
    """Whose workers measure; None for this process.

    Parameters
    ----------
    ray, workers, gpus
        As they are given; see `Cluster`.
    besides
        What else was given, by name, which does not go with Ray.

    Raises
    ------
    AttnscopeError
        They do not go together, or are none.

    Examples
    --------
    >>> cluster_of("local", 2, None, besides={"task (--task)": "1/2"})
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: task (--task) does not go with ray (--ray): leave out one of them
    """
    if ray is None:
        if workers is not None or gpus is not None:
            raise AttnscopeError(
                "workers (--workers) and ray_gpus (--ray-gpus) are of Ray: give ray (--ray) too"
            )
        return None
    for flag, given in besides.items():
        if given is not None:
            raise AttnscopeError(f"{flag} does not go with ray (--ray): leave out one of them")
    return Cluster(ray, workers, gpus)
