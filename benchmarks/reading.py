"""What reading costs beside the tokenizer alone: windows of a text, cut, padded and named by nobody.

    python benchmarks/reading.py --corpus ../shared/data/wikitext-2/valid.txt

One core. `tokenizer`: the text in pieces of 100,000 characters, with the characters of each token. `windows`: the
windows that a scan cuts. `batches`: these in padded batches of 2,048 tokens, as tensors. Tokens a second of the
processor, in turns; ratios are medians over the turns.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from transformers import AutoTokenizer

from attnscope.bundled import MODEL
from attnscope.measure.passes import WindowBatch
from attnscope.measure.reader import chunked
from attnscope.read.shown import PIECE
from attnscope.read.texts import Corpus
from attnscope.read.windows import Windows

TOKENS = 2048  # of a batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--tokenizer", default=MODEL)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--turns", type=int, default=7)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(chosen.tokenizer)
    pad = tokenizer.pad_token_id or 0
    corpus = Corpus.from_sources([chosen.corpus])
    texts = [text.content for text in corpus]
    windows = Windows(corpus, tokenizer, length=chosen.length)

    def tokenized() -> int:
        pieces = (text[at : at + PIECE] for text in texts for at in range(0, len(text), PIECE))
        options = {"add_special_tokens": False, "return_offsets_mapping": True, "return_attention_mask": False}
        return sum(len(tokenizer(piece, **options)["input_ids"]) for piece in pieces)

    def cut() -> int:
        return sum(map(len, windows))

    def padded() -> int:
        parts = chunked(enumerate(windows), max(1, TOKENS // chosen.length))
        batches = (WindowBatch.of([*part.values()], pad) for part in parts)
        return sum(batch.text.input_ids.numel() for batch in batches)

    ways: dict[str, Callable[[], int]] = {"tokenizer": tokenized, "windows": cut, "batches": padded}
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(chosen.turns + 1):
        for name, way in ways.items():
            begun = time.process_time()
            tokens = way()
            if turn:  # the first warms up
                speeds[name].append(tokens / (time.process_time() - begun))
    print(f"{chosen.tokenizer}, windows of {chosen.length} tokens")
    for name, each in speeds.items():
        ratio = statistics.median(one / alone for one, alone in zip(each, speeds["tokenizer"], strict=True))
        print(
            f"{name:10}{statistics.median(each) / 1e6:8.2f} million tokens a second{ratio:8.2f} of the tokenizer alone"
        )


if __name__ == "__main__":
    main()
