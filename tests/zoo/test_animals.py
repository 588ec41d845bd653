"""Every plant grows: the task is solved, heads look where they must, and the right heads and tokens matter.

What is known comes from the construction (`Animal.heads`, `tokens`, `looks`, `redundant`); it is held here against what
happens when a head's output is set to zero and when a token is exchanged.
"""

import pytest
import torch

from attnscope.capture.watching import watching
from attnscope.kernels.engines import attend_in_full
from attnscope.testing.catalogue import build, names

SOME = 3  # texts for what is slow
CLEARLY = 20  # times as much as any head that does not matter; over the zoo it is 90 and more


@pytest.fixture(scope="module", params=names())
def animal(request):
    return build(request.param)


@pytest.fixture(scope="module")
def logits(animal):
    """Of all its texts."""
    return animal.logits()


def run(animal, observer, texts, **changed):
    inputs = {name: ids[:texts] for name, ids in animal.inputs.items()} | changed
    with torch.no_grad(), watching(animal.model, observer):
        return animal.model(**inputs).logits


def loss_without(animal, groups, texts):
    """Loss in nats with each group of heads silenced, all in one batch: (group,)."""

    def silence(site, call):
        output = attend_in_full(call)[0].unflatten(0, (len(groups), texts)).clone()
        for number, group in enumerate(groups):
            for layer, head in group:
                if layer == site.index:
                    output[number, :, head] = 0.0
        return output.flatten(0, 1)

    repeated = {name: ids[:texts].repeat(len(groups), 1) for name, ids in animal.inputs.items()}
    logits = run(animal, silence, texts, **repeated).unflatten(0, (len(groups), texts))
    labels = animal.labels[:texts].expand(len(groups), -1, -1).flatten(1)
    losses = torch.nn.functional.cross_entropy(logits.flatten(1, 2).mT, labels, reduction="none")
    return losses.sum(1) / (labels != -100).sum(1)


def test_the_task_is_solved(animal, logits):
    assert animal.accuracy(logits) > 0.99
    answers = animal.labels[animal.labels != -100].unique()
    assert animal.loss(logits) < 0.1 * torch.tensor(float(len(answers))).log()


def test_planted_heads_look_where_they_must(animal):
    seen = {}

    def look(site, call):
        output, weights = attend_in_full(call)
        seen[site.index] = weights
        return output

    run(animal, look, len(animal.ids))
    assert sorted(seen) == list(range(len(animal.heads)))
    assert {place for place in animal.looks if animal.heads[place]} == {
        tuple(place) for place in animal.heads.nonzero().tolist()
    }
    for (layer, head), lookings in animal.looks.items():
        for looking in lookings:
            judged = looking.keys.any(-1)
            share = (seen[layer][:, head] * looking.keys).sum(-1)[judged]
            assert judged.any()
            assert looking.least <= share.min()
            assert share.max() <= looking.most + 1e-6


def test_the_heads_that_matter_are_those_that_were_planted(animal):
    heads = [[(layer, head)] for layer in range(len(animal.heads)) for head in range(animal.heads.shape[1])]
    loss = loss_without(animal, [[], *heads], SOME)
    effect = (loss[1:] - loss[0]).abs().view(animal.heads.shape)
    assert effect[animal.heads].min() > 0.3
    assert effect[animal.heads].min() > CLEARLY * effect[~animal.heads].max()


def test_the_tokens_that_matter_are_those_that_are_said_to(animal, logits):
    if animal.tokens is None:
        pytest.skip("no single token decides")
    generator = torch.Generator().manual_seed(0)
    texts, length = SOME, animal.ids.shape[1]
    ids = animal.ids[:texts]
    exchanged = ids[:, None].repeat(1, length, 1)  # text, token that is exchanged, token
    for text in range(texts):
        for place in range(length):
            like = (animal.groups == animal.groups[ids[text, place]]) & (
                torch.arange(len(animal.groups)) != ids[text, place]
            )
            if like.any():
                exchanged[text, place, place] = torch.multinomial(like.double(), 1, generator=generator)
    changed = {"input_ids": exchanged.flatten(0, 1)}
    if animal.target is not None:
        changed["decoder_input_ids"] = animal.target[:texts].repeat_interleave(length, 0)
    with torch.no_grad():
        said = animal.model(**changed).logits.argmax(-1).unflatten(0, (texts, length))
    differs = (said != logits[:texts].argmax(-1)[:, None]).mT  # text, query, token
    truth = animal.tokens[:texts]
    asked = (animal.labels[:texts] != -100) & truth.any(-1)
    assert asked.any()
    assert not truth[animal.labels[:texts] == -100].any()
    assert (
        differs[truth & asked[..., None]].double().mean() > 0.7
    )  # an exchange may give the same answer by chance
    assert differs[~truth & asked[..., None]].double().mean() < 0.05


@pytest.mark.parametrize("name", [name for name in names() if name.startswith(("redundant", "spare"))])
def test_backups_break_together(name):
    animal = build(name)
    (group,) = animal.redundant
    whole, alone, both = loss_without(animal, [[], [group[0]], list(group)], SOME)
    assert both > 1.5
    assert both - whole > 3 * (alone - whole)
    assert animal.heads[group[0]] == name.startswith("redundant")
