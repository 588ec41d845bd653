"""Results show themselves: a summary and a page, of which nothing can reach the notebook around it."""

from html.parser import HTMLParser

import numpy as np
import pytest
import torch
import xarray as xr

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL, TEXT
from tests.planted_models import wave_bert

TEXTS = ["The tide comes in twice a day.", "A <b>bold</b> word & an & sign.", "It rained all day."] * 3


@pytest.fixture(scope="module")
def results():
    scan = attnscope.scan(texts=TEXTS, show=[])
    return {
        "scan": scan,
        "diff": attnscope.diff(scan, scan),
        "intervene": attnscope.intervene(texts=TEXTS, ablations=["zero"], steps=0, why=False),
        "patch": attnscope.patch(),
        "explain": attnscope.explain(wave_bert((-1, 1, -3, 2)), [TEXT], tokenizer=MODEL, window=32, limit=2),
        "roles": attnscope.roles(texts=TEXTS, only="previous_token", controls="none"),
        "examples": attnscope.examples(texts=TEXTS, heads=(0, 1), k=2),
    }


class Sanitiser(HTMLParser):
    """A summary as an editor shows it that allows neither scripts nor styles nor addresses."""

    ALLOWED = frozenset({"b", "code", "div", "em", "img", "li", "p", "table", "tbody", "td", "th", "thead", "tr", "ul"})

    def __init__(self, summary):
        super().__init__()
        self.text, self.pictures, self.dropped = [], 0, set()
        self.feed(summary)

    def handle_starttag(self, tag, attributes):
        names = {name for name, _ in attributes}
        self.dropped |= {tag} - self.ALLOWED | {name for name in names if name.startswith("on")}
        self.pictures += tag == "img" and dict(attributes)["src"].startswith("data:image/svg+xml;base64,")

    def handle_data(self, data):
        self.text.append(data)


def test_a_summary_is_whole_behind_a_sanitiser(results):
    shown = Sanitiser(results["scan"].attnscope._repr_html_())
    assert shown.dropped == set()
    assert shown.pictures == 1
    assert "6 of 12 heads show a fixed pattern" in "".join(shown.text)
    assert Sanitiser("<p onclick='x'><script>x</script>").dropped == {"onclick", "script"}


@pytest.mark.parametrize("command", ["scan", "diff", "intervene", "patch", "explain", "roles", "examples"])
def test_each_result_has_a_summary_with_a_picture_and_a_page(results, command):
    shown = results[command].attnscope
    assert shown.command == command
    summary = shown._repr_html_()
    assert summary.count("<li>") >= 1
    assert ("data:image/svg+xml" in summary) == (command != "examples")  # which has tables alone
    assert "http" not in summary.replace("http://www.w3.org", "")
    page = shown.show(height=300)
    assert page.text.startswith("<!doctype html>")
    frame = page._repr_html_()
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    assert "<script" not in frame  # all of the page is an attribute's text
    assert "height: 300px" in frame
    assert len(repr(shown).splitlines()) >= 1


@pytest.mark.parametrize("command", ["scan", "diff", "explain"])
def test_a_summary_of_what_no_figure_can_show_is_its_sentences(results, command):
    """Of random weights no head prefers an offset: that is a result, and no error."""
    shown = _without_values(results[command]).attnscope._repr_html_()
    assert shown.count("<li>") >= 1
    assert ("<img" in shown) == (command != "explain")


def _without_values(result):
    if isinstance(result, xr.DataTree):
        tree = xr.DataTree.from_dict({node.path: _without_values(node.to_dataset()) for node in result.subtree})
        tree.attrs = result.attrs
        return tree
    numbers = {name: part for name, part in result.data_vars.items() if part.dtype.kind == "f" and part.ndim}
    return result.assign({name: part * np.nan for name, part in numbers.items()})


def test_a_scan_says_by_what_heads_are_ranked_in_the_words_of_the_tables(results):
    """With an end of 1 beyond the band no head is local; in pools, what is counted are their windows."""
    few = results["scan"].assign(outside=results["scan"].outside * 0 + 1)
    assert "No local head: none has 50% of its weight inside the band and twice" in repr(few.attnscope)
    assert "6 of 12 heads show a fixed pattern; 6 show none" in repr(few.attnscope)
    pools = few.assign(window_count=("window", [4] * few.sizes["window"]))
    assert f"{4 * few.sizes['window']} windows" in repr(pools.attnscope)
    assert f"in {few.sizes['window']} pools" in repr(pools.attnscope)


def test_names_are_escaped():
    scan = attnscope.scan(texts=TEXTS).assign_attrs(model="<script>alert(1)</script>")
    assert "<script>" not in scan.attnscope._repr_html_()


def test_a_part_of_a_result_has_no_page(results):
    with pytest.raises(AttnscopeError, match="without signature"):
        xr.Dataset({"a": ("x", np.ones(2))}).attnscope.show()
    with pytest.raises(AttnscopeError, match="found a result of train"):
        results["scan"].assign_attrs(signature='{"command": "train"}').attnscope.show()


def test_what_was_watched_or_given_as_matrices_has_a_page_too():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 2).eval()
    with attnscope.watch(module) as seen, torch.no_grad():
        module(torch.randn(3, 20, 16))
    matrices = tuple(torch.randn(2, 3, 9, 9).softmax(-1) for _ in range(2))
    for result in (seen.result(), attnscope.measure_weights(matrices)):
        assert "layers x" in repr(result.attnscope)
        assert "Where the heads of" in result.attnscope.show().text
        assert "<img" in result.attnscope._repr_html_()


MAP = '<canvas id="map"'


def test_the_page_of_a_scan_has_its_window_and_its_map(tmp_path):
    """In memory, from a run folder, and opened later; False keeps none, and a part with other heads has none."""
    result = attnscope.scan(texts=TEXTS, show=[(2, 1)])
    assert MAP in result.attnscope.show().text
    assert result.encoding["sample"].attrs["requested"] == "[[2, 1]]"
    kept = attnscope.scan(texts=TEXTS, out=tmp_path / "run")
    assert MAP in kept.attnscope.show().text
    assert MAP in attnscope.open_run(tmp_path / "run").attnscope.show().text
    attnscope.scan(texts=TEXTS, out=tmp_path / "other", show=False)
    assert MAP not in attnscope.open_run(tmp_path / "other").attnscope.show().text
    kept.encoding["source"] = str(tmp_path / "gone")
    for without in (kept, attnscope.scan(texts=TEXTS), result.isel(head=[0, 1])):
        assert MAP not in without.attnscope.show().text


def test_a_watched_generate_shows_itself():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, intermediate_size=24, **sizes)).eval()
    with attnscope.watch(model, spans={"question": (3, 6)}) as seen:
        model.generate(torch.tensor([[1, 9, 8, 7, 6, 45]]), max_new_tokens=4, do_sample=False, pad_token_id=0)
    shown = seen.result().attnscope
    assert repr(shown).startswith("1 prompt, ")
    assert "attnscope generate" in shown._repr_html_()
    assert '"tokens":["1","9","8","7","6","45"' in shown.show().text.replace(" ", "")


def test_a_frame_has_the_numbers_of_the_table(results):
    frame = results["scan"].attnscope.to_frame("heads")
    assert frame.index.names == ["layer", "head"]
    expected = results["scan"].entropy.mean("window")
    np.testing.assert_allclose(frame.entropy.to_numpy(), expected.transpose("layer", "head").values.ravel(), rtol=1e-6)
    ranked = results["scan"].attnscope.to_frame()
    assert {"positional", "label"} <= {*ranked}
    with pytest.raises(AttnscopeError, match="there is no table 'other'; expected one of heads, ranked"):
        results["scan"].attnscope.to_frame("other")
