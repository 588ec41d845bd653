"""`generate`: prompts from texts and chats, spans by how they read, runs that are kept, and what is refused."""

import csv
import errno
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

import attnscope
from attnscope import AttnscopeError
from attnscope.measure.stored import notes_of
from attnscope.results.reports import report_of
from attnscope.store import folder as _folder
from tests.cli.command import attnscope as command
from tests.measure.generation.causal_models import writer

PROMPTS = ["The tide comes in twice a day. Is it out?", "A boat."]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def made():
    return writer()


@pytest.fixture(scope="module")
def saved(made, tmp_path_factory):
    """The model in a folder, with a finished run of it in the other."""
    place = tmp_path_factory.mktemp("writer")
    for part in made:
        part.save_pretrained(place / "model")
    (place / "prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    words = ("generate", "model", "prompts.txt", "--by-line", "--new-tokens", "7", "--span", "question=Is...?")
    said = command(*words, "--out", "run", cwd=place)
    assert said.returncode == 0, said.stderr
    return place, (*words, "--out", "run"), said.stdout


def test_prompts_side_by_side_are_as_one_by_one(made):
    model, tokenizer = made
    asked = {"tokenizer": tokenizer, "new_tokens": 6, "spans": {"question": "Is...?"}}
    each = attnscope.generate(model, PROMPTS, **asked)
    both = attnscope.generate(model, PROMPTS, batch_size=2, cache="static", **asked)
    assert each.token_id.values.tolist() == both.token_id.values.tolist()
    for name in ("span_weight", "position_span_weight", "entropy", "mean_offset", "bin_weight", "equal_span_weight"):
        np.testing.assert_allclose(both[name], each[name], atol=1e-5, err_msg=name)
    assert float(each.attrs["full_pass"]) < 1e-5
    assert "cached" not in each.attrs
    with attnscope.watch(model) as seen:
        model.generate(
            torch.from_numpy(each.text_token_id.values[1:, : int(each.prompt_length[1])]),
            max_new_tokens=6,
            do_sample=False,
        )
    alone = seen.result().isel(sequence=0)
    np.testing.assert_allclose(alone.entropy, each.entropy.isel(sequence=1), atol=1e-6)


def test_a_span_is_where_it_reads_so(made):
    model, tokenizer = made
    found = attnscope.generate(
        model, PROMPTS, tokenizer=tokenizer, new_tokens=2, spans={"question": "Is...?", "end": "twice..."}
    )
    assert found.span.values.tolist() == ["prompt", "question", "end", "own output"]
    assert bool(found.span_weight.sel(span="question", sequence=1).isnull().all())  # it asks nothing
    first = found.isel(sequence=0)
    tokens = "".join(first.text_token.values)
    seen = float(np.exp(first.equal_entropy[0, 0]))
    share = first.equal_span_weight.isel(step=0, layer=0)
    assert round(seen * float(share.sel(span="question"))) == len(tokenizer.tokenize(" Is it out?"))
    assert "Is it out?" in tokens
    assert tokens.endswith(str(first.written.item()))


def test_chats_are_answered_and_their_roles_are_spans(made):
    model, tokenizer = made
    chat = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Is the tide out?"},
        {"role": "assistant", "content": "Not yet."},
    ]
    found = attnscope.generate(model, [chat], tokenizer=tokenizer, chat_template=TEMPLATE, new_tokens=2)
    tokens = "".join(found.text_token.values[0, : int(found.prompt_length[0])])
    assert tokens.endswith("[assistant]")
    assert "Not yet" not in tokens
    own = found.span_weight.isel(sequence=0, step=1)
    parts = own.sel(span=["system", "user", "template", "own output"]).sum("span")
    np.testing.assert_allclose(parts, 1.0, atol=1e-6)
    assert bool(own.sel(span="assistant").isnull().all())
    long = [{"role": "user", "content": "Is the tide out? " * 30}]
    with pytest.raises(AttnscopeError, match="has more than the 94 tokens that fit before the generated ones"):
        attnscope.generate(model, [long], tokenizer=tokenizer, chat_template=TEMPLATE, new_tokens=2)


def test_drawn_tokens_depend_on_the_seed_alone(made):
    model, tokenizer = made
    asked = {"tokenizer": tokenizer, "new_tokens": 8, "sample": True, "top_p": 0.9}
    drawn = [attnscope.generate(model, "A boat.", seed=seed, **asked).token_id.values.tolist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_run_is_stored_opened_and_printed(saved):
    place, words, said = saved
    assert "2 prompts, 7 new tokens each, 8 heads" in said
    assert "a test needs 20 texts" in " ".join(said.split())
    assert "question" in said
    told = json.loads(command(*words, "--json", cwd=place).stdout)["tables"]
    assert [text["new_tokens"] for text in told["texts"]] == [7, 7]
    assert len(told["heads"]) == 8
    opened = attnscope.open_run(place / "run")
    again = attnscope.generate(
        place / "model",
        place / "prompts.txt",
        by_line=True,
        new_tokens=7,
        spans={"question": "Is...?"},
        out=place / "run",
    )
    xr.testing.assert_identical(opened, again)
    rows = list(csv.DictReader(io.StringIO(command(*words, "--csv", cwd=place).stdout)))
    assert len(rows) == 8
    at = opened.span_weight.mean(("sequence", "step")).sel(layer=1, head=2, span="question")
    [row] = [row for row in rows if (row["layer"], row["head"]) == ("1", "2")]
    assert float(row["weight question"]) == pytest.approx(float(at))
    assert "all 2 prompts" in command("runs", "show", "run", cwd=place).stdout
    assert "generate" in command("runs", "list", "run", cwd=place).stdout


def test_a_run_that_resumes_after_a_full_disk_is_identical(made, tmp_path, monkeypatch):
    """Also what was checked on the first text, which the second process does not write."""
    model, tokenizer = made
    asked = {"tokenizer": tokenizer, "new_tokens": 4}
    whole = attnscope.generate(model, PROMPTS, out=tmp_path / "whole", **asked)
    pieces, new_file = [], _folder.files.new_file

    def full_at_the_second_piece(place, content=b""):
        pieces.extend([place] * content.startswith(b"PK"))
        if len(pieces) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return new_file(place, content)

    with monkeypatch.context() as disk:
        disk.setattr(_folder.files, "new_file", full_at_the_second_piece)
        with pytest.raises(AttnscopeError, match="The 1 texts before are safe"):
            attnscope.generate(model, PROMPTS, out=tmp_path / "run", **asked)
    assert attnscope.generate(model, PROMPTS, out=tmp_path / "run", **asked).identical(whole)
    assert "full_pass" in whole.attrs


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--new-tokens", "0"), "new_tokens (--new-tokens) is 0; expected a whole number"),
        (("--new-tokens", "200"), "new_tokens (--new-tokens) is 200, but model takes 96 tokens in all"),
        (("--cache", "slow"), "cache (--cache) is 'slow'; expected dynamic, static, none"),
        (("--span", "question"), "--span is 'question'; expected a name and a pattern"),
        (("--span", "document=<doc>..."), "the span 'document' (--span) is '<doc>...' and matches none of the 2"),
        (
            ("--span", "tide=tide", "--span", "question=Is...?", "--window", "6"),
            "the span 'question' (--span) is 'Is...?' and matches only after the first 6",
        ),
        (("--prompt", "A boat."), "found both files of text and --prompt"),
    ],
)
def test_bad_input_is_rejected_in_a_line(saved, words, message):
    place, _, _ = saved
    found = command("generate", "model", "prompts.txt", "--by-line", *words, "--out", "none", cwd=place)
    assert found.returncode == 2
    assert message in found.stderr
    assert not Path(place, "none").exists()


def test_texts_longer_than_the_config_allows_are_noted(made, saved, tmp_path):
    model, tokenizer = made
    for window in (94, 95):
        found = attnscope.generate(model, "A boat.", tokenizer=tokenizer, new_tokens=2, window=window)
        assert ("beyond" in notes_of(found)) == (window == 95)
    words = ("generate", saved[0] / "model", "--prompt", "A boat.", "--new-tokens", "2", "--window", "95")
    said = command(*words, "--no-report", cwd=tmp_path).stdout
    told = "Texts with their new tokens may have 97 tokens, more than the 96 in the model's config"
    assert told in " ".join(said.split())


def test_prompts_that_are_cut_are_counted(made):
    model, tokenizer = made
    texts = ["A boat is out on the sea.", "A boat."]
    found = attnscope.generate(model, texts, tokenizer=tokenizer, new_tokens=2, window=5)
    assert notes_of(found)["cut"] == "Cut to the first 5 tokens (--window): 1 of 2 prompts."
    assert "cut" not in notes_of(attnscope.generate(model, texts, tokenizer=tokenizer, new_tokens=2))


def test_outputs_too_short_for_a_shift_have_a_page_that_says_so():
    model, tokenizer = writer()
    generated = attnscope.generate(model, ["A boat is out."], tokenizer=tokenizer, new_tokens=2)
    report = report_of("generate", generated)
    assert "need texts with" in report.finding.sentences[0]
    heads = next(table for table in report.tables if table.name == "heads")
    assert heads.rows
    assert not heads.terminal  # every number is missing
