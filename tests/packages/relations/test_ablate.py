"""`relations --ablate` against log-probabilities and ablations written out, heads that are known, and random models."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import NOUNS, SENTENCES
from attnscope.results.reports import report_of
from attnscope_relations import relations
from attnscope_relations.ablation import matters
from attnscope_relations.data import AGREEMENT, BEFORE, linked_texts
from tests.cli.command import attnscope as command
from tests.tiny_models import tiny_reader

PAIRS = Path(__file__).parents[2] / "data" / "relations" / "agreement.jsonl"


def agreement(count):
    """Minimal pairs of the task of agreement, half of them singular; a subject is a document."""
    made = []
    for _, row in attnscope.pairs("agreement", count=count).iterrows():
        good, bad = (f"{row.clean}{answer} old." for answer in (row.answer, row.wrong))
        verb = [len(row.clean) + 1, len(row.clean) + len(row.answer)]
        subject = [*row.spans["subject"][0]]
        made.append({"good": good, "bad": bad, "verb": verb, "subject": subject, "document": row["item"]})
    return made


def pronouns(count):
    """Sentences of the pronoun model, with the noun that "it" stands for, and another one of the sentence."""
    made = []
    for text, good in zip(*(path.read_text(encoding="utf-8").splitlines() for path in (SENTENCES, NOUNS)), strict=True):
        it = re.search(r"\bit\b", text).start()
        noun = re.match(r"\w+", good[it:])[0]
        other = next(word for word in re.findall(r"[Tt]he (\w+)", text) if word != noun)
        at = re.search(rf"\b{noun}\b", text).start()
        pair = {"name": "it", "from": [it, it + 2], "to": [at, at + len(noun)]}
        bad = good[:it] + other + good[it + len(noun) :]
        made.append({"text": text, "good": good, "bad": bad, "pairs": [pair]})
    return made[:count]


def log_probability(model, tokenizer, text):
    """Sum over all tokens after the first."""
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    logs = model(input_ids=ids).logits[0].log_softmax(-1)
    return float(logs[:-1].gather(1, ids[0, 1:, None]).sum())


@torch.no_grad()
def test_margins_are_those_of_hooks_on_the_output_layer():
    """A causal model; heads replaced by their means over all tokens of all texts, before the matrix that reads them."""
    model, tokenizer = tiny_reader("llama")
    pairs = agreement(12)
    found = relations(model, pairs, tokenizer=tokenizer, ablate=True, untrained=False).sel(relation=AGREEMENT)
    texts = [(pair["good"], pair["bad"]) for pair in pairs]

    def margins():
        return np.array([np.subtract(*(log_probability(model, tokenizer, text) for text in both)) for both in texts])

    before = margins()
    assert float(found.margin) == pytest.approx(before.mean(), abs=1e-4)
    assert float(found.margin_right) == (before > 0).mean()
    layer, head = int(found.ablated_layer), int(found.ablated_head)
    projection = model.model.layers[layer].self_attn.o_proj
    width = model.config.head_dim
    taken = []
    hook = projection.register_forward_pre_hook(lambda _, arguments: taken.append(arguments[0][0]))
    for good, bad in texts:
        log_probability(model, tokenizer, good)
        log_probability(model, tokenizer, bad)
    hook.remove()
    mean = torch.cat(taken).mean(0)
    changes = {}
    for ablated in range(model.config.num_attention_heads):
        columns = slice(ablated * width, (ablated + 1) * width)

        def replaced(_, arguments, columns=columns):
            states = arguments[0].clone()
            states[..., columns] = mean[columns]
            return (states,)

        hook = projection.register_forward_pre_hook(replaced)
        changes[ablated] = (margins() - before).mean()
        hook.remove()
    np.testing.assert_allclose(found.ablated_change.sel(layer=layer), [*changes.values()], atol=1e-4)
    assert float(found.ablated) == pytest.approx(changes.pop(head), abs=1e-4)
    assert float(found.ablated_others) == pytest.approx(np.mean([*changes.values()]), abs=1e-4)


@torch.no_grad()
def masked_log_probability(model, tokenizer, ids, positions, answers):
    """Sum of the log-probabilities of answers at some positions, all behind masks."""
    hidden = ids.clone()
    hidden[0, positions] = tokenizer.mask_token_id
    logs = model(input_ids=hidden).logits[0].log_softmax(-1)
    return float(logs[positions, answers].sum())


def test_a_masked_model_is_asked_for_the_tokens_that_differ():
    model, tokenizer = tiny_reader("bert")
    pairs = [pair for pair in agreement(20) if pair["good"].count(" is ") + pair["good"].count(" are ") == 1][:12]
    found = relations(model, pairs, tokenizer=tokenizer, ablate=True, untrained=False).sel(relation=AGREEMENT)
    margins = []
    for pair in pairs:
        good, bad = (tokenizer(pair[side], return_tensors="pt")["input_ids"] for side in ("good", "bad"))
        if good.shape == bad.shape:
            differ = (good != bad)[0].nonzero()[:, 0]
            asked = [masked_log_probability(model, tokenizer, ids, differ, ids[0, differ]) for ids in (good, bad)]
        else:
            asked = [
                sum(
                    masked_log_probability(model, tokenizer, ids, torch.tensor([at]), ids[0, [at]])
                    for at in range(1, ids.shape[1] - 1)
                )
                for ids in (good, bad)
            ]
        margins.append(asked[0] - asked[1])
    assert float(found.margin) == pytest.approx(np.mean(margins), abs=1e-4)


def test_texts_of_other_lengths_are_compared_token_by_token():
    model, tokenizer = tiny_reader("bert")
    pairs = [
        {"good": f"The {noun} sleeps.", "bad": f"The {noun} sleeping now.", "verb": [4 + len(noun) + 1, 10 + len(noun)],
         "subject": [4, 4 + len(noun)]}
        for noun in ("cat", "dog", "bird", "child", "boat", "lamp")
    ]  # fmt: skip
    found = relations(model, pairs, tokenizer=tokenizer, ablate=True, untrained=False)
    margins = []
    for pair in pairs:
        both = []
        for side in ("good", "bad"):
            ids = tokenizer(pair[side], return_tensors="pt")["input_ids"]
            one = [torch.tensor([at]) for at in range(1, ids.shape[1] - 1)]
            both.append(sum(masked_log_probability(model, tokenizer, ids, at, ids[0, at]) for at in one))
        margins.append(both[0] - both[1])
    assert float(found.margin[0]) == pytest.approx(np.mean(margins), abs=1e-4)
    assert "one at a time behind a mask" in found.attrs["ablation"]


# --- heads that are known ---


def test_the_head_of_a_pronoun_matters():
    found = relations("bundled:pronoun", pronouns(100), ablate=True, untrained=False)
    assert (int(found.ablated_layer[0]), int(found.ablated_head[0])) == (1, 0)
    assert bool(found.ablated_matters[0])
    assert float(found.margin[0]) > 5
    assert float(found.ablated_high[0]) < -5
    assert bool(np.isnan(found.ablated_others[0]))  # the only head of its layer
    report = report_of("relations", found)
    assert any(sentence.startswith("Without head 1.0, the best for it") for sentence in report.finding.sentences)
    assert "mean over the texts that are compared" in report.method


def test_agreement_is_read_from_the_word_before_the_verb():
    """A causal model chooses a verb at the word before it, so that heads at the verb itself come too late."""
    found = relations("bundled:tasks", agreement(100), ablate=True, untrained=False)
    before, at_verb = found.sel(relation=AGREEMENT + BEFORE), found.sel(relation=AGREEMENT)
    assert float(before.margin_right) == 1
    assert bool(before.ablated_matters)
    assert float(before.ablated) < -5 < float(before.ablated_others)
    assert float(before.ablated_rank) == 0.25  # the first of 4
    assert float(at_verb.ablated) > -1
    (table,) = (table for table in report_of("relations", found).tables if table.name == "ablation")
    assert [row["relation"] for row in table.rows] == [AGREEMENT + BEFORE, AGREEMENT]


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_heads_of_random_models_do_not_matter(family):
    model, tokenizer = tiny_reader(family)
    found = relations(model, agreement(60), tokenizer=tokenizer, ablate=True, untrained=False)
    assert not bool(found.ablated_matters.any())
    assert bool(np.isfinite(found.ablated_p).all())


# --- data ---


def test_minimal_pairs_are_read_from_a_file(tmp_path):
    texts = linked_texts(PAIRS)
    assert all(text.answers is not None and text.text == text.answers[0] for text in texts)
    written = {
        link.relation: [texts[0].text[slice(*span)] for span in (link.query, *link.keys)] for link in texts[0].links
    }
    assert written == {AGREEMENT: ["is", "door"], AGREEMENT + BEFORE: ["gardens", "door"]}
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in agreement(12)), encoding="utf-8")
    done = command("relations", "bundled:tasks", file, "--ablate", "--no-untrained", "--json", cwd=tmp_path)
    rows = json.loads(done.stdout)["tables"]["ablation"]
    assert {row["relation"] for row in rows} == {AGREEMENT, AGREEMENT + BEFORE}
    assert all(row["pairs"] == 12 for row in rows)


def test_a_minimal_pair_names_its_relation():
    texts = linked_texts(PAIRS.with_name("coreference-choice.jsonl"))
    text = texts[0]
    written = {link.relation: [text.text[slice(*span)] for span in (link.query, *link.keys)] for link in text.links}
    assert written == {"coreference": ["He", "Peter"], "coreference" + BEFORE: [".", "Peter"]}
    assert len(texts) == 40
    assert len({text.document for text in texts}) == 20


def test_the_word_before_a_verb_may_be_its_subject():
    (text,) = linked_texts([{"good": "Cats sleep.", "bad": "Cats sleeps.", "verb": [5, 10], "subject": [0, 4]}])
    assert [link.relation for link in text.links] == [AGREEMENT]


def test_only_chooses_both_ends():
    found = relations("bundled:tasks", agreement(12), only=[AGREEMENT], untrained=False)
    assert found.relation.values.tolist() == [AGREEMENT, AGREEMENT + BEFORE]


def test_pairs_that_do_not_fit_are_counted():
    texts = pronouns(20)
    texts[0]["bad"] += " Indeed."
    found = relations("bundled:pronoun", texts, ablate=True, untrained=False)
    assert int(found.ablated_pairs[0]) == 19
    assert any("1 of 20 pairs" in note for note in report_of("relations", found).notes)


@pytest.mark.parametrize(
    ("model", "data", "problem"),
    [
        ("bundled", [{"text": "a b", "pairs": [{"name": "x", "from": [0, 1], "to": [2, 3]}]}], "add good and bad"),
        ("bundled", [{"good": "a b", "bad": "a b", "verb": [2, 3], "subject": [0, 1]}], "two texts that differ"),
        ("bundled", [{"good": "a b", "verb": [2, 3], "subject": [0, 1]}], "two texts that differ"),
        ("bundled", [{"good": "a b", "bad": "a c", "verb": [2, 9], "subject": [0, 1]}], "expected the first character"),
        ("bundled", [{"good": "a b", "bad": "a c", "verb": [2, 3]}], "expected the first character"),
        ("classifier", agreement(2), "neither a causal nor a masked language model"),
    ],
)
def test_what_cannot_be_compared_is_explained(model, data, problem):
    given, tokenizer = (tiny_reader("bert")[0].bert, tiny_reader("bert")[1]) if model == "classifier" else (model, None)
    with pytest.raises(AttnscopeError, match=problem):
        relations(given, data, tokenizer=tokenizer, ablate=True, untrained=False)


def test_a_head_matters_only_for_a_preference_that_is_there():
    """Without it a margin above 0 falls, significantly, and more than without others of its layer, if there are any."""
    columns = {
        "margin_low": np.array([0.5, -0.1, 0.5, 0.5, 0.5, 0.5]),
        "ablated": np.array([-1.0, -1.0, 1.0, -1.0, -1.0, -1.0]),
        "ablated_beyond": np.array([-0.5, -0.5, -0.5, 0.2, np.nan, -0.5]),
    }
    p = np.array([1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 0.5])
    assert matters(columns, p).tolist() == [True, False, False, False, True, False]
