"""Modules of students: right ones pass, and of wrong ones the mistake is named."""

import re

import pytest

from attnscope import AttnscopeError, set_language
from attnscope.report.language import fits
from attnscope_lineage.check import MISTAKES, Verdict, check, module_of
from tests.cli.command import attnscope

IMPORTS = "import math\nimport torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
ONE = """
class SelfAttention(nn.Module):
    def __init__(self, embed_dim):
        super(SelfAttention, self).__init__()
        self.embed_dim = embed_dim
        self.W_q = nn.Linear(embed_dim, embed_dim)
        self.W_k = nn.Linear(embed_dim, embed_dim)
        self.W_v = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        Q = self.W_q(x)
        K = self.W_k(x)
        V = self.W_v(x)
        scores = torch.matmul(Q, K.transpose(-2, -1)) / self.embed_dim**0.5
        attn_weights = F.softmax(scores, dim=-1)
        output = torch.matmul(attn_weights, V)
        return output, attn_weights
"""
SEVERAL = """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        b, t, d = x.shape
        q = self.q_proj(x).view(b, t, self.num_heads, self.d_k).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.num_heads, self.d_k).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.num_heads, self.d_k).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        weights = scores.softmax(dim=-1)
        out = (weights @ v).transpose(1, 2).reshape(b, t, d)
        return self.out_proj(out)
"""
CAUSAL = SEVERAL.replace("x, mask=None):", "x):").replace(
    "        if mask is not None:\n", "        mask = torch.tril(torch.ones(t, t))\n        if True:\n"
)
LIST = """
class Head(nn.Module):
    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(8, 8)))

    def forward(self, x):
        B, T, C = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


class MultiHeadAttention(nn.Module):
    def __init__(self, n_embd, num_heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd, n_embd // num_heads) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))
"""
FUSED = """
class Attention(nn.Module):
    def __init__(self, dim, heads, dropout=0.1):
        super().__init__()
        self.h = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = (one.unflatten(-1, (self.h, -1)).transpose(1, 2) for one in self.to_qkv(x).chunk(3, dim=-1))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.to_out(self.drop(o.transpose(1, 2).flatten(2)))
"""
MATRICES = """
class Attention(nn.Module):
    def __init__(self, d_model, d_k, d_v):
        super().__init__()
        self.Wq = nn.Parameter(torch.randn(d_model, d_k))
        self.Wk = nn.Parameter(torch.randn(d_model, d_k))
        self.Wv = nn.Parameter(torch.randn(d_model, d_v))

    def forward(self, X):
        Q, K, V = X @ self.Wq, X @ self.Wk, X @ self.Wv
        S = torch.einsum("bid,bjd->bij", Q, K) / Q.shape[-1] ** 0.5
        return torch.softmax(S, dim=2) @ V
"""
CROSS = (
    ONE.replace("forward(self, x)", "forward(self, query, key, value)")
    .replace("W_q(x)", "W_q(query)")
    .replace("W_k(x)", "W_k(key)")
    .replace("W_v(x)", "W_v(value)")
)
READY_MADE = """
class SelfAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)

    def forward(self, x):
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        output, weights = self.attention(x, x, x, attn_mask=hidden)
        return output
"""
UNMASKED = READY_MADE.replace(", attn_mask=hidden", "")
EINSUM = 'torch.einsum("bid,bjd->bij", Q, K)'
MASKED = 'scores = scores.masked_fill(mask == 0, float("-inf"))'
RIGHT = {
    "the text's own": (ONE, 1, False),
    "several heads": (SEVERAL, 2, True),
    "causal": (CAUSAL, 2, True),
    "a list of heads": (LIST, 2, True),
    "one layer for all three": (FUSED, 2, True),
    "bare matrices": (MATRICES, 1, False),
    "queries, keys and values apart": (CROSS, 1, False),
    "a mask of what is hidden": (SEVERAL.replace("mask == 0", "mask.bool()"), 2, True),
    "a mask that is needed": (
        SEVERAL.replace("mask=None", "mask").replace("        if mask is not None:\n    ", ""),
        2,
        True,
    ),
    "a mask that is added": (SEVERAL.replace(MASKED, "scores = scores + mask"), 2, True),
    "a large negative number": (SEVERAL.replace('float("-inf")', "-1e9"), 2, True),
    "one text at a time": (MATRICES.replace(EINSUM, "Q @ K.T").replace("dim=2", "dim=1"), 1, False),
    "nn.MultiheadAttention": (UNMASKED, 2, False),
    "nn.MultiheadAttention with a mask": (READY_MADE, 2, True),
    "nn.MultiheadAttention with the token axis first": (
        UNMASKED.replace(", batch_first=True", "").replace("(x, x, x)", "(*[x.transpose(0, 1)] * 3)").replace(
            "return output", "return output.transpose(0, 1)"
        ),
        2,
        False,
    ),
    "an instance": (SEVERAL + "\nattention = MultiHeadAttention(12, 3)\n", 3, True),
}  # fmt: skip
SCALE1, SOFT1, OUT1 = " / self.embed_dim**0.5", "F.softmax(scores, dim=-1)", "torch.matmul(attn_weights, V)"
SCALE2, MERGE2 = " / math.sqrt(self.d_k)", "(weights @ v).transpose(1, 2).reshape(b, t, d)"
SPLIT2 = ".view(b, t, self.num_heads, self.d_k).transpose(1, 2)"
RETURN2 = f"out = {MERGE2}\n        return self.out_proj(out)"
WRONG = [
    (ONE, SCALE1, "", "scale none"),
    (ONE, SCALE1, " / self.embed_dim", "scale width"),
    (ONE, SCALE1, " * self.embed_dim**0.5", "scale times"),
    (ONE, SOFT1, "F.softmax(scores, dim=1)", "softmax queries"),
    (ONE, SOFT1, "F.softmax(scores, dim=0)", "softmax texts"),
    (ONE, SOFT1, "scores", "softmax none"),
    (ONE, SOFT1, SOFT1 + " / self.embed_dim**0.5", "scale none, scale after"),
    (ONE, OUT1, "torch.matmul(attn_weights, K)", "content K"),
    (ONE, OUT1, "torch.matmul(attn_weights, Q)", "content Q"),
    (ONE, OUT1, "torch.matmul(attn_weights, x)", "content X"),
    (ONE, "torch.matmul(Q, K.", "torch.matmul(K, Q.", "scores KQ"),
    (ONE, "torch.matmul(Q, K.", "torch.matmul(Q, Q.", "scores QQ"),
    (ONE, OUT1, "torch.matmul(attn_weights.transpose(-2, -1), V)", "scores KQ, softmax queries"),
    (SEVERAL, SCALE2, "", "scale none"),
    (SEVERAL, SCALE2, " / math.sqrt(d)", "scale model"),
    (ONE, SCALE1, " / math.sqrt(x.shape[1])", "scale tokens"),
    (SEVERAL, SCALE2, " / math.sqrt(t)", "scale tokens"),
    (SEVERAL, "self.out_proj(out)", "self.out_proj(out) + x", "residual added"),
    (ONE, OUT1, f"{OUT1} + x", "residual added"),
    (SEVERAL, "dim=-1", "dim=1", "softmax heads"),
    (SEVERAL, "dim=-1", "dim=2", "softmax queries"),
    (SEVERAL, MERGE2, "(weights @ v).reshape(b, t, d)", "merge rows"),
    (SEVERAL, "self.out_proj(out)", "out", "output none"),
    (SEVERAL, SPLIT2, ".view(b, self.num_heads, t, self.d_k)", "split rows"),
    (SEVERAL, SPLIT2, ".view(b, t, 1, d).transpose(1, 2)", "split one"),
    (SEVERAL, RETURN2, "return weights @ v", "merge no"),
    (SEVERAL, MASKED, "pass", "mask none"),
    (SEVERAL, MASKED, "scores = scores * mask", "mask zero"),
    (SEVERAL, MASKED, "scores = scores.masked_fill(mask == 0, 0.0)", "mask zero"),
    (CAUSAL, "weights @ v", "weights.masked_fill(mask == 0, 0.0) @ v", "mask after"),
    (CAUSAL, "torch.tril(", "torch.triu(", "mask earlier"),
    (CAUSAL, "torch.ones(t, t)", "torch.ones(t, t), -1", "mask itself"),
    (LIST, "* k.shape[-1] ** -0.5", "", "scale none"),
    (LIST, "dim=-1) @ self.value(x)", "dim=-1) @ k", "content K"),
    (LIST, "torch.cat([h(x) for h in self.heads], dim=-1)", "sum(h(x) for h in self.heads)", "merge sum"),
    (SEVERAL, MERGE2, "(weights @ k).transpose(1, 2).reshape(b, t, d)", "content K"),
    (UNMASKED, ", batch_first=True", "", "axis texts"),
    (UNMASKED, "return output", "return output + x", "residual added"),
    (READY_MADE, ".triu(1)", ".tril()", "mask inverted"),
    (READY_MADE, ".triu(1)", ".triu()", "mask itself"),
    (CAUSAL, "mask == 0", "mask == 1", "mask inverted"),
]  # fmt: skip


def test_a_divisor_that_may_be_either_is_named_as_either():
    namespace = {}
    exec(IMPORTS + SEVERAL.replace("math.sqrt(self.d_k)", "4"), namespace)  # noqa: S102
    for heads, expected in ((4, "alike"), (2, None)):
        mistakes = check(namespace["MultiHeadAttention"](16, heads)).mistakes
        assert mistakes == (MISTAKES["scale", expected or "model"],)


def verdict_on(source, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(IMPORTS + source)
    return check(*module_of(path))


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_module_passes(name, tmp_path):
    source, heads, masked = RIGHT[name]
    verdict = verdict_on(source, tmp_path)
    assert verdict.mistakes == ()
    assert (verdict.heads, verdict.masked) == (heads, masked)
    assert verdict.difference < 1e-5


@pytest.mark.parametrize(("source", "right", "wrong", "expected"), WRONG, ids=[one[3] for one in WRONG])
def test_a_wrong_module_has_its_mistake_named(source, right, wrong, expected, tmp_path):
    assert right in source
    changed = source.replace(right, wrong)
    if expected == "mask after":
        changed = changed.replace('scores = scores.masked_fill(mask == 0, float("-inf"))', "pass")
    if expected == "scale none, scale after":
        changed, expected = changed.replace(f"transpose(-2, -1)){SCALE1}", "transpose(-2, -1))"), "scale after"
    if expected == "merge sum":
        changed = changed.replace("self.proj = nn.Linear(n_embd,", "self.proj = nn.Linear(n_embd // num_heads,")
    verdict = verdict_on(changed, tmp_path)
    names = {mistake: " ".join(key) for key, mistake in MISTAKES.items()}
    assert verdict.mistakes is not None
    assert [names[one] for one in verdict.mistakes] == expected.split(", ")


def test_the_line_of_a_module_of_pytorch_is_where_it_is_made(tmp_path):
    (line,) = verdict_on(UNMASKED.replace(", batch_first=True", ""), tmp_path).lines
    assert line.endswith("self.attention = nn.MultiheadAttention(d_model, num_heads)")


def test_two_mistakes_are_both_named(tmp_path):
    changed = ONE.replace(SCALE1, "").replace("dim=-1", "dim=1")
    assert [one.name for one in verdict_on(changed, tmp_path).mistakes] == [
        MISTAKES["scale", "none"].name,
        MISTAKES["softmax", "queries"].name,
    ]


def test_a_mistake_of_the_mask_is_named_with_one_of_the_heads(tmp_path):
    """Without a mask the module has the second mistake alone."""
    changed = SEVERAL.replace(MERGE2, "(weights @ v).reshape(b, t, d)").replace('float("-inf")', "0.0")
    assert [one.name for one in verdict_on(changed, tmp_path).mistakes] == [
        MISTAKES["mask", "zero"].name,
        MISTAKES["merge", "rows"].name,
    ]


@pytest.mark.parametrize(
    ("used", "convention"),
    [
        ("scores.masked_fill(mask == 0, -torch.inf)", "1 (True) where a query may attend."),
        ("scores.masked_fill(mask == 1, -torch.inf)", "1 (True) where a query may not attend, as in nn."),
        ("scores + mask", "it is added to the scores"),
        ("scores.masked_fill(mask == 0, 0.0)", "1 (True) where a query may attend."),
        ("scores", ""),
    ],
)
def test_the_convention_of_the_mask_is_said_if_it_is_used(used, convention, tmp_path):
    verdict = verdict_on(SEVERAL.replace(MASKED, f"scores = {used}"), tmp_path)
    assert verdict.masked
    said = [line for line in verdict.sentences() if line.startswith("Convention of its mask: ")]
    assert len(said) == bool(convention)
    assert convention in "".join(said)


def test_a_mask_that_no_known_output_explains_is_said(tmp_path):
    """Without a mask the module is right; with one, hidden scores become 1."""
    verdict = verdict_on(SEVERAL.replace('float("-inf")', "1.0"), tmp_path)
    assert verdict.mistakes == ()
    assert not verdict.masked
    assert verdict.sentences()[-1].startswith("With a causal mask in any of the usual forms its output is not")


def test_a_module_without_a_mask_has_no_convention(tmp_path):
    assert "Convention" not in "".join(verdict_on(CAUSAL, tmp_path).sentences())


CONFIGURED = ONE.replace("self, embed_dim):", "self, config):\n        embed_dim = config.width")
IN_A_LAMBDA = SEVERAL.replace(
    "b, t, d = x.shape", "b, t, d = x.shape\n        half = lambda z: z.view(b, t, d // 2, 2)"
).replace("math.sqrt(self.d_k)", "d ** 0.5")
IN_INIT = SEVERAL.replace(SCALE2, " * self.scale").replace(
    "super().__init__()", "super().__init__()\n        self.scale = d_model ** -0.5"
)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (SEVERAL.replace('float("-inf")', "0.0"), "scores = scores.masked_fill(mask == 0, 0.0)"),
        (IN_A_LAMBDA, "scores = q @ k.transpose(-2, -1) / d ** 0.5"),
        (IN_INIT, "self.scale = d_model ** -0.5"),
        (LIST.replace(" * k.shape[-1] ** -0.5", ""), "wei = q @ k.transpose(-2, -1)"),
    ],
    ids=["a mask of 0", "a root below a lambda", "a root in __init__", "the class of a head"],
)
def test_the_line_is_that_of_the_mistake(source, line, tmp_path):
    (found,) = verdict_on(source, tmp_path).lines
    assert found.split(": ", 1)[1] == line


def test_code_and_names_stay_as_they_are_in_japanese(tmp_path):
    joined = SEVERAL.replace("MultiHeadAttention", "Attention").replace(MERGE2, "(weights @ v).reshape(b, t, d)")
    files = {
        "joined": joined,
        "unused": SEVERAL.replace(MASKED, "pass"),
        "typo": ONE.replace("SelfAttention", "Attention").replace("self.W_q(x)", "self.W_qq(x)"),
        "configured": CONFIGURED.replace("SelfAttention", "Attention").replace("config)", "config, heads)"),
    }
    printed = {}
    for name, source in files.items():
        (tmp_path / f"{name}.py").write_text(IMPORTS + source)
        shown = attnscope("walk", "--check", f"{name}.py", "--lang", "ja", cwd=tmp_path)
        printed[name] = shown.stdout + shown.stderr
    assert printed["joined"].startswith("Attention: 間違いがあります。\n")
    assert "移します: transpose(1, 2).reshape(text, token, d_model)。\n" in printed["joined"]
    assert "次の行を確かめてください。21: if mask is not None:\n" in printed["unused"]
    assert re.search(
        r"形 \(2, 7, 8\) の X で 'Attention' が失敗しました: “'Attention' object .*'W_qq'.*”。15 行目を直して",
        printed["typo"],
    )
    assert "'Attention(config=8,heads=2)' は失敗しました: “" in printed["configured"]


def test_every_sentence_on_a_mistake_has_japanese():
    set_language("ja")
    try:
        for mistake in MISTAKES.values():
            said = Verdict("M", (mistake,), ("",), 1, False, 0.0).sentences()[1]
            assert re.search("[ぁ-ん]", said)
            assert fits(re.sub(r"[\w.]+\([^)]*\)+[\w.]*|\([^)]*\)", "", said)), said
    finally:
        set_language("en")


def test_the_line_to_look_for_is_named(tmp_path):
    verdict = verdict_on(ONE.replace(SOFT1, "F.softmax(scores, dim=1)"), tmp_path)
    number, line = verdict.lines[0].split(": ", 1)
    assert line == "attn_weights = F.softmax(scores, dim=1)"
    assert (tmp_path / "mine.py").read_text().split("\n")[int(number) - 1].strip() == line


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", r"defines no class of torch.nn.Module; expected one, such as class SelfAttention"),
        ("attention = nn.MultiheadAttention(8, 2)", r"write a class whose forward\(x\) calls it"),
        (UNMASKED.replace("batch_first=True", "kdim=4"), r"with kdim or vdim; expected one for self-attention"),
        ("def f(:", r"mine.py failed: .* Correct the file"),
        (CONFIGURED, r"SelfAttention\(config=8\)' failed: .* Add a line at the end"),
        (ONE.replace("self.W_q(x)", "self.W_q(y)"), r"X of shape \(2, 7, 8\) makes .* fail: .* Correct line 15$"),
        (ONE.replace("K.transpose(-2, -1)", "K"), r"line 18: a product with the keys needs their transpose, Q @ K\.tr"),
        (ONE.replace("(-2, -1)", "(0, 2)"), r"line 18: K\.transpose\(-2, -1\) exchanges the last two axes of K"),
        (ONE.replace("dim=-1", "dim=3"), r"line 19: dim is the number of an axis; softmax over the keys has dim=-1"),
        (ONE.replace("return output, attn_weights", "pass"), r"returns NoneType; expected its output, a tensor"),
    ],
    ids=[
        "no class",
        "PyTorch's own",
        "keys of another width",
        "no Python",
        "a configuration",
        "a wrong name",
        "keys without a transpose",
        "another transpose",
        "no such axis",
        "no output",
    ],
)
def test_a_file_that_cannot_be_checked(source, message, tmp_path):
    with pytest.raises(AttnscopeError, match=message):
        verdict_on(source, tmp_path)


def test_the_command_says_right_or_wrong_by_its_exit_code(tmp_path):
    for name, source, code, says in (
        ("right", ONE, 0, "SelfAttention: right."),
        ("wrong", ONE.replace(SCALE1, ""), 1, "The scores are not scaled."),
        ("strange", ONE.replace(SOFT1, "scores.relu()"), 1, "None of the 30 known mistakes explains it"),
    ):
        (tmp_path / f"{name}.py").write_text(IMPORTS + source + "\nprint('a print of the file')\n")
        printed = attnscope("walk", "--check", f"{name}.py", cwd=tmp_path)
        assert printed.returncode == code, printed.stderr
        assert says in printed.stdout
        assert "a print of the file" not in printed.stdout
    assert "スケーリング" in attnscope("walk", "--check", "wrong.py", "--lang", "ja", cwd=tmp_path).stdout
    printed = attnscope("walk", "--check", "right.py", "--toy", cwd=tmp_path)
    assert printed.returncode == 2
    assert "--check stands alone" in printed.stderr
    missing = attnscope("walk", "--check", "missing.py", cwd=tmp_path).stderr
    assert "there is no file missing.py: give --check the Python file" in missing
