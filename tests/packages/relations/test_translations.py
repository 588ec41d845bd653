"""Translations with links: error rates are those of `align`, and of eager attention written out for a decoder alone."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoTokenizer

import attnscope_lineage
from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.results.export import export
from attnscope.results.reports import figures_of, report_of, write_page
from attnscope.results.scan_report import sample_of
from attnscope_lineage.links import Gold, controls, read_gold, score_alignments
from attnscope_relations import relations
from attnscope_relations.shown import texts_of
from tests.cli.command import attnscope as command

SOURCES = (
    "the tide comes in",
    "it goes out again",
    "the boats lie on the mud",
    "a bird stands on one leg",
    "rain falls on the sea tonight",
    "the keeper lights the lamp",
    "nobody sees the last ship",
    "night comes over the old bay",
)
PROMPT = "One: {source} Two: {target}."


def backwards(text):
    return " ".join(reversed(text.split()))


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.model_max_length = 512
    return tokenizer


@pytest.fixture(scope="module")
def translator(tmp_path_factory, tokenizer):
    """An untrained translator with the bundled tokenizer."""
    torch.manual_seed(1)
    sides = ("encoder", "decoder")
    sizes = {f"{side}_{name}": size for side in sides for name, size in
             (("layers", 2), ("attention_heads", 4), ("ffn_dim", 32))}  # fmt: skip
    config = transformers.MarianConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        max_position_embeddings=512,
        init_std=0.5,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        forced_eos_token_id=None,
        **sizes,
    )
    folder = tmp_path_factory.mktemp("translator")
    transformers.MarianMTModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def decoder(tokenizer):
    """An untrained decoder."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.5,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Sentences, each backwards, with links: some possible, one beyond the end, one pair without any."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = []
    for number, text in enumerate(SOURCES):
        size = len(text.split())
        links = [f"{at + 1}{'p' if at % 3 == 2 else '-'}{size - at}" for at in range(size)]
        lines.append(" ".join([*links, "1p2", *(["9-9"] if number == 3 else [])]) if number != 5 else "")
    (folder / "links.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "source.txt").write_text("\n".join(SOURCES) + "\n", encoding="utf-8")
    (folder / "target.txt").write_text("\n".join(map(backwards, SOURCES)) + "\n", encoding="utf-8")
    return folder


def measured(model, pairs, **options):
    options = {"untrained": False, "targets": pairs / "target.txt", "gold": pairs / "links.txt"} | options
    return relations(model, pairs / "source.txt", **options)


def rates_of(aligned, gold):
    return score_alignments(aligned, gold.sure, gold.possible).error_rate


def test_error_rates_are_those_of_align(translator, pairs):
    found = measured(translator, pairs)
    whole = attnscope_lineage.align(translator, pairs / "source.txt", pairs / "target.txt", gold=pairs / "links.txt")
    np.testing.assert_allclose(found.error_rate, whole["heads"]["error_rate"], atol=1e-12)
    np.testing.assert_allclose(found.error_rate_diagonal, whole["scores"]["diagonal"], atol=1e-12)
    np.testing.assert_allclose(found.error_rate_chance, whole["scores"]["chance"], atol=1e-6)


def test_error_rates_of_sure_links_alone_are_those_of_align(translator, pairs, tmp_path):
    (tmp_path / "links.txt").write_text((pairs / "links.txt").read_text().replace("p", "-"))
    found = measured(translator, pairs, gold=tmp_path / "links.txt")
    gold = tmp_path / "links.txt"
    whole = attnscope_lineage.align(translator, pairs / "source.txt", pairs / "target.txt", gold=gold)
    assert found.relation.values.tolist() == ["links"]
    np.testing.assert_allclose(found.error_rate, whole["heads"]["error_rate"], atol=1e-12)


DATA = Path(os.environ.get("ATTNSCOPE_DATA", "../shared/data")) / "alignments"


@pytest.mark.skipif(not DATA.is_dir(), reason="set ATTNSCOPE_DATA to a folder with alignments/")
@pytest.mark.parametrize("language", ["enfr", "jaen"])
def test_error_rates_of_real_links_are_those_of_align(translator, tmp_path, language):
    lines = (DATA / f"{language}.src-tgt").read_text(encoding="utf-8").splitlines()
    golds = (DATA / f"{language}.gold").read_text(encoding="utf-8").splitlines()
    short = [at for at, line in enumerate(lines) if len(line) < 120][:60]
    for side, name in enumerate(("source.txt", "target.txt")):
        text = "\n".join(lines[at].split(" ||| ")[side].strip() for at in short)
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    (tmp_path / "links.txt").write_text("\n".join(golds[at] for at in short) + "\n", encoding="utf-8")
    found = measured(translator, tmp_path)
    gold = tmp_path / "links.txt"
    whole = attnscope_lineage.align(translator, tmp_path / "source.txt", tmp_path / "target.txt", gold=gold)
    np.testing.assert_allclose(found.error_rate, whole["heads"]["error_rate"], atol=1e-12)
    np.testing.assert_allclose(found.error_rate_diagonal, whole["scores"]["diagonal"], atol=1e-12)


def rows_written_out(model, tokenizer, source, target):
    """Weights ``(layer, head, target word, source word)`` of the rows that predict the target, by eager attention."""
    text = PROMPT.format(source=source, target=target)
    coded = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    ends = coded.pop("offset_mapping")[0].tolist()
    coded.pop("token_type_ids", None)
    with torch.no_grad():
        weights = torch.cat(model(**coded, output_attentions=True).attentions).double().numpy()
    sides = []
    for part, start in ((source, text.index(source)), (target, text.index(" Two: ") + 6)):
        words = [(start + match.start(), start + match.end()) for match in re.finditer(r"\S+", part)]
        # a token of spaces belongs to the word after it
        tokens = [[at for at, (_, end) in enumerate(ends) if first < end <= last and end > 0] for first, last in words]
        sides.append(tokens)
    sources, targets = sides
    rows = np.stack([weights[:, :, [at - 1 for at in word]].mean(2) for word in targets], 2)
    return np.stack([rows[..., word].sum(-1) for word in sources], -1)


def test_a_decoder_alone_is_measured_over_both_sides_of_a_prompt(decoder, tokenizer, pairs):
    found = measured(decoder, pairs, tokenizer=tokenizer, prompt=PROMPT)
    decoder.set_attn_implementation("eager")
    weights = [rows_written_out(decoder, tokenizer, text, backwards(text)) for text in SOURCES]
    decoder.set_attn_implementation("sdpa")
    gold = read_gold(pairs / "links.txt")
    for layer, head in np.ndindex(found.error_rate.shape):
        aligned = [frozenset((int(s), t) for t, s in enumerate(of[layer, head].argmax(-1))) for of in weights]
        assert float(found.error_rate[layer, head]) == pytest.approx(rates_of(aligned, gold), abs=1e-12)
    lengths = [(len(text.split()), len(text.split())) for text in SOURCES]
    diagonal = controls([frozenset()] * len(SOURCES), Gold(gold.sure, gold.possible), lengths).diagonal
    assert float(found.error_rate_diagonal) == pytest.approx(diagonal, abs=1e-12)


def test_exchanged_links_are_on_words_of_the_same_number(decoder, tokenizer, tmp_path):
    """Of three pairs of one length, the exchanged links of each are those of the others, on its own weights."""
    sources = (*SOURCES[:2], "rain falls on boats")
    for name, lines in (("source.txt", sources), ("target.txt", map(backwards, sources))):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "links.txt").write_text("1-1 2-2\n1-4 2-1 3-1\n4-4\n", encoding="utf-8")
    found = measured(decoder, tmp_path, tokenizer=tokenizer, prompt=PROMPT)
    decoder.set_attn_implementation("eager")
    weights = [rows_written_out(decoder, tokenizer, text, backwards(text)) for text in sources]
    decoder.set_attn_implementation("sdpa")
    gold = read_gold(tmp_path / "links.txt")
    others = [(one, other) for one in range(3) for other in range(3) if one != other]
    swapped = Gold(*([side[other] for _, other in others] for side in (gold.sure, gold.possible)))
    for layer, head in np.ndindex(found.error_rate.shape):
        aligned = [frozenset((int(s), t) for t, s in enumerate(of[layer, head].argmax(-1))) for of in weights]
        expected = rates_of([aligned[one] for one, _ in others], swapped)
        assert float(found.error_rate_exchanged[layer, head]) == pytest.approx(expected, abs=1e-12)


def test_the_best_head_is_scored_where_it_was_not_chosen(translator, pairs):
    found = measured(translator, pairs)
    rates = found.error_rate.values
    best = np.unravel_index(rates.argmin(), rates.shape)
    assert (int(found.error_rate_best_layer), int(found.error_rate_best_head)) == (
        int(found.layer[best[0]]),
        int(best[1]),
    )
    assert float(found.error_rate_held_out) >= rates.min()
    report = report_of("relations", found)
    assert "significantly below the diagonal" in report.finding.sentences[-1]
    assert {table.name for table in report.tables} >= {"alignment", "alignment_heads"}


def test_the_command_writes_a_page_and_the_guided_alignment_head(translator, pairs, tmp_path):
    files = ["--target", pairs / "target.txt", "--gold", pairs / "links.txt", "--out", tmp_path / "run"]
    done = command("relations", translator, pairs / "source.txt", *files, cwd=tmp_path)
    assert "aligns best: error rate" in done.stdout
    assert (tmp_path / "run/report.html").is_file()
    made = export(tmp_path / "run", "alignment", out=tmp_path / "head")
    head = json.loads((made / "alignment_head.json").read_text(encoding="utf-8"))
    found = measured(translator, pairs)
    best = np.unravel_index(found.error_rate.values.argmin(), found.error_rate.shape)
    assert (head["layer"], head["head"]) == tuple(map(int, best))
    assert head["marian"] == {"transformer-guided-alignment-layer": head["layer"] + 1}
    assert head["ctranslate2"] == {"alignment_layer": head["layer"], "alignment_heads": 1}
    assert sorted(head["order_of_heads"]) == [0, 1, 2, 3]
    assert head["order_of_heads"][0] == head["head"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"targets": None}, "add them"),
        ({"gold": None}, "need links"),
        ({"gold_first": 0, "prompt": "{target} {source}"}, "expected a text with"),
        ({"targets": ["one line"]}, "the same number of lines"),
    ],
)
def test_translations_that_cannot_be_measured_are_explained(translator, pairs, options, problem):
    with pytest.raises(AttnscopeError, match=problem):
        measured(translator, pairs, **options)


@pytest.mark.parametrize("line", ["0-1", "1_2", "1-2x"])
def test_links_of_another_form_are_explained(translator, pairs, tmp_path, line):
    (tmp_path / "links.txt").write_text(f"{line}\n" * len(SOURCES), encoding="utf-8")
    with pytest.raises(AttnscopeError, match=r"line 1: .* is not a link; expected 1-2"):
        measured(translator, pairs, gold=tmp_path / "links.txt")


@pytest.mark.parametrize("alone", [False, True])
def test_a_page_has_the_alignments_of_the_best_head(translator, decoder, tokenizer, pairs, tmp_path, alone):
    more = {"prompt": PROMPT, "tokenizer": tokenizer} if alone else {}
    found = measured(decoder if alone else translator, pairs, **more)
    report = report_of("relations", found)
    page = write_page(report, tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'data-tab="links"' in page
    assert any(name.startswith("sentences-" if alone else "alignment-") for name in figures_of(report))
    first = next(texts_of(sample_of(found)))
    if not alone:
        assert (first.target, first.words) == (backwards(SOURCES[0]).split(), SOURCES[0].split())
        assert first.map.shape == (len(first.target), len(first.words))
