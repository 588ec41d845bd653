"""Contacts of proteins against NumPy written out, transformers' ESM, and a head that is planted."""

import gzip
import json
import math

import gemmi
import numpy as np
import pytest
import torch
from benchmarks.hairpins import hairpin, sequence_of
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForMaskedLM, EsmConfig, EsmForMaskedLM, EsmTokenizer, PreTrainedTokenizerFast
from transformers.models.esm.modeling_esm import average_product_correct, symmetrize

from attnscope import AttnscopeError
from attnscope.results.page import heads
from attnscope.results.reports import report_of
from attnscope_relations import relations
from attnscope_relations.contact_regression import save_contact_head
from attnscope_relations.contacts import SEPARATION, contact_features
from attnscope_relations.data import linked_texts
from attnscope_relations.together import folds
from tests.cli.command import attnscope as command

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
SEQUENCE = sequence_of(37, seed=0)


def written_out(file):
    """The contacts of a PDB file by its columns: C-beta atoms, C-alpha of glycine, closer than 8 angstrom."""
    points = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("ATOM") and line[12:16].strip() == ("CA" if line[17:20] == "GLY" else "CB"):
            points[int(line[22:26])] = np.array([float(line[at : at + 8]) for at in (30, 38, 46)])
    return {(i, j) for i in points for j in points if j - i >= SEPARATION and np.linalg.norm(points[i] - points[j]) < 8}


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_features_are_those_of_esm(kind):
    weights = np.random.default_rng(0).random((2, 3, 9, 9))
    expected = average_product_correct(symmetrize(torch.from_numpy(weights)))
    features = contact_features(kind(weights))
    assert type(features) is type(kind(weights))
    np.testing.assert_allclose(np.asarray(features), expected, atol=1e-12)


def proteins(count, seed=0, least=30):
    """Sequences whose contacts are pairs of letters that belong together: A and C, D and E, ..."""
    random = np.random.default_rng(seed)
    partner = {letter: LETTERS[at ^ 1] for at, letter in enumerate(LETTERS)}
    objects = []
    for number in range(count):
        length = int(random.integers(least, least + 12))
        sequence = "".join(random.choice([*LETTERS], length))
        pairs = [(i, j) for i in range(length) for j in range(i + SEPARATION, length)]
        contacts = [[i + 1, j + 1] for i, j in pairs if sequence[j] == partner[sequence[i]]]
        objects.append({"sequence": sequence, "contacts": contacts, "id": f"protein {number}"})
    return objects


@pytest.fixture(scope="module")
def esm(tmp_path_factory):
    """A small ESM with random weights, and its tokenizer, which reads a residue a token."""
    file = tmp_path_factory.mktemp("esm") / "vocab.txt"
    file.write_text("\n".join(["<cls>", "<pad>", "<eos>", "<unk>", *LETTERS, "X", "<mask>"]), encoding="utf-8")
    tokenizer = EsmTokenizer(str(file))
    torch.manual_seed(0)
    config = EsmConfig(
        vocab_size=len(tokenizer), hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=32,
        pad_token_id=1, mask_token_id=len(tokenizer) - 1, position_embedding_type="rotary", token_dropout=False,
        max_position_embeddings=64, initializer_range=0.7, attn_implementation="eager",
    )  # fmt: skip
    return EsmForMaskedLM(config).eval(), tokenizer


def test_precision_is_that_of_rao_written_out(esm):
    model, tokenizer = esm
    objects = proteins(7)
    found = relations(model, objects, tokenizer=tokenizer, untrained=False)
    parts = {"L": 1, "L/2": 2, "L/5": 5}
    expected = {cut: [] for cut in parts}
    for protein in objects:
        with torch.no_grad():
            encoded = tokenizer(protein["sequence"], return_tensors="pt")
            weights = torch.cat(model(**encoded, output_attentions=True).attentions).double().numpy()[:, :, 1:-1, 1:-1]
        both = weights + weights.swapaxes(2, 3)
        both -= both.sum(3, keepdims=True) * both.sum(2, keepdims=True) / both.sum((2, 3), keepdims=True)
        length = len(protein["sequence"])
        i, j = np.triu_indices(length, 6)
        contact = np.array([[a + 1, b + 1] in protein["contacts"] for a, b in zip(i, j, strict=True)])
        order = np.argsort(-both[:, :, i, j], -1)
        for cut, part in parts.items():
            expected[cut].append(contact[order[..., : length // part]].mean(-1))
    for cut, values in expected.items():
        np.testing.assert_allclose(found.precision.sel(cut=cut), np.mean(values, 0), atol=1e-6)
    densities = [len(one["contacts"]) / math.comb(len(one["sequence"]) - SEPARATION + 1, 2) for one in objects]
    np.testing.assert_allclose(found.precision_chance, np.mean(densities), atol=1e-9)


def test_random_weights_rank_no_contacts(esm):
    model, tokenizer = esm
    found = relations(model, proteins(24), tokenizer=tokenizer)
    assert bool(found.precision_tested.all())
    assert not bool(found.precision_shown.any())
    assert float(found.precision_untrained.max()) < 0.2


def planted():
    """A model whose head 0.1 attends from each letter to its partner, and whose head 0.0 attends evenly."""
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    words = Tokenizer(WordLevel({word: at for at, word in enumerate((*specials, *LETTERS))}, unk_token="[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    words.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), specials, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **names)
    width = 20
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=2 * width, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=64,
    )  # fmt: skip
    model = BertForMaskedLM(config).eval()
    embeddings, attention = model.bert.embeddings, model.bert.encoder.layer[0].attention.self
    for weight in (embeddings.word_embeddings.weight, embeddings.position_embeddings.weight,
                   embeddings.token_type_embeddings.weight, attention.query.weight, attention.key.weight):  # fmt: skip
        torch.nn.init.zeros_(weight)
    with torch.no_grad():
        for at, letter in enumerate(LETTERS):
            embeddings.word_embeddings.weight[tokenizer.convert_tokens_to_ids(letter), at] = 1.0
            attention.query.weight[width + (at ^ 1), at] = 10.0
            attention.key.weight[width + at, at] = 1.0
    return model, tokenizer


def test_a_planted_head_ranks_contacts_and_no_other():
    model, tokenizer = planted()
    found = relations(model, proteins(12, least=36), tokenizer=tokenizer)
    assert found.precision_shown.sel(cut="L/2").values.tolist() == [[False, True]]
    assert float(found.precision.sel(cut="L/2", layer=0, head=1)) > 0.95
    assert float(found.precision_held_out.sel(cut="L/2")) > 0.95
    assert (int(found.precision_best_layer[0]), int(found.precision_best_head[0])) == (0, 1)
    assert float(found.precision_untrained_held_out.sel(cut="L/2")) < 0.3
    report = report_of("relations", found)
    assert report.finding.sentences[0].startswith("Head 0.1 ranks contacts best: precision 0.")
    table = next(table for table in report.tables if table.name == "contacts")
    assert [row["cut"] for row in table.rows] == ["L", "L/2", "L/5"]


def test_all_heads_together_find_what_one_head_knows():
    model, tokenizer = planted()
    found = relations(model, proteins(12, least=36), tokenizer=tokenizer, together=True)
    assert float(found.contact_together.sel(cut="L/2")) > 0.95
    assert bool(found.contact_shown.sel(cut="L/2"))
    assert float(found.contact_weight.sel(layer=0, head=1)) > 10 * abs(float(found.contact_weight.sel(layer=0, head=0)))
    assert float(found.contact_untrained.sel(cut="L/2")) < 0.3
    assert "All heads together: precision" in report_of("relations", found).finding.sentences[-1]


def test_contacts_that_one_head_knows_are_lost_without_it():
    model, tokenizer = planted()
    whole = relations(model, proteins(12, least=36), tokenizer=tokenizer, together=True, ablate=True, untrained=False)
    found = whole.isel(relation=0)
    assert (int(found.ablated_layer), int(found.ablated_head)) == (0, 1)
    assert bool(found.ablated_matters)
    assert float(found.ablated) == pytest.approx(-float(found.margin), abs=0.1)
    assert abs(float(found.ablated_others)) < 0.02
    report = report_of("relations", whole)
    assert any(sentence.startswith("Without head 0.1, the precision at L") for sentence in report.finding.sentences)


def test_contacts_without_a_head_are_those_of_hooks_and_regressions_written_out(esm):
    """The output of a head is 0 before the matrix that reads it, and its own feature is left out."""
    model, tokenizer = esm
    objects = proteins(8, least=36)
    found = relations(model, objects, tokenizer=tokenizer, untrained=False, together=True, ablate=True).isel(relation=0)
    layer, width = int(found.ablated_layer), model.config.hidden_size // 3

    @torch.no_grad()
    def features(without):
        def replaced(_, arguments):
            states = arguments[0].clone()
            states[..., without * width : (without + 1) * width] = 0
            return (states,)

        hooks = []
        if without is not None:
            dense = model.esm.encoder.layer[layer].attention.output.dense
            hooks.append(dense.register_forward_pre_hook(replaced))
        both = []
        for protein in objects:
            out = model(**tokenizer(protein["sequence"], return_tensors="pt"), output_attentions=True)
            weights = torch.cat(out.attentions).flatten(0, 1)[:, 1:-1, 1:-1]
            pairs = np.triu_indices(weights.shape[-1], SEPARATION)
            both.append(average_product_correct(symmetrize(weights))[:, *pairs].double().numpy().T)
        for hook in hooks:
            hook.remove()
        return both

    plain = features(None)
    contacts = []
    for protein in objects:
        length = len(protein["sequence"])
        pairs = zip(*np.triu_indices(length, SEPARATION), strict=True)
        contacts.append(np.array([[i + 1, j + 1] in protein["contacts"] for i, j in pairs]))
    fold = folds(len(objects), 0)

    def precision(of_proteins, left_out):
        shares = []
        for at, one in enumerate(of_proteins):
            others = [other for other in range(len(objects)) if fold[other] != fold[at]]
            regression = LogisticRegression(
                C=0.15, l1_ratio=1.0, solver="liblinear", random_state=0, tol=1e-6, max_iter=1000
            )
            regression.fit(*(np.concatenate([of[other] for other in others]) for of in (plain, contacts)))
            weights = regression.coef_[0].copy()
            weights[left_out] = 0
            length = len(objects[at]["sequence"])
            shares.append(contacts[at][np.argsort(-(one @ weights), kind="stable")[:length]].mean())
        return np.mean(shares)

    whole = precision(plain, [])
    expected = [precision(features(head), [3 * layer + head]) - whole for head in range(3)]
    np.testing.assert_allclose(found.ablated_change.sel(layer=layer), expected, atol=1e-6)
    assert not bool(found.ablated_matters)  # random weights know nothing


def test_contacts_of_heads_one_at_a_time_are_not_ablated(esm):
    model, tokenizer = esm
    with pytest.raises(AttnscopeError, match="add together"):
        relations(model, proteins(8), tokenizer=tokenizer, ablate=True)


def test_the_regression_is_that_of_scikit_learn_and_esm_reads_it(esm, tmp_path):
    """ESM's own head, with the weights that are saved, has the probabilities of a regression that is written out."""
    model, tokenizer = esm
    objects, features, contacts = proteins(8), [], []
    for protein in objects:
        with torch.no_grad():
            encoded = tokenizer(protein["sequence"], return_tensors="pt")
            weights = torch.cat(model(**encoded, output_attentions=True).attentions).flatten(0, 1)[:, 1:-1, 1:-1]
        i, j = np.triu_indices(weights.shape[-1], SEPARATION)
        of_pairs = average_product_correct(symmetrize(weights))[:, i, j].double().numpy()
        known = of_pairs[1] + of_pairs[4] > np.quantile(of_pairs[1] + of_pairs[4], 0.9)  # two of the six heads
        protein["contacts"] = [[int(a) + 1, int(b) + 1] for a, b in zip(i[known], j[known], strict=True)]
        features.append(of_pairs.T)
        contacts.append(known)
    found = relations(model, objects, tokenizer=tokenizer, untrained=False, together=True, out=tmp_path / "run")
    regression = LogisticRegression(C=0.15, l1_ratio=1.0, solver="liblinear", random_state=0, tol=1e-8, max_iter=1000)
    regression.fit(np.concatenate(features), np.concatenate(contacts))
    assert (regression.coef_[0] != 0).sum() > 1
    np.testing.assert_allclose(found.contact_weight.values.ravel(), regression.coef_[0], rtol=1e-2, atol=1e-2)
    save_contact_head(found, tmp_path / "head.safetensors")
    done = command("runs", "export", "run", "--to", "contacts", "--out", "exported", cwd=tmp_path)
    assert not done.returncode, done.stderr
    (exported,) = (tmp_path / "exported").iterdir()
    assert exported.read_bytes() == (tmp_path / "head.safetensors").read_bytes()
    model.esm.contact_head.load_state_dict(load_file(exported))
    with torch.no_grad():
        likely = model.predict_contacts(encoded["input_ids"], encoded["attention_mask"])[0]
    np.testing.assert_allclose(likely[i, j], regression.predict_proba(features[-1])[:, 1], atol=1e-3)
    with pytest.raises(AttnscopeError, match="exists"):
        save_contact_head(found, tmp_path / "head.safetensors")
    with pytest.raises(AttnscopeError, match="with together"):
        save_contact_head(found.drop_vars("contact_weight"), tmp_path / "other.safetensors")
    assert not (tmp_path / "other.safetensors").exists()
    refused = command("runs", "export", "run", "--to", "contacts", "--top", "3", "--out", "other", cwd=tmp_path)
    assert "has the weights of all heads: leave it out" in " ".join(refused.stderr.split())


def test_what_follows_from_separation_is_no_knowledge_of_contacts():
    """Contacts at one separation alone: pairs ranked by separation are as good as any head."""
    model, tokenizer = planted()
    objects = proteins(12, seed=3)
    for protein in objects:
        protein["contacts"] = [[i, i + 8] for i in range(1, len(protein["sequence"]) - 7)]
    found = relations(model, objects, tokenizer=tokenizer, untrained=False)
    np.testing.assert_allclose(found.precision_separation.sel(cut=["L/2", "L/5"]), 1.0)
    assert not bool(found.precision_shown.any())


def test_residues_are_tokens_with_spaces_where_a_tokenizer_needs_them():
    model, tokenizer = planted()  # its words are between spaces
    sequence = proteins(1)[0]["sequence"]
    assert len(tokenizer.tokenize(sequence)) == 1
    objects = proteins(3)
    found = relations(model, objects, tokenizer=tokenizer, untrained=False)
    lengths = [len(one["sequence"]) for one in objects]
    assert found.length.values.tolist() == [length + 2 for length in lengths]


@pytest.mark.parametrize("ending", ["pdb", "ent", "cif", "pdb.gz"])
def test_a_structure_is_read_with_its_contacts(ending, tmp_path):
    plain, file = tmp_path / "plain.pdb", tmp_path / f"hairpin.{ending}"
    plain.write_text(hairpin(SEQUENCE), encoding="utf-8")
    if ending == "cif":
        structure = gemmi.read_pdb(str(plain))
        structure.setup_entities()
        structure.make_mmcif_document().write_file(str(file))
    else:
        content = plain.read_bytes()
        file.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    (text,) = linked_texts(file)
    assert text.text == SEQUENCE
    contacts = written_out(plain)
    assert len(contacts) > 10
    read = {(link.query[0] + 1, key[0] + 1) for link in text.links for key in link.keys}
    assert read == contacts | {(j, i) for i, j in contacts}
    assert len(text.words) == len(SEQUENCE)


def test_residues_without_coordinates_are_read_and_not_ranked(tmp_path, esm):
    file = tmp_path / "gap.pdb"
    file.write_text(hairpin(SEQUENCE, missing={3, 4}), encoding="utf-8")
    (text,) = linked_texts(file)
    assert text.text == SEQUENCE  # as the header has it
    assert len(text.words) == len(SEQUENCE) - 2
    found = relations(esm[0], file, tokenizer=esm[1], untrained=False)
    assert int(found.window_residues.sum()) == len(SEQUENCE) - 2
    assert int(found.window_contacts.sum()) == len(written_out(file))


def test_lists_of_contacts_are_read(tmp_path, esm):
    file = tmp_path / "two.contacts"
    file.write_text(f">a\n{SEQUENCE[:10]}\n{SEQUENCE[10:]}\n1 9 0 8 0.9\n2 4\n>b\nACDEFGHIKLM\n1 8\n", encoding="utf-8")
    first, second = linked_texts(file)
    assert first.text == SEQUENCE
    assert [(link.query, link.keys) for link in first.links] == [((0, 1), ((8, 9),)), ((8, 9), ((0, 1),))]
    assert second.text == "ACDEFGHIKLM"
    lines = tmp_path / "two.jsonl"
    lines.write_text(json.dumps({"sequence": SEQUENCE, "contacts": [[1, 9]]}) + "\n", encoding="utf-8")
    (third,) = linked_texts(lines)
    assert third.links == first.links


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.contacts", "MKT\n0 3\n", "two of their numbers, from 1"),
        ("a.contacts", "MKT\n1 9\n", "a sequence of 3 residues"),
        ("a.contacts", "MKT!\n", "expected letters of a sequence"),
        ("a.contacts", "1 9\n", "has no sequence"),
        ("a.jsonl", '{"sequence": "MKT"}\n', "found no sequence with contacts"),
        ("a.pdb", "MKT\n", "no chain of a protein"),
        ("a.cif", "data_x\nloop_\n", "is no structure"),
    ],
)
def test_files_of_another_form_are_explained(name, content, problem, tmp_path):
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    with pytest.raises(AttnscopeError, match=problem):
        linked_texts(file)


def test_the_command_tells_what_head_ranks_contacts(tmp_path):
    model, tokenizer = planted()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    file = tmp_path / "proteins.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in proteins(8)), encoding="utf-8")
    done = command("relations", "./model", "proteins.jsonl", "--no-untrained", cwd=tmp_path)
    assert "Head 0.1 ranks contacts best" in " ".join(done.stdout.split())


def test_one_protein_is_not_called_a_finding():
    model, tokenizer = planted()
    found = relations(model, proteins(1), tokenizer=tokenizer, untrained=False, together=True)
    report = report_of("relations", found)
    assert report.finding.sentences[0] == "One protein: nothing can be tested."
    assert "--together needs 6 or more files of proteins" in report.finding.sentences[-1]
    assert not report.finding.leading


def test_a_model_of_texts_gets_a_note():
    notes = report_of("relations", relations("bundled", proteins(2), untrained=False)).notes
    assert any("Was small-mlm trained on proteins?" in note for note in notes)
    model, tokenizer = planted()
    notes = report_of("relations", relations(model, proteins(2), tokenizer=tokenizer, untrained=False)).notes
    assert not any("trained on proteins" in note for note in notes)


def test_a_page_of_contacts_is_about_one_head_and_one_measure():
    model, tokenizer = planted()
    found = relations(model, proteins(8), tokenizer=tokenizer, untrained=False)
    report = report_of("relations", found)
    data = heads.of_report(report)
    assert data is not None
    assert report.finding.headline.startswith("Head 0.1 ranks contacts")
    assert report.finding.leading == [(0, 1)]
    assert (report.rows[0]["layer"], report.rows[0]["head"]) == (0, 1)
    assert data["opens"]["head"] == 1
    assert data["opens"]["quantity"] == "contact_heads..above"
    names = [one["name"] for one in data["quantities"]]
    assert len({*names}) == len(names)  # no two numbers of a head have one name
