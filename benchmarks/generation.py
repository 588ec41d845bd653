"""What it costs to measure every head while a model generates: plain `generate`, and the same in `attnscope.watch`.

    python benchmarks/generation.py                        # random models of two shapes
    python benchmarks/generation.py --model FOLDER --prompt 256 --new 128

Both write the same tokens, in turns, in one process; figures are medians of the rounds. On the processor they are
processor time of one thread, which other programs on the machine change least. The first token's time holds the
prompt's own pass and, watched, the check of the capture; what each later token takes is the rest.
"""

import argparse
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import attnscope

SHAPES = {
    "Llama, 12 x 12 heads, width 768": {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "num_hidden_layers": 12,
        "intermediate_size": 2048,
    },
    "Llama, 16 x 16 heads of 4 groups, width 1,024": {
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "num_hidden_layers": 16,
        "intermediate_size": 2816,
    },
}


def random_model(shape):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=32000, max_position_embeddings=65536, eos_token_id=None, **shape)
    return LlamaForCausalLM(config).eval()


def plain(model, ids, new):
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, pad_token_id=0)


def watched(model, ids, new):
    with attnscope.watch(model):
        plain(model, ids, new)


def timed(run, *given):
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    begin = clock()
    run(*given)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - begin


def compare(name, model, prompt, new, rounds):
    ids = torch.randint(3, model.config.vocab_size, (1, prompt), device=model.device)
    for run in (plain, watched):  # what is compiled and loaded once
        run(model, ids[:, :8], 2)
    seconds = {(run, count): [] for run in (plain, watched) for count in (1, new)}
    for _ in range(rounds):
        for (run, count), times in seconds.items():
            times.append(timed(run, model, ids, count))
    median = {key: statistics.median(times) for key, times in seconds.items()}
    first = {run: median[run, 1] for run in (plain, watched)}
    each = {run: 1000 * (median[run, new] - median[run, 1]) / (new - 1) for run in (plain, watched)}
    print(
        f"| {name} | {prompt:,} | {first[plain]:.2f} s | {first[watched]:.2f} s | {each[plain]:.1f} ms | "
        f"{each[watched]:.1f} ms | **{each[watched] / each[plain]:.2f}** |",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder instead of random models")
    parser.add_argument("--prompt", type=int, nargs="+", default=[128, 1024], help="tokens of the prompt")
    parser.add_argument("--new", type=int, default=32, help="new tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    print(f"device {device}, {given.dtype}, 1 thread, {given.new} new tokens")
    print("| model | prompt | first token | watched | each token | watched | ratio |")
    print("|---|---|---|---|---|---|---|")
    if given.model:
        models = {given.model.rstrip("/").rpartition("/")[2]: lambda: AutoModelForCausalLM.from_pretrained(given.model)}
    else:
        models = {name: lambda shape=shape: random_model(shape) for name, shape in SHAPES.items()}
    for name, make in models.items():
        model = make().to(device, getattr(torch, given.dtype)).eval()
        model.generation_config.eos_token_id = None
        for prompt in given.prompt:
            compare(name, model, prompt, given.new, given.rounds)
        del model


if __name__ == "__main__":
    main()
