"""A metric of one's own in every verb that takes one: against built-in measures, edited runs and the chain rule."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import attnscope
import attnscope_circuits
from attnscope.capture.load import load_model
from attnscope.intervention.verdicts import report, verdicts
from attnscope.report.render import as_json
from attnscope.results.reports import report_of
from attnscope.support.errors import AttnscopeError
from tests.intervention.test_patching import causal, reader_of_words

TEXTS = ["The tide comes in twice a day.", "It rained all day long, and the streets were empty.", "Bread needs salt."]
BRIEF = {"steps": 0, "why": False}


def test_the_loss_as_a_function_is_the_loss():
    tokenizer = load_model("bundled").tokenizer

    def loss(logits, inputs):
        ids, valid = inputs["input_ids"], inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
        each = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none") * (valid[:, 1:] > 0)
        return each.sum(1) / (valid[:, 1:] > 0).sum(1)

    found = attnscope.intervene(causal(), TEXTS, tokenizer=tokenizer, metric=loss, **BRIEF)
    effects = found["effects"]
    np.testing.assert_allclose(effects.metric_change, effects.loss_change, atol=1e-4)
    np.testing.assert_allclose(effects.metric, effects.loss, rtol=1e-4)
    np.testing.assert_allclose(found["heads"].metric_change, found["heads"].effect, atol=1e-4)


def test_curves_and_search_are_by_the_metric():
    """Twice the loss of the second half, so that it is neither the loss nor in its order of size."""

    @attnscope.metric(unit="nats", better="lower")
    def later(logits, inputs):
        ids, half = inputs["input_ids"], inputs["input_ids"].shape[1] // 2
        each = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
        return 2 * each[:, half:].mean(1)

    tokenizer = load_model("bundled").tokenizer
    model, order, more = causal(), [(1, 3), (0, 1), (1, 0)], {"search": True, "curves": True}
    texts = ["It was part", "It was due"]
    how = {"tokenizer": tokenizer, "metric": later, "order": order, **BRIEF, **more}
    found = attnscope.intervene(model, texts, **how | {"ablations": ["zero"]})
    curves = found["curves"].metric_change.sel(order="chosen")
    assert curves.removed.values.tolist() == [1, 2, 3, 4, 8]
    assert bool(curves.sel(removed=[4, 8]).isnull().all())
    assert found["search"].searched.units == found["curves"].metric_change.units == "nats"
    for number, text in enumerate(texts):
        inputs = {"input_ids": torch.tensor([tokenizer(text).input_ids])}
        with torch.no_grad():
            plain = later(model(**inputs).logits, inputs)
            for count in (1, 2, 3):
                heads = dict.fromkeys(order[:count], torch.zeros_like)
                with attnscope.edit(model, heads, on="z") as edited:
                    change = float(later(edited(**inputs).logits, inputs) - plain)
                np.testing.assert_allclose(curves.sel(removed=count)[number], change, atol=1e-5)
    rows = {table.name: table.rows for table in report_of("intervene", found).tables}["curves"]
    assert [(row["order"], row["removed"]) for row in rows[:4]] == [
        ("chosen", 1),
        ("chosen", 2),
        ("chosen", 3),
        ("random", 1),
    ]


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_answers_of_one_prompt_are_those_of_an_edited_run(kind):
    loaded = load_model("bundled", device="cpu")
    model = loaded.model if kind == "masked" else causal().eval()
    text = "It was part<mask> the game." if kind == "masked" else "It was part"
    found = attnscope.intervene(model, [text], tokenizer=loaded.tokenizer, metric=[(" of", " to")], **BRIEF)
    assert found["effects"].ablation.values.tolist() == ["zero", "mean"]
    ids = loaded.tokenizer(text, return_tensors="pt").input_ids
    special = torch.tensor(loaded.tokenizer.get_special_tokens_mask(ids[0].tolist(), already_has_special_tokens=True))
    place = (
        ids[0].tolist().index(loaded.tokenizer.mask_token_id) if kind == "masked" else int((1 - special).nonzero()[-1])
    )
    of, to = (loaded.tokenizer(word, add_special_tokens=False).input_ids[0] for word in (" of", " to"))

    def difference():
        with torch.no_grad():
            logits = model(ids).logits[0, place]
        return float(logits[of] - logits[to])

    before = difference()
    with attnscope.edit(model, {(1, 2): torch.zeros_like}, on="z"):
        after = difference()
    effects = found["effects"].isel(window=0)
    np.testing.assert_allclose(effects.metric, before, rtol=1e-4)
    np.testing.assert_allclose(effects.metric_change.sel(ablation="zero", layer=1, head=2), after - before, atol=1e-4)
    row = next(row for row in verdicts(found) if (row["layer"], row["head"]) == (1, 2))
    np.testing.assert_allclose(row["metric_zero_mean"], after - before, atol=1e-4)
    assert row["metric_zero_low"] is None
    assert any("resample" in note for note in report(found).notes)


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ([(" of", " to")] * 2, "found 2 answers .* and 3 windows"),
        ([(" of the", " to")], "has 2 tokens"),
        (lambda logits, _: logits.sum(), "metric returned"),
        (lambda *_: 3.0, "metric returned float"),
        (lambda _, inputs: inputs["positions"], "the metric 'metric' failed: .*positions.*Correct its function"),
        (lambda logits: logits[:, 0, 0], "the metric 'metric' failed: .*positional argument"),
        (lambda logits, _: logits[:, 0, 0].to(torch.complex64), "metric returned"),
        (lambda logits, _: logits[..., 3].sum(1), "depends on padding"),
    ],
)
def test_wrong_metrics_are_named(metric, reason):
    with pytest.raises(AttnscopeError, match=reason):
        attnscope.intervene("bundled", [f"{text}<mask>" for text in TEXTS], metric=metric, **BRIEF)


def test_a_run_folder_is_that_of_its_metric(tmp_path):
    def of_token(token):
        return lambda logits, _: logits[:, 0, token].float()

    def run(token):
        return attnscope.intervene("bundled", TEXTS, metric=of_token(token), out=tmp_path / "run", **BRIEF)

    first, again = run(5), run(5)
    assert again["effects"].metric.identical(first["effects"].metric)
    with pytest.raises(AttnscopeError, match="metric is tests"):
        run(6)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_answers_of_several_tokens_are_those_of_edited_runs(family):
    model, tokenizer = reader_of_words(family)
    texts, targets = ["It was part of it", "He was one"], ["It was all of us", "They came"]
    encodes = family in {"bart", "t5"}
    given = {"targets": targets} if encodes else {}
    found = attnscope.intervene(
        model,
        texts,
        tokenizer=tokenizer,
        metric=[(" of the game", " to")],
        search=True,
        **given,
        **(BRIEF | {"steps": 1}),
    )

    def difference(number):
        sums = []
        for word in (" of the game", " to"):
            ids = tokenizer(word, add_special_tokens=False).input_ids
            text = tokenizer((targets if encodes else texts)[number]).input_ids[:-1]
            text = [model.config.decoder_start_token_id, *text] if encodes else text
            inputs = {"input_ids": torch.tensor([text + ids])}
            if encodes:
                inputs = {
                    "decoder_input_ids": inputs["input_ids"],
                    "input_ids": torch.tensor([tokenizer(texts[number]).input_ids]),
                }
            with torch.no_grad():
                logs = model(**inputs).logits[0, len(text) - 1 : -1].log_softmax(-1)
            sums.append(logs.gather(1, torch.tensor(ids)[:, None]))
        return float(sums[0].sum() - sums[1].sum()), -float(sums[0].mean())

    effects = found["effects"]
    for number in (0, 1):
        before, loss = difference(number)
        with attnscope.edit(model, {(1, 0): torch.zeros_like}, on="z"):
            after, worse = difference(number)
        one = effects.isel(window=number)
        np.testing.assert_allclose([one.metric, one.loss], [before, loss], rtol=1e-4)
        changed = one.sel(ablation="zero", layer=1, head=0)
        np.testing.assert_allclose(
            [changed.metric_change, changed.loss_change], [after - before, worse - loss], atol=1e-4
        )
    assert effects.questions.values.tolist() == [4, 4]
    assert np.isfinite(effects.loss_change.sel(ablation="resample")).any()


# --- pairs ---

PAIRS = [
    {"clean": "It was part", "corrupted": "It was due", "answer": " of", "wrong": " to"},
    {"clean": "He was one", "corrupted": "He was back", "answer": " of", "wrong": " to"},
]


def rows_of(logits):
    return torch.arange(len(logits))


def difference(logits, inputs):
    last = logits[rows_of(logits), inputs["position"]]
    return last[rows_of(last), inputs["answer"][:, 0]] - last[rows_of(last), inputs["wrong"][:, 0]]


@attnscope.metric(unit="share", better="higher")
def probability(logits, inputs):
    """Probability of the answer."""
    last = logits[rows_of(logits), inputs["position"]].float().softmax(-1)
    return last[rows_of(last), inputs["answer"][:, 0]]


def exponential(logits, inputs):
    return (difference(logits, inputs) / 10).exp()


@pytest.mark.parametrize("family", ["bundled", "gpt2", "t5"])
def test_the_difference_as_a_function_is_that_of_the_answers(family):
    model, tokenizer = ("bundled", None) if family == "bundled" else reader_of_words(family)
    given = {} if family == "bundled" else {"pairs": PAIRS, "tokenizer": tokenizer}
    found, same = (attnscope.patch(model, **given, metric=own) for own in (difference, None))
    for name in ("difference", "clean", "corrupted", "estimate"):
        np.testing.assert_allclose(found["pairs"][name], same["pairs"][name], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["patched"].recovered, same["patched"].recovered, atol=1e-5)
    small = {**given, "sizes": [0.0, 0.1, 1.0], "draws": 1}
    found, same = (attnscope_circuits.edges(model, **small, metric=own) for own in (difference, None))
    for name in ("score", "difference", "faithfulness"):
        np.testing.assert_allclose(found[name], same[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, torch.float32) for family in ("gpt2", "llama", "gemma2", "bamba", "t5", "bart")),
        *((family, torch.bfloat16) for family in ("gpt2", "bart")),
    ],
)
def test_a_metric_of_pairs_is_that_of_runs_edited_by_hand(family, dtype):
    model, tokenizer = reader_of_words(family)
    model = model.to(dtype).eval()
    tree = attnscope.patch(model, PAIRS[:1], tokenizer=tokenizer, metric=probability, steps=0)
    found, layer = tree["pairs"].isel(pair=0), tree["pairs"].sizes["layer"] - 1
    right = tokenizer(" of", add_special_tokens=False).input_ids[0]
    outputs = {}

    def keep(name, change=None):
        def kept(z):
            outputs[name] = z.clone()
            return z if change is None else change

        return kept

    def value(text, change=None):
        inputs = {"input_ids": tokenizer(text, return_tensors="pt").input_ids}
        inputs["input_ids"] = inputs["input_ids"] if model.config.is_encoder_decoder else inputs["input_ids"][:, :-1]
        if model.config.is_encoder_decoder:
            before = tokenizer("").input_ids[:-1]  # the decoder has written nothing yet
            inputs["decoder_input_ids"] = torch.tensor([[model.config.decoder_start_token_id, *before]])
        with torch.no_grad(), attnscope.edit(model, {(layer, 1): keep(text, change)}, on="z"):
            return float(model(**inputs).logits[0, -1].float().softmax(-1)[right])

    clean, corrupted = value("It was part"), value("It was due")
    patched = value("It was due", outputs["It was part"])
    exact = 1e-5 if dtype is torch.float32 else 2e-2
    np.testing.assert_allclose([found.clean, found.corrupted], [clean, corrupted], rtol=exact)
    np.testing.assert_allclose(found.difference.sel(layer=layer, head=1), patched, rtol=exact)


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_scores_of_edges_follow_the_chain_rule(family):
    model, tokenizer = reader_of_words(family)
    how = {"tokenizer": tokenizer, "method": "eap", "sizes": [0.0, 1.0], "draws": 1}
    for pair in PAIRS:
        plain, own = (attnscope_circuits.edges(model, [pair], **how, metric=metric) for metric in (None, exponential))
        slope = np.exp(plain.clean.values / 10) / 10
        np.testing.assert_allclose(own.clean, np.exp(plain.clean / 10), rtol=1e-5)
        np.testing.assert_allclose(own.score, plain.score * slope, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(own.difference.isel(order=0), [[own.corrupted[0], own.clean[0]]], rtol=1e-4)


def test_estimates_follow_the_chain_rule():
    model, tokenizer = reader_of_words("gpt2")
    how = {"tokenizer": tokenizer, "direction": "noising", "steps": 1}
    plain, own = (attnscope.patch(model, PAIRS, **how, metric=metric)["pairs"] for metric in (None, exponential))
    slope = (plain.clean / 10).pipe(np.exp) / 10
    np.testing.assert_allclose(
        own.estimate, (plain.estimate * slope).transpose(*own.estimate.dims), rtol=1e-4, atol=1e-6
    )


def test_pairs_need_no_answers_for_a_metric_of_their_own():
    model, tokenizer = reader_of_words("llama")
    pairs = [{name: pair[name] for name in ("clean", "corrupted")} for pair in PAIRS]
    word = tokenizer(" of", add_special_tokens=False).input_ids[0]
    tree = attnscope.patch(model, pairs, tokenizer=tokenizer, metric=lambda logits, _: logits[:, -1, word], steps=0)
    assert tree["pairs"].answer_text.values.tolist() == ["", ""]
    shown = report_of("patch", tree)
    assert "→" not in shown.hint
    assert {row["answer"] for row in next(table for table in shown.tables if table.name == "pairs").rows} == {None}
    with pytest.raises(AttnscopeError, match="no field 'answer'"):
        attnscope.patch(model, pairs, tokenizer=tokenizer)


def certain(logits, _):
    return (logits[:, -1].argmax(-1) == 0).float()


def test_a_metric_without_gradient_is_rejected_where_one_is_needed():
    model, tokenizer = reader_of_words("gpt2")
    how = {"tokenizer": tokenizer, "metric": certain}
    with pytest.raises(AttnscopeError, match=r"'certain' has no gradient .*: use steps=0"):
        attnscope.patch(model, PAIRS, **how)
    with pytest.raises(AttnscopeError, match=r'has no gradient .*: use method="exact"'):
        attnscope_circuits.edges(model, PAIRS, **how)
    with pytest.raises(AttnscopeError, match=r"has no gradient .*: use attnscope intervene"):
        attnscope_circuits.attribute(model, TEXTS, **how)
    with pytest.raises(AttnscopeError, match="'undefined' is NaN"):
        attnscope.patch(
            model,
            PAIRS,
            tokenizer=tokenizer,
            metric=attnscope.metric(name="undefined")(lambda _, __: torch.full((2,), torch.nan)),
        )


def test_a_report_names_the_metric_everywhere():
    tree = attnscope.patch(metric=probability)
    shown = report_of("patch", tree)
    assert tree["pairs"].attrs["metric"] == "probability"
    assert as_json(shown, "")["notes"] == ["Metric: probability. Higher is better. Probability of the answer."]
    assert shown.finding.sentences[0].startswith("probability: 0.")
    effect = next(one for one in shown.tables[0].quantities if one.name == "effect")
    assert (effect.unit, effect.meaning) == ("change", "change of probability by patching")
    circuits = report_of("edges", attnscope_circuits.edges(metric=probability, sizes=[0.0, 0.1, 1.0], draws=1))
    assert circuits.notes == shown.notes
    assert "answer minus" not in " ".join(circuits.finding.sentences)


# --- texts ---


def last_logit(logits, inputs):
    valid = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).sum(1) - 2  # nothing follows the end
    return logits[rows_of(logits), valid, 462]


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_parts_of_a_logit_as_a_function_are_those_of_the_token(family):
    model, tokenizer = reader_of_words(family)
    name = tokenizer.convert_ids_to_tokens(462)
    how = {"tokenizer": tokenizer, "by_position": True}
    found = attnscope_circuits.attribute(model, TEXTS, metric=last_logit, **how)["predictions"]
    slope = 1 - (found.metric / 30) ** 2 if family == "gemma2" else 1
    token = attnscope_circuits.attribute(model, TEXTS, token=name, **how)["predictions"]
    np.testing.assert_allclose(found.part, (token.part * slope).transpose(*found.part.dims), atol=1e-5)
    np.testing.assert_allclose(found.lens_metric.isel(depth=-1), found.metric, rtol=1e-5)


def test_parts_of_an_entropy_are_those_of_its_gradient():
    model, tokenizer = reader_of_words("llama")

    @attnscope.metric(unit="nats", better="lower")
    def entropy(logits, inputs):
        valid = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])) > 0
        each = torch.distributions.Categorical(logits=logits).entropy()
        return torch.where(valid, each, 0).sum(1) / valid.sum(1)

    tree = attnscope_circuits.attribute(model, TEXTS[:1], tokenizer=tokenizer, metric=entropy)
    inputs = {"input_ids": tokenizer(TEXTS[0], return_tensors="pt").input_ids}
    logits = model.eval()(**inputs).logits.detach().requires_grad_()
    value = entropy(logits, inputs)
    slope = torch.autograd.grad(value.sum(), logits)[0]
    found = tree["predictions"].isel(window=0)
    np.testing.assert_allclose(found.metric, value.item(), rtol=1e-5)
    np.testing.assert_allclose(found.part.sum(), (slope * logits).sum().item(), rtol=1e-4, atol=1e-6)
    assert any("not linear in the logits" in sentence for sentence in report_of("attribute", tree).finding.sentences)


def test_a_metric_that_reads_padding_has_no_parts():
    model, tokenizer = reader_of_words("llama")
    with pytest.raises(AttnscopeError, match="depends on padding"):
        attnscope_circuits.attribute(model, TEXTS, tokenizer=tokenizer, metric=lambda logits, _: logits[..., 3].sum(1))


def test_the_report_of_ablations_is_about_the_metric():
    name = attnscope.metric(name="logit of a token", unit="logits")
    tree = attnscope.intervene(
        limit=8, window=32, ablations=["zero"], metric=name(lambda logits, _: logits[:, 0, 5]), **BRIEF
    )
    shown = report(tree)
    assert tree["heads"].metric_change.attrs["units"] == "logits"
    assert "logit of a token" in shown.finding.headline
    assert any(
        sentence.startswith("Removing one head at a time") and "logit of a token" in sentence
        for sentence in shown.finding.sentences
    )
    assert shown.notes[-1] == "Metric: logit of a token, in logits."
