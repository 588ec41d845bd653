"""The press of kvpress limits the heads of its card."""

import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import attnscope_cards
from attnscope import AttnscopeError
from attnscope_cards import kvpress
from attnscope_cards.head_files import head_files
from attnscope_zoo.catalogue import build
from tests.tiny_models import tiny


@pytest.fixture
def card():
    ids, tokenizer = torch.randint(3, 19, (4, 20)).tolist(), build("previous-decoder-2").tokenizer
    return attnscope_cards.card(tiny("llama"), ids, tokenizer=tokenizer, kept=[(4, 2)], controls="none")


def test_the_press_has_the_table_of_the_card(card, monkeypatch):
    @dataclass
    class Press:
        head_compression_ratio: float = 0.0

        def forward_hook(self, module, _, kwargs, output):
            return kwargs["cache_position"][-1] + 1

    monkeypatch.setitem(sys.modules, "kvpress", SimpleNamespace(DuoAttentionPress=Press))
    press = kvpress(card, limited=0.25)
    assert press.head_compression_ratio == 0.25
    sinks, recent, scores = press.load_attention_pattern(tiny("llama"))
    table = np.loadtxt(head_files(card, "duo")["full_attention_heads.tsv"].splitlines(), delimiter="\t")
    assert (sinks, recent) == (2, 4)
    np.testing.assert_array_equal(scores, table)
    cache = SimpleNamespace(get_seq_length=lambda layer: 7 + layer)
    assert press.forward_hook(SimpleNamespace(layer_idx=1), None, {"past_key_values": cache}, None) == 8
    with pytest.raises(AttnscopeError, match=r"the model has 3 x 4 key-value heads, and the card 2 x 2"):
        press.load_attention_pattern(SimpleNamespace(config=SimpleNamespace(
            get_text_config=lambda: SimpleNamespace(num_hidden_layers=3, num_key_value_heads=4))))  # fmt: skip


def test_without_kvpress_its_press_is_rejected(card, monkeypatch):
    monkeypatch.setattr("attnscope_cards.press.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "kvpress", raising=False)
    with pytest.raises(AttnscopeError, match="kvpress is not installed: install it as help"):
        kvpress(card)


def test_the_press_runs_and_limits_the_heads_that_need_the_cache_least(card):
    pytest.importorskip("kvpress")
    model, ids = tiny("llama").eval(), torch.randint(3, 19, (1, 21))

    def after(share):
        with torch.no_grad(), kvpress(card, limited=share)(model):
            cache = model(ids[:, :20]).past_key_values
            return model(ids[:, 20:], past_key_values=cache).logits[0, -1]

    with torch.no_grad():
        plain = model(ids).logits[0, -1]
    torch.testing.assert_close(after(0.0), plain, atol=1e-5, rtol=0)
    assert (after(0.5) - plain).abs().max() > 1e-4
