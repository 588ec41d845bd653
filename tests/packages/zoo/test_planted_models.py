"""Every planted model: the task is solved, heads attend where they must, and the right heads and tokens matter.

What is known by construction is compared with what happens when a head's output is set to zero and a token exchanged.
"""

import pytest
import torch

from attnscope.capture.watching import watching
from attnscope.kernels.full import attend_in_full
from attnscope_zoo.catalogue import build, names

SOME = 3  # texts for what is slow
CLEARLY = 20  # times as much as any head that does not matter; over the zoo it is 90 and more


# each circuit in each form once, in architectures by turns
@pytest.fixture(scope="module", params=[name for i, name in enumerate(names()) if i % 2 == i // 2 % 2])
def planted(request):
    return build(request.param)


@pytest.fixture(scope="module")
def logits(planted):
    """Of all its texts."""
    return planted.logits()


def run(planted, observer, texts, **changed):
    inputs = {name: ids[:texts] for name, ids in planted.inputs.items()} | changed
    with torch.no_grad(), watching(planted.model, observer):
        return planted.model(**inputs).logits


def loss_without(planted, groups, texts):
    """Loss in nats with each group of heads silenced, all in one batch: (group,)."""

    def silence(site, call):
        output = attend_in_full(call)[0].unflatten(0, (len(groups), texts)).clone()
        for number, group in enumerate(groups):
            for layer, head in group:
                if layer == site.index:
                    output[number, :, head] = 0.0
        return output.flatten(0, 1)

    repeated = {name: ids[:texts].repeat(len(groups), 1) for name, ids in planted.inputs.items()}
    logits = run(planted, silence, texts, **repeated).unflatten(0, (len(groups), texts))
    labels = planted.labels[:texts].expand(len(groups), -1, -1).flatten(1)
    losses = torch.nn.functional.cross_entropy(logits.flatten(1, 2).mT, labels, reduction="none")
    return losses.sum(1) / (labels != -100).sum(1)


def test_the_task_is_solved(planted, logits):
    assert planted.accuracy(logits) > 0.99
    answers = planted.labels[planted.labels != -100].unique()
    assert planted.loss(logits) < 0.1 * torch.tensor(float(len(answers))).log()


def test_planted_heads_look_where_they_must(planted):
    seen = {}

    def rule(site, call):
        output, weights = attend_in_full(call)
        seen[site.index] = weights
        return output

    run(planted, rule, len(planted.ids))
    assert sorted(seen) == list(range(len(planted.heads)))
    assert {place for place in planted.attended if planted.heads[place]} == {
        tuple(place) for place in planted.heads.nonzero().tolist()
    }
    for (layer, head), expected in planted.attended.items():
        for attended_keys in expected:
            judged = attended_keys.keys.any(-1)
            share = (seen[layer][:, head] * attended_keys.keys).sum(-1)[judged]
            assert judged.any()
            assert attended_keys.least <= share.min()
            assert share.max() <= attended_keys.most + 1e-6


def test_the_heads_that_matter_are_those_that_were_planted(planted):
    heads = [[(layer, head)] for layer in range(len(planted.heads)) for head in range(planted.heads.shape[1])]
    loss = loss_without(planted, [[], *heads], SOME)
    effect = (loss[1:] - loss[0]).abs().view(planted.heads.shape)
    assert effect[planted.heads].min() > 0.3
    assert effect[planted.heads].min() > CLEARLY * effect[~planted.heads].max()


def test_the_tokens_that_matter_are_those_that_are_said_to(planted, logits):
    if planted.tokens is None:
        pytest.skip("no single token decides")
    generator = torch.Generator().manual_seed(0)
    texts, length = SOME, planted.ids.shape[1]
    ids = planted.ids[:texts]
    exchanged = ids[:, None].repeat(1, length, 1)  # text, token that is exchanged, token
    for text in range(texts):
        for place in range(length):
            like = (planted.groups == planted.groups[ids[text, place]]) & (
                torch.arange(len(planted.groups)) != ids[text, place]
            )
            if like.any():
                exchanged[text, place, place] = torch.multinomial(like.double(), 1, generator=generator)
    changed = {"input_ids": exchanged.flatten(0, 1)}
    if planted.target is not None:
        changed["decoder_input_ids"] = planted.target[:texts].repeat_interleave(length, 0)
    with torch.no_grad():
        said = planted.model(**changed).logits.argmax(-1).unflatten(0, (texts, length))
    differs = (said != logits[:texts].argmax(-1)[:, None]).mT  # text, query, token
    truth = planted.tokens[:texts]
    queried = (planted.labels[:texts] != -100) & truth.any(-1)
    assert queried.any()
    assert not truth[planted.labels[:texts] == -100].any()
    assert differs[truth & queried[..., None]].double().mean() > 0.7  # an exchange may give the same answer by chance
    assert differs[~truth & queried[..., None]].double().mean() < 0.05
