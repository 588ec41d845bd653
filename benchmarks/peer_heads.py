"""What TransformerLens says of heads beside what we say, on the same tiny random models.

python benchmarks/peer_heads.py model peer                  # writes the models and token ids into the folder
PEER/bin/python benchmarks/peer_heads.py theirs peer        # in an environment of its own: pip install transformer_lens
python benchmarks/peer_heads.py ours peer                   # compares

Head ablation and attribution patching on a GPT-2: equal numbers, and the time. The scores of `head_detector` on a model
of each of 28 families, on tokens said twice and on tokens that come again here and there, with every setting; and the
roles of `attnscope roles` that are the same patterns on tokens said twice. `--only ablation` or `detector` does one.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

_LAYERS, _HEADS, _TEXTS, _TOKENS, _VOCABULARY = 6, 8, 8, 64, 512

_WORDS, _PERIOD = 64, 20
_WIDE = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "vocab_size": _WORDS,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_SHARED = {**_WIDE, "num_key_value_heads": 2, "head_dim": 8}
_NEAR = {**_SHARED, "sliding_window": 30}
_GPT = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 96, "vocab_size": _WORDS}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 48}
#: By the name of the family in transformers: what a tiny config of it says.
_FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "gptj": {**_GPT, "rotary_dim": 8},
    "codegen": {**_GPT, "rotary_dim": 8, "n_ctx": 96},
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": _WORDS,
        "max_position_embeddings": 96,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 30,
    },
    "gpt_neox": _WIDE,
    "opt": {**_WIDE, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": {"hidden_size": 32, "n_head": 4, "n_layer": 2, "vocab_size": _WORDS},
    "falcon": {**_WIDE, "new_decoder_architecture": False, "multi_query": True},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 96, "vocab_size": _WORDS},
    "llama": _SHARED,
    "mistral": _NEAR,
    "mixtral": {**_SHARED, "num_local_experts": 2},
    "qwen2": _SHARED,
    "qwen3": _SHARED,
    "gemma": _SHARED,
    "gemma2": {**_NEAR, "query_pre_attn_scalar": 8},
    "gemma3_text": {**_NEAR, "query_pre_attn_scalar": 8},
    "phi": _WIDE,
    "phi3": _SHARED,
    "stablelm": _SHARED,
    "starcoder2": _SHARED,
    "olmo": _SHARED,
    "olmo2": _SHARED,
    "granite": _SHARED,
    "cohere": _SHARED,
    "gpt_oss": {**_NEAR, "num_local_experts": 2, "num_experts_per_tok": 1, "rope_parameters": _YARN},
    "bert": _WIDE,
}
_PATTERNS = ("previous_token_head", "duplicate_token_head", "induction_head")


def main() -> None:
    """One of the three steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("model", "theirs", "ours"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=("ablation", "detector"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    steps = {
        "ablation": {"model": make, "theirs": theirs, "ours": ours},
        "detector": {"model": make_families, "theirs": detect_theirs, "ours": detect_ours},
    }
    for part, functions in steps.items():
        if given.only in {None, part}:
            functions[given.step](given.folder)


def make(folder: Path) -> None:
    """A GPT-2 with weights large enough for its heads to matter, and texts of random tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_embd=64, n_head=_HEADS, n_layer=_LAYERS, vocab_size=_VOCABULARY, n_positions=_TOKENS)
    model = GPT2LMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.1 if "wte" not in name else 0.3)
    model.save_pretrained(folder)
    ids = torch.randint(0, _VOCABULARY, (_TEXTS, _TOKENS)).tolist()
    (folder / "ids.json").write_text(json.dumps(ids), encoding="utf-8")


def theirs(folder: Path) -> None:
    """TransformerLens: a hook on each head's output, one pass a head; its gradient for attribution patching."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    bridge: Any = TransformerBridge.boot_transformers(str(folder), hf_model=model, device="cpu")
    ids = torch.tensor(json.loads((folder / "ids.json").read_text(encoding="utf-8")))

    def losses(logits: torch.Tensor) -> torch.Tensor:
        logs = torch.log_softmax(logits[:, :-1].float(), -1)
        return -logs.gather(-1, ids[:, 1:, None])[..., 0].mean(1)

    def zero(head: int) -> Any:
        def hook(value: torch.Tensor, hook: Any) -> torch.Tensor:  # noqa: ARG001
            value = value.clone()
            value[:, :, head] = 0
            return value

        return hook

    names = [f"blocks.{layer}.attn.hook_z" for layer in range(_LAYERS)]
    with torch.no_grad():
        before = losses(bridge(ids, return_type="logits"))
        began = time.process_time()
        ablated = [
            (losses(bridge.run_with_hooks(ids, return_type="logits", fwd_hooks=[(name, zero(head))])) - before).tolist()
            for name in names
            for head in range(_HEADS)
        ]
        seconds = time.process_time() - began
    kept: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Any:
        def hook(value: torch.Tensor, hook: Any) -> torch.Tensor:  # noqa: ARG001
            kept[name] = value
            value.retain_grad()
            return value

        return hook

    logits = bridge.run_with_hooks(ids, return_type="logits", fwd_hooks=[(name, keep(name)) for name in names])
    losses(logits).sum().backward()
    estimated = [
        (-kept[name][:, :, head] * kept[name].grad[:, :, head]).sum((1, 2)).tolist()
        for name in names
        for head in range(_HEADS)
    ]
    found = {"before": before.tolist(), "ablated": ablated, "estimated": estimated, "seconds": seconds}
    (folder / "theirs.json").write_text(json.dumps(found), encoding="utf-8")
    print(f"TransformerLens: {_LAYERS * _HEADS} heads taken out in {seconds:.2f} s of processor time")


def ours(folder: Path) -> None:
    """Ours, beside what TransformerLens found."""
    import numpy as np
    from intervene import _Tokenizer

    from attnscope.capture.borrow import LoadedModel
    from attnscope.capture.load import load_model
    from attnscope.intervention.ablation import effects
    from attnscope.intervention.predictions import PredictionSession
    from attnscope.read.windows import Window

    model = load_model(folder, device="cpu", need_tokenizer=False).model
    rows = json.loads((folder / "ids.json").read_text(encoding="utf-8"))
    windows = [
        Window(tuple(ids), (False,) * len(ids), ((0, 0),) * len(ids), f"text {number}", 0, ("",) * len(ids))
        for number, ids in enumerate(rows)
    ]
    session = PredictionSession(LoadedModel(model, _Tokenizer(), "tiny", {}), windows, "next", batch_size=len(windows))
    next(effects(session, ["zero"], steps=0))  # compiles nothing, but fills caches as the peer's first pass did
    began = time.process_time()
    next(effects(session, ["zero"], steps=0))
    seconds = time.process_time() - began
    found = next(effects(session, ["zero"], steps=1))
    peer = json.loads((folder / "theirs.json").read_text(encoding="utf-8"))
    for name, values in (
        ("before", found.loss.values),
        ("ablated", found.loss_change.sel(ablation="zero").values.reshape(len(rows), -1).T),
        ("estimated", found.estimate.sel(estimator="attribution", ablation="zero").values.reshape(len(rows), -1).T),
    ):
        other = np.array(peer[name])
        print(f"{name}: largest difference {np.abs(values - other).max():.1e}, largest value {np.abs(other).max():.3f}")
    print(
        f"ours {seconds:.2f} s, TransformerLens {peer['seconds']:.2f} s: {peer['seconds'] / seconds:.1f} times as fast"
    )


def make_families(folder: Path) -> None:
    """A tiny model of each family, with weights large enough for sharp heads, and a tokenizer; and two texts."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoConfig, PreTrainedTokenizerFast

    marks = dict(zip(("unk_token", "bos_token", "eos_token"), ("t0", "t1", "t2"), strict=True))
    words = WordLevel({f"t{number}": number for number in range(_WORDS)}, unk_token=marks["unk_token"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), **marks)
    for name, settings in _FAMILIES.items():
        torch.manual_seed(0)
        model = _class_of(name).from_config(AutoConfig.for_model(name, **settings)).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(folder / "families" / name)
        tokenizer.save_pretrained(folder / "families" / name)
    said = (3 + torch.randperm(_WORDS - 3)[:_PERIOD]).tolist()
    again = torch.randint(3, 12, (2 * _PERIOD,)).tolist()
    texts = {"twice": [1, *said, *said], "again": [1, *again]}
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")


def _class_of(name: str) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    return AutoModelForMaskedLM if name == "bert" else AutoModelForCausalLM


def _settings(folder: Path) -> list[tuple[str, str, dict[str, bool], list[int]]]:
    """Everything that is asked of each model: name, pattern, what is excluded, token ids."""
    texts = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    return [
        (f"{text} {pattern} {bos} {current}", pattern, {"exclude_bos": bos, "exclude_current_token": current}, ids)
        for text, ids in texts.items()
        for pattern in _PATTERNS
        for bos in (False, True)
        for current in (False, True)
    ]


def detect_theirs(folder: Path) -> None:
    """TransformerLens' `detect_head` on every model, text and setting."""
    from transformer_lens.head_detector import detect_head
    from transformer_lens.model_bridge import TransformerBridge

    scores: dict[str, dict[str, Any]] = {}
    for name in _FAMILIES:
        place = folder / "families" / name
        model = _class_of(name).from_pretrained(place, attn_implementation="eager").eval()
        bridge: Any = TransformerBridge.boot_transformers(str(place), hf_model=model, device="cpu")
        for key, pattern, excluded, ids in _settings(folder):
            bridge.to_tokens = lambda _, ids=ids: torch.tensor([ids])
            scores.setdefault(name, {})[key] = detect_head(bridge, key, pattern, **excluded).tolist()
    (folder / "detected.json").write_text(json.dumps(scores), encoding="utf-8")


@torch.no_grad()
def pattern_scores(
    model: Any, ids: list[int], pattern: str, *, exclude_bos: bool = False, exclude_current_token: bool = False
) -> Any:
    """Share of each head's weight on the pairs of a pattern, ``(layer, head)``, from weights written out."""
    import numpy as np

    from attnscope.capture.watching import watching
    from attnscope.kernels.full import attend_in_full

    layers = []

    def observe(_: Any, call: Any) -> Any:
        output, weights = attend_in_full(call)
        layers.append(weights[0].double().numpy())
        return output

    with watching(model, observe):
        model(torch.tensor([ids]))
    same = np.tril(np.equal.outer(ids, ids), -1).astype(float)
    pairs = {
        "previous_token_head": np.eye(len(ids), k=-1),
        "duplicate_token_head": same,
        "induction_head": np.tril(np.hstack([np.zeros((len(ids), 1)), same[:, :-1]])),
    }[pattern]
    left = np.ones_like(pairs)
    left[:, : int(exclude_bos)] = 0
    left -= np.diag(np.diag(left)) * exclude_current_token
    return np.stack([(weights * left * pairs).sum((1, 2)) / (weights * left).sum((1, 2)) for weights in layers])


def detect_ours(folder: Path) -> None:
    """Ours, beside theirs; and the roles on tokens said twice, which are the same but for what is divided by."""
    import numpy as np

    from attnscope.capture.load import load_model
    from attnscope.detection.probes import Probe, plain_window
    from attnscope.detection.role import RepeatedCalls
    from attnscope.detection.roles import measured, sites_of

    theirs = json.loads((folder / "detected.json").read_text(encoding="utf-8"))
    apart, of_roles, largest = {}, [], 0.0
    for name in _FAMILIES:
        model = load_model(folder / "families" / name, device="cpu").model
        apart[name] = 0.0
        for key, pattern, excluded, ids in _settings(folder):
            other = np.array(theirs[name][key])
            largest = max(largest, float(other.max()))
            own = pattern_scores(model, ids, pattern, **excluded)
            apart[name] = max(apart[name], float(np.abs(own - other).max()))
        ids = _settings(folder)[0][3]
        probe = Probe("repeated", (plain_window(ids, "twice"),), lambda _, call: RepeatedCalls.of(call, 1, _PERIOD))
        made = measured(
            model, sites_of(model, probe), [probe], ["duplicate_token", "induction"], lambda _: None, with_equal=False
        )
        for role in ("duplicate_token", "induction"):
            if name != "gpt_oss" and not np.isnan(made[role].values).all():  # there rows sum to less than 1
                other = np.array(theirs[name][f"twice {role}_head False False"])
                of_roles.append(float(np.abs(made[role].values[0] * _PERIOD / len(ids) - other).max()))
    for name, value in apart.items():
        print(f"{name:12} largest difference {value:.1e}")
    count = len(_settings(folder))
    print(
        f"head_detector, {len(apart)} families, {count} scores of each head: largest difference "
        f"{max(apart.values()):.1e}, largest score {largest:.3f}; roles on tokens said twice: {max(of_roles):.1e}"
    )


if __name__ == "__main__":
    main()
