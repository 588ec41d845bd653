"""Every number of a walk is the model's own: in the toy, in the bundled model, in every family and in real models."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.nn import functional as F

import attnscope
import attnscope_lineage
from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model
from attnscope.kernels.heads import SelfAttention
from attnscope_lineage import walk
from attnscope_lineage.efficient import sliding_window_attention
from attnscope_lineage.head_walk import walk_inputs, walk_toy
from attnscope_lineage.steps import same_output, steps
from tests import image_models, speech_models
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer
from tests.packages.lineage.walk.walked_translators import SENTENCE, TARGET, translator
from tests.planted_models import overflowing_bert
from tests.tiny_models import MAKERS, inputs, tiny

TOKENS = 24


def of_first_text(family):
    return {name: tensor[:1] for name, tensor in inputs(family, padded=False)[0].items()}


def test_the_toy_is_what_pytorch_computes():
    toy = walk_toy(seed=3)
    x, *rest = (torch.from_numpy(toy[name]) for name in ("X", "W_Q", "W_K", "W_V", "b_Q", "b_K", "b_V"))
    query, key, value = (x @ rest[i] + rest[i + 3] for i in range(3))
    assert_allclose(toy["products"], query @ key.T, atol=1e-12)
    assert_allclose(toy["scaled"], query @ key.T / 8**0.5, atol=1e-12)
    assert_allclose(toy["weights"], torch.softmax(query @ key.T / 8**0.5, -1), atol=1e-12)
    assert_allclose(
        toy["head_output"], F.scaled_dot_product_attention(*(y[None] for y in (query, key, value)))[0], atol=1e-12
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_toy_attends_where_it_was_planted(seed):
    plain = walk_toy(seed=seed)
    assert plain.tokens[plain.token] == "it"
    assert plain.keys[plain["weights"][2].argmax()] == "animal"
    assert plain.keys[plain["weights"][0].argmax()] == "tired"
    assert plain["weights"][2].max() > 0.6
    other = same_output(plain["weights"][2], plain["V"])
    assert np.abs(other - plain["weights"][2]).sum() > 0.01
    assert other.min() >= 0
    assert_allclose(other.sum(), 1)
    assert_allclose(other @ plain["V"], plain["head_output"][2], atol=1e-13)


def test_affinely_independent_values_have_no_other_weights():
    """A simplex has one mixture for each point; the mean of two values that are in the batch as well has two."""
    corners = np.eye(3)
    assert same_output(np.full(3, 1 / 3), corners) is None
    other = same_output(np.array([0.0, 0.0, 0.0, 1.0]) + 0.0, np.vstack([corners, corners.mean(0)]))
    assert_allclose(other, [1 / 3, 1 / 3, 1 / 3, 0], atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_gets_no_weight_with_its_mask_and_some_without(causal):
    toy = walk_toy(padding=True, causal=causal)
    Q, K, V = (torch.from_numpy(toy[name])[None] for name in "QKV")
    mask = torch.tensor([True, True, False, False]) & (torch.ones(4, 4).tril().bool() if causal else torch.tensor(True))
    assert_allclose(toy["head_output"], F.scaled_dot_product_attention(Q, K, V, attn_mask=mask)[0], atol=1e-12)
    assert (toy["weights"][:, 2:] == 0).all()
    assert (toy["padded_weights"][2:, 2] > 0.1).all()
    assert (toy["padded_weights"][:2, 2:].sum() == 0) == causal


@pytest.mark.parametrize("kind", ["sinusoidal-pre", "rope-pre", "marian"])
def test_sinusoids_are_rotated_from_position_to_position(kind):
    """Equations 1 to 3 of Yamamoto et al.: the rows and frequencies are computed here from their definition."""
    model = small_model(kind) if kind == "marian" else translator(kind)  # with its own positions
    found = walk(model, SENTENCE, tokenizer=small_tokenizer(), device="cpu", targets=TARGET, layer=0)
    assert ("positions" in found) == (kind != "rope-pre")
    if "positions" in found:
        table, shift = found["positions"], found["shift"]
        width = table.shape[1]
        angle = np.arange(len(table))[:, None] / 10000 ** (2 * np.arange(width // 2) / width)
        waves = (np.sin(angle), np.cos(angle))
        expected = np.concatenate(waves, 1) if kind == "marian" else np.stack(waves, -1).reshape(len(table), -1)
        assert_allclose(table, expected, atol=1e-6)
        assert_allclose(shift @ shift.T, np.eye(width), atol=1e-12)
        assert found.errors["positions"] < 1e-6
        assert_allclose(expected[:-1] @ shift.T, expected[1:], atol=1e-12)


def test_forms_are_those_of_the_head_itself():
    found = walk(MODEL, "A short sentence.", device="cpu", forms=True)
    error = found.forms.output_error.mean(("window", "head"))
    assert error.sel(form="full") == 0
    Q, K, V = (torch.from_numpy(found[name])[None, None] for name in "QKV")
    window = sliding_window_attention(Q, K, V, left=8, right=8)[0, 0].numpy()
    lost = np.linalg.norm(window - found["head_output"]) / np.linalg.norm(found["head_output"])
    assert_allclose(error.sel(form="window of 8"), lost, rtol=1e-6)


@pytest.mark.parametrize("layer", range(3))
def test_the_bundled_model_multiplies_out(layer):
    """From X through the four matrices to what the model's attention gives, heads added up one by one."""
    loaded = load_model(MODEL, device="cpu")
    model, tokenizer = loaded.model, loaded.tokenizer
    found = [walk(model, layer=layer, head=head, tokenizer=tokenizer) for head in range(4)]
    total = found[0]["b_O"]
    for head, one in enumerate(found):
        query, key, value = (one["X"] @ one[f"W_{name}"] + one[f"b_{name}"] for name in "QKV")
        scores = torch.from_numpy(query @ key.T / 32**0.5)
        total = total + torch.softmax(scores, -1).numpy() @ value @ one["W_O"][32 * head : 32 * (head + 1)]
    given = []
    hook = model.encoder.layers[layer].self_attention.out_proj.register_forward_hook(
        lambda *arguments: given.append(arguments[2])
    )
    encoded = tokenizer("The animal didn't cross the street because it was too tired.", return_tensors="pt")
    with torch.no_grad():
        model(encoded["input_ids"])
    hook.remove()
    assert_allclose(total, given[0][0], atol=2e-5 * np.abs(total).max())


@pytest.mark.parametrize("family", MAKERS)
def test_every_family_gives_its_own_output(family):
    model, given = tiny(family), of_first_text(family)
    first = walk_inputs(model, given, layer=0, head=3, token=5)
    for found in (first, walk_inputs(model, given, layer=first.layers - 1, head=3, token=5)):
        own = {"head_output", "result"} | ({"V"} if family != "deberta" else set())  # its matrices are not known
        assert own <= set(found.errors)
        assert max(found.errors.values()) < 5e-6
        assert_allclose(found["weights"] @ found["V"], found["head_output"], rtol=1e-12)
        assert (found["weights"][~found["allowed"]] == 0).all()


@pytest.mark.parametrize("family", ["bert", "gpt2", "opt", "llama", "gemma2", "qwen3", "t5"])
def test_weights_are_those_of_eager_attention(family):
    model, given = tiny(family), of_first_text(family)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        answer = model(**given, output_attentions=True)
    eager = answer.encoder_attentions if family == "t5" else answer.attentions
    model.set_attn_implementation("sdpa" if family not in {"gemma2", "t5"} else "eager")
    found = walk_inputs(model, given, layer=1, head=2)
    assert_allclose(found["weights"], eager[1][0, 2], atol=1e-5)


class TestTheFollowedToken:
    SENTENCE = "The animal didn't cross the street because it was too tired."

    def followed(self, wanted, sentence=SENTENCE):
        found = walk(MODEL, sentence, query_token=wanted, device="cpu")
        return found.tokens[found.token]

    def test_by_default_the_last_that_is_not_special(self):
        assert self.followed(None, "The tide is out.") == "."

    @pytest.mark.parametrize("given", [(), (None, SENTENCE)])
    def test_by_default_of_the_default_sentence_the_pronoun(self, given):
        found = walk(*given, device="cpu")
        assert found.tokens[found.token] == " it"

    @pytest.mark.parametrize(("wanted", "token"), [(0, "<s>"), ("3", "im"), ("it", " it"), ("animal", " an")])
    def test_by_position_or_text(self, wanted, token):
        assert self.followed(wanted) == token


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ({"layer": 3}, "there is no head 3.0 .layer, head.: layers go from 0 to 2"),
            ({"head": -1}, "there is no head 1.-1 .layer, head.: layers go from 0 to 2, heads from 0 to 3"),
            ({"query_token": 32}, "there is no token 32: tokens go from 0 to 31"),
            ({"query_token": "cat"}, "the sentence has no token 'cat'"),
            ({"texts": "  "}, "the sentence is empty"),
            ({"texts": "word " * 200}, "at most 128"),
        ],
    )
    def test_it_is_rejected(self, arguments, says):
        with pytest.raises(AttnscopeError, match=says):
            walk(**{"model": MODEL, "device": "cpu"} | arguments)

    def test_numbers_that_are_not_the_model_s_are_rejected(self, monkeypatch):
        from attnscope_lineage import head_walk as _walk

        monkeypatch.setattr(_walk, "_own_result", lambda *_: np.ones((TOKENS, 32)))
        with pytest.raises(AttnscopeError, match="the model differ in result"):
            walk_inputs(tiny("bert"), of_first_text("bert"))


def test_a_sentence_on_which_the_model_overflows_is_rejected():
    with pytest.raises(
        AttnscopeError, match=r"^the sentence: layer 0 \(encoder\.layer\.0\.attention\.self\) gives NaN"
    ):
        walk_inputs(overflowing_bert(7), {"input_ids": torch.tensor([[5, 6, 7]])})


class Lesson(nn.Module):
    """As tutorials write it; made to be changed."""

    def __init__(self, width=8, *, causal=False, root=True, returns_weights=True):
        super().__init__()
        self.W_v, self.W_k, self.W_q = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.causal, self.root, self.returns_weights = causal, root, returns_weights

    def forward(self, x):
        K, Q, V = self.W_k(x), self.W_q(x), self.W_v(x)
        scores = Q @ K.transpose(-2, -1) / (x.shape[-1] ** 0.5 if self.root else 1)
        if self.causal:
            scores = scores.masked_fill(torch.ones(x.shape[-2], x.shape[-2]).triu(1).bool(), -torch.inf)
        weights = F.softmax(scores, -1)
        return (weights @ V, weights) if self.returns_weights else weights @ V


@pytest.fixture
def x():
    return torch.rand(2, 4, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "module",
    [SelfAttention(8), Lesson(), Lesson(causal=True), Lesson(root=False), Lesson(returns_weights=False)],
    ids=["ours", "a lesson's", "causal", "without division", "without weights"],
)
def test_a_module_of_one_head_multiplies_out(module, x):
    walked = attnscope_lineage.walk(module, x)
    returned = module(x)
    output = returned[0] if isinstance(returned, tuple) else returned
    assert_allclose(walked["head_output"], output[0].detach(), atol=1e-6)
    assert_allclose(walked["weights"] @ walked["V"], walked["head_output"], atol=1e-12)
    if isinstance(returned, tuple):
        assert_allclose(walked["weights"], returned[1][0].detach(), atol=1e-6)
    assert max(walked.errors.values()) < 1e-5


@pytest.mark.parametrize("causal", [False, True])
def test_a_softmax_over_the_queries_is_named(monkeypatch, x, causal):
    monkeypatch.setattr(F, "softmax", lambda scores, dim: torch.softmax(scores, dim - 1))
    with pytest.raises(AttnscopeError, match=r"the softmax of Lesson is over the queries: .* softmax\(-1\)"):
        attnscope_lineage.walk(Lesson(causal=causal), x)


class Heads(nn.Module):
    """Several heads, as tutorials write them; made to be changed."""

    def __init__(self, heads, *, in_one=False, projected=True, causal=False, returns="nothing", dim=-1):
        super().__init__()
        self.readers = nn.ModuleList([nn.Linear(8, 24)] if in_one else [nn.Linear(8, 8) for _ in range(3)])
        self.output = nn.Linear(8, 8) if projected else nn.Identity()
        self.heads, self.causal, self.returns, self.dim = heads, causal, returns, dim

    def forward(self, x):
        texts, tokens, width = x.shape
        parts = torch.cat([reader(x) for reader in self.readers], -1).chunk(3, -1)
        Q, K, V = (part.view(texts, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        scores = Q @ K.mT / Q.shape[-1] ** 0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf)
        weights = scores.softmax(self.dim)
        output = self.output((weights @ V).transpose(1, 2).reshape(texts, tokens, width))
        self.weights = weights
        return {"nothing": output, "weights": (output, weights), "mean": (output, weights.mean(1))}[self.returns]


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "options",
    [{}, {"in_one": True}, {"projected": False}, {"causal": True}, {"returns": "weights"}, {"returns": "mean"}],
    ids=str,
)
def test_each_head_of_a_module_multiplies_out(heads, options, x):
    torch.manual_seed(heads)
    module = Heads(heads, **options)
    for head in range(heads):
        walked = attnscope_lineage.walk(module, x, head=head)
        assert (walked.heads, walked.head, walked.kind) == (heads, head, "causal" if module.causal else "self")
        assert_allclose(walked["weights"], module.weights[0, head].detach(), atol=1e-6)
        assert_allclose(walked["X"] @ walked["W_Q"] + walked["b_Q"], walked["Q"], atol=1e-12)
        if "result" in walked:
            output = module(x)[0][0] if isinstance(module(x), tuple) else module(x)[0]
            assert_allclose(walked["result"], output.detach(), atol=1e-6)
        told = " ".join(text for step in steps(walked) for text in step.text)
        concatenates = f"All {heads} heads compute this in parallel" in told
        assert concatenates == ("concatenated" in walked and heads > 1)
    with pytest.raises(AttnscopeError, match=f"there is no head {heads}: heads go from 0 to {heads - 1}"):
        attnscope_lineage.walk(module, x, head=heads)


def test_a_softmax_over_the_queries_is_named_in_a_module_of_several_heads(x):
    torch.manual_seed(0)
    with pytest.raises(AttnscopeError, match=r"the softmax of Heads is over the queries: .* softmax\(-1\)"):
        attnscope_lineage.walk(Heads(2, dim=-2), x)


@pytest.mark.parametrize(
    "options",
    [{"batch_first": True}, {}, {"bias": False}, {"kdim": 8, "vdim": 8}, {"batch_first": True, "dropout": 0.1}],
    ids=str,
)
def test_pytorch_s_module_multiplies_out(options, x):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 4, **options).eval()
    given = x if module.batch_first else x.transpose(0, 1)
    output, weights = module(given, given, given, average_attn_weights=False)
    output = output if module.batch_first else output.transpose(0, 1)
    for head in range(4):
        walked = attnscope_lineage.walk(module, x, head=head)
        assert_allclose(walked["weights"], weights[0, head].detach(), atol=1e-6)
        assert_allclose(walked["result"], output[0].detach(), atol=1e-6)
    alone = attnscope_lineage.walk(module, x[0], head=1)  # without a dimension of texts
    assert_allclose(alone["weights"], weights[0, 1].detach(), atol=1e-6)


class Doubled(Heads):
    """What is no attention of its layers."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_our_head_loads_a_lesson_s_parameters(x):
    lesson, ours = Lesson(), SelfAttention(8)
    assert set(dict(ours.named_parameters())) == {f"W_{name}.{part}" for name in "qkv" for part in ("weight", "bias")}
    ours.load_state_dict(lesson.state_dict() | {f"W_{name}.bias": torch.zeros(8) for name in "qkv"})
    for mine, theirs in zip(ours(x), lesson(x), strict=True):
        assert_allclose(mine.detach(), theirs.detach(), atol=1e-6)


def test_watch_says_what_to_do_with_a_lesson(x):
    with attnscope.watch(Lesson()) as watched:
        Lesson()(x)
    with pytest.raises(AttnscopeError, match=r"weights to attnscope\.measure_weights.*or use attnscope_lineage\.walk"):
        watched.result()


@pytest.mark.parametrize(
    ("module", "given", "said"),
    [
        (Doubled(2), torch.ones(1, 4, 8), "does not compute softmax.*measure_weights"),
        (nn.Linear(8, 8), torch.ones(1, 4, 8), "calls 1 linear layer on X and 0 on other states; expected three"),
        (nn.MultiheadAttention(8, 2, add_zero_attn=True), torch.ones(1, 4, 8), "attends to keys of its own"),
        (nn.MultiheadAttention(8, 2).eval(), torch.ones(1, 4, 7), "Its last dimension must be embed_dim"),
        (Lesson(), torch.ones(1, 4, 7), "X of shape .* makes 'Lesson' fail"),
        (Lesson(), torch.ones(8), "expected real numbers"),
        (Lesson(), "A sentence.", "pass a tensor X"),
        ("bundled", torch.ones(1, 4, 8), "not images. Give it text"),
    ],
)
def test_others_are_rejected_with_what_to_do(module, given, said):
    with pytest.raises(AttnscopeError, match=said):
        attnscope_lineage.walk(module, given)


@pytest.mark.parametrize("family", ["vit", "siglip"])
def test_an_image_is_walked_by_its_patches(tmp_path, family):
    """Against the weights of eager attention; tokens are patches by row and column."""
    image_models.save_vision_model(family, tmp_path / family)
    image = next(iter(sorted(image_models.write_pictures(tmp_path / "images").iterdir())))
    found = walk(tmp_path / family, image, layer=1, head=1, device="cpu", query_token="r1c2")
    eager = attnscope.weights(tmp_path / family, image, layer=1, head=1, device="cpu")
    assert_allclose(found["weights"], eager, atol=1e-5)
    assert found.tokens == tuple(eager.query_token.values)
    assert found.tokens[found.token] == "r1c2"
    said = steps(found)
    assert said[0].title == "The image becomes patches"
    assert "r0c1" in said[0].text[1]


def test_a_sound_is_walked_by_its_frames(tmp_path):
    speech_models.save_whisper(tmp_path / "whisper")
    sound = speech_models.write_sounds(tmp_path / "sounds") / "0.wav"
    found = walk(tmp_path / "whisper", sound, layer=1, head=0, device="cpu")
    eager = attnscope.weights(tmp_path / "whisper", sound, layer=1, head=0, device="cpu")
    assert_allclose(found["weights"], eager, atol=1e-5)
    assert found.tokens[found.token] == "0.48s"  # half a second in frames of 20 ms; silence follows
    assert steps(found)[0].title == "The sound becomes frames"
    told = walk(tmp_path / "whisper", sound, layer=3, head=0, device="cpu", targets="The tide comes in.")
    assert (told.kind, told.keys[1]) == ("cross", "0.02s")
    assert "tide" in "".join(told.tokens)


@pytest.mark.parametrize("model", [MODEL, "gpt2", "t5"])
def test_a_batch_of_two_sentences_has_padding_in_the_shorter(model):
    """The model's numbers are those of the sentence alone; without its mask, weight would go to the padding."""
    tokenizer = load_model(MODEL, device="cpu").tokenizer
    loaded = MODEL
    if model != MODEL:
        loaded = tiny(model)
        loaded.resize_token_embeddings(len(tokenizer))
    options = {"layer": 1, "head": 1, "tokenizer": tokenizer, "device": "cpu"}
    options |= {"targets": "A cat."} if model == "t5" else {}
    short, long = "The tide comes in.", "It goes out again, and the boats lie on the mud."
    alone, found = walk(loaded, short, **options), walk(loaded, [long, short], **options)
    length = len(alone.tokens)
    assert found.tokens[:length] == alone.tokens
    assert {*found.tokens[length:]} == {"<pad>"}
    assert_allclose(found["head_output"][:length], alone["head_output"], atol=1e-5)
    assert found["padding"].tolist() == [False] * length + [True] * (len(found.tokens) - length)
    assert (found["weights"][:, length:][:length] == 0).all()
    scores = np.where(np.tril(np.ones_like(found["scores"])) if model == "gpt2" else True, found["scores"], -np.inf)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    assert_allclose(found["padded_weights"], exponentials / exponentials.sum(-1, keepdims=True), atol=1e-12)
    assert (found["padded_weights"][:length, length:].sum() > 0) == (model != "gpt2")
    assert "padding" in " ".join(next(step for step in steps(found) if step.title.startswith("Mask")).text)
    with pytest.raises(AttnscopeError, match="all sentences have"):
        walk(loaded, [short, short], **options)


def test_the_model_of_pronouns_is_followed_from_it():
    wide = walk("bundled:pronoun", "The animal didn't cross the street because it was too wide.")
    assert wide.tokens[wide.token].strip("▁ ") == "it"
    other = walk("bundled:pronoun", "The animal was too wide.")
    assert other.tokens[other.token].strip("▁ ") == "."
