"""Generated sounds, and tiny models of speech, saved as users have them."""

import numpy as np
import torch
import transformers
from scipy.io import wavfile
from transformers import AutoTokenizer

from attnscope.bundled import MODEL

RATES = (16_000, 44_100, 8_000)
SECONDS = (0.5, 0.8, 1.2)
SAID = ("The tide comes in.", "It goes out again.", "The boats lie on the mud.")
_SMALL = {
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}


def write_sounds(folder):
    """Rising tones with noise, at several rates, one of them with two channels."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number, (rate, seconds) in enumerate(zip(RATES, SECONDS, strict=True)):
        time = np.arange(int(rate * seconds)) / rate
        wave = 0.5 * np.sin(2 * np.pi * (200 + 150 * time) * time) + 0.05 * generator.normal(size=len(time))
        samples = (32767 * wave).clip(-32768, 32767).astype(np.int16)
        wavfile.write(folder / f"{number}.wav", rate, np.stack([samples] * 2, 1) if number == 1 else samples)
    return folder


def save_wav2vec2(folder):
    """An encoder that reads the wave."""
    torch.manual_seed(0)
    config = transformers.Wav2Vec2Config(
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=32,
        conv_dim=[8] * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        initializer_range=0.5,
    )
    transformers.Wav2Vec2Model(config).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder


def save_whisper(folder, seconds=2):
    """Whisper, of which a window lasts 2 seconds, with the bundled tokenizer."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    config = transformers.WhisperConfig(
        **_SMALL,
        vocab_size=len(tokenizer),
        d_model=16,
        num_mel_bins=16,
        max_source_positions=50 * seconds,
        max_target_positions=32,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        init_std=0.3,
    )
    transformers.WhisperForConditionalGeneration(config).save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=seconds).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
