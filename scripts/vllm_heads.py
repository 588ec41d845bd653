"""The heads of requests inside vLLM, and of a scan over the same tokens: `scripts/vllm.sh` runs each part.

python scripts/vllm_heads.py models FOLDER          random models
python scripts/vllm_heads.py serve FOLDER KIND      in vLLM's environment: requests and their rows
python scripts/vllm_heads.py compare FOLDER         the largest differences from a scan; exit code 1 above 1e-5
python scripts/vllm_heads.py wide FOLDER            the model of `cost`, random
python scripts/vllm_heads.py cost FOLDER            in vLLM's environment: processor time with and without the rows
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

#: A model of each kind: grouped queries; a soft cap and windows.
SIZES = {
    "vocab_size": 500,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.1,
}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Gemma2": {"sliding_window": 48, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 64},
}
ROWS = (330, 11, 102, 253, 2, 75)  # tokens of the prompts
NEW = 24  # tokens that each request writes
RECEIVED = ("top_key", "top_10_keys", "effective_keys")
STATISTICS = (
    *("default", "attention_distance", "largest_distance", "largest_first", "largest_previous", "within_64"),
    *RECEIVED,
)
TOLERANCE = 1e-5
#: Layers of Llama-3.2-1B, 4 of its 16.
WIDE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
    "max_position_embeddings": 4096,
}


def save(folder: Path, kind: str, sizes: dict[str, Any]) -> None:
    """A random model in a folder."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES | MODELS[kind] | sizes)
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)


def models(folder: Path) -> None:
    """The models of `serve`, with the ids of special tokens."""
    from transformers import AutoTokenizer

    from attnscope.bundled import MODEL
    from attnscope.read.shown import special_ids

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    (folder / "special.json").write_text(json.dumps(sorted(special_ids(tokenizer))))
    for kind in MODELS:
        save(folder / kind, kind, {})
        tokenizer.save_pretrained(folder / kind)


def wide(folder: Path) -> None:
    """The model of `cost`, a gigabyte."""
    save(folder / "wide", "Llama", WIDE)


def engine(folder: Path, **options: Any) -> Any:
    """vLLM with the model of a folder."""
    from vllm import LLM  # pyright: ignore[reportMissingImports]

    options |= {"skip_tokenizer_init": True, "enforce_eager": True}
    return LLM(str(folder), worker_extension_cls="attnscope_vllm.HeadWorker", **options)


def written(llm: Any, prompts: list[list[int]], new: int) -> list[Any]:
    """Let the engine continue the prompts."""
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

    requests = [{"prompt_token_ids": prompt} for prompt in prompts]
    params = SamplingParams(max_tokens=new, temperature=0, ignore_eos=True, detokenize=False)
    return llm.generate(requests, params, use_tqdm=False)


def serve(folder: Path, kind: str) -> None:
    """Requests of several lengths in chunks of 64 tokens, with so few blocks that some are preempted; then a prefix."""
    draws, special = np.random.default_rng(0), json.loads((folder / "special.json").read_text())
    blocks = {"block_size": 32, "num_gpu_blocks_override": 26, "max_num_seqs": 5, "max_num_batched_tokens": 64}
    llm = engine(folder / kind, dtype="float32", max_model_len=512, disable_log_stats=False, **blocks)
    prompts = [draws.integers(1, 500, length).tolist() for length in ROWS]
    llm.collective_rpc("watch_heads", kwargs={"received": True, "special": special})
    outputs = written(llm, prompts, NEW)
    outputs += written(llm, [[*prompts[0][:200], *prompts[1]]], NEW)
    llm.collective_rpc("write_heads", args=(str(folder / kind / "rows"),))
    texts = [[*output.prompt_token_ids, *output.outputs[0].token_ids[:-1]] for output in outputs]
    preempted = sum(one.value for one in llm.get_metrics() if one.name == "vllm:num_preemptions")
    about = {"texts": texts, "cached": outputs[-1].num_cached_tokens, "preempted": preempted}
    (folder / kind / "requests.json").write_text(json.dumps(about))


def compare(folder: Path) -> int:
    """The largest difference of each statistic, absolute or relative to a number above 1."""
    import attnscope
    from attnscope.support.progress import no_progress
    from attnscope_vllm.rows import heads_of_rows, read_rows

    differs = False
    for kind in MODELS:
        about = json.loads((folder / kind / "requests.json").read_text())
        found = heads_of_rows(read_rows(folder / kind / "rows"), statistics=STATISTICS)
        options = {"window": 512, "band": 10, "statistics": STATISTICS, "progress": no_progress}
        expected = attnscope.scan(str(folder / kind), about["texts"], **options)
        bins = {"offset_bin": expected.offset_bin}  # up to the window, those of rows up to the longest request
        found = found.drop_vars(["bin_first", "bin_last"]).reindex(bins, fill_value=0.0)
        largest: dict[str, float] = {}
        for name, values in expected.data_vars.items():
            if name in found and values.dtype.kind in "fiu":
                away = np.abs(found[name] - values) / np.maximum(1.0, np.abs(values))
                absent = int(away.isnull().any([dim for dim in away.dims if dim != "window"]).sum())
                # what keys received is not known after a preemption, nor with a cached prefix
                most = about["preempted"] + (about["cached"] > 0) if name in RECEIVED else 0
                largest[str(name)] = float("inf") if absent > most else float(away.max())
        worst = sorted(largest, key=lambda name: -largest[name])[:3]
        differs |= largest[worst[0]] > TOLERANCE
        print(
            f"{kind}: {len(about['texts'])} requests, {about['preempted']:.0f} preempted, {about['cached']} tokens of "
            f"one cached; {len(largest)} numbers of heads differ from a scan's by at most "
            + ", ".join(f"{largest[name]:.1e} ({name})" for name in worst)
        )
    return int(differs)


def cost(folder: Path) -> None:
    """Processor time of requests, with and without rows: the ratio of the smallest of 3."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine's time is this process's
    llm = engine(folder / "wide", dtype="float32", max_model_len=2048, enable_prefix_caching=False)
    for what, length, new in (("prompts of 512", 512, 1), ("32 tokens after prompts of 128", 128, 32)):
        prompts = [np.random.default_rng(number).integers(3, 500, length).tolist() for number in range(4)]
        seconds: dict[str, float] = {}
        for how in ("without", "rows", "rows and received"):
            taken: list[float] = []
            for _ in range(4):
                if how != "without":
                    llm.collective_rpc("watch_heads", kwargs={"received": how != "rows"})
                begun = time.process_time()
                written(llm, prompts, new)
                taken.append(time.process_time() - begun)
                if how != "without":
                    llm.collective_rpc("write_heads", args=(str(folder / "rows"),))
            seconds[how] = min(taken[1:])
        size = (folder / "rows" / "rows-0.npz").stat().st_size / (4 * (length + new - 1)) / 1024
        ratios = ", ".join(f"{how} {each / seconds['without']:.2f}" for how, each in seconds.items())
        print(f"{what}: {seconds['without']:.2f} s; {ratios}; {size:.0f} KiB a token", flush=True)


if __name__ == "__main__":
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    parts = {"models": models, "serve": serve, "compare": compare, "wide": wide, "cost": cost}
    sys.exit(parts[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:]))
