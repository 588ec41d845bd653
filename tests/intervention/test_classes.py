"""Classifiers and encoders without a head, of texts, images and sounds: effects against hooks of one's own."""

import json

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional as F

import attnscope
import attnscope_circuits
from attnscope.capture.load import load_model
from attnscope.results.reports import report_of
from attnscope.support.errors import AttnscopeError
from tests.image_models import SIDE, vision_model, write_pictures

TEXTS = ["The tide comes in twice a day.", "It rained all day long, and the streets were empty.", "Bread needs salt."]
BRIEF = {"steps": 0, "why": False, "ablations": ["zero"]}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
NAMES = {"id2label": {0: "no", 1: "yes", 2: "both"}, "label2id": {"no": 0, "yes": 1, "both": 2}}
LABELS = ["yes", 2, "no"]


def text_model(kind):
    """A tiny classifier or encoder of the bundled tokenizer, and the names of the layers that read its heads."""
    torch.manual_seed(0)
    tokenizer = load_model("bundled").tokenizer
    size = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    if kind == "gpt2":  # the last token that is not padding is read
        config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **size, **NAMES)
        config.initializer_range = 0.4
        return transformers.GPT2ForSequenceClassification(config).eval(), tokenizer, "attn.c_proj"
    if kind == "distilbert":
        config = transformers.DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=32, **size, **NAMES)
        config.initializer_range = 0.4
        return transformers.DistilBertForSequenceClassification(config).eval(), tokenizer, "attention.out_lin"
    config = transformers.BertConfig(**SMALL, **size, **NAMES, initializer_range=0.4)
    maker = {"bert": "BertForSequenceClassification", "tokens": "BertForTokenClassification", "encoder": "BertModel"}
    return getattr(transformers, maker[kind])(config).eval(), tokenizer, "attention.output.dense"


def without(model, name, layer, head):
    """A hook that sets one head to 0 where the output layer of its block reads it."""
    modules = [module for path, module in model.named_modules() if path.endswith(name)]

    def silence(_, arguments):
        states = arguments[0].clone()
        width = states.shape[-1] // 2
        states[..., head * width : (head + 1) * width] = 0
        return (states,)

    return modules[layer].register_forward_pre_hook(silence)


@torch.no_grad()
def by_hand(model, name, inputs, loss):
    """Change of the loss of each input without each head: ``(input, layer, head)``."""
    changes = np.empty((len(inputs), 2, 2))
    for number, one in enumerate(inputs):
        plain = model(**one)
        for layer, head in np.ndindex(2, 2):
            hook = without(model, name, layer, head)
            changes[number, layer, head] = loss(model(**one), plain, number) - loss(plain, plain, number)
            hook.remove()
    return changes


def of_label(numbers):
    return lambda output, _, number: float(F.cross_entropy(output.logits.float(), torch.tensor([numbers[number]])))


def of_embedding(embed):
    def lost(output, plain, _):
        now, before = (embed(one)[0].float() for one in (output, plain))
        return 1 - float(now @ before / (before @ before))

    return lost


@pytest.mark.parametrize("kind", ["bert", "distilbert", "gpt2"])
def test_effects_on_labels_are_those_of_hooks_in_batches_with_padding(kind):
    model, tokenizer, name = text_model(kind)
    found = attnscope.intervene(model, TEXTS, tokenizer=tokenizer, labels=LABELS, **BRIEF)
    inputs = [dict(tokenizer(text, return_tensors="pt", return_token_type_ids=False)) for text in TEXTS]
    expected = by_hand(model, name, inputs, of_label([1, 2, 0]))
    np.testing.assert_allclose(found["effects"].loss_change.sel(ablation="zero"), expected, atol=1e-5)
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(found["effects"].guess_loss, np.log(3))


def test_without_labels_those_that_the_model_predicts_are_right(tmp_path):
    model, tokenizer, name = text_model("bert")
    inputs = [dict(tokenizer(text, return_tensors="pt")) for text in TEXTS]
    numbers = [int(model(**one).logits.argmax()) for one in inputs]
    found = attnscope.intervene(model, TEXTS, tokenizer=tokenizer, **BRIEF)
    expected = by_hand(model, name, inputs, of_label(numbers))
    np.testing.assert_allclose(found["effects"].loss_change.sel(ablation="zero"), expected, atol=1e-5)
    assert (found["effects"].accuracy == 1).all()
    assert "the one that the unchanged model predicts" in report_of("intervene", found).hint
    file = tmp_path / "texts.jsonl"
    names = [NAMES["id2label"][number] for number in numbers]
    lines = [json.dumps({"text": text, "label": name}) for text, name in zip(TEXTS, names, strict=True)]
    file.write_text("\n".join(lines))
    from_file = attnscope.intervene(model, file, tokenizer=tokenizer, labels="label", **BRIEF)
    np.testing.assert_array_equal(from_file["effects"].loss_change, found["effects"].loss_change)


def test_effects_on_labels_of_tokens_are_means_over_tokens_that_are_not_special():
    model, tokenizer, name = text_model("tokens")
    found = attnscope.intervene(model, TEXTS, tokenizer=tokenizer, **BRIEF)
    inputs = [dict(tokenizer(text, return_tensors="pt")) for text in TEXTS]

    def loss(output, plain, _):
        inner = slice(1, -1)  # between the class token and the separator
        return float(F.cross_entropy(output.logits[0, inner], plain.logits[0, inner].argmax(-1)))

    expected = by_hand(model, name, inputs, loss)
    np.testing.assert_allclose(found["effects"].loss_change.sel(ablation="zero"), expected, atol=1e-5)
    with pytest.raises(AttnscopeError, match="labels each token"):
        attnscope.intervene(model, TEXTS, tokenizer=tokenizer, labels=LABELS, **BRIEF)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_encoder_without_a_head_loses_a_share_of_its_embedding(dtype):
    model, tokenizer, name = text_model("encoder")
    model = model.to(dtype)
    found = attnscope.intervene(model, TEXTS, tokenizer=tokenizer, heads=["0.0", "1.1", "0.0+1.1"], random=3, **BRIEF)
    inputs = [dict(tokenizer(text, return_tensors="pt")) for text in TEXTS]
    expected = by_hand(model, name, inputs, of_embedding(lambda output: output.last_hidden_state.mean(1)))
    effects = found["effects"].loss_change.sel(ablation="zero")
    atol = 1e-5 if dtype == torch.float32 else 2e-2
    np.testing.assert_allclose(effects.values[:, [0, 1], [0, 1]], expected[:, [0, 1], [0, 1]], atol=atol)
    assert found["effects"].loss.max() < 1e-2
    assert found["effects"].loss_change.units == found["together"].effect.units == "share"
    assert 0 < found["together"].p.item() <= 1
    page = report_of("intervene", found)
    assert any(one.startswith("The loss is 1 minus the projection") for one in page.finding.sentences)
    assert not any("nats" in sentence for sentence in page.finding.sentences)


def test_a_metric_of_ones_own_reads_the_logits_of_labels_and_the_last_layer():
    model, tokenizer, _ = text_model("bert")
    pair = [("yes", "no")]
    found = attnscope.intervene(model, TEXTS, tokenizer=tokenizer, metric=pair, **BRIEF)
    own = attnscope.intervene(
        model, TEXTS, tokenizer=tokenizer, metric=lambda logits, _: logits[:, 1] - logits[:, 0], **BRIEF
    )
    np.testing.assert_allclose(own["effects"].metric_change, found["effects"].metric_change, atol=1e-6)
    encoder, *_ = text_model("encoder")
    along = torch.linspace(-1, 1, 16)
    found = attnscope.intervene(
        encoder, TEXTS, tokenizer=tokenizer, metric=lambda states, _: states[:, 0] @ along, **BRIEF
    )
    first = [encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 0] @ along for text in TEXTS]
    np.testing.assert_allclose(found["effects"].metric, torch.stack(first).detach(), atol=1e-5)


@pytest.mark.parametrize("family", ["vit", "clip", "dinov2"])
def test_effects_on_images_are_those_of_hooks(family, tmp_path):
    if family == "clip":
        torch.manual_seed(0)
        config = transformers.CLIPVisionConfig(**SMALL, image_size=SIDE, patch_size=8, projection_dim=6)
        model, (_, processor) = transformers.CLIPVisionModelWithProjection(config).eval(), vision_model(family)
        embed, name = (lambda output: output.image_embeds), "self_attn.out_proj"
    else:
        model, processor = vision_model(family)
        embed = lambda output: output.pooler_output  # noqa: E731
        name = "attention.o_proj"
    labels = {"labels": [1, 0, 1]} if family == "vit" else {}
    found = attnscope.intervene(model, write_pictures(tmp_path / "files"), tokenizer=processor, **labels, **BRIEF)
    images = found["effects"].source.values.tolist()
    pixels = [np.asarray(transformers.image_utils.load_image(str(tmp_path / "files" / image))) for image in images]
    inputs = [processor(images=one, input_data_format="channels_last", return_tensors="pt") for one in pixels]
    loss = of_label([1, 0, 1]) if family == "vit" else of_embedding(embed)
    expected = by_hand(model, name, inputs, loss)
    np.testing.assert_allclose(found["effects"].loss_change.sel(ablation="zero"), expected, atol=2e-5)
    assert np.abs(expected).max() > 1e-3


def test_effects_on_sounds_of_several_lengths_are_those_of_hooks():
    torch.manual_seed(0)
    small = {"conv_dim": [8, 8], "conv_stride": [10, 8], "conv_kernel": [10, 8], "num_feat_extract_layers": 2}
    config = transformers.Wav2Vec2Config(
        **SMALL, **small, **NAMES, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, initializer_range=0.5
    )
    model = transformers.Wav2Vec2ForSequenceClassification(config).eval()
    extractor = transformers.Wav2Vec2FeatureExtractor()
    generator = np.random.default_rng(0)
    waves = [generator.normal(size=size).astype(np.float32) / 4 for size in (1600, 1600, 2000)]
    sounds = [{"array": wave, "sampling_rate": 16_000} for wave in waves]
    found = attnscope.intervene(model, sounds, tokenizer=extractor, labels=LABELS, **BRIEF)
    inputs = [
        {"input_values": extractor(wave, sampling_rate=16_000, return_tensors="pt").input_values} for wave in waves
    ]
    expected = by_hand(model, "attention.out_proj", inputs, of_label([1, 2, 0]))
    np.testing.assert_allclose(found["effects"].loss_change.sel(ablation="zero"), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        ("bert", {"labels": ["yes", "maybe", "no"]}, "no label 'maybe'; expected one of 'no', 'yes', 'both'"),
        ("bert", {"labels": ["yes"]}, "found 1 labels and 3 inputs"),
        ("encoder", {"labels": LABELS}, "predicts no labels of texts"),
        ("encoder", {"metric": [("yes", "no")]}, "predicts no answers"),
    ],
)
def test_labels_that_do_not_fit_are_reported_in_a_line(kind, given, says):
    model, tokenizer, _ = text_model(kind)
    with pytest.raises(AttnscopeError, match=says):
        attnscope.intervene(model, TEXTS, tokenizer=tokenizer, **given, **BRIEF)


def test_models_without_labels_or_an_embedding_of_a_text_are_reported_in_a_line(tmp_path):
    tokenizer = load_model("bundled").tokenizer
    config = transformers.BertConfig(**SMALL, vocab_size=len(tokenizer), num_labels=2)
    with pytest.raises(AttnscopeError, match="neither labels nor an embedding"):
        attnscope.intervene(transformers.BertForQuestionAnswering(config), TEXTS, tokenizer=tokenizer)
    config.num_labels = 1
    with pytest.raises(AttnscopeError, match="a number, not a choice"):
        attnscope.intervene(transformers.BertForSequenceClassification(config), TEXTS, tokenizer=tokenizer)
    model, processor = vision_model("swin")
    with pytest.raises(AttnscopeError, match="within windows"):
        attnscope.intervene(model, write_pictures(tmp_path / "files"), tokenizer=processor)


PAIRS = [
    {"clean": f"The {one} and the {other} came.", "corrupted": f"The {other} and the {one} came."}
    for one, other in (("tide", "rain"), ("long night", "day"))
]
PAIRS = [{**pair, "answer": "yes", "wrong": "no"} for pair in PAIRS]


@torch.no_grad()
def patched_by_hand(model, name, inputs, measure):
    """The measure of each corrupted run with one head of the clean run in it: ``(pair, layer, head)``."""
    modules = [module for path, module in model.named_modules() if path.endswith(name)]
    values = np.empty((len(inputs), 2, 2))
    for number, (clean, corrupted) in enumerate(inputs):
        read = []
        keep = lambda _, arguments, read=read: read.append(arguments[0])  # noqa: E731
        hooks = [module.register_forward_pre_hook(keep) for module in modules]
        ends = model(**clean), model(**corrupted)
        for hook in hooks:
            hook.remove()
        for layer, head in np.ndindex(2, 2):
            donor, width = read[layer], read[layer].shape[-1] // 2
            part = slice(head * width, (head + 1) * width)

            def put_in(_, arguments, donor=donor, part=part):
                states = arguments[0].clone()
                states[..., part] = donor[..., part]
                return (states,)

            hook = modules[layer].register_forward_pre_hook(put_in)
            values[number, layer, head] = measure(model(**corrupted), ends)
            hook.remove()
    return values


def answer_minus_wrong(output, _):
    return float(output.logits[0, 1] - output.logits[0, 0])


def shift_of(embed):
    def share(output, ends):
        clean, corrupted, now = (embed(one)[0] for one in (*ends, output))
        return float((now - corrupted) @ (clean - corrupted) / ((clean - corrupted) ** 2).sum())

    return share


@pytest.mark.parametrize("kind", ["bert", "distilbert", "gpt2", "encoder"])
def test_patching_and_edges_of_labels_and_embeddings_are_those_of_hooks(kind):
    model, tokenizer, name = text_model(kind)
    pairs = PAIRS if kind != "encoder" else [{side: pair[side] for side in ("clean", "corrupted")} for pair in PAIRS]
    found = attnscope.patch(model, pairs, tokenizer=tokenizer, together=["0.0,1.1"])
    read = {"return_tensors": "pt", "return_token_type_ids": False}
    inputs = [[dict(tokenizer(pair[side], **read)) for side in ("clean", "corrupted")] for pair in PAIRS]
    measure = shift_of(lambda output: output.last_hidden_state.mean(1)) if kind == "encoder" else answer_minus_wrong
    expected = patched_by_hand(model, name, inputs, measure)
    patched = found["pairs"].to_dataset().sortby("pair")
    np.testing.assert_allclose(patched.difference, expected, atol=2e-5)
    with torch.no_grad():
        clean = [measure(model(**one), (model(**one), model(**other))) for one, other in inputs]
    np.testing.assert_allclose(patched.clean, clean, atol=2e-5)
    assert np.isfinite(found["agreement"].rank_correlation).all()
    edges = attnscope_circuits.edges(model, pairs, tokenizer=tokenizer, method="exact", sizes=[0.0, 1.0])
    np.testing.assert_allclose(edges.clean.sortby("pair"), clean, atol=1e-4)
    np.testing.assert_allclose(edges.faithfulness, [[0, 1]] * 3, atol=1e-3)


@pytest.mark.parametrize("family", ["vit", "clip"])
def test_patching_and_edges_of_images_are_those_of_hooks(family, tmp_path):
    model, processor = vision_model("vit")
    name, measure = "attention.o_proj", answer_minus_wrong
    if family == "clip":
        torch.manual_seed(0)
        config = transformers.CLIPVisionConfig(**SMALL, image_size=SIDE, patch_size=8, projection_dim=6)
        model, name = transformers.CLIPVisionModelWithProjection(config).eval(), "self_attn.out_proj"
        measure = shift_of(lambda output: output.image_embeds)
    write_pictures(tmp_path / "files")
    pair = {"clean": "files/0.png", "corrupted": "files/1.jpg", "answer": 1, "wrong": 0}
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({**pair, "answer": "LABEL_1", "wrong": "LABEL_0"}))
    found = attnscope.patch(model, file, tokenizer=processor)
    pixels = [np.asarray(transformers.image_utils.load_image(str(tmp_path / pair[side]))) for side in [*pair][:2]]
    inputs = [processor(images=one, input_data_format="channels_last", return_tensors="pt") for one in pixels]
    expected = patched_by_hand(model, name, [inputs], measure)
    np.testing.assert_allclose(found["pairs"].difference, expected, rtol=1e-4, atol=2e-5)
    edges = attnscope_circuits.edges(model, file, tokenizer=processor, method="eap", sizes=[0.0, 1.0])
    np.testing.assert_allclose(edges.faithfulness, [[0, 1]] * 3, atol=1e-3)
    with pytest.raises(AttnscopeError, match="which a pair names"):
        attnscope.patch(model, [{**pair, "clean": "9.png", "answer": "0", "wrong": "1"}], tokenizer=processor)


def test_pairs_of_labels_that_do_not_fit_are_reported_in_a_line():
    model, tokenizer, _ = text_model("bert")
    with pytest.raises(AttnscopeError, match="no field 'answer'"):
        attnscope.patch(model, [{"clean": "a b", "corrupted": "a c"}], tokenizer=tokenizer)
    with pytest.raises(AttnscopeError, match="no label 'maybe'"):
        attnscope.patch(model, [{**PAIRS[0], "answer": "maybe"}], tokenizer=tokenizer)
    tokens, tokenizer, _ = text_model("tokens")
    with pytest.raises(AttnscopeError, match="labels each token"):
        attnscope.patch(tokens, PAIRS, tokenizer=tokenizer)
