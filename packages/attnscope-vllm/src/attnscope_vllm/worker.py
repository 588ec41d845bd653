"""The extension of vLLM's workers: hooks on the attention layers, and the rows of each request that they give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnscope.kernels.bins import far_starts
from attnscope.kernels.call import Need
from attnscope.support.checks import check_whole
from attnscope.support.errors import AttnscopeError
from attnscope_vllm.cache import LayerCache
from attnscope_vllm.paged import PagedCall, measure_alike
from attnscope_vllm.rows import COLUMNS, number_of, packed, write_rows


class HeadWorker:
    """An extension of vLLM's workers that measures the attention heads of all requests.

    Give vLLM its name, and call its methods by theirs:

    ```python
    llm = LLM(model, enforce_eager=True, worker_extension_cls="attnscope_vllm.HeadWorker")
    llm.collective_rpc("watch_heads")
    outputs = llm.generate(prompts)
    llm.collective_rpc("write_heads", args=("rows",))
    ```

    Then ``heads_of_rows(read_rows("rows"))`` of `attnscope_vllm.rows` has the statistics of `attnscope.scan`.
    """

    def watch_heads(
        self, layers: Sequence[int] | None = None, band: int = 10, received: bool = False, special: Sequence[int] = ()
    ) -> None:
        """Measure the requests that begin from now on.

        Parameters
        ----------
        layers
            Numbers of layers, as in their names; by default all.
        band
            Largest offset whose weights are stored, in tokens.
        received
            Also sum the weight that each key receives, in a second pass over the scores.
        special
            Ids of special tokens, for the statistic ``special_tokens``.

        Raises
        ------
        AttnscopeError
            If the engine compiles the model, speculates or spreads a context over devices, or if no layer has causal
            attention over a cache of keys in floating point.
        """
        check_whole(1, band=band)
        self._unwatch_heads()
        vars(self)["watched_heads"] = _Watched(self, layers, band, {*special}, received=received)

    def write_heads(self, folder: str) -> int:
        """Write the rows of all requests so far into a folder, and stop measuring; return how many requests."""
        watched = self._unwatch_heads()
        if watched is None:
            raise AttnscopeError("no heads were measured: call watch_heads before the requests")
        watched.write(Path(folder), getattr(self, "rank", 0))
        return len(watched.requests)

    def _unwatch_heads(self) -> _Watched | None:
        watched: _Watched | None = vars(self).pop("watched_heads", None)
        if watched is not None:
            watched.stop()
        return watched


@dataclass(eq=False)
class _LayerRows:
    """The rows of one request in one layer."""

    parts: list[Tensor] = field(default_factory=list[Tensor])  # of each step, ``(head, query, number)``
    count: int = 0
    received: Tensor | None = None  # ``(head, key)``

    def add(self, first: int, rows: Tensor, received: Tensor | None) -> None:
        """Add the rows of the queries from position `first` on; rows that are missing before it are NaN."""
        if self.count != first:  # the request was preempted, or its prefix was in the cache
            absent = rows.new_full((len(rows), max(0, first - self.count), rows.shape[-1]), torch.nan)
            self.parts = [torch.cat([*self.parts, absent], 1)[:, :first]]
            self.received = None
        self.parts.append(rows)
        self.count = first + rows.shape[1]
        if received is not None:
            before = self.received
            if before is None:
                before = received.new_full((len(received), first), torch.nan)
            received[:, : before.shape[1]] += before
            self.received = received


@dataclass(eq=False)
class _Request:
    """One request: its tokens, the blocks of its keys, and its rows."""

    tokens: list[int]
    prompt: int  # the number of tokens that it began with
    blocks: list[list[int]]  # of each group of layers
    first: int  # position of the first query of this step
    layers: dict[str, _LayerRows] = field(default_factory=dict[str, _LayerRows])
    special: list[int] = field(default_factory=list[int])  # positions of special tokens


class _Watched:
    """The hooks in a worker, and what they have measured.

    The scheduler's output names the requests of a step. Where the queries of each are in the batch follows from the
    slot in the cache of its first query: no other request writes there. Neither the state of the model runner nor the
    metadata of an attention backend is needed.
    """

    def __init__(
        self, worker: Any, layers: Sequence[int] | None, band: int, special: set[int], *, received: bool
    ) -> None:
        self.config, runner = worker.vllm_config, worker.model_runner
        _reject(self.config)
        self.special, self.received = special, received
        self.need = Need.everything(band, bins=far_starts(band, self.config.model_config.max_model_len - 1))
        self.requests: dict[str, _Request] = {}
        self.scheduled: dict[str, int] = {}  # queries of each request in this step
        self.batch: list[tuple[_Request, int, int]] = []  # with the first of its queries in the batch, and their number
        self.tables: dict[int, Tensor] = {}  # blocks of the batch, ``(sequence, block)``, of each group of layers
        self.step_rows: list[tuple[str, list[_Request], Tensor, Tensor | None]] = []
        model, cached = runner.get_model(), runner.kv_cache_config
        self.sizes = [group.kv_cache_spec.block_size for group in cached.kv_cache_groups]
        groups = {name: number for number, of in enumerate(cached.kv_cache_groups) for name in of.layer_names}
        modules = [module for module in model.modules() if hasattr(module, "kv_cache")]
        reasons = [_why_not(module) for module in modules]
        chosen = [
            module
            for module, reason in zip(modules, reasons, strict=True)
            if reason is None and (layers is None or number_of(module.layer_name) in layers)
        ]
        if not chosen:
            reason = next((reason for reason in reasons if reason), "choose among the numbers in their names")
            raise AttnscopeError(f"found no layer to measure (layers: {layers}): {reason}")
        self.layers = {
            module.layer_name: LayerCache.of(module, number, self.sizes[number], cached.num_blocks)
            for module in chosen
            for number in [groups[module.layer_name]]
        }
        self.hooks = [model.register_forward_pre_hook(self.begin, with_kwargs=True)]
        self.hooks += [module.register_forward_hook(self.see) for module in chosen]
        self.worker, self.execute = worker, worker.execute_model
        worker.execute_model = self.step

    def stop(self) -> None:
        """Take the hooks out."""
        for hook in self.hooks:
            hook.remove()
        del self.worker.execute_model  # of the instance: that of the class is back

    def step(self, scheduled: Any) -> Any:
        """One step of the engine: note what is scheduled, run it, and sort the rows that were measured."""
        for new in scheduled.scheduled_new_reqs:
            self._begin(new)
        cached = scheduled.scheduled_cached_reqs
        for name, blocks, first in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
            request = self.requests.get(name)
            if request is None:  # it began before
                continue
            if name in cached.resumed_req_ids:
                request.blocks = [[] for _ in self.sizes]
            for of_group, more in zip(request.blocks, blocks or (), strict=False):
                of_group.extend(more)
            request.first = first
        self.scheduled = {
            name: count for name, count in scheduled.num_scheduled_tokens.items() if name in self.requests
        }
        try:
            return self.execute(scheduled)
        finally:
            self.scheduled = {}
            for layer, requests, rows, received in self.step_rows:
                sums = [None] * len(requests) if received is None else received.cpu()
                for request, of_request, of_keys in zip(requests, rows.cpu(), sums, strict=True):
                    keys = request.first + of_request.shape[1]
                    of_layer = request.layers.setdefault(layer, _LayerRows())
                    of_layer.add(request.first, of_request, None if of_keys is None else of_keys[:, :keys].clone())
            self.step_rows.clear()

    def _begin(self, new: Any) -> None:
        """A request that begins, or that begins again after it was preempted."""
        tokens, first = [*(new.prefill_token_ids or new.prompt_token_ids or ())], new.num_computed_tokens
        request = _Request(tokens, len(new.prompt_token_ids or ()), [[*blocks] for blocks in new.block_ids], first)
        request.special = [place for place, token in enumerate(tokens) if token in self.special]
        before = self.requests.pop(new.req_id, None)
        if before is not None:
            request.layers = before.layers
        elif first:
            # the rows of a cached prefix are those of the latest request that has its blocks
            for other in reversed([*self.requests.values()]):
                if self._has_prefix(other, request):
                    for name, rows in other.layers.items():
                        request.layers[name] = _LayerRows([torch.cat(rows.parts, 1)[:, :first]], first)
                    break
        self.requests[new.req_id] = request

    def _has_prefix(self, other: _Request, request: _Request) -> bool:
        first, group = request.first, next(iter(self.layers.values())).group
        blocks = request.blocks[group][: first // self.sizes[group]]
        is_measured = bool(other.layers) and all(rows.count >= first for rows in other.layers.values())
        return (
            is_measured
            and other.tokens[:first] == request.tokens[:first]
            and other.blocks[group][: len(blocks)] == blocks
        )

    def begin(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        """Before the forward pass: find the queries of each request in the batch."""
        self.batch = []
        if not self.scheduled:  # a pass of the engine's own
            return
        from vllm.forward_context import get_forward_context  # pyright: ignore[reportMissingImports]

        name, layer = next(iter(self.layers.items()))
        slots = get_forward_context().slot_mapping[name].tolist()
        query_of = {slot: query for query, slot in enumerate(slots)}
        ids: Tensor | None = kwargs.get("input_ids")
        for request_name, count in self.scheduled.items():
            request = self.requests[request_name]
            block, slot = divmod(request.first, self.sizes[layer.group])
            query = query_of[request.blocks[layer.group][block] * self.sizes[layer.group] + slot]
            tokens = [-1] * count if ids is None else ids[query : query + count].tolist()
            request.tokens[request.first : request.first + count] = tokens
            new = [place for place, token in enumerate(tokens, request.first) if token in self.special]
            request.special = [place for place in request.special if place < request.first] + new
            self.batch.append((request, query, count))
        for group in {layer.group for layer in self.layers.values()}:
            blocks = [torch.tensor(request.blocks[group]) for request, _, _ in self.batch]
            self.tables[group] = pad_sequence(blocks, batch_first=True)

    def see(self, module: Any, args: tuple[Any, ...], output: Any) -> None:  # noqa: ARG002
        """After a layer: measure its rows; their keys are in the cache."""
        if not self.batch:
            return
        cache, query = self.layers[module.layer_name], args[0].view(-1, module.num_heads, module.head_size)
        call = PagedCall(
            query=torch.cat([query[first : first + count] for _, first, count in self.batch]),
            key_cache=cache,
            block_table=self.tables[cache.group],
            query_start_loc=torch.tensor([0, *(count for _, _, count in self.batch)]).cumsum(0),
            seq_lens=torch.tensor([request.first + count for request, _, count in self.batch]),
            scale=float(module.impl.scale),
            softcap=getattr(module.impl, "logits_soft_cap", None) or None,  # some have 0 for none
            window=module.sliding_window,
            sinks=getattr(module.impl, "sinks", None),
        )
        need = replace(self.need, columns=self._columns(query.device))
        for sequences, alike in call.calls():
            rows, received = measure_alike(alike, sequences, need, received=self.received)
            requests = [self.batch[sequence][0] for sequence in sequences]
            self.step_rows.append((module.layer_name, requests, packed(rows), received))

    def _columns(self, device: torch.device) -> Tensor:
        """Indicators of the first key and of special tokens, ``(sequence, key, 2)``."""
        longest = max(request.first + count for request, _, count in self.batch)
        columns = torch.zeros(len(self.batch), longest, len(COLUMNS))
        columns[:, 0, 0] = 1.0
        for of_keys, (request, _, count) in zip(columns, self.batch, strict=True):
            of_keys[[place for place in request.special if place < request.first + count], 1] = 1.0
        return columns.to(device)

    def write(self, folder: Path, rank: int) -> None:
        """Write the file of this worker."""
        arrays: dict[str, np.ndarray] = {}
        for number, request in enumerate(self.requests.values()):
            for layer, rows in request.layers.items():
                arrays[f"rows/{number}/{layer}"] = torch.cat(rows.parts, 1).numpy()
                if rows.received is not None:
                    arrays[f"received/{number}/{layer}"] = rows.received.numpy()
        about = {
            "model": self.config.model_config.model,
            "band": self.need.band,
            "bins": self.need.bins,
            "special": sorted(self.special),
            "windows": {name: cache.module.sliding_window for name, cache in self.layers.items()},
            "requests": [
                {"name": name, "prompt": request.prompt, "tokens": request.tokens}
                for name, request in self.requests.items()
            ],
        }
        write_rows(folder, rank, about, arrays)


def _reject(config: Any) -> None:
    """Reject engines whose steps are not seen by hooks, or not in one place."""
    parallel = config.parallel_config
    if not config.model_config.enforce_eager:
        raise AttnscopeError("the engine compiles the model, which calls no hooks: start it with enforce_eager=True")
    if config.speculative_config is not None:
        raise AttnscopeError("the engine speculates, and drops some of the tokens that are measured: leave that out")
    if getattr(parallel, "decode_context_parallel_size", 1) > 1 or getattr(parallel, "enable_dbo", False):
        raise AttnscopeError("the engine spreads a context over devices, or splits its batches: leave that out")


def _why_not(module: Any) -> str | None:
    """Why the attention of a layer is not measured; None if it is."""
    from vllm.model_executor.layers.attention import Attention  # pyright: ignore[reportMissingImports]

    if type(module) is not Attention or module.attn_type != "decoder":
        return f"{module.layer_name} is {type(module).__name__}; expected causal attention over a cache of keys"
    if getattr(module.impl, "alibi_slopes", None) is not None:
        return f"{module.layer_name} has ALiBi slopes, which are not measured"
    if module.kv_cache.dtype not in {torch.float32, torch.float16, torch.bfloat16}:
        return f"{module.layer_name} caches its keys in {module.kv_cache_dtype}; expected a type of floats"
    return None
