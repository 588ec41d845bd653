"""Whether the matrix of a gated delta rule says which token a model reads, as weights of a softmax do.

    python benchmarks/implied.py              # eight models, about ten minutes on one core
    python benchmarks/implied.py 3 1          # the model of seed 3 with one layer

Each model is a Qwen3.5 whose layers are all gated delta nets, trained on recall: 12 pairs of a key and its value, then
the same keys in another order, whose values are to be predicted. The token to read is the value of the same key in the
first half. A layer is linear in its values, so that its output is M v: M is compared with the recurrence, and the
largest |M| of the best head with that token and the three after it (each layer convolves four tokens before the rule),
with the value of another key, with an untrained copy, and with what an exchange of each token does to the answer.
"""

from __future__ import annotations

import copy
import math
import sys
from unittest.mock import patch

import torch
import transformers as T  # noqa: N812
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

KEYS, PAIRS, STEPS, TEXTS = 24, 12, 1000, 64
FIRST = 2 * PAIRS  # tokens of the first half
ASKED = FIRST + 2 * torch.arange(PAIRS)  # positions whose next token is asked for


def recall(texts: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Token ids, and the position of the value that answers each asked key."""
    keys = torch.rand(texts, KEYS, generator=random).argsort(1)[:, :PAIRS]
    values = torch.randint(KEYS, 2 * KEYS, (texts, PAIRS), generator=random)
    order = torch.rand(texts, PAIRS, generator=random).argsort(1)
    halves = [torch.stack([keys, values], -1), torch.stack([keys.gather(1, order), values.gather(1, order)], -1)]
    return torch.cat(halves, 1).flatten(1), 2 * order + 1


def untrained(layers: int) -> T.PreTrainedModel:
    """A model whose states begin to decay over 10 to 1,000 tokens; those of transformers begin without memory."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}
    heads = {f"linear_{part}_head_dim": 32 for part in ("key", "value")}
    heads |= {f"linear_num_{part}_heads": 2 for part in ("key", "value")}
    kinds = ["linear_attention"] * layers
    model = T.Qwen3_5ForCausalLM(
        T.Qwen3_5TextConfig(
            vocab_size=2 * KEYS, num_hidden_layers=layers, layer_types=kinds, use_cache=False, **sizes, **heads
        )
    )
    for layer in model.model.layers:
        steps = torch.exp(torch.empty(2).uniform_(math.log(1e-3), math.log(0.1)))
        layer.linear_attn.dt_bias.data = steps + torch.log(-torch.expm1(-steps))
    return model


def train(model: T.PreTrainedModel, seed: int) -> None:
    """Train on fresh texts."""
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    for _ in range(STEPS):
        ids, _ = recall(32, random)
        loss = torch.nn.functional.cross_entropy(model(ids).logits[:, ASKED].mT, ids[:, ASKED + 1])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()


def matrix(query: Tensor, key: Tensor, decay: Tensor, rate: Tensor) -> Tensor:
    """M of ``(batch, head, query, key)``: the output of the rule is M times its values (Yang et al. 2025)."""
    query, key = (qwen.l2norm(part.transpose(1, 2).double(), eps=1e-6) for part in (query, key))
    total, rate = decay.mT.double().cumsum(-1), rate.mT.double()
    kept = (total[..., None] - total[..., None, :]).tril().exp().tril()  # of what a token wrote, at a later token
    erased = (rate[..., None] * (key @ key.mT) * kept).tril(-1)
    written = torch.linalg.solve_triangular(
        erased + torch.eye(erased.shape[-1]).double(), torch.diag_embed(rate), upper=False
    )
    return (query @ key.mT) * kept / math.sqrt(query.shape[-1]) @ written


@torch.no_grad()
def matrices(model: T.PreTrainedModel, ids: Tensor) -> tuple[Tensor, float]:
    """M of all heads of all layers, ``(batch, head, query, key)``, and its distance from the recurrence."""
    chunked, found, errors = qwen.torch_chunk_gated_delta_rule, list[Tensor](), list[float]()

    def rule(query: Tensor, key: Tensor, value: Tensor, *, g: Tensor, beta: Tensor, **options: object) -> object:
        found.append(matrix(query, key, g, beta))
        exact = [part.double() for part in (query, key, value, g, beta)]
        expected, _ = qwen.torch_recurrent_gated_delta_rule(*exact, use_qk_l2norm_in_kernel=True)
        errors.append(float((found[-1] @ value.transpose(1, 2).double() - expected.transpose(1, 2)).abs().max()))
        return chunked(query, key, value, g=g, beta=beta, **options)

    with patch.object(qwen, "torch_chunk_gated_delta_rule", rule):
        model(ids)
    return torch.cat(found, 1), max(errors)


@torch.no_grad()
def effects(model: T.PreTrainedModel, ids: Tensor) -> Tensor:
    """What an exchange of each token of the first half takes from the logit of each answer."""
    answers, random, found = ids[:, ASKED + 1, None], torch.Generator().manual_seed(0), list[Tensor]()
    for position in [None, *range(FIRST)]:
        other = ids.clone()
        if position is not None:
            low = KEYS * (position % 2)
            step = torch.randint(1, KEYS, (len(ids),), generator=random)
            other[:, position] = low + (ids[:, position] - low + step) % KEYS
        found.append(model(other).logits[:, ASKED].gather(-1, answers)[..., 0])
    return found[0][..., None] - torch.stack(found[1:], -1)


def main() -> None:
    """Print two rows a model: trained, and before training."""
    wanted = (
        [[*map(int, sys.argv[1:3])]] if sys.argv[1:] else [[seed, layers] for layers in (1, 2) for seed in range(3)]
    )
    print("| layers | seed | model | right | exchange at source | largest at source, +1, +2, +3 | at another |", end="")
    print(" share at source, at another | negative | sum of a row, 10% to 90% | against the recurrence |")
    print("|" + "---|" * 11)
    ids, source = recall(TEXTS, torch.Generator().manual_seed(99))
    for seed, layers in wanted:
        torch.manual_seed(seed)
        model = untrained(layers).eval()
        before = copy.deepcopy(model)
        train(model, seed)
        for name, one in (("trained", model), ("untrained", before)):
            right = float((one(ids).logits[:, ASKED].argmax(-1) == ids[:, ASKED + 1]).float().mean())
            exchange = float((effects(one, ids).abs().argmax(-1) == source).float().mean())
            weights, error = matrices(one, ids)
            rows = weights[:, :, ASKED].transpose(0, 1)  # head, text, asked, key
            sizes, top = rows.abs().sum(-1), rows.abs().argmax(-1)
            after = torch.stack([(top == source + step).double().mean((1, 2)) for step in range(4)], -1)
            best = int(after.amax(-1).argmax())
            other = source.roll(1, 1)
            shares = [
                float((rows[best].abs().gather(-1, at[..., None])[..., 0] / sizes[best]).mean())
                for at in (source, other)
            ]
            negative = float((-rows[best]).clamp(min=0).sum() / sizes[best].sum())
            low, high = sizes[best].quantile(torch.tensor([0.1, 0.9]).double()).tolist()
            steps = ", ".join(f"{share:.2f}" for share in after[best].tolist())
            missed = float((top[best] == other).double().mean())
            print(f"| {layers} | {seed} | {name} | {right:.2f} | {exchange:.2f} | {steps} | {missed:.2f} |", end="")
            print(f" {shares[0]:.2f}, {shares[1]:.2f} | {negative:.2f} | {low:.2f} to {high:.2f} | {error:.0e} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
