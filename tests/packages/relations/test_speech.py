"""Words and their sound: times in files, paths as transformers finds them, planted times, real Whisper."""

import base64
import difflib
import gzip
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from scipy import stats
from scipy.io import wavfile
from scipy.ndimage import median_filter
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

import attnscope
from attnscope import AttnscopeError
from attnscope.results.export import export
from attnscope.results.reports import figures_of, report_of, write_page
from attnscope.results.scan_report import sample_of
from attnscope_relations import relations
from attnscope_relations.shown import texts_of
from attnscope_relations.speech_summary import ALL, BEST, CHOSEN, PUBLISHED
from attnscope_relations.summary import halves_of
from attnscope_relations.warping import filtered, first_frames
from attnscope_relations.word_times import said_in
from tests.cli.command import attnscope as command
from tests.speech_models import save_wav2vec2, save_whisper
from tests.test_documents import PAGES, run

FRAME = 0.02
SENTENCES = (
    "The tide comes in.",
    "It goes out again.",
    "The boats lie on the mud.",
    "A bird stands on one leg.",
    "Rain falls on the sea.",
    "The keeper lights the lamp.",
    "Nobody sees the last ship.",
    "Night comes over the bay.",
)


def words_of(text):
    return text.rstrip(".").split()


def even(text, seconds):
    """Times of words at a constant pace."""
    words = words_of(text)
    ends = np.linspace(0.1, seconds - 0.1, len(words) + 1).round(3).tolist()
    return [
        {"word": word, "begin": first, "end": last}
        for word, first, last in zip(words, ends[:-1], ends[1:], strict=True)
    ]


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return save_whisper(tmp_path_factory.mktemp("speech") / "whisper")


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sounds")
    generator = np.random.default_rng(0)
    for number, text in enumerate(SENTENCES):
        seconds = 1.0 + 0.1 * number
        time = np.arange(int(16_000 * seconds)) / 16_000
        wave = 0.5 * np.sin(2 * np.pi * (200 + 150 * number * time) * time) + 0.05 * generator.normal(size=len(time))
        wavfile.write(folder / f"{number}.wav", 16_000, (32767 * wave).clip(-32768, 32767).astype(np.int16))
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
        (folder / f"{number}.json").write_text(json.dumps(even(text, seconds)), encoding="utf-8")
    return folder


def eager(model, folder, path):
    """Rows ``(layer, head, token, frame)`` of a sound by eager attention, tokens with their words, and the duration."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reader = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    rate, samples = wavfile.read(path)
    text = path.with_suffix(".txt").read_text(encoding="utf-8")
    coded = tokenizer(text, return_offsets_mapping=True)
    ids = coded["input_ids"]
    start = model.config.decoder_start_token_id
    inputs = ids[:-1] if ids[0] == start else [start, *ids[:-1]]
    spans = coded["offset_mapping"][: len(inputs)] if ids[0] == start else [(0, 0), *coded["offset_mapping"][:-1]]
    sound = reader(samples / 2**15, sampling_rate=rate, return_tensors="pt").input_features
    with torch.no_grad():
        out = model(input_features=sound, decoder_input_ids=torch.tensor([inputs]), output_attentions=True)
    weights = torch.cat(out.cross_attentions).double().numpy()
    frames = int(np.ceil(len(samples) / rate / FRAME))
    first = next(at for at, (begin, end) in enumerate(spans) if end > begin)
    rows = weights[:, :, first - 1 :, :frames]
    rows = rows / rows.sum(-1, keepdims=True)
    words, at = [], 0
    for begin, end in spans[first:]:
        part = text[begin:end]
        at += bool(words) and (part.startswith(" ") or text[begin - 1 : begin] == " ")
        words.append(at if any(map(str.isalnum, part)) else -1)
    return rows, np.array(words), len(samples) / rate


def begins(rows, heads):
    """The first second of each token by some heads, written out with the functions of SciPy and transformers."""
    several = np.stack([rows[head] for head in heads])
    several = (several - several.mean(1, keepdims=True)) / several.std(1, keepdims=True)
    tokens, frames = _dynamic_time_warping(-median_filter(several, (1, 1, 7), mode="mirror").mean(0))
    return np.array([frames[np.searchsorted(tokens, token)] for token in range(rows.shape[2])]) * FRAME


def test_paths_are_those_of_whispers_dynamic_time_warping():
    generator = np.random.default_rng(0)
    for _ in range(100):
        tokens, frames = generator.integers(1, 12), generator.integers(1, 40)
        maps = generator.normal(size=(3, tokens, frames))
        for map_, found in zip(maps, first_frames(maps), strict=True):
            of_tokens, of_frames = _dynamic_time_warping(-map_)
            assert found.tolist() == [of_frames[np.searchsorted(of_tokens, token)] for token in range(tokens)]


def test_weights_are_filtered_as_whispers_are():
    weights = torch.rand(2, 3, 9, 30).softmax(-1)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    torch.testing.assert_close(filtered(weights), _median_filter((weights - mean) / deviation, 7))


def test_scores_are_those_of_eager_attention_written_out(whisper, sounds):
    found = relations(whisper, sounds, untrained=False)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(whisper, attn_implementation="eager").eval()
    heads = [(0, 0), (0, 1)]
    near, right, late, order, together, counts = [], [], [], [], [], []
    for number, text in enumerate(SENTENCES):
        rows, words, seconds = eager(model, whisper, sounds / f"{number}.wav")
        times = np.array([(one["begin"], one["end"]) for one in even(text, seconds)])
        known = np.flatnonzero(words >= 0)
        middle = (np.arange(rows.shape[-1]) + 0.5) * FRAME
        inside = (middle >= times[words[known], :1] - 0.1) & (middle <= times[words[known], 1:] + 0.1)
        near.append((rows[:, :, known] * inside).sum((-1, -2)))
        right.append(np.take_along_axis(inside[None, None], rows[:, :, known].argmax(-1)[..., None], -1).sum((-1, -2)))
        means = (rows[:, :, known] * middle).sum(-1)
        order.append([[stats.spearmanr(mean, times[words[known]].mean(1)).statistic for mean in of] for of in means])
        firsts = np.unique(words[known], return_index=True)[1]
        errors = [1000 * np.abs(begins(rows, [head])[known[firsts]] - times[:, 0]).sum() for head in heads]
        late.append([errors])
        together.append(1000 * np.abs(begins(rows, heads)[known[firsts]] - times[:, 0]).sum())
        counts.append((len(known), len(times)))
    tokens, said = np.sum(counts, 0)
    np.testing.assert_allclose(found.weight[0], np.sum(near, 0) / tokens, atol=1e-6)
    np.testing.assert_allclose(found.score[0], np.sum(right, 0) / tokens)
    np.testing.assert_allclose(found.correlation, np.mean(order, 0), atol=1e-6)
    np.testing.assert_allclose(found.error, np.sum(late, 0) / said, atol=1e-6)
    np.testing.assert_allclose(found.set_error.sel(set=ALL), np.sum(together) / said, atol=1e-6)
    assert float(found.set_size.sel(set=ALL)) == 2


def test_the_tutorial_runs_on_a_small_twin(whisper, sounds, tmp_path, monkeypatch):
    shutil.copytree(whisper, tmp_path / "whisper-tiny.en")
    shutil.copytree(sounds, tmp_path / "sounds")
    monkeypatch.chdir(tmp_path)
    failed, tried = run(PAGES["docs/start/whisper-words.md"])
    assert tried > 4
    assert not failed


@pytest.mark.parametrize("head", [0, 1])
def test_the_head_that_gives_the_times_is_found(whisper, sounds, tmp_path, head):
    """With the starts of words by one head as their times, that head alone has no error, on the other half too."""
    model = transformers.WhisperForConditionalGeneration.from_pretrained(whisper, attn_implementation="eager").eval()
    model.generation_config.alignment_heads = [[0, 1 - head]]
    for path in sounds.glob("*.wav"):
        rows, words, seconds = eager(model, whisper, path)
        firsts = np.unique(words, return_index=True)[1][1 if (words < 0).any() else 0 :]
        starts = np.maximum.accumulate(begins(rows, [(0, head)])[firsts])
        text = path.with_suffix(".txt").read_text(encoding="utf-8")
        said = [
            {"word": word, "begin": start, "end": end}
            for word, start, end in zip(words_of(text), starts.tolist(), [*(starts[1:] + 0.01), seconds], strict=True)
        ]
        (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / f"{path.stem}.json").write_text(json.dumps(said), encoding="utf-8")
        (tmp_path / f"{path.stem}.txt").write_text(text, encoding="utf-8")
    model.set_attn_implementation("sdpa")
    found = relations(model, tmp_path, tokenizer=str(whisper), untrained=False, ablate=True)
    errors = found.set_error.to_series()
    assert errors[CHOSEN] == errors[BEST] == pytest.approx(0, abs=1e-9)
    assert errors[PUBLISHED] > 20
    assert errors[PUBLISHED] == pytest.approx(float(found.error[0, 1 - head]))
    assert found.chosen.values.tolist() == [[head == 0, head == 1]]
    assert found.listed.values.tolist() == [[head == 1, head == 0]]
    report = report_of("relations", found)
    assert report.finding.sentences[0].startswith(
        "By heads chosen on the other half of the sounds, starts of words are off by 0 ms (0 to 0) on average; by"
    )
    assert report.finding.headline == (
        "Word starts: off by 0 ms (0 to 0) with heads chosen on other sounds; "
        f"published {errors[PUBLISHED]:.0f}, random {errors['random heads']:.0f}"
    )
    assert report.rows[0]["set"] == CHOSEN
    of_words = found.isel(relation=0)
    assert int(of_words.ablated_head) == head
    assert float(of_words.margin) == pytest.approx(errors["constant pace"])
    assert float(of_words.ablated) == pytest.approx(-errors["constant pace"])  # nothing is left that gives times
    assert float(of_words.ablated_others) == 0.0
    assert bool(of_words.ablated_matters)
    assert f"Without head 0.{head}, starts of words are" in " ".join(report.finding.sentences)


def test_times_without_a_head_are_those_of_hooks_written_out(whisper, sounds, tmp_path):
    """The sets are those that each half of the sounds chooses when it is read alone."""
    config = transformers.WhisperConfig.from_pretrained(whisper)
    config.decoder_layers = 2
    torch.manual_seed(1)
    model = transformers.WhisperForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    found = relations(model, sounds, tokenizer=str(whisper), untrained=False, ablate=True).isel(relation=0)
    half = halves_of(len(SENTENCES), 0)
    sets = {}
    for side in (False, True):
        folder = tmp_path / str(side)
        folder.mkdir()
        for path in sounds.iterdir():
            if half[int(path.stem)] == side:
                (folder / path.name).write_bytes(path.read_bytes())
        of_half = relations(model, folder, tokenizer=str(whisper), untrained=False)
        sets[side] = [tuple(one) for one in np.argwhere(of_half.chosen.values).tolist()]
    layer = found.decoder_layer.values[found.layer.values.tolist().index(int(found.ablated_layer))]
    projection = model.model.decoder.layers[layer].encoder_attn.out_proj
    width = config.d_model // config.decoder_attention_heads

    def error(without):
        def replaced(_, arguments):
            states = arguments[0].clone()
            states[..., without * width : (without + 1) * width] = 0
            return (states,)

        hooks = [] if without is None else [projection.register_forward_pre_hook(replaced)]
        late, said = 0.0, 0
        for number, text in enumerate(SENTENCES):
            rows, words, seconds = eager(model, whisper, sounds / f"{number}.wav")
            starts = np.array([one["begin"] for one in even(text, seconds)])
            known = np.flatnonzero(words >= 0)
            firsts = known[np.unique(words[known], return_index=True)[1]]
            heads = [one for one in sets[not half[number]] if one != (layer, without)]
            paced = np.searchsorted(known, firsts) / len(known) * seconds
            found_begins = begins(rows, heads)[firsts] if heads else paced
            late += 1000 * np.abs(found_begins - starts).sum()
            said += len(starts)
        for hook in hooks:
            hook.remove()
        return late / said

    changes = [error(None) - error(head) for head in range(config.decoder_attention_heads)]
    assert any(changes)
    np.testing.assert_allclose(found.ablated_change.sel(layer=int(found.ablated_layer)), changes, atol=1e-6)
    np.testing.assert_allclose(found.set_error.sel(set=CHOSEN), error(None), atol=1e-6)


def test_times_by_random_weights_need_no_head(whisper, sounds, tmp_path):
    config = transformers.WhisperConfig.from_pretrained(whisper)
    config.decoder_attention_heads = 4
    generator = np.random.default_rng(0)
    for path in sounds.glob("*.wav"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
        number = int(path.stem)
        said = even(SENTENCES[number], 1.0 + 0.1 * number)
        starts = np.sort(generator.uniform(0, said[-1]["end"] - 0.1, len(said))).round(3).tolist()
        for one, start, end in zip(said, starts, [*starts[1:], said[-1]["end"]], strict=True):
            one["begin"], one["end"] = start, max(end, start + 0.01)
        (tmp_path / f"{number}.json").write_text(json.dumps(said), encoding="utf-8")
        (tmp_path / f"{number}.txt").write_text(SENTENCES[number], encoding="utf-8")
    matters = 0
    for seed in range(6):
        torch.manual_seed(seed)
        model = transformers.WhisperForConditionalGeneration(config).eval()
        found = relations(model, tmp_path, tokenizer=str(whisper), untrained=False, ablate=True)
        matters += bool(found.ablated_matters.any())
    assert matters <= 1


def test_without_times_there_are_no_errors_to_compare(whisper, sounds, tmp_path):
    (tmp_path / "0.wav").write_bytes((sounds / "0.wav").read_bytes())
    (tmp_path / "0.txt").write_text(SENTENCES[0], encoding="utf-8")
    with pytest.raises(AttnscopeError, match="no sound has times of words"):
        relations(whisper, tmp_path, ablate=True)


def test_the_best_head_is_scored_on_the_sounds_that_did_not_choose_it(whisper, sounds):
    found = relations(whisper, sounds, untrained=False)
    errors = found.window_error.values.reshape(found.sizes["window"], -1)
    words = found.window_words.values

    def best_of(part):
        return int((errors[part].sum(0) / words[part].sum()).argmin())

    halves = {seed: halves_of(len(words), seed) for seed in range(50)}
    seed, half = next((seed, half) for seed, half in halves.items() if best_of(half) != best_of(~half))
    expected = np.where(half, errors[:, best_of(~half)], errors[:, best_of(half)]).sum() / words.sum()
    again = relations(whisper, sounds, untrained=False, seed=seed)
    np.testing.assert_allclose(again.set_error.sel(set=BEST), expected, rtol=1e-6)


def test_without_times_the_order_of_the_tokens_is_compared(whisper, sounds, tmp_path):
    for path in [*sounds.glob("*.wav"), *sounds.glob("*.txt")]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    found = relations(whisper, tmp_path)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(whisper, attn_implementation="eager").eval()
    order = []
    for path in sorted(sounds.glob("*.wav")):
        rows, words, _ = eager(model, whisper, path)
        means = (rows[:, :, np.flatnonzero(words >= 0)] * np.arange(rows.shape[-1])).sum(-1)
        order.append([[stats.spearmanr(mean, np.arange(len(mean))).statistic for mean in of] for of in means])
    np.testing.assert_allclose(found.correlation, np.mean(order, 0), atol=1e-6)
    exchanged = []
    for number, text in enumerate(SENTENCES):  # durations rise with the numbers
        beside = tmp_path / "exchanged" / f"{number}.wav"
        beside.parent.mkdir(exist_ok=True)
        beside.write_bytes((sounds / f"{max(number - 1, 1 - number)}.wav").read_bytes())
        beside.with_suffix(".txt").write_text(text, encoding="utf-8")
        rows, words, _ = eager(model, whisper, beside)
        means = (rows[:, :, np.flatnonzero(words >= 0)] * np.arange(rows.shape[-1])).sum(-1)
        exchanged.append([[stats.spearmanr(mean, np.arange(len(mean))).statistic for mean in of] for of in means])
    np.testing.assert_allclose(found.exchanged_correlation, np.mean(exchanged, 0), atol=1e-6)
    shutil.rmtree(tmp_path / "exchanged")
    assert "error" not in found
    assert not bool(found.shown.any())  # random weights follow nothing
    report = report_of("relations", found)
    assert "shows no error" in " ".join(report.care)
    done = command("relations", whisper, tmp_path, "--no-untrained", "--out", tmp_path / "run", cwd=tmp_path)
    assert "No head of the decoder follows the sound that it hears" in done.stdout
    assert (tmp_path / "run/report.html").is_file()


def test_heads_that_move_on_whatever_they_hear_do_not_follow_the_sound(whisper, sounds, tmp_path):
    """Random models whose decoder knows positions well: some heads move on with the tokens in every sound."""
    for path in sounds.glob("*.wav"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
        first = int(path.stem)
        several = " ".join((SENTENCES * 2)[first : first + 3])
        (tmp_path / f"{path.stem}.txt").write_text(several, encoding="utf-8")
    config = transformers.WhisperConfig.from_pretrained(whisper)
    config.decoder_layers, config.decoder_attention_heads = 2, 4
    shown, above_zero = 0, 0
    for seed in range(10):
        torch.manual_seed(seed)
        model = transformers.WhisperForConditionalGeneration(config).eval()
        model.model.decoder.embed_positions.weight.data *= 10
        found = relations(model, tmp_path, tokenizer=str(whisper), untrained=False)
        shown += bool(found.shown.any())
        of_sounds = found.window_correlation.values
        p = stats.ttest_1samp(of_sounds, 0, alternative="greater").pvalue
        above_zero += bool((stats.false_discovery_control(p.ravel()) <= 0.05).any())
    assert above_zero > 2  # more than 2 of 10 at 5% have a chance below 2%
    assert shown <= 2


def test_sounds_of_one_transcript_cannot_be_exchanged(whisper, sounds, tmp_path):
    for path in sounds.glob("*.wav"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / f"{path.stem}.txt").write_text(SENTENCES[0], encoding="utf-8")
    found = relations(whisper, tmp_path, untrained=False)
    assert not bool(found.tested.any())
    assert not bool(found.shown.any())
    assert "All sounds have one transcript" in " ".join(report_of("relations", found).notes)


def test_a_run_is_stored_read_again_and_drawn(whisper, sounds, tmp_path):
    stored = relations(whisper, sounds, out=tmp_path / "run")
    again = attnscope.open_run(tmp_path / "run")
    np.testing.assert_allclose(stored.set_error, again.set_error)
    np.testing.assert_allclose(stored.error, relations(whisper, sounds, untrained=False).error)
    page = write_page(report_of("relations", again), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Heads of the decoder" in page
    report = report_of("relations", again)
    layers = range(again.sizes["layer"])
    assert {row["layer"] for row in report.tables[1].rows} == {*layers}
    assert all(row["in_lists"] == f"{row['layer']}.{row['head']}" for row in report.tables[1].rows)
    assert f'"layerLabels":{json.dumps([*map(str, layers)], separators=(",", ":"))}' in page
    assert report.result.layer.values.tolist() == [*layers]


def test_the_command_reads_a_folder_of_sounds(whisper, sounds, tmp_path):
    done = command("relations", whisper, sounds, "--no-untrained", cwd=tmp_path)
    said = " ".join(done.stdout.split())
    assert "By heads chosen on the other half of the sounds, starts of words are off by" in said


LONG = """\
File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 2
tiers? <exists>
size = 3
item []:
    item [1]:
        class = "IntervalTier"
        name = "words"
        xmin = 0
        xmax = 2
        intervals: size = 4
        intervals [1]:
            xmin = 0
            xmax = 0.5
            text = ""
        intervals [2]:
            xmin = 0.5
            xmax = 0.75
            text = "say"
        intervals [3]:
            xmin = 0.75
            xmax = 1.5
            text = "\"\"so\"\""
        intervals [4]:
            xmin = 1.5
            xmax = 2
            text = "sil"
    item [2]:
        class = "TextTier"
        name = "marks"
        xmin = 0
        xmax = 2
        points: size = 1
        points [1]:
            number = 1.25
            mark = "x"
    item [3]:
        class = "IntervalTier"
        name = "phones"
        xmin = 0
        xmax = 2
        intervals: size = 1
        intervals [1]:
            xmin = 0
            xmax = 2
            text = "s"
"""
SHORT = """\
"ooTextFile"
"TextGrid"

0
2
<exists>
1
"IntervalTier"
"a - words"
0
2
2
0.5
0.75
"say"
0.75
1.5
\"\"\"so\"\"\"
"""
TIMES = {
    "long.TextGrid": LONG.encode(),
    "utf16.TextGrid": LONG.encode("utf-16"),
    "short.TextGrid": ("File type = " + SHORT).encode(),
    "a.ctm": b';; words\na 1 0.5 0.25 say 0.9\na 1 0.75 0.75 "so"\n',
    "list.json": b'[{"word": "say", "start": 0.5, "end": 0.75}, {"word": "\\"so\\"", "begin": 0.75, "end": 1.5}]',
    "segments.json": (
        b'{"segments": [{"words": [{"text": "say", "start": 0.5, "end": 0.75}]}, '
        b'{"words": [{"text": "\\"so\\"", "start": 0.75, "end": 1.5}]}]}'
    ),
    "sphinx.json": (
        b'{"w": [{"b": 0.5, "d": 0.25, "t": "say(2)"}, {"b": 0.75, "d": 0.75, "t": "\\"so\\""}, '
        b'{"b": 1, "d": 1, "t": "<sil>"}]}'
    ),
}


@pytest.mark.parametrize("name", TIMES)
def test_times_are_read_from_every_form(tmp_path, name):
    (tmp_path / name).write_bytes(TIMES[name])
    said = said_in((tmp_path / name).with_suffix(".wav"), name)
    assert said.text == 'say "so"'
    assert said.words == ((0, 3), (4, 8))
    assert said.times == ((0.5, 0.75), (0.75, 1.5))


def test_words_are_found_in_the_transcript(tmp_path):
    sound = tmp_path / "a.wav"
    times = [{"word": word, "begin": at, "end": at + 1} for at, word in enumerate(("mister", "smith", "has", "ten"))]
    (tmp_path / "a.json").write_text(json.dumps(times), encoding="utf-8")
    (tmp_path / "a.txt").write_text("Mr. Smith – has 10!\n", encoding="utf-8")
    said = said_in(sound, "a.wav")
    assert [said.text[slice(*span)] for span in said.words] == ["Mr.", "Smith", "has", "10!"]
    (tmp_path / "a.txt").write_text("Mister Smith has ten.", encoding="utf-8")
    assert [said_in(sound, "").text[slice(*span)] for span in said_in(sound, "").words] == [
        "Mister",
        "Smith",
        "has",
        "ten",
    ]
    (tmp_path / "a.txt").write_text("Smith has ten.", encoding="utf-8")
    with pytest.raises(AttnscopeError, match="4 words and the transcript"):
        said_in(sound, "a.wav")


def test_words_of_scripts_without_spaces_are_joined(tmp_path):
    times = [{"word": word, "begin": at, "end": at + 1} for at, word in enumerate(("今日", "は", "晴れ"))]
    (tmp_path / "a.json").write_text(json.dumps(times), encoding="utf-8")
    said = said_in(tmp_path / "a.wav", "a.wav")
    assert said.text == "今日は晴れ"
    assert said.words == ((0, 2), (2, 3), (3, 5))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.TextGrid", '"ooTextFile" "Pitch"', "is not a TextGrid"),
        ("a.TextGrid", LONG.replace('"words"', '"syllables"'), "0 tiers of words"),
        ("a.ctm", "a 1 0.5 x", "line 1"),
        ("a.json", '[{"word": "a", "begin": 1}]', "lacks a word"),
        ("a.json", "[1", "no times of words"),
        ("a.json", "[]", "no word with times"),
        ("a.json", '[{"word": "a", "begin": 2, "end": 1}]', "times in order"),
    ],
)
def test_times_of_another_form_are_explained(tmp_path, name, content, problem):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(AttnscopeError, match=problem):
        said_in(tmp_path / "a.wav", "a.wav")


def test_sounds_that_cannot_be_measured_are_explained(whisper, sounds, tmp_path):
    wave = (sounds / "0.wav").read_bytes()
    (tmp_path / "a.wav").write_bytes(wave)
    with pytest.raises(AttnscopeError, match="nor a transcript"):
        relations(whisper, tmp_path)
    (tmp_path / "a.txt").write_text("The tide", encoding="utf-8")
    with pytest.raises(AttnscopeError, match="no decoder"):
        relations(save_wav2vec2(tmp_path / "wav2vec2"), tmp_path / "a.wav")
    late = [{"word": "The", "begin": 1, "end": 2}, {"word": "tide", "begin": 5, "end": 6}]
    (tmp_path / "a.json").write_text(json.dumps(late), encoding="utf-8")
    with pytest.raises(AttnscopeError, match="times of another sound"):
        relations(whisper, tmp_path / "a.wav")
    (tmp_path / "b.wav").write_bytes(wave)
    (tmp_path / "b.txt").write_text("It goes", encoding="utf-8")
    with pytest.raises(AttnscopeError, match="needs texts"):
        relations(whisper, tmp_path / "a.wav", together=True)
    with pytest.raises(AttnscopeError, match="times for all, or for none"):
        relations(whisper, [tmp_path / "a.wav", tmp_path / "b.wav"])


def test_heads_are_exported_as_other_tools_read_them(whisper, sounds, tmp_path):
    found = relations(whisper, sounds, untrained=False, out=tmp_path / "run")
    made = export(tmp_path / "run", "alignment", out=tmp_path / "heads")
    heads = np.argwhere(found.chosen.values).tolist()
    written = json.loads((made / "generation_config.json").read_text())
    # the file takes the place of the model's: nothing else of it changes
    own = json.loads((whisper / "generation_config.json").read_text())
    assert written["alignment_heads"] == heads
    assert own
    assert own.items() <= (written | {"alignment_heads": own.get("alignment_heads")}).items()
    assert "error on other sounds is unknown" in (made / "README.md").read_text()
    assert json.loads((made / "faster_whisper.json").read_text()) == {"alignment_heads": heads}
    # as openai/whisper's set_alignment_heads reads it
    packed = (made / "whisper_timestamped.txt").read_bytes()
    mask = np.frombuffer(gzip.decompress(base64.b85decode(packed)), dtype=bool).reshape(found.chosen.shape)
    assert np.argwhere(mask).tolist() == heads
    listed = re.search(r"g_aheads_custom\[\] = \{ (.*) \};", (made / "whisper_cpp.h").read_text())[1]
    assert [[int(part) for part in pair] for pair in re.findall(r"\{ (\d+), (\d+) \}", listed)] == heads
    first = np.argwhere(found.set_order.values == 0).tolist()
    one = export(tmp_path / "run", "alignment", out=tmp_path / "one", top=1)
    assert json.loads((one / "generation_config.json").read_text())["alignment_heads"] == first
    with pytest.raises(AttnscopeError, match="found a run of relations; --to duo takes a card"):
        export(tmp_path / "run", "duo", out=tmp_path / "duo")


@pytest.fixture
def real():
    folder = os.environ.get("ATTNSCOPE_REAL_MODELS")
    if folder is None:
        pytest.skip("set ATTNSCOPE_REAL_MODELS to the folder that scripts/real_models.py made")
    return Path(folder)


@pytest.fixture
def recordings(real, tmp_path):
    """Five sentences read by a person, in a folder as a user has them."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    for path in (real / "librivox").glob("*.json"):
        for file in (path, path.with_suffix(".wav")):
            (folder / file.name).write_bytes(file.read_bytes())
        said = json.loads(path.read_text(encoding="utf-8"))["t"]
        (folder / f"{path.stem}.txt").write_text(f"{said.capitalize()}.", encoding="utf-8")
    return folder


@pytest.mark.real
def test_transformers_times_words_by_the_exported_heads(real, recordings, tmp_path):
    """The set that is chosen gives better times than the published list, in transformers' own word timestamps."""
    found = relations(real / "whisper-tiny.en", recordings, untrained=False, out=tmp_path / "run")
    errors = found.set_error.to_series()
    assert errors[CHOSEN] < errors[PUBLISHED] - 20
    made = export(tmp_path / "run", "alignment", out=tmp_path / "heads")
    model = transformers.WhisperForConditionalGeneration.from_pretrained(
        real / "whisper-tiny.en", attn_implementation="eager"
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(real / "whisper-tiny.en")
    reader = transformers.WhisperFeatureExtractor.from_pretrained(real / "whisper-tiny.en")
    listed = model.generation_config.alignment_heads
    chosen = json.loads((made / "generation_config.json").read_text(encoding="utf-8"))["alignment_heads"]
    late = {"listed": [], "chosen": []}
    for path in sorted(recordings.glob("*.wav")):
        rate, samples = wavfile.read(path)
        inputs = reader(samples / 2**15, sampling_rate=rate, return_tensors="pt", return_attention_mask=True)
        said = [
            (re.sub(r"\W|\(\d+\)", "", one["t"]), one["b"])
            for one in json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["w"]
            if one["t"] != "<sil>"
        ]
        for name, heads in (("listed", listed), ("chosen", chosen)):
            model.generation_config.alignment_heads = heads
            out = model.generate(**inputs, return_token_timestamps=True)
            words, starts = [], []
            ends = out["token_timestamps"][0].tolist()  # a token begins where the one before it ends
            for token, start in zip(out["sequences"][0], [0.0, *ends[:-1]], strict=True):
                part = tokenizer.decode([int(token)], skip_special_tokens=True)
                if part.startswith(" ") or not words:
                    words.append("")
                    starts.append(start)
                words[-1] += re.sub(r"\W", "", part).lower()
            matched = difflib.SequenceMatcher(None, [word for word, _ in said], words, autojunk=False)
            for block in matched.get_matching_blocks():
                late[name] += [abs(said[block.a + at][1] - starts[block.b + at]) for at in range(block.size)]
    assert len(late["chosen"]) == len(late["listed"]) > 40
    assert np.mean(late["chosen"]) < np.mean(late["listed"]) - 0.04


@pytest.mark.real
def test_the_published_list_of_whisper_base_is_found(real, recordings):
    found = relations(real / "whisper-base", recordings, untrained=False)
    assert found.listed_auroc.to_series()["weight"] > 0.95
    assert "en 5" in found.attrs["languages"]


def test_times_on_a_page_are_those_behind_the_errors(whisper, sounds, tmp_path):
    found = relations(whisper, sounds, untrained=False)
    texts = [*texts_of(sample_of(found))]
    assert [[word for word, *_ in text.said] for text in texts] == [words_of(text) for text in SENTENCES[:3]]
    name = next(name for name in texts[0].times if name.startswith("head "))
    layer, head = map(int, name.removeprefix("head ").split("."))
    for text, error in zip(texts, found.window_error.values[:, layer, head], strict=False):
        starts = [start for _, start, _ in text.said]
        distances = np.abs(np.subtract(text.times[name], starts))
        assert 1000 * distances.sum() == pytest.approx(error, abs=1.0 * len(starts))  # times are stored to 1 ms
    report = report_of("relations", found)
    assert {"sound-1", "sound-2", "sound-3"} <= {*figures_of(report)}
    assert "sound-maps" in write_page(report, tmp_path / "page.html").read_text(encoding="utf-8")
