"""The notebooks of BertViz, redone with `attnscope.view`: lines of code, seconds and megabytes of each cell.

    pip install bertviz    # beside attnscope, in an environment of its own
    python benchmarks/view.py

Each task is written as BertViz documents it (the model is loaded before), and with attnscope. Both make what a
notebook stores. BERT-base and GPT-2 have random weights, and the translator is a small one of random weights; sizes and
times do not depend on them. Cells take turns, after one call of each; printed are medians.
"""

from __future__ import annotations

import re
import statistics
import time
from typing import Any

import torch
import transformers

import attnscope
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model

A = "The tide comes in twice a day, and the harbour fills with boats."
B = "Twice a day the water goes out again, and the boats lie in the mud."
READ = "inputs = tokenizer(a, b, return_tensors='pt')\noutputs = model(**inputs, output_attentions=True)\n"
READ += "tokens = tokenizer.convert_ids_to_tokens(inputs['input_ids'][0])\n"
PAIR = READ + "start = 1 + (inputs['input_ids'][0] == tokenizer.sep_token_id).nonzero()[0].item()\n"
ONE = READ.replace("a, b", "a")
BOTH = (
    "encoder_ids = tokenizer(a, return_tensors='pt').input_ids\n"
    "decoder_ids = tokenizer(b, return_tensors='pt').input_ids\n"
    "outputs = model(input_ids=encoder_ids, decoder_input_ids=decoder_ids, output_attentions=True)\n"
    "{}(encoder_attention=outputs.encoder_attentions, decoder_attention=outputs.decoder_attentions,\n"
    "   cross_attention=outputs.cross_attentions, encoder_tokens=tokenizer.convert_ids_to_tokens(encoder_ids[0]),\n"
    "   decoder_tokens=tokenizer.convert_ids_to_tokens(decoder_ids[0]), html_action='return')"
)
TASKS = {
    "one sentence, head view": ("gpt2", ONE + "head_view(outputs.attentions, tokens, html_action='return')", "a"),
    "one sentence, model view": ("gpt2", ONE + "model_view(outputs.attentions, tokens, html_action='return')", "a"),
    "sentence pair, head view": (
        "bert",
        PAIR + "head_view(outputs.attentions, tokens, start, html_action='return')",
        "pair",
    ),
    "sentence pair, model view": (
        "bert",
        PAIR + "model_view(outputs.attentions, tokens, start, html_action='return')",
        "pair",
    ),
    "encoder-decoder, head view": ("t5", BOTH.format("head_view"), "both"),
    "encoder-decoder, model view": ("t5", BOTH.format("model_view"), "both"),
}
OURS = {
    "a": "attnscope.view(loaded, a)",
    "pair": "attnscope.view(loaded, pair=(a, b))",
    "both": "attnscope.view(loaded, a, targets=b)",
}


def models(tokenizer: Any) -> dict[str, Any]:
    """Models of the usual shapes."""
    size = len(tokenizer)
    torch.manual_seed(0)
    gpt2 = transformers.GPT2Config(vocab_size=size, bos_token_id=0, eos_token_id=2)
    bert = transformers.BertConfig(vocab_size=size)
    t5 = transformers.T5Config(vocab_size=size, d_model=512, num_layers=6, num_heads=8, decoder_start_token_id=0)
    return {
        "gpt2": transformers.GPT2LMHeadModel(gpt2).eval(),
        "bert": transformers.BertModel(bert).eval(),
        "t5": transformers.T5ForConditionalGeneration(t5).eval(),
    }


def main() -> None:
    """Print the table."""
    from bertviz import head_view, model_view

    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    known = models(tokenizer)
    print("| task | BertViz | attnscope |\n|---|---|---|")
    for task, (kind, theirs, ours) in TASKS.items():
        known[kind].set_attn_implementation("eager")
        names = {"model": known[kind], "tokenizer": tokenizer, "a": A, "b": B, "head_view": head_view}
        names |= {"model_view": model_view, "attnscope": attnscope}
        names["loaded"] = load_model(known[kind], tokenizer=tokenizer)
        cells = {"bertviz": theirs, "attnscope": OURS[ours]}
        seconds: dict[str, list[float]] = {name: [] for name in cells}
        sizes: dict[str, int] = {}
        for turn in range(4):
            for name, cell in cells.items():
                *lines, last = re.split(r"\n(?! )", cell)  # a statement a line, or more with indents
                began = time.process_time()
                exec("\n".join(lines), names)  # noqa: S102 the cells above
                shown = eval(last, names)  # noqa: S307
                data = getattr(shown, "data", None) or shown._repr_html_()
                if turn:
                    seconds[name].append(time.process_time() - began)
                sizes[name] = len(data.encode())
        rows = [
            f"{len(cell.splitlines())} lines, {statistics.median(seconds[name]):.2f} s, {sizes[name] / 1e6:.2f} MB"
            for name, cell in cells.items()
        ]
        print(f"| {task} | {' | '.join(rows)} |", flush=True)


if __name__ == "__main__":
    main()
