"""Atoms of reactions against reactions written by hand, and the published head of RXNMapper."""

import json
from itertools import islice

import numpy as np
import pytest
import torch
from benchmarks.reactions import mapped, reactions
from transformers import AlbertModel, AutoTokenizer

from attnscope import AttnscopeError
from attnscope.results.reports import report_of
from attnscope_relations import relations
from attnscope_relations.data import REVERSED, linked_texts
from attnscope_relations.readers.reactions import RELATION


def named(text):
    """The links of a text by the characters that a query begins at."""
    return {(link.relation, link.query[0]): [key[0] for key in link.keys] for link in text.links}


def test_a_reaction_is_read_as_rxnmapper_reads_it(tmp_path):
    file = tmp_path / "ester.rsmi"
    line = "[OH:5][CH3:6].[CH3:1][C:2](=[O:3])[OH:4]>[Na+].[OH-]>[CH3:1][C:2](=[O:3])[O:5][CH3:6] |f:1.2| patent 7"
    file.write_text(line + "\n\n", encoding="utf-8")
    (text,) = linked_texts(file)
    assert text.text == "CC(=O)O.CO.[Na+].[OH-]>>COC(C)=O"
    #                    0    5  8   12   17     24
    assert named(text) == {
        (RELATION, 24): [8], (RELATION + REVERSED, 8): [24],
        (RELATION, 25): [9], (RELATION + REVERSED, 9): [25],
        (RELATION, 26): [1], (RELATION + REVERSED, 1): [26],
        (RELATION, 28): [0], (RELATION + REVERSED, 0): [28],
        (RELATION, 31): [4], (RELATION + REVERSED, 4): [31],
    }  # fmt: skip
    assert [text.text[slice(*word)] for word in text.words][:8] == ["C", "C", "O", "O", "C", "O", "[Na+]", "[OH-]"]


def test_atoms_that_equal_each_other_by_symmetry_are_all_right():
    (text,) = linked_texts({"reaction": "[CH3:1][CH:2]([CH3:3])[Br:4].[NH3:5]>>[CH3:1][CH:2]([CH3:3])[NH2:5]"})
    assert text.text == "CC(C)Br.N>>CC(C)N"
    links = named(text)
    assert links[RELATION, 11] == links[RELATION, 14] == [0, 3]
    assert links[RELATION, 12] == [1]
    assert links[RELATION + REVERSED, 0] == [11, 14]
    assert (RELATION + REVERSED, 5) not in links  # bromine leaves


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("CCO", "expected a reaction with numbers"),
        ("CCO>>", "expected a reaction with numbers"),
        ("[CH3:1]Q>>[CH3:1]O", "no molecule that RDKit reads"),
        ("CCO>>CC=O", "found no link"),
    ],
)
def test_lines_of_another_form_are_explained(line, problem, tmp_path):
    file = tmp_path / "a.smiles"
    file.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(AttnscopeError, match=problem):
        linked_texts(file)


def test_the_published_head_of_rxnmapper_maps_atoms(models, tmp_path):
    """Heads 5 map atoms, as NumPy has it; the package names 10.5, and all layers have the same weights."""
    folder = models / "rxnmapper-albert"
    file = tmp_path / "own.jsonl"
    lines = [json.dumps({"reaction": mapped(one)}) for one in islice(reactions(), 24)]
    file.write_text("\n".join(lines), encoding="utf-8")
    found = relations(folder, file, untrained=False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AlbertModel.from_pretrained(folder, attn_implementation="eager").eval()
    right, count = np.zeros((12, 8)), 0
    for text in linked_texts(file):
        encoded = tokenizer(text.text, return_tensors="pt", return_offsets_mapping=True)
        spans = [tuple(span) for span in encoded.pop("offset_mapping")[0].tolist()]
        with torch.no_grad():
            weights = torch.cat(model(**encoded, output_attentions=True).attentions).numpy()
        weights[..., [0, -1]] = -1  # [CLS] and [SEP]
        for link in text.links:
            if link.relation == RELATION:
                query = spans.index(link.query)
                weights[:, :, query, query] = -1
                right += np.isin(weights[:, :, query].argmax(-1), [spans.index(key) for key in link.keys])
                count += 1
    score = found.score.sel(relation=RELATION)
    np.testing.assert_allclose(score, right / count, atol=1e-6)
    best = score.values.argsort(None)[-5:]
    assert {divmod(int(at), 8) for at in best} <= {(layer, 5) for layer in range(12)}
    assert float(score.sel(layer=10, head=5)) > 0.9
    assert float(score.sel(head=[0, 1, 2, 3, 4, 6, 7]).max()) < 0.5
    assert (10, 5) in report_of("relations", found).finding.leading
