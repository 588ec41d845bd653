"""`scan` of translations: every statistic equals that of the weights which eager attention gives for one pair alone."""

import numpy as np
import pytest
import torch
import xarray as xr

import attnscope
from attnscope import AttnscopeError
from attnscope.capture.forward import decoder_start
from attnscope.explanation.analyses import position_content as _position_content
from attnscope.explanation.analyses.interventions import interventions
from attnscope.explanation.analyses.position_scheme import bias_effect
from attnscope.kernels.bins import far_starts
from attnscope.kernels.call import RowMeasures
from attnscope.measure.quantities import DEFAULT
from attnscope.measure.ranking import peaks, rank_heads
from attnscope.measure.rows import indicator_columns, reduce_call
from attnscope.models.configs import TransformerConfig
from attnscope.results.figures.scan import maps
from attnscope.store.arrays import unpacked
from attnscope_lineage.models.transformer import TransformerForConditionalGeneration
from tests.explanation.analyses_of_windows import of_windows
from tests.kernels.statistics_of_weights import from_weights
from tests.packages.lineage.translation.small_translators import small_model, small_recurrent, small_tokenizer
from tests.tiny_models import tiny

content_of_model = of_windows(_position_content.position_content)

BAND, REACH = 3, 25  # a token a character, and the special ones
#: Unequal lengths on both sides, but in the third pair, where both sides have as many tokens.
TEXTS = ["a bat", "the hat of a man", "ab", "a long one that goes on"]
TARGETS = ["ein langer satz", "der hut", "ba", "so"]


def ours(positions):
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "feed_forward": 16, "encoder_layers": 2, "decoder_layers": 2}
    config = TransformerConfig(vocab_size=64, positions=positions, max_position_embeddings=40, **sizes)
    return TransformerForConditionalGeneration(config).eval()


MODELS = {
    "bart": lambda: small_model("bart"),
    "t5": lambda: small_model("t5"),
    "learned": lambda: ours("learned"),
    "alibi": lambda: ours("alibi"),
    "dot": lambda: small_recurrent("dot"),
    "scaled dot": lambda: small_recurrent("scaled_dot"),
    "bilinear": lambda: small_recurrent("bilinear"),
    "additive": lambda: small_recurrent("additive"),
}


def special(ids):
    return torch.tensor([[token in {0, 1, 2} for token in ids]])


def of_one_pair(model, tokenizer, text, target):
    """Statistics of the weights that the model itself returns for one pair without padding, by layer."""
    source, labels = tokenizer(text).input_ids, tokenizer(text_target=target).input_ids
    read = [model.config.decoder_start_token_id, *labels[:-1]]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(input_ids=torch.tensor([source]), labels=torch.tensor([labels]), output_attentions=True)
    layers = [(weights, source, source) for weights in found.encoder_attentions or ()]
    for number, cross in enumerate(found.cross_attentions):
        own = [] if found.decoder_attentions is None else [(found.decoder_attentions[number], read, read)]
        layers += [*own, (cross, read, source)]
    for weights, queries, keys in layers:
        assert weights.shape[2:] == (len(queries), len(keys))
        everywhere = torch.ones(1, len(keys), dtype=torch.bool)
        columns = weights.double() @ indicator_columns(everywhere, special(keys)).double()[:, None]
        measured = from_weights(weights.double(), BAND, far_starts(BAND, REACH))
        rows = RowMeasures(log_sum_exp=measured["mass"], columns=columns, **measured)
        yield reduce_call(rows, DEFAULT, torch.ones(1, len(queries), dtype=torch.bool), everywhere)


@pytest.mark.parametrize("kind", MODELS)
def test_padded_batches_equal_each_pair_alone(kind):
    model, tokenizer = MODELS[kind](), small_tokenizer()
    found = attnscope.scan(
        model, TEXTS, targets=TARGETS, tokenizer=tokenizer, window=40, band=BAND, batch_size=3, device="cpu"
    )
    kinds = found.layer_kind.values.tolist()
    alone = kind in {"dot", "scaled dot", "bilinear", "additive"}  # recurrent: cross-attention and nothing else
    assert kinds[:4] == (["cross"] if alone else ["self", "self", "causal", "cross"])
    for number, (text, target) in enumerate(zip(TEXTS, TARGETS, strict=True)):
        for layer, wanted in enumerate(of_one_pair(model, tokenizer, text, target)):
            for name in DEFAULT:
                np.testing.assert_allclose(
                    found[name].values[number, layer],
                    wanted[name].numpy()[0],
                    atol=2e-5,
                    rtol=1e-4,
                    err_msg=f"{kind}, pair {number}, layer {layer} ({kinds[layer]}), {name}",
                )
    assert found.length.values.tolist() == [len(tokenizer(text).input_ids) for text in TEXTS]
    assert found.target_length.values.tolist() == [len(tokenizer(text).input_ids) for text in TARGETS]
    shares = found.band_sum.sum("offset") / xr.where(found.layer_kind == "self", found.length, found.target_length)
    np.testing.assert_allclose((shares + found.outside).values, 1, rtol=1e-5)
    assert float(peaks(found).peak_weight.max()) <= 1
    ranked = [row for rows in rank_heads(found).values() for row in rows]
    assert all(row["attention"] == kinds[row["layer"]] for row in ranked)


def test_a_start_that_depends_on_the_language_is_the_models_own():
    """mBART's decoder begins with the mark of the language, the last token of what is said."""
    from transformers import MBartConfig, MBartForConditionalGeneration

    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
    model = MBartForConditionalGeneration(MBartConfig(vocab_size=20, pad_token_id=1, **sizes, **heads))
    start = decoder_start(model)
    labels = [[5, 6, 2, 17], [7, 2, 18]]
    read = model.prepare_decoder_input_ids_from_labels(torch.tensor([labels[0], [*labels[1], 1]]))
    assert [start(ids) for ids in labels] == read[:, 0].tolist() == [17, 18]


def test_the_sample_has_rows_of_the_target_and_columns_of_the_source(tmp_path):
    tokenizer = small_tokenizer()
    attnscope.scan(
        small_model("bart"),
        ["a hat"],
        targets=["ein hut"],
        tokenizer=tokenizer,
        window=40,
        out=tmp_path / "run",
        show=[],
    )
    sample = unpacked((tmp_path / "run" / "sample.npz").read_bytes())
    text = sample.isel(window=0)
    read = ["<s>", *tokenizer(text_target="ein hut").tokens()[:-1]]
    assert text.target_token.values.tolist() == [token.replace("▁", " ") for token in read]
    assert text.token.values.tolist() == [" a", " ", "h", "a", "t", "</s>", "", "", ""]
    assert text.target_special.values.tolist() == [True, *[False] * 8]
    assert (text.tokens, text.target_tokens) == (6, 9)
    found = list(maps(sample))
    assert len(found) == sample.sizes["layer"] * sample.sizes["head"]
    for one in found:
        rows, columns = {"self": (6, 6), "causal": (9, 9), "cross": (9, 6)}[str(sample.layer_kind.values[one.layer])]
        np.testing.assert_allclose(np.bincount(one.query, weights=one.weight, minlength=rows), np.ones(rows), atol=1e-5)
        assert one.key.max() < columns


def test_a_run_of_another_target_is_another_run(tmp_path):
    given = {"tokenizer": small_tokenizer(), "window": 40, "batch_size": 1, "statistics": "entropy"}
    given["out"] = tmp_path / "run"
    model = small_model("bart")
    attnscope.scan(model, TEXTS, targets=TARGETS, **given)
    with pytest.raises(AttnscopeError, match=r"holds another run: its target.sha256 is"):
        attnscope.scan(model, TEXTS, targets=TARGETS[::-1], **given)
    with pytest.raises(AttnscopeError, match=r"holds another run: its .*target"):
        attnscope.scan(model, TEXTS, **given)


def test_lines_stay_beside_each_other(tmp_path):
    """Two blank lines are passed over, and other line ends of Unicode end no line."""
    (tmp_path / "source").write_text("a hat\n\na\u2028b\n", newline="")
    (tmp_path / "target").write_text("ein hut\r\n \r\nab", newline="")
    found = attnscope.scan(
        small_model("t5"),
        tmp_path / "source",
        targets=tmp_path / "target",
        tokenizer=small_tokenizer(),
        window=40,
        statistics="entropy",
    )
    assert found.source.values.tolist() == ["source:1", "source:3"]
    assert found.target_length.values.tolist() == [9, 3]


def test_a_result_records_what_the_decoder_read():
    given = {"tokenizer": small_tokenizer(), "window": 20, "statistics": "entropy", "device": "cpu"}
    same = attnscope.scan(small_model("t5"), ["a hat"], **given)
    assert same.attrs["decoder"].startswith("The decoder read the same text as the encoder")
    other = attnscope.scan(small_model("t5"), ["a hat"], targets=["ein hut"], **given)
    assert other.attrs["decoder"] == "The decoder read the target text."
    assert "decoder" not in attnscope.scan(texts=["a hat"], statistics="entropy").attrs


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"targets": ["a"]}, "the text has 2 lines and the target 1; expected the same number"),
        ({"targets": ["a", " "]}, "text 2 of the target is blank, but that line of the text is not"),
        (
            {"targets": ["a", "a very long line"], "window": 12},
            r"text 2 of the target has 17 tokens, but a window takes 12: leave",
        ),
        (
            {"texts": ["a", "a very long line"], "window": 12},
            r"text 2 of the text has 17 tokens, but a window takes 12: leave",
        ),
        ({"targets": ["a", "b"], "stride": 4}, "with targets every line is a window"),
        ({"limit": 0}, "limit .* is 0"),
        ({"texts": None}, "a target without the text that it translates"),
    ],
)
def test_what_is_not_parallel_is_rejected(given, message):
    options = {"texts": ["a", "b"], "targets": ["a", "b"], "window": 30, **given}
    with pytest.raises(AttnscopeError, match=message) as caught:
        attnscope.scan(small_model("t5"), options.pop("texts"), tokenizer=small_tokenizer(), **options)
    assert len(str(caught.value).splitlines()) <= 2


def startless():
    model = small_model("bart")
    model.config.decoder_start_token_id = None
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (startless, "the first token of the decoder"),
        (lambda: tiny("bert"), r"cannot read targets. Leave out targets \(--target\)"),
        (lambda: tiny("gpt2"), r"cannot read targets. Leave out targets \(--target\)"),
        (lambda: small_recurrent("none"), r"^RecurrentForConditionalGeneration has no attention"),
    ],
)
def test_models_that_cannot_read_targets_are_rejected(make, message):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.scan(make(), ["a hat"], targets=["ein hut"], tokenizer=small_tokenizer(), window=20)


@pytest.mark.parametrize("attention", ["bilinear", "additive"])
def test_verbs_of_self_attention_reject_a_recurrent_model(attention):
    model, tokenizer = small_recurrent(attention), small_tokenizer()
    texts = ["the hat of a man is a hat", "a long one that goes on"]
    for refused in (
        lambda: attnscope.explain(model, texts, targets=texts, tokenizer=tokenizer, window=12),
        lambda: interventions(model, [[5, 6, 7], [7, 8, 9]]),
        lambda: bias_effect(model, [[5, 6, 7], [7, 8, 9]]),
        lambda: content_of_model(model, [[5, 6, 7], [7, 8, 9]]),
    ):
        with pytest.raises(AttnscopeError, match=r"has no self-attention|reads one token after another") as caught:
            refused()
        assert len(str(caught.value).splitlines()) <= 2
