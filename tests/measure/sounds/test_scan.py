"""Scans of sounds, held against the matrices that eager attention returns."""

import numpy as np
import pytest
import torch
import transformers
import xarray as xr
from scipy.io import wavfile
from scipy.signal import resample_poly
from transformers import AutoFeatureExtractor, AutoModel, AutoTokenizer, WhisperForConditionalGeneration

import attnscope
from attnscope import AttnscopeError
from attnscope.measure.labels import summarize
from attnscope.store.arrays import unpacked
from tests.speech_models import RATES, SAID, save_wav2vec2, save_whisper, write_sounds

FRAMES = [25, 40, 60]  # of 20 ms, in sounds of 0.5, 0.8 and 1.2 seconds


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("sounds")
    write_sounds(place / "sounds")
    save_wav2vec2(place / "wav2vec2")
    save_whisper(place / "whisper")
    return place


@pytest.fixture(scope="module")
def heard(place):
    """Of the encoder alone."""
    return attnscope.scan(place / "whisper", place / "sounds", device="cpu")


@pytest.fixture(scope="module")
def told(place):
    """With transcripts, in a run folder."""
    given = {"targets": list(SAID), "device": "cpu"}
    return attnscope.scan(place / "whisper", place / "sounds", out=place / "run", show=[], **given)


def waves(place):
    """The sounds at 16 kHz, by SciPy alone."""
    for number, rate in enumerate(RATES):
        samples = wavfile.read(place / "sounds" / f"{number}.wav")[1] / 32768
        one = samples if samples.ndim == 1 else samples.mean(1)
        up, down = {16_000: (1, 1), 44_100: (160, 441), 8_000: (2, 1)}[rate]
        yield resample_poly(one, up, down) if rate != 16_000 else one


def eager(model, extractor, wave, **more):
    name = model.main_input_name
    given = extractor(wave.astype(np.float32), sampling_rate=16_000, return_tensors="pt")[name]
    with torch.no_grad():
        return model(**{name: given}, output_attentions=True, **more)


def check(found, place, weights, frames):
    """Statistics of one layer in one sound, of weights (head, query, key) of which so many rows count."""
    rows = weights.double().numpy()[:, :frames]
    keys = rows.shape[-1]
    own = found.isel(window=place[0], layer=place[1])
    entropy = -(rows * np.log(np.where(rows > 0, rows, 1))).sum(-1).mean(-1)
    np.testing.assert_allclose(own.entropy, entropy, rtol=2e-4)
    np.testing.assert_allclose(own.max_weight, rows.max(-1).mean(-1), rtol=2e-4)
    for offset in (-2, -1, 0, 1, 5):
        queries = np.arange(max(0, -offset), min(frames, keys - offset))
        mean = rows[:, queries, queries + offset].mean(-1)
        np.testing.assert_allclose(own.profile.sel(offset=offset), mean, rtol=5e-4, atol=1e-7)
    return rows


def test_wav2vec2_has_the_statistics_of_its_matrices(place):
    found = attnscope.scan(place / "wav2vec2", place / "sounds", device="cpu")
    model = AutoModel.from_pretrained(place / "wav2vec2", attn_implementation="eager").eval()
    extractor = AutoFeatureExtractor.from_pretrained(place / "wav2vec2")
    assert "Tokens are frames of 20 ms" in found.attrs["sounds"]
    for number, wave in enumerate(waves(place)):
        weights = eager(model, extractor, wave).attentions
        assert int(found.length[number]) == weights[0].shape[-1]
        for layer, own in enumerate(weights):
            check(found, (number, layer), own[0], own.shape[-1])


def test_whispers_encoder_is_measured_on_what_is_sound(place, heard):
    found = heard
    model = AutoModel.from_pretrained(place / "whisper", attn_implementation="eager").eval().get_encoder()
    extractor = AutoFeatureExtractor.from_pretrained(place / "whisper")
    assert found.length.values.tolist() == FRAMES
    assert "125 of 300 frames in 3 windows are sound" in found.attrs["sounds"]
    assert found.attrs["decoder"] == "No transcripts: only the encoder was measured."
    for number, wave in enumerate(waves(place)):
        for layer, own in enumerate(eager(model, extractor, wave).attentions):
            assert own.shape[-1] == 100
            rows = check(found, (number, layer), own[0], FRAMES[number])
            silence = rows[..., FRAMES[number] :].sum(-1).mean(-1)
            np.testing.assert_allclose(found.special_tokens.values[number, layer], silence, rtol=2e-4)
            null = (100 - FRAMES[number]) / 100
            np.testing.assert_allclose(found.equal_special_tokens.values[number, layer], null, rtol=1e-6)


def test_transcripts_give_decoder_and_cross_attention(place, told):
    found = told
    assert found.layer_kind.values.tolist() == ["self", "self", "causal", "cross"]
    assert found.attrs["decoder"] == "The decoder read the transcripts."
    tokenizer = AutoTokenizer.from_pretrained(place / "whisper")
    model = WhisperForConditionalGeneration.from_pretrained(place / "whisper", attn_implementation="eager").eval()
    extractor = AutoFeatureExtractor.from_pretrained(place / "whisper")
    for number, (wave, said) in enumerate(zip(waves(place), SAID, strict=True)):
        ids = torch.tensor([tokenizer(said)["input_ids"][:-1]])  # which begins with the start token
        assert int(found.target_length[number]) == ids.shape[1]
        weights = eager(model, extractor, wave, decoder_input_ids=ids)
        check(found, (number, 0), weights.encoder_attentions[0][0], FRAMES[number])
        check(found, (number, 2), weights.decoder_attentions[0][0], ids.shape[1])
        rows = check(found, (number, 3), weights.cross_attentions[0][0], ids.shape[1])
        silence = rows[..., FRAMES[number] :].sum(-1).mean(-1)
        np.testing.assert_allclose(found.special_tokens.values[number, 3], silence, rtol=2e-4)


def test_no_head_leans_to_a_side_because_of_silence(heard):
    """From the mean key alone, half on the first frame and half on silence looks like all on the last frame."""
    found = heard
    assert found.frames.values.tolist() == [100] * 3
    shares = xr.full_like(found.bin_sum, 0.0)
    for first, share in ((-32, 0.45), (33, 0.55)):  # the first frames, and what is no sound
        shares[{"offset_bin": found.bin_first.values == first}] = share
    leaning = found.drop_vars(["label", "label_share", "centroid", "cluster"]).assign(
        bin_sum=shares * found.length, mean_offset=found.mean_offset * 0 + 20, first_token=found.first_token * 0
    )
    names = {
        with_frames: set(summarize(one).cluster.values.tolist())
        for with_frames, one in ((True, leaning), (False, leaning.drop_vars("frames")))
    }
    assert not names[True] & {"leftward", "rightward"}
    assert names[False] & {"leftward", "rightward"}


def test_transcripts_beside_the_sounds_are_read(place, told, tmp_path):
    folder = write_sounds(tmp_path / "sounds")
    for number, said in enumerate(SAID):
        (folder / f"{number}.txt").write_text(said + "\n")
    beside = attnscope.scan(place / "whisper", folder)
    np.testing.assert_array_equal(beside.entropy, told.entropy)
    found = attnscope.scan(place / "wav2vec2", folder, statistics="entropy")
    assert found.decoder == "The transcripts were not read: Wav2Vec2Model has no decoder."
    (folder / "1.txt").write_text("")
    with pytest.raises(AttnscopeError, match="transcript 2 is empty"):
        attnscope.scan(place / "whisper", folder)
    (folder / "1.txt").unlink()
    with pytest.raises(AttnscopeError, match=r"1\.wav has no transcript"):
        attnscope.scan(place / "whisper", folder)


def test_a_run_folder_keeps_maps_with_times(place, told):
    assert attnscope.open_run(place / "run").identical(told)
    sample = unpacked((place / "run" / "sample.npz").read_bytes())
    assert sample.token.values[0, [0, 1, 50]].tolist() == ["0.00s", "0.02s", "1.00s"]
    assert sample.special.values[0, [24, 25]].tolist() == [False, True]
    assert sample.target_token.values[0, 0] == "<s>"


def test_long_sounds_are_cut_and_beside_transcripts_rejected(place):
    long = {"array": np.random.default_rng(0).normal(size=16_000 * 31), "sampling_rate": 16_000}
    found = attnscope.scan(place / "wav2vec2", long, statistics="entropy")
    assert found.start.values.tolist() == [0, 30]
    assert found.source.values.tolist() == ["sound 1", "sound 1"]
    with pytest.raises(AttnscopeError, match=r"lasts 31\.0 s"):
        attnscope.scan(place / "whisper", long, targets=["The tide."])


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        ("whisper", {"show": [(0, 99)]}, "there is no head 0.99 (show, --show): layers go from 0 to"),
        ("wav2vec2", {"targets": list(SAID)}, "has no decoder to read transcripts"),
        ("whisper", {"targets": ["The tide."]}, "found 3 sounds and 1 transcript "),
        ("whisper", {"window": 8}, "window (--window) needs texts, but the input is sounds"),
        ("whisper", {"band": 100}, "in windows of 100 frames the largest offset is 99"),
        ("bundled", {}, "reads text, not sounds"),
        ("whisper", {"texts": ["The tide."]}, "reads input_features, not text. Give it sounds (.wav)"),
        (
            "wav2vec2",
            {"texts": [{"array": np.zeros(size), "sampling_rate": 16_000} for size in (8_000, 100)]},
            "sound 2 from second 0 has 100 samples at 16,000 per second, too few",
        ),
    ],
)
def test_what_does_not_fit_is_rejected(place, model, given, message):
    with pytest.raises(AttnscopeError) as caught:
        attnscope.scan(model if model == "bundled" else place / model, **{"texts": place / "sounds"} | given)
    assert message in str(caught.value)


WAVES = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}


def scan_of(family, extractor=None, **settings):
    config = getattr(transformers, f"{family}Config")(**settings)
    wave = {"array": np.random.default_rng(0).normal(size=16_000), "sampling_rate": 16_000}
    model = getattr(transformers, f"{family}Model")(config)
    return attnscope.scan(model, wave, tokenizer=extractor or transformers.Wav2Vec2FeatureExtractor())


@pytest.mark.parametrize("family", ["WavLM", "UniSpeech"])
def test_other_readers_of_waves_are_measured(family):
    found = scan_of(family, **WAVES, conv_dim=[8] * 7)
    assert int(found.length[0]) == 49
    assert found.attrs["capture"] == "registry"


def test_models_with_unknown_frames_are_rejected():
    with pytest.raises(AttnscopeError, match="attends over 24 positions, but its encoder has 49 frames"):
        scan_of("SEW", **WAVES, conv_dim=[8] * 13)
    small = {"max_length": 100, "num_mel_bins": 32}
    reader = transformers.ASTFeatureExtractor(**small)
    with pytest.raises(AttnscopeError, match="so its frames are unknown"):
        scan_of(
            "AST", reader, hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16, **small
        )


def test_ends_that_are_left_out_are_counted(place):
    sounds = [{"array": np.sin(np.arange(size) / 9), "sampling_rate": 16_000} for size in (40_000, 48_000, 8_100)]
    found = attnscope.scan(place / "whisper", sounds, statistics="entropy")  # of 2 seconds at once
    assert found.length.values.tolist() == [100, 100, 50, 26]
    assert found.sounds.endswith("are left out: 1 (0.50 s in all).")


def test_a_short_sound_is_measured_within_a_smaller_band(place):
    sound = {"array": np.sin(np.arange(2_000) / 9), "sampling_rate": 16_000}
    found = attnscope.scan(place / "wav2vec2", sound, statistics="profile")
    assert found.length.values.tolist() == [6]
    assert found.offset.values.tolist() == list(range(-5, 6))
    with pytest.raises(AttnscopeError, match=r"band \(--band\) is 6; in windows of 6 frames"):
        attnscope.scan(place / "wav2vec2", sound, band=6)


@pytest.mark.parametrize("size", [24_000, 32_000], ids=["three quarters", "all"])
def test_heads_of_an_untrained_whisper_have_no_names(tmp_path, size):
    """Many rest on what is no sound, whose frames are all alike, or on the first frame of the window, an outlier."""
    model = WhisperForConditionalGeneration.from_pretrained(save_whisper(tmp_path / "whisper"))
    torch.manual_seed(3)
    for name, weight in model.named_parameters():
        if "encoder" in name and weight.ndim > 1 and "positions" not in name:
            torch.nn.init.normal_(weight, std=0.5)
    noise = np.random.default_rng(0).normal(size=(2, size)) / 9
    sounds = [{"array": wave, "sampling_rate": 16_000} for wave in noise]
    found = attnscope.scan(model, sounds, tokenizer=tmp_path / "whisper")
    rests = np.maximum(found.special_tokens, found.first_token).mean("window")
    assert float(rests.max()) > 0.5
    assert found.labels.startswith("No head labels beyond chance")
