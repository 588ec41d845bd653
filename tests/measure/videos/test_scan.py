"""Scans of videos, held against the matrices that eager attention returns."""

import json

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.store.arrays import unpacked
from tests.video_models import ENCODERS, FRAMES, save_video_encoder, video_encoder, write_frames

#: Tokens of a video, and the first that is a tubelet.
TOKENS = {"videomae": (64, 0), "vivit": (65, 1), "timesformer": (129, 1), "vjepa2": (64, 0)}


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Two folders of frames in a folder; of the second, more than a model reads."""
    folder = tmp_path_factory.mktemp("videos") / "clips"
    write_frames(folder / "boat", FRAMES)
    write_frames(folder / "waves", FRAMES + 4)
    return folder


def pixels(count=1):
    return torch.rand(count, FRAMES, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def eager(model, video):
    """Weights (layer, head, query, key) of an encoder, by transformers alone."""
    model.set_attn_implementation("eager")
    base = model.base_model
    more = {"skip_predictor": True} if base.main_input_name == "pixel_values_videos" else {}
    with torch.no_grad():
        found = base(video, output_attentions=True, **more)
    return torch.cat(found.attentions).double().numpy()


@pytest.mark.parametrize("family", ENCODERS)
def test_statistics_are_those_of_the_eager_matrices(family):
    video = pixels()
    found = attnscope.scan(video_encoder(family), video, device="cpu").isel(window=0)
    weights = eager(video_encoder(family), video)
    tokens, first = TOKENS[family]
    assert weights.shape[-2:] == (tokens, tokens)
    assert int(found.length) == tokens
    rows = -np.where(weights > 0, weights * np.log(np.maximum(weights, 1e-300)), 0).sum(-1)
    np.testing.assert_allclose(found.entropy, rows.mean(-1), rtol=1e-4)
    steps = FRAMES if family == "timesformer" else FRAMES // 2
    assert (int(found.video_frames), int(found.video_rows), int(found.video_columns)) == (steps, 4, 4)
    inner = weights[..., first:, first:]
    if family == "timesformer":  # whose tokens stand patch by patch, all frames of one after another
        inner = inner.reshape(*inner.shape[:2], 16, steps, 16, steps).transpose(0, 1, 3, 2, 5, 4)
    else:
        inner = inner.reshape(*inner.shape[:2], steps, 16, steps, 16)
    between = inner.sum(-1).mean(-2)
    np.testing.assert_allclose(found.group_weight.values[..., :steps, :steps], between, rtol=1e-3, atol=1e-5)
    assert np.ptp(between) > 0.01, "frames are looked at unequally"
    assert ("special" in found.group_query.values) == bool(first)
    offset = 4
    diagonal = np.trace(weights, offset, -2, -1) / (tokens - offset)
    np.testing.assert_allclose(found.profile.sel(offset=offset), diagonal, rtol=1e-3, atol=1e-6)


def test_a_folder_of_folders_is_read_and_longer_videos_at_even_steps(tmp_path, clips):
    folder = save_video_encoder("videomae", tmp_path / "videomae")
    found = attnscope.scan(folder, clips, out=tmp_path / "run", show=[(0, 0)])
    assert found.source.values.tolist() == ["boat", "waves"]
    assert "Longer videos were sampled to 8 frames" in found.attrs["videos"]
    assert "without its head" in found.attrs["tower"]
    assert found.group_query.values.tolist() == ["frames 1-2", "frames 3-4", "frames 5-6", "frames 7-8"]
    sample = unpacked((tmp_path / "run" / "sample.npz").read_bytes())
    assert sample.view_name.values[:2].tolist() == ["frames 1-2", "frames 3-4"]
    assert (sample.view_rows.values == 4).all()
    assert all(len(picture) > 100 for picture in sample.view_picture.values)
    assert sample.view_position.values[0, :18].tolist() == [*range(16), 0, 1]
    (tmp_path / "clips.jsonl").write_text(
        "\n".join(json.dumps({"video": str(clips / name)}) for name in ("boat", "waves"))
    )
    lines = attnscope.scan(folder, tmp_path / "clips.jsonl")
    np.testing.assert_array_equal(lines.entropy, found.entropy)
    assert lines.source.values.tolist() == ["clips.jsonl:1", "clips.jsonl:2"]
    alone = attnscope.scan(folder, clips / "boat")
    np.testing.assert_array_equal(alone.entropy.values[0], found.entropy.values[0])


def test_tubelets_offsets_and_steps_are_named():
    matrix = attnscope.weights(video_encoder("videomae"), pixels(), layer=1, head=0)
    np.testing.assert_allclose(matrix, eager(video_encoder("videomae"), pixels())[1, 0], atol=1e-5)
    assert matrix.key_token.values[[0, 17]].tolist() == ["frames 1-2 r0c0", "frames 3-4 r0c1"]
    notes = [attnscope.scan(video_encoder(family), pixels()).attrs["videos"] for family in ("vivit", "timesformer")]
    assert "+1 is the patch to the right, +4 the one below, +16 the same patch one step later" in notes[0]
    assert "+8 is the patch to the right, +32 the one below, +1 the same patch one step later" in notes[1]
    many = attnscope.scan(video_encoder("videomae", frames=20), torch.rand(1, 20, 3, 32, 32))
    assert many.group_query.values.tolist() == [f"frames {first}-{first + 3}" for first in (1, 5, 9, 13, 17)]


def refused(*given, **settings):
    with pytest.raises(AttnscopeError) as caught:
        attnscope.scan(*given, **settings)
    return str(caught.value)


def test_what_does_not_fit_is_rejected_by_name(tmp_path, clips):
    folder = save_video_encoder("videomae", tmp_path / "videomae")
    write_frames(tmp_path / "short", 4)
    message = refused(folder, tmp_path / "short")
    assert "VideoMAEModel cannot read short" in message
    assert "It reads 8 frames, and the input has 4" in message
    assert "found images, and the model reads videos" in refused(folder, clips / "boat" / "0.png")
    (tmp_path / "clips.jsonl").write_text(json.dumps({"video": str(clips / "boat")}))
    assert "the model reads none" in refused("bundled", tmp_path / "clips.jsonl")
    film = tmp_path / "film"
    film.mkdir()
    (film / "boat.mp4").write_bytes(b"")
    assert "is a video file, which attnscope does not decode" in refused(folder, film)
    assert "groups (--groups) needs texts, but the input is videos" in refused(folder, clips, groups="types")
    long = torch.rand(8, 3, 32, 32)
    assert "video 2 is read as 4 frames" in refused(video_encoder("vjepa2"), [long, long[:4]])
    message = refused(video_encoder("timesformer", attention_type="divided_space_time"), pixels())
    assert "of TimesformerModel attends in 16 parts from 8 positions to 8, but the video has 129 tokens" in message
    assert "layer 0 (encoder.layer.0.temporal_attention.attention)" in message
