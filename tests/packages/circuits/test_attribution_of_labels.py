"""Parts of labels and embeddings of texts, images and sounds: against hooks of one's own, and as a sum."""

from itertools import chain

import numpy as np
import pytest
import torch
import transformers
from accelerate import dispatch_model

import attnscope
import attnscope_circuits
from attnscope.results.reports import report_of
from attnscope.support.errors import AttnscopeError
from tests.image_models import SIDE, vision_model, write_pictures
from tests.intervention.test_classes import NAMES, PAIRS, SMALL, TEXTS, text_model


def recorded(model, names, inputs):
    """What modules receive in a pass over one input, by name, and what the model returns."""
    received = {}
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, given, name=name: received.update({name: given[0]})
        )
        for name in names
    ]
    with torch.no_grad():
        output = model(**inputs)
    for hook in hooks:
        hook.remove()
    return received, output


def through(norm, received, part):
    """A norm at the denominators of what it received, without its bias."""
    deviation = (received.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    return norm.weight * (part - part.mean(-1, keepdim=True)) / deviation


def written(linear, read, head):
    """What one of two heads adds to the stream."""
    part, width = torch.zeros_like(read), read.shape[-1] // 2
    part[..., head * width : (head + 1) * width] = read[..., head * width : (head + 1) * width]
    return part @ linear.weight.T


#: Of post-norm encoders: layers that read the heads of both blocks, and the norms that follow each.
BERT = {
    "encoder.layer.{}.attention.output.dense": [
        "encoder.layer.{}.attention.output.LayerNorm", "encoder.layer.{}.output.LayerNorm"
    ]
}  # fmt: skip
WAV2VEC = {
    "encoder.layers.{}.attention.out_proj": ["encoder.layers.{}.layer_norm", "encoder.layers.{}.final_layer_norm"]
}


def behind_post_norms(model, prefix, modules, inputs):
    """What each head of two layers adds to the output of the last block, ``(layer, head, position, width)``."""
    ((output, norms),) = modules.items()
    outputs = [f"{prefix}{output}".format(layer) for layer in (0, 1)]
    of_layer = [[f"{prefix}{norm}".format(layer) for norm in norms] for layer in (0, 1)]
    received, result = recorded(model, [*outputs, *chain(*of_layer)], inputs)
    parts = []
    for layer, head in np.ndindex(2, 2):
        part = written(model.get_submodule(outputs[layer]), received[outputs[layer]], head)
        for name in chain(*of_layer[layer:]):
            part = through(model.get_submodule(name), received[name], part)
        parts.append(part[0])
    return torch.stack(parts).unflatten(0, (2, 2)), result


def heads_of(found):
    """Parts of heads, ``(text, layer, head)``, after a check that all parts add up to the metric."""
    measured = found["predictions"]
    np.testing.assert_allclose(measured.part.sum("component"), measured.metric, atol=1e-5)
    np.testing.assert_allclose(measured.lens_metric[:, -1], measured.metric, atol=1e-5)
    return measured.part.values[:, measured.kind == "head"].reshape(-1, 2, 2)


def texts_as_inputs(tokenizer, texts=TEXTS):
    return [dict(tokenizer(text, return_tensors="pt", return_token_type_ids=False)) for text in texts]


@torch.no_grad()
def test_parts_of_a_label_behind_a_tanh_are_those_of_hooks_in_batches_with_padding():
    model, tokenizer, _ = text_model("bert")
    model.classifier.bias.copy_(torch.tensor([0.1, -0.2, 0.4]))
    found = attnscope_circuits.attribute(model, TEXTS, tokenizer=tokenizer, token="yes", against="no")
    row = model.classifier.weight[1] - model.classifier.weight[0]
    for text, inputs in enumerate(texts_as_inputs(tokenizer)):
        parts, result = behind_post_norms(model, "bert.", BERT, inputs)
        pooled = recorded(model, ["bert.pooler.activation"], inputs)[0]["bert.pooler.activation"][0]
        expected = (parts[:, :, 0] @ model.bert.pooler.dense.weight.T * (pooled.tanh() / pooled)) @ row
        np.testing.assert_allclose(heads_of(found)[text], expected, atol=1e-5)
        assert expected.abs().max() > 0.1
        np.testing.assert_allclose(
            found["predictions"].metric[text], result.logits[0, 1] - result.logits[0, 0], atol=1e-5
        )
    behind = found["predictions"].part.sel(component="output layers")
    np.testing.assert_allclose(behind, -0.3, atol=1e-5)  # the biases of the classifier


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_an_embedding_are_those_of_hooks_and_add_up_to_one(dtype):
    model, tokenizer, _ = text_model("encoder")
    exact = [behind_post_norms(model, "", BERT, inputs) for inputs in texts_as_inputs(tokenizer)]
    found = attnscope_circuits.attribute(model.to(dtype), TEXTS, tokenizer=tokenizer)
    for text, (parts, result) in enumerate(exact):
        embedding = result.last_hidden_state[0].mean(0)
        expected = parts.mean(2) @ embedding / (embedding @ embedding)
        atol = 1e-5 if dtype == torch.float32 else 2e-2
        ours = found["predictions"].part.values[text, found["predictions"].kind == "head"].reshape(2, 2)
        np.testing.assert_allclose(ours, expected, atol=atol)
    assert found["predictions"].part.sum("component").values == pytest.approx(1, abs=1e-5 if atol == 1e-5 else 1e-2)
    assert found["parts"].part.attrs["units"] == "share"


@torch.no_grad()
def test_an_embedding_is_projected_on_a_direction_and_on_the_way_between_a_pair():
    model, tokenizer, _ = text_model("encoder")
    direction = torch.linspace(-1, 1, 16)
    along = heads_of(attnscope_circuits.attribute(model, TEXTS, tokenizer=tokenizer, direction=direction))
    for text, inputs in enumerate(texts_as_inputs(tokenizer)):
        parts = behind_post_norms(model, "", BERT, inputs)[0]
        np.testing.assert_allclose(along[text], parts.mean(2) @ direction, atol=1e-5)
    pairs = [{side: pair[side] for side in ("clean", "corrupted")} for pair in PAIRS]
    of_pairs = heads_of(attnscope_circuits.attribute(model, pairs=pairs, tokenizer=tokenizer))
    for number, pair in enumerate(pairs):
        both = [behind_post_norms(model, "", BERT, inputs) for inputs in texts_as_inputs(tokenizer, pair.values())]
        clean, corrupted = (result.last_hidden_state[0].mean(0) for _, result in both)
        way = clean - corrupted
        np.testing.assert_allclose(of_pairs[number], both[0][0].mean(2) @ way / (way @ way), atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("family", ["vit", "clip"])
def test_parts_of_images_are_those_of_hooks(family, tmp_path):
    model, processor = vision_model(family)

    if family == "clip":
        torch.manual_seed(0)
        config = transformers.CLIPVisionConfig(**SMALL, image_size=SIDE, patch_size=8, projection_dim=6)
        model = transformers.CLIPVisionModelWithProjection(config).eval()
    names = dict(model.named_modules())
    outputs = [name for name in names if name.endswith(("o_proj", "self_attn.out_proj"))]
    last = next(name for name in names if name.endswith(("vit.layernorm", "post_layernorm")))
    found = attnscope_circuits.attribute(
        model, write_pictures(tmp_path / "files"), tokenizer=processor, by_position=True
    )
    for image, name in enumerate(found["predictions"].source.values):
        pixels = np.asarray(transformers.image_utils.load_image(str(tmp_path / "files" / name)))
        inputs = processor(images=pixels, input_data_format="channels_last", return_tensors="pt")
        received, result = recorded(model, [*outputs, last], inputs)
        normed = received[last] if received[last].ndim == 2 else received[last][:, 0]
        expected = torch.empty(2, 2)
        for layer, head in np.ndindex(2, 2):
            part = written(names[outputs[layer]], received[outputs[layer]], head)[:, 0]
            part = through(names[last], normed, part)[0]
            if family == "vit":
                label = int(result.logits[0].argmax())
                expected[layer, head] = part @ (model.classifier.weight[label] - model.classifier.weight.mean(0))
            else:
                embedding = result.image_embeds[0]
                part = model.visual_projection.weight @ part
                expected[layer, head] = part @ embedding / (embedding @ embedding)
        np.testing.assert_allclose(heads_of(found)[image], expected, atol=1e-5)
        assert expected.abs().max() > 1e-3
    measured = found["predictions"]
    assert (measured.part_at[:, 1:] == 0).all()  # the class token alone is read
    by_key = measured.by_key.sum("key").values[:, measured.kind == "head"]
    np.testing.assert_allclose(by_key, measured.part[:, measured.kind == "head"], atol=1e-5)


@torch.no_grad()
def test_parts_of_sounds_of_several_lengths_are_those_of_hooks():
    torch.manual_seed(0)
    small = {"conv_dim": [8, 8], "conv_stride": [10, 8], "conv_kernel": [10, 8], "num_feat_extract_layers": 2}
    config = transformers.Wav2Vec2Config(
        **SMALL, **small, **NAMES, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, initializer_range=0.5
    )
    model = transformers.Wav2Vec2ForSequenceClassification(config).eval()
    extractor, generator = transformers.Wav2Vec2FeatureExtractor(), np.random.default_rng(0)
    waves = [generator.normal(size=size).astype(np.float32) / 4 for size in (1600, 1600, 2000)]
    sounds = [{"array": wave, "sampling_rate": 16_000} for wave in waves]
    found = attnscope_circuits.attribute(model, sounds, tokenizer=extractor, token="yes", against="no")
    row = model.classifier.weight[1] - model.classifier.weight[0]
    for number, wave in enumerate(waves):
        values = extractor(wave, sampling_rate=16_000, return_tensors="pt").input_values
        parts, _ = behind_post_norms(model, "wav2vec2.", WAV2VEC, {"input_values": values})
        expected = (parts.mean(2) @ model.projector.weight.T) @ row
        np.testing.assert_allclose(heads_of(found)[number], expected, rtol=1e-5, atol=1e-5)


def test_the_parts_of_a_metric_of_ones_own_are_those_of_its_gradient():
    model, tokenizer, _ = text_model("gpt2")  # the last token that is not padding is read
    chance = attnscope.metric(unit="share")(lambda logits, _: logits.softmax(-1)[:, 1])
    found = attnscope_circuits.attribute(model, TEXTS, tokenizer=tokenizer, metric=chance, heads=["0.1", "1.0"])[
        "predictions"
    ]
    plain = attnscope_circuits.attribute(
        model, TEXTS, tokenizer=tokenizer, token="yes", against="no", heads=["0.1", "1.0"]
    )
    for text, inputs in enumerate(texts_as_inputs(tokenizer)):
        logits = model(**inputs).logits[0].detach().requires_grad_()
        value = logits.softmax(0)[1]
        slope = torch.autograd.grad(value, logits)[0]
        np.testing.assert_allclose(found.metric[text], value.item(), atol=1e-6)
        np.testing.assert_allclose(found.part[text].sum(), float(slope @ logits.detach()), atol=1e-5)
    assert found.component.values.tolist() == plain["predictions"].component.values.tolist() == ["0.1", "1.0", "rest"]
    sentences = report_of(
        "attribute", attnscope_circuits.attribute(model, TEXTS, tokenizer=tokenizer)
    ).finding.sentences
    assert sentences[0].startswith("Mean logit of the label: ")


def test_what_does_not_fit_is_reported_in_a_line(tmp_path):
    model, tokenizer, _ = text_model("bert")
    encoder, tokens = text_model("encoder")[0], text_model("tokens")[0]
    without = [{"clean": "a b", "corrupted": "a c"}]
    wrong = [
        (model, {"token": "maybe"}, "no label 'maybe'"),
        (model, {"direction": [1.0] * 16}, "give a site"),
        (model, {"pairs": without}, "no field 'answer'"),
        (encoder, {"token": "yes"}, "neither tokens nor labels"),
        (encoder, {"direction": [1.0] * 5}, "expected \\(16,\\)"),
        (tokens, {"metric": lambda logits, _: logits.mean((1, 2))}, "depends on padding"),
    ]
    for one, options, says in wrong:
        with pytest.raises(AttnscopeError, match=says):
            attnscope_circuits.attribute(one, None if "pairs" in options else TEXTS, tokenizer=tokenizer, **options)
    images, processor = vision_model("vit")
    with pytest.raises(AttnscopeError, match="are of texts"):
        attnscope_circuits.attribute(
            images, write_pictures(tmp_path / "files"), tokenizer=processor, direction=[1.0] * 16, site="0.resid_post"
        )


@pytest.mark.device
@pytest.mark.parametrize("kind", ["bert", "encoder", "gpt2"])
def test_a_classifier_that_is_cut_over_two_devices_has_the_parts_of_the_cpu(kind, device):
    (model, tokenizer, _), (here, *_) = text_model(kind), text_model(kind)
    if torch.cuda.is_available():
        model.to(device)
    else:
        ends = {
            "bert": ("bert.encoder.layer.", ["bert.pooler", "classifier"]),
            "encoder": ("encoder.layer.", ["pooler"]),
        }
        blocks, last = (ends | {"gpt2": ("transformer.h.", ["transformer.ln_f", "score"])})[kind]
        around = [name for name, _ in model.named_modules() if name and not f"{blocks}0".startswith(name)]
        names = [name for name in around if not name.startswith((blocks, *last))]
        where = dict.fromkeys([*names, f"{blocks}0"], "cuda:0") | dict.fromkeys([f"{blocks}1", *last], "cuda:1")
        model = dispatch_model(model, where, main_device="cuda:0", force_hooks=True)
    found, expected = (attnscope_circuits.attribute(one, TEXTS, tokenizer=tokenizer) for one in (model, here))
    np.testing.assert_allclose(found["predictions"].part, expected["predictions"].part, atol=1e-5)
