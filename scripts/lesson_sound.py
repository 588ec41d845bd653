"""Write what the lesson on heads draws of a sound: its spectrogram, and queries and keys of two heads of Whisper.

    python scripts/real_models.py . whisper-tiny.en && python scripts/lesson_sound.py whisper-tiny.en

The decoder reads the transcript; a query is a token of it, a key a frame of 20 ms. The page takes the softmax. Frames
after the end of the sound (Whisper reads 30 seconds) are one number, the logarithm of their sum. A synthetic voice
(flite, for Debian: apt install flite) says the sentence, so the times of its words are exact.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

from attnscope_lineage.lessons import HERE
from attnscope_lineage.lessons.weights import packed

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.published import RATE, spoken, timed  # the benchmarks lie beside this folder

SENTENCE, VOICE = "Every keeper lights lamps before nightfall.", "slt"
HEADS = ((1, 5), (0, 0))  # one that follows the words, and one that does not
FRAMES_A_SECOND, BANDS = 50, 40


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    samples = spoken(SENTENCE, VOICE)
    words = SENTENCE.rstrip(".").split()
    said = [(word, begin, end) for word, (begin, end) in zip(words, timed(SENTENCE, VOICE), strict=True)]
    model = WhisperForConditionalGeneration.from_pretrained(options.model, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    features = WhisperFeatureExtractor(feature_size=80)(samples, sampling_rate=RATE, return_tensors="pt")
    ids = [model.config.decoder_start_token_id, 50362]  # start, no times
    owners = [-1, -1]
    for number, (word, _, _) in enumerate(said):
        pieces = tokenizer(" " + word, add_special_tokens=False).input_ids
        ids += pieces
        owners += [number] * len(pieces)
    projected: dict[tuple[str, int], torch.Tensor] = {}
    hooks = [
        getattr(layer.encoder_attn, f"{name}_proj").register_forward_hook(
            lambda _, __, output, at=(name, index): projected.__setitem__(at, output[0])
        )
        for index, layer in enumerate(model.model.decoder.layers)
        for name in "qk"
    ]
    output = model(features.input_features, decoder_input_ids=torch.tensor([ids]), output_attentions=True)
    for hook in hooks:
        hook.remove()
    frames = round(len(samples) / RATE * FRAMES_A_SECOND)
    width = model.config.d_model // model.config.decoder_attention_heads
    tokens = [position - 1 for position, owner in enumerate(owners) if owner >= 0]  # the position that predicts it
    heads = []
    for layer, head in HEADS:
        query, key = (projected[name, layer][:, head * width : (head + 1) * width].double() for name in "qk")
        scores = query[tokens] @ key.T / width**0.5
        rest = scores[:, frames:].logsumexp(-1)
        expected = output.cross_attentions[layer][0, head][tokens][:, :frames].double()
        weights = torch.cat([scores[:, :frames], rest[:, None]], -1).softmax(-1)[:, :frames]
        print(f"head {layer}.{head}: largest difference from eager attention {(weights - expected).abs().max():.1e}")
        heads.append(
            {"name": f"{layer}.{head}", "arrays": packed({"q": query[tokens], "k": key[:frames], "rest": rest})}
        )
    mel = features.input_features[0, :, : 2 * frames].reshape(BANDS, 80 // BANDS, frames, 2).mean((1, 3))
    scaled = (mel - mel.min()) / (mel.max() - mel.min())
    written = {
        "model": options.model.name,
        "seconds": frames / FRAMES_A_SECOND,
        "words": [{"word": word, "begin": begin, "end": end} for word, begin, end in said],
        "tokens": [{"text": tokenizer.decode([ids[at + 1]]).strip(), "word": owners[at + 1]} for at in tokens],
        "heads": heads,
        "spectrogram": np.round(99 * scaled.numpy()).astype(int).tolist(),
    }
    (HERE / "heads" / "sound.json").write_text(json.dumps(written, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
