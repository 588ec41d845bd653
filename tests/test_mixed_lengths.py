"""Texts of 1, 3, 40, 100 and 2,000 tokens in one file, in any order: every verb measures what each of them can show."""

import inspect
import json

import numpy as np
import pytest
import torch
import transformers as T

import attnscope
import attnscope_cards
import attnscope_lineage
from attnscope.catalogue import function_of, verbs
from attnscope.report.render import as_json
from attnscope.results.reports import report_of
from attnscope.support.errors import AttnscopeError
from attnscope_zoo.catalogue import build
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer
from tests.tiny_models import tiny

LENGTHS = (1, 3, 40, 100, 2000)
ORDERS = [0, 1, 2, 3, 4], [3, 4, 0, 2, 1]
_generator = np.random.default_rng(0)
TEXTS = [" ".join(f"t{token}" for token in _generator.integers(3, 16, length)) for length in LENGTHS]
TEXTS[3] = f"t16 t17 {TEXTS[3][6:]}"
PAIRS = [{"clean": f"t16 {text}", "corrupted": f"t17 {text}", "answer": " t7", "wrong": " t9"} for text in TEXTS]
NEEDLES = [{"needle": "t5 t6 t7", "question": "t8 t9"}]  # one, not three: the model continues each prompt
VERBS_OF_TEXTS = {
    "scan": {},
    "generate": {"new_tokens": 2},
    "roles": {"controls": "none", "needles": NEEDLES},
    "card": {"controls": "none", "kept": [(64, 4), (16, 4)], "limits": True, "needles": NEEDLES},
    "examples": {"heads": [(1, 1)]},
    "relations": {"query": "t5", "key": "t4"},
    "explain": {"window": 48},
    "attribute": {},
    "intervene": {"ablations": ["mean", "resample"], "steps": 0, "curves": True},
    "patch": {"steps": 0},
    "edges": {"method": "eap", "sizes": [0.0, 0.5, 1.0], "draws": 1},
    "head_outputs": {},
}
COMPARED = {"scan": "entropy", "roles": "score"}
#: A dimension of the tokens of the one text that they read.
OF_ONE_TEXT = {"weights": "query", "received": "key", "view": "query", "walk": "query"}
OF_SENTENCES = {"translate", "align", "score"}
OTHERS = {"compare", "role"}  # they train systems, or register a role with its texts


@pytest.fixture(scope="module")
def reading():
    """A decoder and its tokenizer."""
    tokenizer = build("previous-decoder-2").tokenizer
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16}
    ids = {"vocab_size": len(tokenizer), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    config = T.LlamaConfig(**sizes, **ids, max_position_embeddings=2048, initializer_range=0.3)
    return T.LlamaForCausalLM(config).eval(), tokenizer


def test_every_verb_that_reads_texts_is_here():
    reads = {name for name in verbs() if {"texts", "pairs"} & {*inspect.signature(function_of(name)).parameters}}
    assert reads == {*VERBS_OF_TEXTS, *OF_ONE_TEXT} | OF_SENTENCES | OTHERS


@pytest.mark.parametrize("verb", VERBS_OF_TEXTS)
def test_a_short_text_changes_nothing_of_the_others(verb, reading, tmp_path):
    model, tokenizer = reading
    orders = ORDERS if verb in COMPARED else ORDERS[:1]
    results = []
    for order in orders:
        texts = [(PAIRS if verb in {"patch", "edges"} else TEXTS)[text] for text in order]
        results.append(function_of(verb)(model, texts, tokenizer=tokenizer, **VERBS_OF_TEXTS[verb]))
        if verbs()[verb].report:
            report = as_json(report_of(verb, results[-1]), tmp_path)
            json.dumps(report, allow_nan=False)
            told = [note for note in report["notes"] if note == "1 of 8 windows left out: nothing to predict."]
            assert len(told) == (verb in {"attribute", "intervene"})
    if verb in COMPARED:
        first, second = (result[COMPARED[verb]] for result in results)
        second = second.isel(window=np.argsort(orders[1])) if "window" in second.dims else second
        np.testing.assert_allclose(first, second, atol=1e-5)


@pytest.mark.parametrize("family", ["t5", "deberta", "gemma2"])
def test_a_first_text_of_one_or_two_tokens_is_measured(family, reading):
    model, texts = tiny(family), [[5], [6, 7], *(_generator.integers(3, 16, (2, 30)).tolist())]
    found = [attnscope.scan(model, each, tokenizer=reading[1]) for each in (texts, texts[::-1], texts[:1], texts[1:2])]
    short, long, one, two = (result.entropy.values for result in found)
    np.testing.assert_allclose(short, long[::-1], atol=1e-5)
    np.testing.assert_allclose(short[:2], np.concatenate([one, two]), atol=1e-5)


def test_a_score_is_the_mean_over_the_windows_that_can_have_the_role(reading):
    """Against the weights that eager attention returns."""
    model, tokenizer = reading
    texts = [TEXTS[text] for text in (2, 3, 1, 2, 3)] + [TEXTS[4][:400], TEXTS[3][30:]]
    how = {"tokenizer": tokenizer, "kept": [(64, 4), (16, 4)], "controls": "none", "needles": NEEDLES}
    card = attnscope_cards.card(model, texts, **how)
    model.set_attn_implementation("eager")
    own = {"streaming": [], "kept_16_4": []}
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            weights = torch.cat(model(ids, output_attentions=True).attentions).double()
        query = torch.arange(ids.shape[1])[:, None]
        for name, recent in (("streaming", 64), ("kept_16_4", 16)):
            kept = (query - query.T < recent) | (query.T < 4)
            rows = (weights * kept).sum(-1)[..., recent + 4 :]
            own[name] += [rows.mean(-1).numpy()] * (rows.shape[-1] > 0)
    model.set_attn_implementation("sdpa")
    counts = card.windows.sel(role=[*own]).values.tolist()
    assert counts == [len(scores) for scores in own.values()]
    assert counts[0] < counts[1] == 6
    for name, scores in own.items():
        np.testing.assert_allclose(card.score.sel(role=name), np.mean(scores, 0), atol=1e-5)
    assert card.half_score.notnull().all()
    assert card.stability.sel(role=[*own]).notnull().all()
    short = f"streaming, kept 64+4: mean over {counts[0]} of 6 windows (the others are too short)."
    assert short in report_of("card", card).notes


def test_a_limit_is_the_mean_over_the_windows_that_are_longer_than_the_cache(reading):
    model, tokenizer = reading
    how = {"tokenizer": tokenizer, "kept": [(16, 4)], "controls": "none", "limits": True, "needles": NEEDLES}
    cards = [
        attnscope_cards.card(model, list(texts), **how)
        for texts in ((TEXTS[2][:30], TEXTS[2], TEXTS[3][:40], TEXTS[3]), TEXTS[2:4])
    ]
    mixed, long = (card.effect.sel(ablation="limit_16_4") for card in cards)
    assert abs(long).max() > 1e-4
    np.testing.assert_allclose(mixed, long, atol=1e-6)
    assert [int(card.windows.sel(role="kept_16_4")) for card in cards] == [2, 2]


@pytest.mark.parametrize("verb", OF_ONE_TEXT)
def test_one_text_of_any_length_is_measured_or_rejected(verb, reading):
    model, tokenizer = reading
    for length, text in zip(LENGTHS, TEXTS, strict=True):
        if verb == "walk" and length in {1, 2000}:
            with pytest.raises(AttnscopeError, match="expected two or more" if length == 1 else "at most 1024"):
                attnscope_lineage.walk(model, text, tokenizer=tokenizer)
            continue
        found = function_of(verb)(model, text, tokenizer=tokenizer)
        arrays = found.arrays if verb == "walk" else found
        weights = arrays.weights if verb in {"walk", "view"} else arrays
        assert weights.sizes[OF_ONE_TEXT[verb]] == length
        np.testing.assert_allclose(weights.sum("key"), length if verb == "received" else 1, rtol=1e-5)
    with pytest.raises(AttnscopeError, match=r"expected one: choose one|expected two or more"):
        function_of(verb)(model, TEXTS, tokenizer=tokenizer)


def test_a_sentence_of_another_length_changes_nothing_of_the_others():
    """Translations are cut where the model ends; alignments and scores are of each sentence or of all."""
    model, tokenizer = small_model("bart"), small_tokenizer()
    sources, targets = ([" ".join(_generator.choice([*"abcd"], length)) for length in LENGTHS] for _ in range(2))
    with pytest.raises(AttnscopeError, match=r"line 4 has .* tokens; the model was trained for at most 64"):
        attnscope_lineage.translate(model, sources, tokenizer=tokenizer)
    with pytest.raises(AttnscopeError, match="the longest is line 5"):
        attnscope_lineage.align(model, sources, targets=targets, tokenizer=tokenizer)
    translated, aligned, scored = [], [], []
    for order in ORDERS:
        left, right = ([side[at] for at in order] for side in (sources, targets))
        cut = attnscope_lineage.translate(model, left, tokenizer=tokenizer, overlong="cut")
        translated.append(dict(zip(left, cut, strict=True)))
        fitting = [at for at, text in enumerate(left) if len(text) < 2 * 40]
        pairs = [left[at] for at in fitting], [right[at] for at in fitting]
        links = attnscope_lineage.align(model, pairs[0], targets=pairs[1], tokenizer=tokenizer)[
            "pairs"
        ].links.values.tolist()
        aligned.append(dict(zip(pairs[0], links, strict=True)))
        scored.append(attnscope_lineage.score({"one": left}, right, texts=left, by_length=[2, 50, 1000], resamples=0))
    assert translated[0] == translated[1]
    assert aligned[0] == aligned[1]
    assert scored[0].drop_attrs().equals(scored[1].drop_attrs())
