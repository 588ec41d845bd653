"""What a second call on an opened model costs: `Session.scan` beside a plain pass, `weights` beside eager attention.

    python benchmarks/second_call.py --tokens 256

The model has the shape of SmolLM2-135M and random numbers. Ratios of medians, measured side by side in one process.
"""

import argparse
import statistics
import time

import torch
from scan import smollm2_shape

import attnscope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=9)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    model, eager = map(smollm2_shape, ("sdpa", "eager"))
    ids = torch.randint(0, model.config.vocab_size, (1, chosen.tokens))
    window = ids[0].tolist()
    session = attnscope.Session(model, [window])
    calls = {
        "plain": lambda: model(ids),
        "scan": lambda: session.scan(window=chosen.tokens),
        "eager": lambda: eager(ids, output_attentions=True),
        "weights": lambda: attnscope.weights(session.model, [window]),
    }
    seconds = {name: [] for name in calls}
    with torch.no_grad():
        for repeat in range(chosen.repeats + 1):
            for name, call in calls.items():
                begun = time.process_time()
                call()
                if repeat:  # the first call opens
                    seconds[name].append(time.process_time() - begun)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"{chosen.tokens} tokens; milliseconds: { ({name: round(1000 * one) for name, one in medians.items()}) }")
    print(f"scan / plain pass: {medians['scan'] / medians['plain']:.2f} (at most 1.3)")
    print(f"weights / output_attentions: {medians['weights'] / medians['eager']:.2f} (at most 2)")


if __name__ == "__main__":
    main()
