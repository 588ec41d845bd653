"""Weights shuffled: as by hand, nothing where values are all one, much where the place matters."""

import re

import numpy as np
import pytest
import torch

from attnscope.bundled import TEXT
from attnscope.capture.load import load_model
from attnscope.intervention.arrays import permuted_weights
from attnscope.intervention.edits import shuffled_weights, shuffling
from attnscope.intervention.open_predictions import prediction_session
from attnscope.intervention.stack import stacked_passes
from attnscope.read.encoded import texts_of
from tests.intervention.parts_of_blocks import loss_by_text
from tests.intervention.small_models import TEXTS


def asked_of(model, texts=TEXTS, window=64, limit=8):
    asked = prediction_session(load_model(model, device="cpu"), texts_of(texts), window=window, limit=limit)
    asked.check()
    return asked


@pytest.fixture(scope="module")
def bundled():
    return asked_of("bundled")


def test_the_loss_is_that_of_a_whole_pass_with_the_weights_mixed_by_hand(bundled):
    questions, model = bundled.batch(slice(0, len(TEXTS))), bundled.model

    shuffled = shuffled_weights(bundled, seed=5).shuffled_loss
    plain = loss_by_text(model, questions).mean()
    for layer, head in ((0, 3), (1, 0), (2, 2)):

        def mix(call, output, weights, layer=layer, head=head):
            for text in range(len(output)):
                generator = np.random.default_rng((5, 0, layer, text, head))
                own = weights[text, head].double().numpy()
                mixed = permuted_weights(own, generator, call.allowed(text, head).numpy())
                output[text, head] = torch.from_numpy(mixed).float() @ call.value[text, head]

        by_hand = float(loss_by_text(model, questions, mix, layer).mean() - plain)
        assert float(shuffled.sel(layer=layer, head=head)) == pytest.approx(by_hand, abs=2e-5)


def test_heads_that_must_look_where_they_do_are_shown_and_idle_ones_are_not():
    """24 sentences of similar length: fewer, or of unlike lengths, do not show that a head matters."""
    whole = " ".join(path.read_text(encoding="utf-8") for path in sorted(TEXT.glob("0[1-8]*.txt")))
    sentences = [one for one in re.findall(r"[A-Z][^.]*\.", whole) if 60 < len(one) < 90][:24]
    shuffled = shuffled_weights(asked_of("bundled", sentences, limit=24))
    assert shuffled.shuffled_shown.sel(layer=0, head=[1, 3]).all()
    assert (shuffled.shuffled_loss_low <= shuffled.shuffled_loss).all()
    assert not shuffled.shuffled_shown.sel(layer=2, head=2)
    assert (shuffled.shuffled_kl.sel(layer=0, head=3) > shuffled.random_kl.sel(layer=0, head=3)).all()


def test_a_causal_head_with_shared_keys_still_looks_at_no_later_token(models):
    """What a model says of a text's beginning does not depend on what comes later, shuffled or not."""
    asked = asked_of(models / "stories260K-llama", TEXTS[:2], window=12)
    questions = asked.batch(slice(0, 2))
    inputs = questions.batch.inputs(asked.model)
    changed = dict(inputs, input_ids=inputs["input_ids"].clone())
    changed["input_ids"][:, 8:] = 300
    logits = []
    for given in (inputs, changed):
        with stacked_passes(asked.model, skips=False) as passes, torch.no_grad():
            passes.plain(given)
            logits.append(passes.run({2: shuffling([0, 5], (0,))}, 4))
    torch.testing.assert_close(logits[0][:, :, :8], logits[1][:, :, :8])
    assert not torch.allclose(logits[0][:, :, 8:], logits[1][:, :, 8:])
