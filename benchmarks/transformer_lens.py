"""Next to TransformerLens, on random models of ten families: composition, copying, attribution, logit lens, patching.

    python -m venv lens && lens/bin/pip install 'transformer_lens>=4' -e .
    lens/bin/python benchmarks/transformer_lens.py

TransformerLens needs an environment of its own. Printed is the largest difference over all heads, pairs and positions,
and the script fails above 1e-5.
"""

from __future__ import annotations

import re
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.remove(str(Path(__file__).parent))  # where this file would hide the package of its name

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

import attnscope
import attnscope_circuits

_ALLOWED = 1e-5


_OWN: dict[str, int] = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 90}
_USUAL = {**_OWN, "intermediate_size": 64, "max_position_embeddings": 64}
_GROUPED = {**_USUAL, "num_key_value_heads": 2}
FAMILIES: dict[str, dict[str, int]] = {
    "gpt2": {"n_embd": 48, "n_head": 4, "n_layer": 3, "vocab_size": 90, "n_positions": 64},
    "opt": {**_OWN, "ffn_dim": 64, "max_position_embeddings": 64, "word_embed_proj_dim": 48},
    "phi3": {**_GROUPED, "pad_token_id": 0},
    **dict.fromkeys(("gpt_neox", "phi"), _USUAL),
    **dict.fromkeys(("llama", "mistral", "qwen2", "olmo", "granite"), _GROUPED),
}


def random_model(family: str, *, tied: bool) -> Any:
    """A model with random weights and gains in float64; most have rotary positions and grouped queries."""
    torch.manual_seed(tied)
    special = {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": tied}
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **FAMILIES[family], **special))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if parameter.ndim == 1 else 0.0, std=0.3)
    return model.double().eval()


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of 90 words."""
    backend = Tokenizer(WordLevel({f"t{number}": number for number in range(90)}, unk_token="t0"))  # noqa: S106
    backend.pre_tokenizer = Whitespace()
    special = dict.fromkeys(("pad_token", "eos_token", "bos_token"), "t0")
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def lens_of(model: Any) -> Any:
    """The same model in TransformerLens, with norms folded and writing weights centred."""
    from transformer_lens.model_bridge import TransformerBridge

    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        lens = TransformerBridge.boot_transformers(folder, device="cpu", dtype=torch.float64)
    lens.enable_compatibility_mode(disable_warnings=True, center_unembed=False, fold_value_biases=False)
    return lens


def attribution_differences(model: Any, lens: Any, ids: torch.Tensor) -> tuple[float, float]:
    """Largest difference of the parts of the logit of each next token, and of its probability after each layer."""
    from transformer_lens.tools.analysis.direct_logit_attribution import direct_logit_attribution

    found = attnscope_circuits.attribute(
        model, ids.tolist(), tokenizer=tokenizer(), window=ids.shape[1], by_position=True
    )
    own = found["predictions"].isel(window=0)
    _, cache = lens.run_with_cache(ids)
    after = torch.cat([ids[:, 1:], ids[:, :1]], 1)
    worst = 0.0
    for unit in ("head", "component"):
        theirs = direct_logit_attribution(lens, cache=cache, answer_tokens=after, unit=unit, pos=None)
        for label, values in zip(theirs.labels, theirs.attribution.detach().numpy()[:, 0, :-1], strict=True):
            name = re.sub(r"L(\d+)H(\d+)", r"\1.\2", label)
            name = re.sub(r"(\d+)_mlp_out", r"mlp \1", {"embed": "embedding", "pos_embed": "position"}.get(name, name))
            if name in own.component:
                worst = max(worst, float(np.abs(own.part_at.sel(component=name) - values).max()))
    stack = cache.apply_ln_to_stack(cache.accumulated_resid(layer=-1), layer=-1, recompute_ln=True)
    chances = (stack @ lens.W_U + lens.b_U).softmax(-1)[:, 0, :-1].gather(-1, after[:, :-1, None].expand(4, -1, -1))
    apart = np.abs(chances[..., 0].detach().numpy().T - own.lens_probability.values).max()
    return worst, float(apart)


def patching_difference(model: Any, lens: Any, seed: int) -> float:
    """Largest difference of patched logits: heads, a set with an MLP, and paths to queries, an MLP and the logits."""
    clean, corrupted = torch.randint(1, 90, (2, 1, 12), generator=torch.Generator().manual_seed(seed))
    texts = (" ".join(f"t{token}" for token in ids[0].tolist()) for ids in (clean, corrupted))
    pair = dict(zip(("clean", "corrupted", "answer", "wrong"), (*texts, "t5", "t6"), strict=True))
    given: Any = {"tokenizer": tokenizer(), "direction": "noising"}
    _, own = lens.run_with_cache(clean)
    _, donor = lens.run_with_cache(corrupted)
    z, queries, mlp = (
        lambda layer, name=name: f"blocks.{layer}.{name}" for name in ("attn.hook_z", "attn.hook_q", "hook_mlp_out")
    )

    def putting(name: str, cache: Any, head: int | None = None) -> tuple[str, Any]:
        def put_in(tensor: Any, hook: Any) -> Any:
            assert hook.name == name  # noqa: S101
            at = (..., slice(None), slice(None)) if head is None else (..., head, slice(None))
            tensor = tensor.clone()
            tensor[at] = cache[name][at]
            return tensor

        return name, put_in

    def difference(*hooks: tuple[str, Any]) -> float:
        logits = lens.run_with_hooks(clean, fwd_hooks=[*hooks])[0, -1]
        return float(logits[5] - logits[6])

    found = attnscope.patch(model, [pair], steps=0, together=["0.1,1.2,m1"], **given)["pairs"].isel(pair=0)
    each = [[difference(putting(z(layer), donor, head)) for head in range(4)] for layer in range(3)]
    several = difference(putting(z(0), donor, 1), putting(z(1), donor, 2), putting(mlp(1), donor))
    worst = max(np.abs(found.difference.values - each).max(), abs(float(found.together[0]) - several))
    for receiver in ("2.1.q,m1", "logits"):
        paths = attnscope.patch(model, [pair], receiver=receiver, **given)["pairs"].difference[0, 0]
        for head in range(4):
            send = [putting(z(0), donor, head), *(putting(z(layer), own) for layer in (1, 2))]
            if receiver == "logits":
                worst = max(worst, abs(float(paths[head]) - difference(*send)))
                continue
            sent: dict[str, Any] = {}

            def keep(tensor: Any, hook: Any, sent: dict[str, Any] = sent) -> None:
                sent[hook.name] = tensor.clone()

            difference(*send, (queries(2), keep), (mlp(1), keep))
            expected = difference(putting(queries(2), sent, 1), putting(mlp(1), sent))
            worst = max(worst, abs(float(paths[head]) - expected))
    return float(worst)


def main() -> None:
    """Compare two models of each family."""
    worst = 0.0
    for seed, (family, tied) in enumerate(product(FAMILIES, (True, False))):
        model = random_model(family, tied=tied)
        lens, found = lens_of(model), attnscope_circuits.circuits(model)
        ids = torch.arange(20)[None] % 90
        same = (lens(ids).log_softmax(-1) - model(ids).logits.log_softmax(-1)).abs().max().item()
        own = found.composition.transpose("kind", "from_layer", "from_head", "layer", "head")
        pairs = 0.0
        for mode, kind in zip("QKV", ("query", "key", "value"), strict=True):
            theirs = lens.all_composition_scores(mode).scores.detach().double().numpy()
            mine = own.sel(kind=kind).values
            pairs = max(pairs, float(np.nanmax(np.abs(mine - theirs))))
        eigenvalues = (lens.W_E @ lens.OV @ lens.W_U).eigenvalues.detach()
        copying = (eigenvalues.sum(-1).real / eigenvalues.abs().sum(-1)).numpy()
        share = (eigenvalues.real > 0).double().mean(-1).numpy()
        differences = [np.abs(copying - found.copying_sum.values).max(), np.abs(share - found.copying.values).max()]
        (parts, chances), patched = attribution_differences(model, lens, ids), patching_difference(model, lens, seed)
        print(
            f"{family}{' tied' * tied}: logits {same:.0e}, composition {pairs:.0e}, "
            f"copying {max(differences):.0e}, attribution {parts:.0e}, lens {chances:.0e}, patching {patched:.0e}"
        )
        worst = max(worst, pairs, parts, chances, patched, *map(float, differences))
    raise SystemExit(f"above {_ALLOWED}: {worst}" if worst > _ALLOWED else 0)


if __name__ == "__main__":
    main()
