"""Numbered work for workers that may fail: an idle one takes the next, and lost work is repeated."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from attnscope.report.registry import modules_of_files
from attnscope.support.checks import shortly
from attnscope.support.errors import AttnscopeError, explaining

AT_ONCE = 2  # requests per worker: one in progress and one queued, so that it never waits for us
TRIES = 8  # losses of one piece of work, with all others idle, before it is blamed for them


class Crew:
    """Workers of an engine, and their requests."""

    def __init__(self, engine: RayEngine, size: int, check: Callable[[Any], None] = lambda _: None) -> None:
        self.engine, self.size, self.check = engine, size, check
        self._pending: dict[int, list[int]] = {}  # numbers that each worker that is ready has not answered, in order
        self._reached: dict[int, int] = {}  # numbers from here on it can do without going back
        self._lost: set[int] = set()  # numbers that were lost in this round
        self._tries: Counter[int] = Counter()
        self._failed_starts = 0  # workers that were lost, one after the other, before one was ready
        for _ in range(size):
            engine.start()

    @property
    def ready(self) -> int:
        """Number of workers that accept requests."""
        return len(self._pending)

    def hand_out(self, request: Callable[[int], Request], count: int | None = None) -> Iterator[Any]:
        """Distribute pieces of work 0, 1, 2, ...; yield each answer once, in order of arrival."""
        self._lost, self._tries = set(), Counter()
        following, end = 0, count
        while True:
            for worker in sorted(self._pending, key=lambda unit: (len(self._pending[unit]), -self._reached[unit])):
                while len(self._pending[worker]) < AT_ONCE:
                    number = self._next(worker, following, end)
                    if number is None:
                        break
                    following = max(following, number + 1)
                    self._lost.discard(number)
                    self._pending[worker].append(number)
                    self._reached[worker] = max(self._reached[worker], number + 1)
                    self.engine.submit(worker, number, request(number))
            lost = any(end is not None and number < end for number in self._lost)
            if end is not None and following >= end and not lost and not any(self._pending.values()):
                return
            event = self.engine.wait()
            if event.is_lost:
                self._replace(event.worker)
            elif event.number is None:
                self.check(event.answer)
                self._pending[event.worker], self._reached[event.worker] = [], 0
                self._failed_starts = 0
            else:
                self._pending[event.worker].remove(event.number)
                if event.answer is None:
                    end = event.number if end is None else min(end, event.number)
                else:
                    self._tries.clear()  # workers can run here, so the losses may be chance
                    yield event.answer

    def _next(self, worker: int, following: int, end: int | None) -> int | None:
        lost = [number for number in self._lost if end is None or number < end]
        ahead = [number for number in lost if number >= self._reached[worker]]
        if ahead:
            return min(ahead)
        if end is None or following < end:
            return following
        return min(lost) if lost and not self._pending[worker] else None

    def _replace(self, worker: int) -> None:
        """Start another worker instead of a lost one, whose work is repeated."""
        numbers = self._pending.pop(worker, None)
        if numbers is None:
            self._failed_starts += 1
        for turn, number in enumerate(numbers or ()):
            self._lost.add(number)
            self._tries[number] += turn == 0  # those that waited were not begun
        often = [number for number in self._lost if self._tries[number] >= TRIES]
        if often or self._failed_starts >= self.size + TRIES:
            doing = f"do unit {often[0]}" if often else "load the model and open the texts"
            raise AttnscopeError(
                f"several workers that tried to {doing} ended, possibly out of memory: use fewer workers (--workers), "
                "or a smaller --batch-size"
            )
        self.engine.start()


#: Runs once in the worker: returns its state (model, corpus), and the report that it sends when ready.
Begin: TypeAlias = Callable[[], tuple[Any, Any]]
#: One piece of work on the worker's state; None if the piece does not exist.
Request: TypeAlias = Callable[[Any], Any]


class Event(NamedTuple):
    """A worker has begun, has answered a request, or was lost, with its unanswered requests."""

    worker: int
    number: int | None = None  # of the piece of work; None where it has begun
    answer: Any = None  # what the request returned, or its report
    is_lost: bool = False


_USAGE = "RAY_USAGE_STATS_ENABLED"  # what is sent to Ray's makers
_MANY_MACHINES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0" is Ray's one way to listen to this machine alone
_PATIENCE = 10.0  # seconds in which the head of a cluster answers


class RayEngine:
    """An engine whose workers are Ray's actors with one core each; a context that ends them."""

    def __init__(self, cluster: Cluster, begin: Begin) -> None:
        self.cluster, self.begin = cluster, begin
        self.size = self._last = 0
        self._actors: dict[int, Any] = {}
        self._awaited: dict[Any, tuple[int, int | None]] = {}  # what each awaited answer is of: worker, and number
        self._open: Any = None

    def __enter__(self) -> RayEngine:  # noqa: PYI034 beartype knows no Self here
        self._ray = _imported()
        self._open = _connected(self._ray, self.cluster)
        self._open.__enter__()
        try:
            gpus = self.cluster.gpus
            if gpus is None:
                gpus = 1.0 if self._ray.cluster_resources().get("GPU", 0.0) >= 1 else 0.0
            room = self._room(gpus) if self.cluster.address == LOCAL or not self.cluster.workers else 0
            self.size = self.cluster.workers or room
            with explaining("these arguments cannot be sent to workers", "Give folders and files by name"):
                for module in modules_of_files():  # such as that of a metric
                    self._ray.cloudpickle.register_pickle_by_value(module)
                self._begin = self._ray.put(self.begin)
            self._kind = self._ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(_Holder)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for actor in self._actors.values():
            with suppress(Exception):  # ignore errors of Ray on the way out
                self._ray.kill(actor)
        self._actors, self._awaited = {}, {}
        self._open.__exit__(None, None, None)

    def start(self) -> int:
        """Start a worker; it waits until there is room."""
        self._last += 1
        actor = self._actors[self._last] = self._kind.remote()
        self._awaited[actor.begin.remote(self._begin)] = self._last, None
        return self._last

    def submit(self, worker: int, number: int, request: Request) -> None:
        """Request another piece of work from a ready worker."""
        self._awaited[self._actors[worker].do.remote(request)] = worker, number

    def wait(self) -> Event:
        """The next thing that happens."""
        (reference, *_), _ = self._ray.wait([*self._awaited], num_returns=1)
        worker, number = self._awaited.pop(reference)
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(reference)
        except errors.RayTaskError as error:  # what was raised in the worker
            raise error.cause from None
        except errors.RayError:  # the worker, its machine or its answer is gone
            return self._lose(worker)
        return Event(worker, number, answer)

    def _lose(self, worker: int) -> Event:
        with suppress(Exception):  # it may be there, where its answer alone was lost
            self._ray.kill(self._actors[worker])
        del self._actors[worker]
        self._awaited = {answer: of for answer, of in self._awaited.items() if of[0] != worker}
        return Event(worker, is_lost=True)

    def _room(self, gpus: float) -> int:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = sum(self.cluster.room(node.get("CPU", 0.0), node.get("GPU", 0.0), gpus) for node in nodes)
        if not room and self.cluster.address == LOCAL:  # nobody will add any
            count = self._ray.cluster_resources().get("GPU", 0.0)
            raise AttnscopeError(
                f"ray_gpus (--ray-gpus) is {gpus:g} for each worker, but this machine has {count:g} GPUs: leave it "
                "out, or use a smaller number"
            )
        if not room:
            raise AttnscopeError(
                f"Ray at {self.cluster.address} has no machine with a core and {gpus:g} GPUs for a worker: set "
                "--ray-gpus, or the future number of workers with --workers"
            )
        return room


class _Holder:
    """The actor of a worker."""

    def begin(self, begin: Begin) -> Any:
        self.context, reply = begin()
        return reply

    def do(self, request: Request) -> Any:
        return request(self.context)


def _imported() -> Any:
    os.environ.setdefault(_USAGE, "0")
    with suppress(ImportError):
        ray = importlib.import_module("ray")
        if hasattr(ray, "init"):  # else it is a folder of that name, such as Ray itself makes in /tmp
            return ray
    raise AttnscopeError("ray (--ray) needs the package ray, which is not installed: pip install 'attnscope[ray]'")


@contextmanager
def _connected(ray: Any, cluster: Cluster) -> Generator[None]:
    """Connect to Ray, or start it here, until the context ends."""
    from attnscope.support.state import replaced

    if ray.is_initialized():
        yield
        return
    folder = tempfile.mkdtemp(prefix="attnray-") if cluster.address == LOCAL else None
    quiet = {"log_to_driver": False, "logging_level": "error"}
    try:
        with explaining(f"Ray cannot be reached or started ({cluster.address})", "Is it running? See ray status"):
            if folder is not None:
                options = {"include_dashboard": False, "_temp_dir": f"{folder}/r"}  # which Ray opens to everybody
                # Listen to this machine alone, because Ray's port lets callers run code. The variable is read when Ray
                # is imported, and then no more.
                constants = vars(ray._private.ray_constants)  # noqa: SLF001
                with replaced(os.environ, **{_MANY_MACHINES: "0"}), replaced(constants, ENABLE_RAY_CLUSTER=False):
                    ray.init(LOCAL, num_cpus=cluster.workers, **options, **quiet)
                address = str(ray.nodes()[0]["NodeManagerAddress"])
                if address not in {"127.0.0.1", "::1"}:
                    raise AttnscopeError(
                        f"Ray {ray.__version__} listens at {address}, to other machines: install the version of "
                        "constraints.txt"
                    )
            else:
                ray.init(_reached(ray, cluster.address), **quiet)
        # Ray's messages about lost workers stay out of standard output, which has results: `log_to_driver` does not
        # silence them.
        told = vars(ray._private.worker)  # noqa: SLF001
        with replaced(told, print_to_stdstream=lambda *_, **__: None), _ended_by_sigterm():
            yield
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """SIGTERM, by which schedulers end a command, closes all open files; Ray's own handler aborts."""
    if threading.current_thread() is not threading.main_thread():  # where no handler can be set
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _reached(ray: Any, address: str) -> str:
    """The address of a cluster whose head answers; Ray itself would retry for minutes."""
    if address == HERE:
        address = str(ray._private.services.canonicalize_bootstrap_address(address))  # noqa: SLF001 as ray.init does
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    return address


LOCAL, HERE = "local", "auto"
_HOST_AND_PORT = re.compile(r"[A-Za-z0-9._-]+:[0-9]{1,5}")


@dataclass(frozen=True)
class Cluster:
    """Ray's machines, and the resources of each worker."""

    # ``local`` starts Ray on this machine, for this one command; ``auto`` is the cluster that this machine is part
    # of; or the address of its head, ``HOST:PORT``
    address: str = LOCAL
    workers: int | None = None  # how many; by default all that fit
    gpus: float | None = None  # GPUs of each worker: a whole number, or a part of one that workers share

    def __post_init__(self) -> None:
        if self.address not in {LOCAL, HERE} and _HOST_AND_PORT.fullmatch(self.address) is None:
            raise AttnscopeError(f"ray (--ray) is {shortly(self.address)}; expected local, auto or HOST:PORT")
        if self.gpus is not None and self.gpus > 1 and self.gpus % 1:
            raise AttnscopeError(
                f"ray_gpus (--ray-gpus) is {self.gpus:g}; expected a part of one GPU, or a whole number of them"
            )

    def room(self, cpus: float, gpus: float, wanted: float) -> int:
        """Number of workers that fit a machine with `gpus` GPUs; each takes one core and `wanted` GPUs."""
        if not wanted:
            return int(cpus)
        by_gpu = int(gpus) * int(1 / wanted + 1e-9) if wanted <= 1 else int(gpus // wanted)
        return min(int(cpus), by_gpu)


def cluster_of(
    ray: str | None, workers: int | None, gpus: float | None, *, besides: Mapping[str, object]
) -> Cluster | None:
    """The cluster that measures; None for this process."""
    if ray is None:
        if workers is not None or gpus is not None:
            raise AttnscopeError("workers (--workers) and ray_gpus (--ray-gpus) are of Ray: give ray (--ray) too")
        return None
    for flag, given in besides.items():
        if given is not None:
            raise AttnscopeError(f"{flag} does not go with ray (--ray): leave out one of them")
    return Cluster(ray, workers, gpus)
