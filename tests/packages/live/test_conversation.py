"""A live view's answers beside the verbs that measure the same, and the copied lines run."""

import contextlib
import io
import json
import os
import re
import subprocess

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model
from attnscope.capture.placement import Placement
from attnscope.results.page.parts import encode
from attnscope_live.conversation import Conversation, StoppedError, sentences
from attnscope_live.copied import Source
from attnscope_live.opening import conversation_of
from tests.cli.command import attnscope as run_here
from tests.tiny_models import tiny_reader

TEXT = "The car near the rivers is old."
OTHER = "The cars near the rivers is old."
PAIRED = {"tasks": OTHER, "masked": "The car fear the rivers is old."}  # with as many tokens


def answered(conversation, name, **question):
    """The JSON of an answer, and its arrays."""
    answer = conversation.answer(name, question)
    json.dumps(answer.content, allow_nan=False)
    return answer.content, answer.arrays


@pytest.fixture(scope="module")
def tasks():
    return Conversation(load_model("bundled:tasks", device="cpu"), Source("bundled:tasks"))


@pytest.fixture(scope="module")
def masked():
    return Conversation(load_model("bundled", device="cpu"), Source("bundled"))


def of_family(name):
    """A conversation with a random model, which reads with the bundled tokenizer."""
    model, tokenizer = tiny_reader(name)
    return Conversation(load_model(model, tokenizer=tokenizer))


def classifier():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}
    return BertConfig(**sizes, vocab_size=640, num_labels=3)


def test_maps_and_rows_are_those_of_weights(tasks):
    content, (small,) = answered(tasks, "look", text=TEXT)
    expected = attnscope.weights("bundled:tasks", TEXT, layer=1, head=2)
    assert content["texts"]["text"]["tokens"] == expected.key_token.values.tolist()
    shape, (codes,) = answered(tasks, "map", layer=1, head=2)
    assert np.frombuffer(codes, np.uint8).reshape(shape["n"], shape["m"]).tolist() == encode(expected.values).tolist()
    for direction, row in (("from", expected.values[5]), ("to", expected.values[:, 5])):
        _, (sent,) = answered(tasks, "row", layer=1, head=2, token=5, direction=direction)
        np.testing.assert_allclose(np.frombuffer(sent, np.float32), row, atol=1e-6)
    assert len(small) == 4 * 4 * content["side"] ** 2


def test_predictions_and_loss_are_those_of_the_model(tasks):
    content, _ = answered(tasks, "look", text=TEXT)
    loaded = tasks.loaded
    ids = loaded.tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = loaded.model(ids).logits[0].log_softmax(-1)
    for position in (0, 4, content["position"]):
        rows = answered(tasks, "predict", position=position)[0]["rows"]
        best = logits[position].topk(10)
        np.testing.assert_allclose([row["before"] for row in rows[:10]], best.values, atol=1e-5)
        assert [row["id"] for row in rows[:10]] == best.indices.tolist()
        follows = [row["id"] for row in rows if row["actual"]]
        assert follows == ids[0, position + 1 : position + 2].tolist()
    expected = -logits[:-1].gather(1, ids[0, 1:, None]).mean()
    assert content["loss"]["before"] == pytest.approx(float(expected), abs=1e-5)
    assert content["loss"]["after"] is None


@pytest.mark.parametrize("by", ["zero", "mean"])
@pytest.mark.parametrize("name", ["tasks", "masked"])
def test_the_change_of_the_loss_is_that_of_intervene(request, name, by):
    conversation = request.getfixturevalue(name)
    heads = [(1, 2), (2, 0)]
    loss = answered(conversation, "look", text=TEXT, removed=heads, by=by)[0]["loss"]
    window = len(conversation.looked.plain.window)
    found = attnscope.intervene(
        conversation.source.name, TEXT, heads=[heads], ablations=[by], steps=0, window=window, why=False
    )
    change = found["together"].loss_change.values.squeeze()
    assert loss["after"] - loss["before"] == pytest.approx(float(change), abs=1e-5)
    assert abs(float(change)) > 1e-3


def test_what_returns_is_what_patch_measures(tasks):
    question = {"text": "The car near the rivers", "other": "The cars near the rivers", "by": "other"}
    plain, _ = answered(tasks, "look", **question)
    assert plain["aligned"]
    first = answered(tasks, "predict", position=plain["position"])[0]["returned"]
    pair = {"clean": question["other"], "corrupted": question["text"], "answer": first["answer"]}
    found = attnscope.patch("bundled:tasks", [pair | {"wrong": first["wrong"]}], steps=0)["patched"]
    effects = np.zeros((4, 4))
    for layer, head in np.ndindex(4, 4):
        answered(tasks, "look", **question, removed=[(layer, head)])
        returned = answered(tasks, "predict", position=plain["position"])[0]["returned"]
        here, patched, there = returned["margins"]
        effects[layer, head] = patched - here
        assert returned["share"] == pytest.approx((patched - here) / (there - here))
    np.testing.assert_allclose(effects, found.effect.values.squeeze(), rtol=1e-4, atol=1e-3)
    assert effects.max() > 1


def test_each_head_alone_is_what_patch_and_intervene_measure(tasks):
    text, other = "The car near the rivers", "The cars near the rivers"
    position = answered(tasks, "look", text=text, other=other)[0]["position"]
    returned = answered(tasks, "predict", position=position)[0]["returned"]
    pair = {"clean": other, "corrupted": text, "answer": returned["answer"], "wrong": returned["wrong"]}
    effect = attnscope.patch("bundled:tasks", [pair], steps=0)["patched"].effect.values.squeeze()
    here, _, there = returned["margins"]
    for layer in range(4):
        content, _ = answered(tasks, "effects", layer=layer, position=position, token=0, by="other")
        np.testing.assert_allclose(content["effects"], effect[layer] / (there - here), atol=1e-4)
    answered(tasks, "look", text=text)
    best = answered(tasks, "predict", position=position)[0]["rows"][0]
    found = answered(tasks, "effects", layer=1, position=position, token=best["id"])[0]["effects"]
    for head in range(4):
        answered(tasks, "look", text=text, removed=[(1, head)])
        rows = answered(tasks, "predict", position=position)[0]["rows"]
        (row,) = [row for row in rows if row["id"] == best["id"]]
        assert found[head] == pytest.approx(row["after"] - row["before"], abs=1e-5)


@pytest.mark.parametrize("position", [2, 6])
def test_the_logit_is_split_as_the_model_computes_it(tasks, position):
    """The parts of heads by the model's own weights: output projection, frozen norm, unembedding."""
    answered(tasks, "look", text=TEXT)
    token = 11
    content, _ = answered(tasks, "attribution", position=position, token=token)
    model, ids = tasks.loaded.model, tasks.loaded.tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        hidden, z = {}, {}
        hooks = [model.model.norm.register_forward_pre_hook(lambda _, args: hidden.update(last=args[0][0, position]))]
        for layer, block in enumerate(model.model.layers):
            keep = lambda _, args, layer=layer: z.update({layer: args[0][0, position]})  # noqa: E731
            hooks.append(block.self_attn.o_proj.register_forward_pre_hook(keep))
        logits = model(ids).logits[0, position]
        for hook in hooks:
            hook.remove()
        norm = model.model.norm
        factor = norm.weight * torch.rsqrt(hidden["last"].pow(2).mean() + norm.variance_epsilon)
        reads = factor * model.lm_head.weight[token]
        expected = {
            (layer, head): float(part @ block.self_attn.o_proj.weight.T.unflatten(0, (len(parts), -1))[head] @ reads)
            for layer, block in enumerate(model.model.layers)
            for parts in [z[layer].unflatten(0, (model.config.num_attention_heads, -1))]
            for head, part in enumerate(parts)
        }
    found = {(one["layer"], one["head"]): one["part"] for one in content["heads"]}
    assert found == pytest.approx(expected, abs=1e-4)
    assert content["total"] == pytest.approx(float(logits[token]), abs=1e-4)


def test_effects_in_a_masked_model_are_of_its_restored_token(masked):
    text = "The tide comes in twice a day."
    answered(masked, "look", text=text)
    best = answered(masked, "predict", position=4)[0]["rows"][0]
    found = answered(masked, "effects", layer=2, position=4, token=best["id"])[0]["effects"]
    answered(masked, "look", text=text, removed=[(2, 1)])
    rows = answered(masked, "predict", position=4)[0]["rows"]
    (row,) = [row for row in rows if row["id"] == best["id"]]
    assert found[1] == pytest.approx(row["after"] - row["before"], abs=1e-5)


def test_heads_that_reach_a_key_are_those_with_the_largest_weight(tasks):
    answered(tasks, "look", text=TEXT)
    weights = attnscope.weights("bundled:tasks", TEXT).values[:, :, 6, 2]
    heads = answered(tasks, "reach", query=6, key=2)[0]["heads"]
    best = np.argsort(-weights.ravel())[:10]
    assert [(one["layer"], one["head"]) for one in heads] == [divmod(int(i), 4) for i in best]
    np.testing.assert_allclose([one["weight"] for one in heads], weights.ravel()[best], atol=1e-6)
    with pytest.raises(AttnscopeError, match="found the positions 6 and 99"):
        answered(tasks, "reach", query=6, key=99)


def test_a_text_that_is_cut_is_said_to_be():
    conversation = Conversation(load_model("bundled:tasks", device="cpu"))
    conversation.length = 16
    assert answered(conversation, "look", text="The cars are old. " * 9)[0]["cut"]
    assert not answered(conversation, "look", text="The cars are old. ")[0]["cut"]
    with pytest.raises(AttnscopeError, match="expected 16 at most"):
        answered(conversation, "look", text="The cars are old. " * 2, written=[3] * 12)


def test_shares_of_a_written_token_add_up(tasks):
    answered(tasks, "look", text="The cars near the river", written=[20, 30, 40])
    tokens = tasks.looked.plain.maps.texts["text"]
    content, _ = answered(tasks, "shares", position=len(tokens) - 1)
    weights = attnscope.weights("bundled:tasks", {"input_ids": [[*tasks.looked.plain.window.ids]]}).values[..., -1, :]
    assert len(content["shares"]) == 16
    for one in content["shares"]:
        row = weights[one["layer"], one["head"]]
        assert one["prompt"] == pytest.approx(row[:-3].sum(), abs=1e-5)
        assert one["written"] == pytest.approx(row[-3:-1].sum(), abs=1e-5)
        assert one["itself"] == pytest.approx(row[-1], abs=1e-5)


def test_receivers_are_sentences_that_later_ones_attend_to(tasks):
    text = "The car is old. The boats are new! Mary went to the store.\nThe river is deep. The birds are here."
    answered(tasks, "look", text=text)
    window = tasks.looked.plain.window
    parts_of = sentences(window)
    assert ["".join(window.tokens[part]).strip() for part in parts_of][1:3] == [
        "The boats are new!",
        "Mary went to the store.",
    ]
    content, _ = answered(tasks, "receivers")
    weights = attnscope.weights("bundled:tasks", text).values
    even = np.tril(np.ones(weights.shape[2:]))
    even /= even.sum(-1, keepdims=True)
    for one in content["heads"]:
        part = parts_of[one["sentence"]]
        later = slice(parts_of[one["sentence"] + 2].start, parts_of[-1].stop)
        expected = weights[one["layer"], one["head"], later, part].sum(-1).mean()
        assert one["share"] == pytest.approx(expected, abs=1e-5)
        assert one["chance"] == pytest.approx(even[later, part].sum(-1).mean(), abs=1e-6)
    assert len(content["heads"]) == 10
    above = [one["share"] - one["chance"] for one in content["heads"]]
    assert above == sorted(above, reverse=True)
    answered(tasks, "look", text=TEXT)
    with pytest.raises(AttnscopeError, match="found 1 sentences; expected 4 or more"):
        answered(tasks, "receivers")


def test_differences_are_those_of_two_texts(tasks):
    content, arrays = answered(tasks, "look", text=TEXT, other=OTHER)
    assert len(arrays) == 3
    two = [attnscope.weights("bundled:tasks", text).values for text in (TEXT, OTHER)]
    moved = np.abs(two[0] - two[1]).sum(-1).mean(-1) / 2
    np.testing.assert_allclose(np.reshape(content["changes"], moved.shape), moved, atol=1e-6)
    _, (sent,) = answered(tasks, "row", layer=1, head=2, token=5, direction="from", of="difference")
    np.testing.assert_allclose(np.frombuffer(sent, np.float32), np.abs(two[0] - two[1])[1, 2, 5], atol=1e-6)
    content, arrays = answered(tasks, "look", text=TEXT, other="One more word is in here, or three.")
    assert not content["aligned"]
    assert len(arrays) == 2
    with pytest.raises(AttnscopeError, match="different numbers of tokens"):
        answered(tasks, "map", layer=0, head=0, of="difference")
    with pytest.raises(AttnscopeError, match="equally many tokens"):
        answered(tasks, "look", text=TEXT, other="One more.", removed=[(0, 0)], by="other")


def test_what_the_model_writes_follows_the_prompt_token_by_token(tasks):
    text, written = "The cars near the river", []
    for _ in range(3):
        content, _ = answered(tasks, "look", text=text, written=written)
        best = answered(tasks, "predict", position=content["position"])[0]["rows"][0]
        written.append(best["id"])
    content, _ = answered(tasks, "look", text=text, written=written)
    ids = tasks.loaded.tokenizer(text, return_tensors="pt").input_ids
    expected = tasks.loaded.model.generate(ids, max_new_tokens=3, do_sample=False)[0]
    assert written == expected[ids.shape[1] :].tolist()
    assert len(content["texts"]["text"]["tokens"]) == len(expected)
    assert content["prompt"] == ids.shape[1]


def test_the_model_of_pronouns_answers_at_it_as_it_stands():
    view = attnscope.view("bundled:pronoun")
    assert (view.layer, view.head, view.maps.texts["text"][view.token].strip()) == (1, 0, "it")
    assert not view.conversation.about["masks"]
    answered(view.conversation, "look", text=view.text)
    rows = answered(view.conversation, "predict", position=view.token, mask=False)[0]["rows"]
    ids = torch.tensor([view.conversation.looked.plain.window.ids])
    with torch.no_grad():
        logits = view.conversation.loaded.model(ids).logits[0, view.token].log_softmax(-1)
    assert rows[0]["before"] == pytest.approx(float(logits.max()), abs=1e-5)
    noun = rows[0]["token"].strip()
    assert noun in view.text
    assert rows[0]["before"] > -0.5
    answered(view.conversation, "look", text=view.text, removed=[(1, 0)])
    rows = answered(view.conversation, "predict", position=view.token, mask=False)[0]["rows"]
    (row,) = [row for row in rows if row["token"].strip() == noun]
    assert row["after"] < row["before"] - 1
    code = answered(view.conversation, "code", layer=1, head=0, position=view.token, mask=False)[0]["python"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})  # noqa: S102
    index, _, after = re.fullmatch(r"(\d+) .* (\S+) (\S+)", printed.getvalue().splitlines()[0]).groups()
    (row,) = [row for row in rows if row["id"] == int(index)]
    assert row["after"] == pytest.approx(float(after), abs=1e-4)


@pytest.mark.parametrize("position", [None, 4])
def test_a_look_predicts_what_predict_does(masked, position):
    asked = {"mask": False, "temperature": 0.5}
    look, _ = answered(masked, "look", text=TEXT, other=PAIRED["masked"], removed=[[0, 1]], position=position, **asked)
    at = look["position"]
    assert at == (position or at)
    alone, _ = answered(masked, "predict", position=at, **asked)
    assert alone == {name: look[name] for name in ("rows", "returned")}
    assert alone != answered(masked, "predict", position=at)[0]
    beyond, _ = answered(masked, "look", text="The car", position=9)
    assert beyond["position"] == len(beyond["texts"]["text"]["tokens"]) - 1


def test_a_temperature_divides_the_logits(tasks):
    content, _ = answered(tasks, "look", text="The cars near the river")
    position = content["position"]
    expected = (tasks.looked.plain.logits[position] / 2.5).log_softmax(-1)
    for row in answered(tasks, "predict", position=position, temperature=2.5)[0]["rows"]:
        assert row["before"] == pytest.approx(float(expected[row["id"]]), abs=1e-5)


def test_a_drawn_token_follows_the_temperature(tasks):
    content, _ = answered(tasks, "look", text="The cars near the river")
    position = content["position"]
    drawn = {temperature: set() for temperature in (0.01, 100)}
    for temperature, seen in drawn.items():
        for seed in range(12):
            seen.add(answered(tasks, "draw", position=position, temperature=temperature, seed=seed)[0]["id"])
    assert drawn[0.01] == {answered(tasks, "predict", position=position)[0]["rows"][0]["id"]}
    assert len(drawn[100]) > 8


def test_a_masked_model_restores_the_chosen_token(masked):
    text = "The tide comes in twice a day."
    answered(masked, "look", text=text)
    ids = masked.loaded.tokenizer(text, return_tensors="pt").input_ids
    hidden = ids.clone()
    hidden[0, 4] = masked.loaded.tokenizer.mask_token_id
    with torch.no_grad():
        expected = masked.loaded.model(hidden).logits[0, 4].log_softmax(-1)
    for row in answered(masked, "predict", position=4)[0]["rows"]:
        assert row["before"] == pytest.approx(float(expected[row["id"]]), abs=1e-5)
        assert row["actual"] == (row["id"] == int(ids[0, 4]))
    assert answered(masked, "look", text="The tide<mask> in.")[0]["position"] == 4


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bart", "bert", "gpt_neox"])
@pytest.mark.parametrize("by", ["zero", "mean", "other"])
def test_heads_of_any_family_are_taken_out_as_edit_does(family, by):
    conversation, heads = of_family(family), [(1, 1), (0, 3)]
    model, tokenizer = conversation.loaded.model, conversation.loaded.tokenizer
    question = {"text": TEXT, "other": "The car fear the rivers is old.", "removed": heads, "by": by}
    assert answered(conversation, "look", **question)[0]["aligned"]
    rows = answered(conversation, "predict", position=5)[0]["rows"]

    def inputs(text):
        ids = tokenizer(text, return_tensors="pt").input_ids
        both = {"input_ids": ids.clone()}
        if model.config.is_encoder_decoder:
            both["decoder_input_ids"] = ids
        if conversation.kind == "masked":
            both["input_ids"][0, 5] = tokenizer.mask_token_id
        return both

    replaced, returned = dict.fromkeys(heads, torch.zeros_like), {}

    def recorder(head):
        return lambda z: returned.setdefault(head, z)

    with torch.no_grad(), attnscope.edit(model, {head: recorder(head) for head in heads}, on="z"):
        model(**inputs(question["other"] if by == "other" else TEXT))
    if by == "mean":
        replaced = {head: lambda z, head=head: returned[head].mean(1, keepdim=True).expand_as(z) for head in heads}
    if by == "other":
        replaced = {head: lambda z, head=head: returned[head] for head in heads}
    with torch.no_grad(), attnscope.edit(model, replaced, on="z"):
        expected = model(**inputs(TEXT)).logits[0, 5].log_softmax(-1)
    for row in rows:
        assert row["after"] == pytest.approx(float(expected[row["id"]]), abs=1e-4)
    assert any(abs(row["after"] - row["before"]) > 1e-3 for row in rows)


@pytest.mark.parametrize("by", ["zero", "mean", "other"])
@pytest.mark.parametrize(("name", "position"), [("tasks", 4), ("masked", 4)])
def test_the_copied_python_prints_the_same_numbers(request, name, position, by):
    conversation = request.getfixturevalue(name)
    answered(conversation, "look", text=TEXT, other=PAIRED[name], removed=[(1, 2), (2, 0)], by=by)
    rows = {row["id"]: row for row in answered(conversation, "predict", position=position)[0]["rows"]}
    code = answered(conversation, "code", layer=0, head=0, position=position)[0]["python"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})  # noqa: S102
    lines = printed.getvalue().splitlines()
    assert len(lines) == 10
    for line in lines:
        index, before, after = re.fullmatch(r"(\d+) .* (\S+) (\S+)", line).groups()
        assert rows[int(index)]["before"] == pytest.approx(float(before), abs=1e-4)
        assert rows[int(index)]["after"] == pytest.approx(float(after), abs=1e-4)


def test_without_removed_heads_the_copied_lines_open_the_same(tasks):
    answered(tasks, "look", text=TEXT)
    code = answered(tasks, "code", layer=1, head=2, position=3)[0]
    assert code["command"] == f"attnscope view bundled:tasks '{TEXT}' --layer 1 --head 2"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code["python"], {})  # noqa: S102
    assert "key_token" in printed.getvalue()


def test_copied_lines_spread_the_model_as_the_view_was(tmp_path):
    """Over the devices, and within the memory, that the view was opened with."""
    reading = {"device_map": "auto", "max_memory": {"cpu": "2GiB"}, "dtype": "float32"}
    loaded = load_model("bundled:tasks", placement=Placement(reading["device_map"], reading["max_memory"]))
    conversation = conversation_of(loaded, "bundled:tasks", reading)
    answered(conversation, "look", text=TEXT, removed=[(1, 2)])
    rows = {row["id"]: row["after"] for row in answered(conversation, "predict", position=4)[0]["rows"]}
    code = answered(conversation, "code", layer=0, head=0, position=4)[0]
    assert "placement=Placement('auto', {'cpu': '2GiB'})" in code["python"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code["python"], {})  # noqa: S102
    for line in printed.getvalue().splitlines():
        index, after = re.fullmatch(r"(\d+) .* (\S+)", line).groups()
        assert rows[int(index)] == pytest.approx(float(after), abs=1e-4)
    words = as_a_shell_reads(code["command"], tmp_path)
    assert words[words.index("--device-map") + 1] == "auto"
    assert words[words.index("--max-memory") + 1] == "cpu=2GiB"
    done = run_here(*words, "--no-report", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def as_a_shell_reads(command, folder):
    """The words that a shell hands to attnscope."""
    stand_in = folder / "attnscope"
    stand_in.write_text("""#!/bin/sh\nprintf '%s\\n' "$@"\n""")
    stand_in.chmod(0o755)
    path = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, shell=True, env=os.environ | path, capture_output=True, text=True, check=True)  # noqa: S602
    return done.stdout.splitlines()


@pytest.mark.parametrize("by", ["zero", "other"])
def test_the_copied_command_measures_the_same(tasks, tmp_path, by):
    text, other, heads = "The car near the rivers", "The cars near the rivers", [(1, 3), (0, 1)]
    loss = answered(tasks, "look", text=text, other=other, removed=heads, by=by)[0]["loss"]
    position = len(tasks.looked.plain.window) - 1
    command = answered(tasks, "code", layer=0, head=0, position=position)[0]["command"]
    returned = answered(tasks, "predict", position=position)[0]["returned"]
    words = as_a_shell_reads(command, tmp_path)
    done = run_here(*words, "--no-report", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = attnscope.open_run(tmp_path / "run")["together"]
    measured = float(found["effect"].values.squeeze())
    here, patched, _ = returned["margins"]
    expected = loss["after"] - loss["before"] if by == "zero" else patched - here
    assert measured == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_word_that_could_be_a_file_is_piped(tasks):
    answered(tasks, "look", text="cars", removed=[(0, 0)])
    command = answered(tasks, "code", layer=0, head=0, position=0)[0]["command"]
    assert command.startswith("printf %s cars | attnscope intervene bundled:tasks - ")


def test_labels_and_embeddings_are_models_too():
    tokenizer = load_model("bundled", device="cpu").tokenizer
    for model in (BertForSequenceClassification(classifier()), BertModel(classifier())):
        conversation = Conversation(load_model(model, tokenizer=tokenizer))
        content, _ = answered(conversation, "look", text=TEXT, removed=[(1, 1)])
        assert content["loss"] is None
        rows = answered(conversation, "predict", position=0)[0]["rows"]
        assert len(rows) == (3 if content["kind"] == "label" else 0)


def test_tokens_that_cannot_come_have_no_probability_and_ties_no_share(tasks, monkeypatch):
    content, _ = answered(tasks, "look", text=TEXT, other=OTHER)
    best = answered(tasks, "predict", position=content["position"])[0]["rows"][0]["id"]
    for one in (tasks.looked.plain, tasks.looked.other):
        monkeypatch.setattr(one.logits, "data", torch.full_like(one.logits, -torch.inf))
        one.logits[:, :3] = 0.0
    content, _ = answered(tasks, "predict", position=content["position"])
    assert content["returned"]["share"] is None
    assert {row["before"] is None for row in content["rows"]} == {True, False}
    effects = answered(tasks, "effects", layer=0, position=3, token=best)[0]["effects"]
    assert len(effects) == 4
    tasks._passes.clear()


def test_a_newer_question_stops_a_pass_between_layers(tasks):
    calls = []

    def stopped():
        calls.append(1)
        return len(calls) > 2

    with pytest.raises(StoppedError):
        tasks.answer("look", {"text": "Something that nobody has asked before."}, stopped)
    assert len(calls) == 3
    assert answered(tasks, "look", text=TEXT)[0]["loss"]


@pytest.mark.parametrize(
    ("name", "question", "words"),
    [
        ("look", {"text": " "}, "found no text"),
        ("look", {"text": "a" * 30_000}, "at most 20000 characters"),
        ("look", {"text": TEXT, "removed": [[9, 9]]}, "there is no head 9.9"),
        ("look", {"text": TEXT, "removed": [[-1, 0]]}, "removed.0.0"),
        ("look", {"text": TEXT, "by": "magic"}, "by: "),
        ("look", {"text": TEXT, "target": "x"}, "is no encoder-decoder"),
        ("look", {"text": TEXT, "more": 1}, "more: "),
        ("map", {"layer": 7, "head": 0}, "there is no head 7.0"),
        ("map", {"layer": 0, "head": 0, "of": "other"}, "found no second text"),
        ("row", {"layer": 0, "head": 0, "token": 99, "direction": "to"}, "found the token 99"),
        ("predict", {"position": 99}, "found the position 99"),
        ("predict", {"position": 1, "temperature": 0}, "temperature: "),
        ("exec", {}, "found the question 'exec'"),
        ("__init__", {}, "found the question"),
    ],
)
def test_a_question_of_another_form_is_explained(tasks, name, question, words):
    answered(tasks, "look", text=TEXT)
    with pytest.raises(AttnscopeError, match=re.escape(words)):
        tasks.answer(name, question)
    assert tasks.reply(name, question, lambda: False).content["error"]


def test_a_caller_s_model_is_left_as_it_was():
    model = load_model("bundled", device="cpu").model
    model.train()
    conversation = Conversation(load_model(model, tokenizer=str(MODEL)))
    answered(conversation, "look", text=TEXT, removed=[(0, 0)])
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
