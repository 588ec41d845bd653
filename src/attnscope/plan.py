"""The plan of a run, before it runs: windows, passes, memory by device, disk and seconds.

The passes are those that a job counts (`attnscope.store.run.Work`). Memory is that of the model's own forward pass on
PyTorch's meta device, whose tensors have shapes and no numbers, so that no weights are needed.
"""

from __future__ import annotations

import copy
import os
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnscope.bundled import MODEL, MODELS
from attnscope.capture.borrow import borrowed, quiet
from attnscope.capture.families import body_of, without_cache
from attnscope.capture.load import load_model
from attnscope.capture.outline import without_numbers
from attnscope.capture.placement import Loading, device_of, is_empty
from attnscope.capture.verify import tokens_verified
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.capture.weights import blocks_of
from attnscope.catalogue import function_of, verb_of
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import measure, output_of
from attnscope.report.schema import Finding, Quantity, Report, Row, Table
from attnscope.support.checked import declaration
from attnscope.support.errors import AttnscopeError, reason_of
from attnscope.support.numbers import count

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.capture.borrow import LoadedModel
    from attnscope.capture.load import Model
    from attnscope.store.run import Work

GB = 1e9
_WARM = 16  # tokens of the pass before the one that is timed
_BITS = {"int8": 8, "int4": 4, "nf4": 4}


class Live(TorchDispatchMode):
    """The bytes of tensors that are alive at once while it is entered, by device."""

    def __init__(self, model: nn.Module, device: str) -> None:
        super().__init__()
        self.device = device  # on which modules compute now
        self.now, self.most = Counter[str](), Counter[str]()
        self._alive: dict[int, Any] = {}
        for tensor in (*model.parameters(), *model.buffers()):
            self._alive[tensor.untyped_storage()._cdata] = None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the memory of what an operator returns."""
        output = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.is_meta:
                self._add(tensor.untyped_storage())
        return output

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, device, size = storage._cdata, self.device, storage.nbytes()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if key in self._alive:
            return

        def let_go(_: object) -> None:
            del self._alive[key]
            self.now[device] -= size

        self._alive[key] = weakref.ref(storage, let_go)
        self.now[device] += size
        self.most[device] = max(self.most[device], self.now[device])


@dataclass(frozen=True, eq=False)
class Memory:
    """The memory of the passes of a job, from a model without numbers."""

    model: Any  # on the meta device
    work: Work
    devices: Mapping[str, str]  # of modules by name; the empty name is the whole model
    bits: int = 0  # of the weights of linear layers, if they are quantised

    @cached_property
    def weights(self) -> Counter[str]:
        """Bytes of weights by device, those of a control included."""
        sizes, seen = Counter[str](), set[int]()
        linear = {id(module.weight) for module in self.model.modules() if isinstance(module, nn.Linear)}
        for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                packed = self.bits and id(tensor) in linear
                size = tensor.numel() * self.bits // 8 if packed else tensor.nbytes
                sizes[self.device(name)] += size * (1 + self.work.copies)
        return sizes

    def device(self, name: str) -> str:
        """The device of a module or tensor."""
        while name and name not in self.devices:
            name = name.rpartition(".")[0]
        return self.devices.get(name) or next(iter(self.devices.values()))

    @cached_property
    def row_bytes(self) -> int:
        """Bytes that are measured of each query of a head."""
        if self.work.need is None:
            return 0
        both = torch.zeros(1, 1, 2, 4)
        _, rows = measure(AttentionCall(both, both, both, scale=1.0), self.work.need)
        return sum(part.nbytes for part in vars(rows).values() if part is not None) // 2

    def of(self, shape: tuple[int, int]) -> tuple[Counter[str], Counter[str]]:
        """Bytes by device of activations, and of measured rows, in a pass over a batch or in the check before it."""
        work, (texts, tokens) = self.work, shape
        plain = self._most(texts * work.variants, tokens, has_head=work.has_head)
        whole = self._most(texts * work.variants, tokens, has_head=work.has_head, measures=True)
        verified = tokens_verified(self.model, tokens)
        check = self._most(1, verified, has_head=True, times=2)  # with and without attnscope, compared at the end
        if work.gradients:  # of a pass without variants
            check |= self._most(texts, tokens, has_head=work.has_head, gradients=True)
        least = {device: max(plain[device], check[device]) for device in plain | check}
        rows = {device: max(0, whole[device] - size) for device, size in least.items()}
        return Counter(least), Counter(rows)

    def total(self, shape: tuple[int, int]) -> Counter[str]:
        """Bytes by device during the passes."""
        activations, rows = self.of(shape)
        return self.weights + activations + rows

    def _most(
        self,
        texts: int,
        tokens: int,
        *,
        has_head: bool,
        measures: bool = False,
        gradients: bool = False,
        times: int = 1,
    ) -> Counter[str]:
        """The largest number of bytes that are alive at once by device, besides weights, in passes over a batch."""
        model, work, held, rows = self.model, self.work, list[Any](), list[Tensor]()

        def observe(_: Site, call: AttentionCall) -> None:
            if work.holds and times == 1:
                held.append((call.query, call.key, call.value))
                width = work.states * model.config.get_text_config().hidden_size
                held.append(call.query.new_empty((texts, call.query.shape[2], width)))
            if call.query.element_size() < 4 and live.device == "cpu":  # noqa: PLR2004 sums there are in float32
                call.query.new_empty(call.query.shape, dtype=torch.float32)
            if measures and self.row_bytes:
                rows.append(call.query.new_empty((*call.query.shape[:3], self.row_bytes), dtype=torch.uint8))
                if sum(map(torch.numel, rows)) > work.waits:  # the rows of several layers are reduced side by side
                    torch.cat(rows, 1)
                    rows.clear()

        start, inputs = _pass_of(model, replace(work, has_head=has_head), texts, tokens)
        inputs |= {} if work.has_cache else without_cache(start)
        live = Live(model, self.device(""))
        with ExitStack() as hooks:
            for name, device in self.devices.items():
                module = model.get_submodule(name)
                move = partial(setattr, live, "device", device)
                hooks.enter_context(module.register_forward_pre_hook(lambda *_, move=move: move()))
            hooks.enter_context(without_numbers(model, observe))
            hooks.enter_context(torch.set_grad_enabled(gradients))
            if gradients:  # from the embeddings on; weights are frozen
                model.requires_grad_(requires_grad=False)
                table = model.get_input_embeddings()
                hooks.enter_context(table.register_forward_hook(lambda *given: given[-1].requires_grad_()))
            hooks.enter_context(live)
            outputs = [start(**inputs) for _ in range(times)]
            if work.logits and times == 1:
                held += [outputs[0].logits.clone() for _ in range(work.logits)]
            if rows:
                torch.cat(rows, 1)
            del outputs
        return live.most


def _pass_of(model: Any, work: Work, texts: int, tokens: int) -> tuple[nn.Module, dict[str, Any]]:
    """The module that runs in a pass over a batch, and its arguments."""
    device = torch.device("meta") if is_empty(model) else device_of(model)
    if work.reads is not None:
        start = model.get_submodule(work.part) if work.part or work.has_head else body_of(model)
        one = {name: value.to(device, model.dtype) for name, value in work.reads.items()}
        return start, {name: value.expand(texts, *value.shape[1:]) for name, value in one.items()}
    ids = torch.zeros(texts, tokens, dtype=torch.int64, device=device)
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})
    return model if work.has_head else body_of(model), inputs


def planned(verb: str, source: Model | None, loaded: LoadedModel, work: Work, reading: Mapping[str, Any]) -> Any:
    """The plan of a run of a verb, as a `Report`."""
    loading = Loading.of(reading)
    empty = loaded.model if is_empty(loaded.model) else _empty_copy(loaded.model)
    devices = _devices(empty, loaded.model, loading)
    memory = Memory(empty, work, devices, _BITS.get(loading.dtype or "", 0))
    largest = max(work.shapes, key=lambda shape: shape[0] * shape[1], default=(1, 1))
    texts, tokens = sum(one for one, _ in work.shapes), sum(one * length for one, length in work.shapes)
    pool = reading.get("pool")
    stored = texts * work.result // pool + texts * work.kept if pool else texts * work.result
    try:
        activations, rows = memory.of(largest)
    except Exception as error:
        raise AttnscopeError(
            f"the pass of {type(empty).__name__} cannot be planned without numbers ({reason_of(error)}): measure a few "
            "texts instead (--limit)"
        ) from error
    room = _room(memory, loading)
    table: list[dict[str, Any]] = []
    for device in dict.fromkeys([*devices.values(), *activations] + ["cpu"] * bool(stored)):
        parts = {"weights": memory.weights[device], "activations": activations[device], "rows": rows[device]}
        parts["results"] = stored if device == "cpu" else 0
        whole = {"total": sum(parts.values()), "available": room.get(device)}
        bytes_of = {name: None if size is None else size / GB for name, size in (parts | whole).items()}
        table.append({"device": device, "layers": _layers(empty, memory, device), **bytes_of})
    seconds, why = None, "it does not fit"
    if not any(map(_lacks, table)):
        seconds, why = _seconds(source, loaded, work, loading, largest)
    passes = work.passes * len(work.shapes)
    read = f"{count(texts, work.unit or verb_of(verb).unit)} ({tokens:,} tokens in all)"
    size = f"{largest[0] * work.variants:,} x {largest[1]:,}"
    sentences = [
        f"{read}: about {passes:,.0f} forward passes of up to {size} tokens." if texts else "It reads no texts.",
        *_fit(verb, memory, largest, room, table),
        f"Time is not known: {why}." if seconds is None else f"About {seconds:,.0f} s, from a pass over one batch.",
    ]
    run = {"texts": texts, "tokens": tokens, "batches": len(work.shapes), "passes": round(passes), "seconds": seconds}
    run["disk"] = stored / GB
    tables = [Table("memory", "Memory by device", _MEMORY, table), Table("run", "The run", _RUN, [run])]
    notes = [f"Not counted: {work.uncounted}."] if work.uncounted else []
    finding = Finding(sentences, "an estimate", headline=sentences[1])
    return Report(
        f"Plan of {verb}", f"a dry run of {verb}", finding, tables, None, notes, command=verb, model=loaded.name
    )


def _empty_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A model of the same class and type on the meta device."""
    with quiet(), torch.device("meta"):
        empty: Any = type(model)(copy.deepcopy(model.config))
        return empty.to(model.dtype).eval()


def _devices(empty: PreTrainedModel, model: PreTrainedModel, loading: Loading) -> dict[str, str]:
    """The device of each module that is placed, by name."""
    placed: Mapping[str, Any] = {}
    if loading.placement is not None:
        placed = loading.placement.devices(empty)
    elif not is_empty(model):
        placed = getattr(model, "hf_device_map", None) or {"": device_of(model)}
    else:
        placed = {"": loading.device or ("cuda" if torch.cuda.is_available() else "cpu")}
    return {name: f"cuda:{one}" if isinstance(one, int) else str(one) for name, one in placed.items()}


def _room(memory: Memory, loading: Loading) -> dict[str, float]:
    """Bytes that each device has: as named, or as it has now."""
    room: dict[str, float] = {}
    for name, size in (loading.placement.max_memory or {} if loading.placement else {}).items():
        from accelerate.utils.modeling import convert_file_size_to_int

        room[f"cuda:{name}" if isinstance(name, int) else name] = convert_file_size_to_int(size)
    for device in {"cpu", *memory.devices.values()} - room.keys() - {"disk"}:
        if device.startswith("cuda") and torch.cuda.is_available():
            room[device] = torch.cuda.mem_get_info(torch.device(device))[0]
        elif device == "cpu":
            room[device] = _free_memory()
    return room


def _free_memory() -> float:
    """Bytes of memory that this machine can give."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024.0 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable")))
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _layers(model: PreTrainedModel, memory: Memory, device: str) -> str:
    """The blocks of a model that are on a device."""
    on = [number for number, name in enumerate(blocks_of(model)) if memory.device(name) == device]
    runs = [[*group] for _, group in groupby(on, key=lambda number: number - on.index(number))]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _fit(
    verb: str, memory: Memory, shape: tuple[int, int], room: Mapping[str, float], table: Sequence[Row]
) -> Iterator[str]:
    """Whether the run fits, and what would make it fit."""
    lacking = [row for row in table if _lacks(row)]
    if not lacking:
        most = max(table, key=lambda row: row["total"])
        yield f"It takes about {most['total']:,.2f} GB on {most['device']}, and fits."
        return
    row = lacking[0]
    yield f"It does not fit: {row['total']:,.2f} GB on {row['device']}, which has {row['available']:,.2f} GB."
    advice = [flag for flag, other, smaller in _smaller(verb, memory, shape) if _fits(other.total(smaller), room)]
    if len({*memory.devices.values()}) == 1:
        advice.append("--device-map auto (several devices)")
    yield f"What would help: {', '.join(advice) or 'more devices, or a smaller --window'}."


def _lacks(row: Row) -> bool:
    return row["available"] is not None and row["total"] > row["available"]


def _fits(total: Counter[str], room: Mapping[str, float]) -> bool:
    return all(size <= room.get(device, size) for device, size in total.items())


def _smaller(verb: str, memory: Memory, shape: tuple[int, int]) -> Iterator[tuple[str, Memory, tuple[int, int]]]:
    """Settings that take less, each with the memory and the batch."""
    (texts, tokens), options = shape, declaration(function_of(verb))
    if texts > 1 and "batch_size" in options:
        yield "--batch-size 1", memory, (1, tokens)
    if memory.work.need is not None and "rows" in options:
        yield "--rows 128", replace(memory, work=replace(memory.work, need=None)), shape
    if memory.model.dtype in {torch.float32, torch.float64}:
        half = copy.deepcopy(memory.model).bfloat16()
        yield "--dtype bfloat16", replace(memory, model=half), shape
    elif not memory.bits:
        yield "--dtype int8", replace(memory, bits=8), shape


def _seconds(
    source: Model | None, loaded: LoadedModel, work: Work, loading: Loading, shape: tuple[int, int]
) -> tuple[float | None, str]:
    """Seconds of all passes, by that of one pass over a batch; None, and why, if there are no weights."""
    model = loaded.model
    if is_empty(model):
        named = MODEL if source is None else source
        named = MODELS.get(named, named) if isinstance(named, str) else named
        if not Path(str(named)).is_dir():
            if str(named).endswith(".gguf"):
                return None, "of a .gguf file it is known from a run alone, such as one with --limit 1"
            return None, f"{named} is not in a folder, and a dry run downloads no weights"
        try:
            model = load_model(named, **vars(replace(loading, dry_run=False)), need_tokenizer=False).model
        except AttnscopeError as error:
            return None, str(error).rstrip(".")
    if not work.shapes:
        return None, "it reads no texts"
    need = work.need

    def observe(_: Site, call: AttentionCall) -> Tensor:
        return output_of(call) if need is None else measure(call, replace(need, columns=None))[0]

    def timed(texts: int, tokens: int) -> float:
        start, inputs = _pass_of(model, work, texts, tokens)
        began = time.perf_counter()
        start(**inputs, **without_cache(start))
        if device_of(model).type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    with borrowed(model), torch.no_grad(), watching(model, observe):
        timed(1, min(_WARM, shape[1]))
        one = timed(*shape)
        steps = timed(shape[0], 1) * len(work.shapes) * (work.passes - 1) if work.has_cache else 0.0
    each = one / (shape[0] * shape[1]) * (1 if work.has_cache else work.passes)
    return each * sum(texts * tokens for texts, tokens in work.shapes) + steps, ""


_MEMORY = (
    Quantity("device"),
    Quantity("layers", unit="words", meaning="Blocks that are on the device"),
    Quantity("weights", "weights (GB)", "GB", "Weights of the model, and of a control next to it"),
    Quantity("activations", "activations (GB)", "GB", "Tensors that a pass over the largest batch holds at once"),
    Quantity("rows", "rows (GB)", "GB", "Numbers of each query that wait to be reduced"),
    Quantity("results", "results (GB)", "GB", "Statistics of all texts"),
    Quantity("total", "total (GB)", "GB", "All of these, beyond Python and its packages"),
    Quantity("available", "available (GB)", "GB", "Free memory of the device"),
)
_RUN = (
    Quantity("texts", unit="count", meaning="Windows, pairs, prompts or images"),
    Quantity("tokens", unit="count"),
    Quantity("batches", unit="count"),
    Quantity("passes", unit="count", meaning="Forward passes over a batch; a gradient counts as two"),
    Quantity("seconds", unit="count"),
    Quantity("disk", "disk (GB)", "GB", "Results on the disk"),
)
