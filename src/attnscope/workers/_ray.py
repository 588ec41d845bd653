"""Workers as actors of Ray: one process each, on this machine or on a cluster."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from attnscope.errors import AttnscopeError, explaining
from attnscope.workers._cluster import HERE, LOCAL, Cluster
from attnscope.workers._engine import Answered, Begin, Event, Lost, Ready, Request

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

_USAGE = "RAY_USAGE_STATS_ENABLED"  # what is sent to Ray's makers
_MANY_MACHINES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0" is Ray's one way to listen to this machine alone
_PATIENCE = 10.0  # seconds in which the head of a cluster answers


class RayEngine:
    """An engine whose workers are Ray's actors, each with one core; a context, at whose end they are no more.

    Ray that this process has initialised before is used as it is.

    Parameters
    ----------
    cluster
        Where, how many, with what.
    begin
        Done in each worker; see `Engine`. It is sent there, so what it holds must be fit to be pickled.

    Attributes
    ----------
    size
        How many workers there shall be.

    Raises
    ------
    AttnscopeError
        Ray is not installed, or there is no such cluster, or it has no room for a worker.

    Examples
    --------
    >>> from attnscope.workers import Cluster
    >>> engine = RayEngine(Cluster(workers=2), lambda: (None, "begun"))
    >>> engine.size  # no worker is there before the context begins
    0
    """

    def __init__(self, cluster: Cluster, begin: Begin) -> None:
        self.cluster, self.begin = cluster, begin
        self.size = self._last = 0
        self._actors: dict[int, Any] = {}
        self._asked: dict[
            Any, tuple[int, int | None]
        ] = {}  # what each awaited answer is of: worker, and ticket
        self._open: Any = None

    def __enter__(self) -> RayEngine:  # noqa: PYI034 beartype knows no Self here
        self._ray = _imported()
        self._open = _connected(self._ray, self.cluster)
        self._open.__enter__()
        try:
            gpus = self._gpus()
            room = self._room(gpus) if self.cluster.address == LOCAL or not self.cluster.workers else 0
            self.size = self.cluster.workers or room
            with explaining("what is asked for cannot be sent to workers", "Give folders and files by name"):
                self._begin = self._ray.put(self.begin)
            self._kind = self._ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(_Holder)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for actor in self._actors.values():
            with suppress(Exception):  # whatever Ray says: we leave
                self._ray.kill(actor)
        self._actors, self._asked = {}, {}
        self._open.__exit__(None, None, None)

    def start(self) -> int:
        """Begin a worker; where there is no room now, it waits until there is."""
        self._last += 1
        actor = self._actors[self._last] = self._kind.remote()
        self._asked[actor.begin.remote(self._begin)] = self._last, None
        return self._last

    def ask(self, worker: int, ticket: int, request: Request) -> None:
        """Ask a worker that is ready for one more piece of work."""
        self._asked[self._actors[worker].do.remote(request)] = worker, ticket

    def wait(self) -> Event:
        """The next thing that happens."""
        (reference, *_), _ = self._ray.wait([*self._asked], num_returns=1)
        worker, ticket = self._asked.pop(reference)
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(reference)
        except errors.RayTaskError as error:  # what was raised in the worker
            raise error.cause from None
        except errors.RayError:  # the worker, its machine or its answer is gone
            return self._lose(worker)
        return Ready(worker, answer) if ticket is None else Answered(worker, ticket, answer)

    def _lose(self, worker: int) -> Lost:
        with suppress(Exception):  # it may be there, where its answer alone was lost
            self._ray.kill(self._actors[worker])
        del self._actors[worker]
        self._asked = {answer: of for answer, of in self._asked.items() if of[0] != worker}
        return Lost(worker)

    def _gpus(self) -> float:
        """Of each worker."""
        if self.cluster.gpus is not None:
            return self.cluster.gpus
        return 1.0 if self._ray.cluster_resources().get("GPU", 0.0) >= 1 else 0.0

    def _room(self, gpus: float) -> int:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = sum(self.cluster.room(node.get("CPU", 0.0), node.get("GPU", 0.0), gpus) for node in nodes)
        if not room and self.cluster.address == LOCAL:  # nobody will add any
            there = self._ray.cluster_resources().get("GPU", 0.0)
            raise AttnscopeError(
                f"ray_gpus (--ray-gpus) is {gpus:g} for each worker, and this machine has {there:g} GPUs: leave it "
                "out, or ask for no more"
            )
        if not room:
            raise AttnscopeError(
                f"Ray at {self.cluster.address} has no machine with a core and {gpus:g} GPUs, which each worker takes: "
                "give --ray-gpus, or say with --workers how many there will be"
            )
        return room


class _Holder:
    """What runs in a worker: it holds what its work needs."""

    def begin(self, begin: Begin) -> Any:
        self.held, said = begin()
        return said

    def do(self, request: Request) -> Any:
        return request(self.held)


def _imported() -> Any:
    os.environ.setdefault(_USAGE, "0")
    with suppress(ImportError):
        ray = importlib.import_module("ray")
        if hasattr(ray, "init"):  # else it is a folder of that name, such as Ray itself makes in /tmp
            return ray
    raise AttnscopeError(
        "ray (--ray) needs the package ray, which is not installed: pip install 'attnscope[ray]'"
    )


@contextmanager
def _connected(ray: Any, cluster: Cluster) -> Generator[None]:
    """Ray, started here or found elsewhere, until the end."""
    if ray.is_initialized():
        yield
        return
    place = tempfile.mkdtemp(prefix="attnray-") if cluster.address == LOCAL else None
    quiet = {"log_to_driver": False, "logging_level": "error"}
    try:
        with explaining(
            f"Ray cannot be reached or started ({cluster.address})", "Is it running? See ray status"
        ):
            if place is not None:
                with _alone(ray):
                    ray.init(
                        LOCAL,
                        num_cpus=cluster.workers,
                        include_dashboard=False,
                        _temp_dir=f"{place}/r",  # which Ray opens to everybody; the one above stays ours
                        **quiet,
                    )
                _check_alone(ray)
            else:
                ray.init(_reached(ray, cluster.address), **quiet)
        with _silent(ray), _ended_by_sigterm():
            yield
    finally:
        ray.shutdown()
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _silent(ray: Any) -> Generator[None]:
    """Nothing of Ray's own on standard output, among results: it tells there of each worker that is lost."""
    told, name = ray._private.worker, "print_to_stdstream"  # noqa: SLF001 `log_to_driver` does not silence it
    before = getattr(told, name, None)
    if before is None:  # another version of Ray
        yield
        return
    setattr(told, name, lambda *_, **__: None)
    try:
        yield
    finally:
        setattr(told, name, before)


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """SIGTERM, with which schedulers end a command, closes what is open; Ray's own handler aborts."""
    if threading.current_thread() is not threading.main_thread():  # where no handler can be set
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextmanager
def _alone(ray: Any) -> Generator[None]:
    """Ray that is started within listens to this machine alone: whoever reaches it can run what he likes."""
    constants = ray._private.ray_constants  # noqa: SLF001 the variable is read when Ray is imported, and then no more
    before = os.environ.get(_MANY_MACHINES), constants.ENABLE_RAY_CLUSTER
    os.environ[_MANY_MACHINES], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before[1]
        if before[0] is None:
            del os.environ[_MANY_MACHINES]
        else:
            os.environ[_MANY_MACHINES] = before[0]


def _check_alone(ray: Any) -> None:
    """Refuse a Ray that does not know this way any more."""
    address = str(ray.nodes()[0]["NodeManagerAddress"])
    if address not in {"127.0.0.1", "::1"}:
        raise AttnscopeError(
            f"Ray {ray.__version__} listens at {address}, to other machines: install the version of constraints.txt"
        )


def _reached(ray: Any, address: str) -> str:
    """The address of a cluster whose head answers: of one that does not, Ray would ask for minutes."""
    if address == HERE:
        address = str(ray._private.services.canonicalize_bootstrap_address(address))  # noqa: SLF001 as ray.init does
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    return address
