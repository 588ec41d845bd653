"""Every single-head effect, beside the loop that everybody writes: one whole pass for each head.

    python benchmarks/intervene.py                    # GPT-2's shape, 12 layers of 12 heads
    python benchmarks/intervene.py --family bert
    python benchmarks/intervene.py MODEL              # a model of your own, with random token ids

The unit is a plain pass of the same texts; the loop, the plain pass and ours take turns in one process. Times are of
the processor, all threads together: other programs hardly change them. Weights are random: they change no time. Effects
of the loop and ours are compared: the largest difference is printed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.load import load_model
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.intervention.ablation import effects
from attnscope.intervention.calls import output_with_gradient
from attnscope.intervention.predictions import PredictionSession
from attnscope.intervention.questions import kind_of_question
from attnscope.kernels.call import AttentionCall
from attnscope.read.windows import Window

T = TypeVar("T")


class _Tokenizer:
    """As much of a tokenizer as questions need."""

    pad_token_id, eos_token_id, mask_token_id = 0, 0, 3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="Model folder; by default one of GPT-2's shape")
    parser.add_argument("--family", choices=("gpt2", "bert"), default="gpt2")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--naive", type=int, default=12, help="Heads that the loop takes out in a round")
    parser.add_argument("--variants", type=int, help="Variants side by side")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    model = _model(given)
    generator = np.random.default_rng(0)
    vocabulary = model.config.vocab_size
    windows = [
        Window(tuple(ids), (False,) * len(ids), ((0, 0),) * len(ids), f"text {number}", 0, ("",) * len(ids))
        for number, ids in enumerate(generator.integers(5, vocabulary, (given.texts, given.tokens)).tolist())
    ]
    session = PredictionSession(
        LoadedModel(model, _Tokenizer(), "benchmark", {}), windows, kind_of_question(model), batch_size=given.texts
    )
    asked = session.batch(slice(0, given.texts))
    inputs = {**asked.batch.inputs(model), **({"use_cache": False} if model.can_generate() else {})}

    @torch.no_grad()
    def plain() -> torch.Tensor:
        return model(**inputs).logits

    @torch.no_grad()
    def without(layer: int, head: int) -> torch.Tensor:
        def observe(site: Site, call: AttentionCall) -> torch.Tensor:
            output = output_with_gradient(call)
            if site.index == layer:
                output[:, head] = 0
            return output

        with watching(model, observe):
            logits = model(**inputs).logits
        chosen = logits.gather(1, asked.positions[..., None].expand(-1, -1, logits.shape[-1]))
        return asked.scores(chosen[None])["loss"][0]

    heads = model.config.num_attention_heads
    cells = [(layer, head) for layer in range(model.config.num_hidden_layers) for head in range(heads)]
    chosen = [cells[place] for place in np.linspace(0, len(cells) - 1, given.naive).astype(int)]
    ratios: list[float] = []
    naive_ratios: list[float] = []
    worst = 0.0
    plain()
    for _ in range(given.rounds):
        one = min(_timed(plain)[0] for _ in range(3))
        ours, found = _timed(lambda: next(effects(session, ["zero"], steps=0, variants=given.variants)))
        naive, losses = _timed(lambda: [without(*cell) for cell in chosen])
        again = min(_timed(plain)[0] for _ in range(3))
        unit = (one + again) / 2
        ratios.append(ours / unit / len(cells))
        naive_ratios.append(naive / unit / len(chosen))
        for (layer, head), expected in zip(chosen, losses, strict=True):
            loss = (found.loss + found.loss_change.sel(ablation="zero", layer=layer, head=head)).values
            worst = max(worst, float(np.abs(loss - expected.numpy()).max()))
        print(f"plain pass {unit:.3f} s; every head {ours:.1f} s = {ratios[-1]:.3f} of {len(cells)} plain passes; "
              f"the loop {naive_ratios[-1]:.2f} of them")  # fmt: skip
    print(
        f"median: {np.median(ratios):.3f} of {len(cells)} plain passes; the loop {np.median(naive_ratios):.2f}; "
        f"largest difference of a loss {worst:.1e} nats"
    )


def _model(given: argparse.Namespace) -> PreTrainedModel:
    if given.model:
        return load_model(given.model, device="cpu").model.eval()
    heads = layers = 12
    if given.family == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(
                n_embd=given.width, n_head=heads, n_layer=layers, vocab_size=given.vocabulary, n_positions=given.tokens
            )
        ).eval()
    return BertForMaskedLM(
        BertConfig(
            hidden_size=given.width,
            num_attention_heads=heads,
            num_hidden_layers=layers,
            intermediate_size=4 * given.width,
            vocab_size=given.vocabulary,
            max_position_embeddings=given.tokens,
        )
    ).eval()


def _timed(run: Callable[[], T]) -> tuple[float, T]:
    began = time.process_time()
    found = run()
    return time.process_time() - began, found


if __name__ == "__main__":
    main()
