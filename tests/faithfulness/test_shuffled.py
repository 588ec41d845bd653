"""Weights shuffled: as by hand, nothing where values are all one, much where the place matters."""

import numpy as np
import pytest
import torch

from attnscope.capture.load import load_model
from attnscope.capture.watching import watching
from attnscope.intervention.arrays import permuted_weights
from attnscope.intervention.edits import shuffled_weights, shuffling
from attnscope.intervention.predictions import prediction_session
from attnscope.intervention.stack import stacked_passes
from attnscope.kernels.engines import attend_in_full
from attnscope.read.encoded import texts_of

TEXTS = [
    "The tide comes in twice a day, and twice a day it goes out again.",
    "A lighthouse keeper writes down the weather every morning.",
    "The clockmaker opened the case and looked at the wheels.",
    "Bread needs flour, water, salt and time.",
    "She wrote a letter to her brother, who lived in the harbour town.",
    "It rained all day, and the streets were empty.",
]


def asked_of(model, texts=TEXTS, window=64):
    asked = prediction_session(load_model(model, device="cpu"), texts_of(texts), window=window, limit=8)
    asked.check()
    return asked


@pytest.fixture(scope="module")
def bundled():
    return asked_of("bundled")


def test_the_loss_is_that_of_a_whole_pass_with_the_weights_mixed_by_hand(bundled):
    questions, model = bundled.batch(slice(0, len(TEXTS))), bundled.model

    def loss(wanted):
        seen = []

        def observe(site, call):
            output, weights = attend_in_full(call)
            if wanted is not None and len(seen) == wanted[0]:
                output = output.clone()
                for text in range(len(output)):
                    generator = np.random.default_rng((5, 0, wanted[0], text, wanted[1]))
                    allowed = call.allowed(text, wanted[1]).numpy()
                    shuffled = permuted_weights(weights[text, wanted[1]].double().numpy(), generator, allowed)
                    output[text, wanted[1]] = torch.from_numpy(shuffled).float() @ call.value[text, wanted[1]]
            seen.append(site)
            return output

        with torch.no_grad(), watching(model, observe):
            logits = model(**questions.batch.inputs(model)).logits
        answers = torch.log_softmax(logits, -1).gather(
            1, questions.positions[..., None].expand(-1, -1, logits.shape[-1])
        )
        right = answers.gather(-1, questions.labels.clamp(min=0)[..., None])[..., 0]
        real = questions.labels >= 0
        return ((-right * real).sum(1) / real.sum(1)).mean()

    shuffled = shuffled_weights(bundled, seed=5).shuffled_loss
    for cell in ((0, 3), (1, 0), (2, 2)):
        by_hand = float(loss(cell) - loss(None))
        assert float(shuffled.sel(layer=cell[0], head=cell[1])) == pytest.approx(by_hand, abs=2e-5)


def test_heads_that_must_look_where_they_do_are_shown_and_idle_ones_are_not(bundled):
    shuffled = shuffled_weights(bundled)
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
