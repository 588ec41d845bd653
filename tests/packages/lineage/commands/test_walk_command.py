"""The command as a user types it."""

from pathlib import Path

import pytest

from attnscope.options import is_sentence, text_or_place
from tests.cli.command import attnscope
from tests.packages.lineage.translation.small_translators import small_tokenizer
from tests.packages.lineage.walk.walked_translators import SENTENCE, TARGET, translator


def said(*arguments, cwd):
    found = attnscope("walk", *arguments, cwd=cwd)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_the_default_goes_through_all_steps(tmp_path):
    shown = said(cwd=tmp_path)
    assert "“it”" in shown
    assert [line.split()[0] for line in shown.splitlines() if line[:1].isdigit()] == [str(n) for n in range(1, 17)]
    assert not list(tmp_path.iterdir())


def test_a_sentence_of_any_language_is_a_text_not_a_path(tmp_path):
    for *model, sentence in (["The cat sat."], ["bundled", "吾輩は猫である。"], ["吾輩は、" * 30]):
        found = attnscope("walk", *model, sentence, cwd=tmp_path)
        assert found.returncode == 0 or "at most 128" in found.stderr
        assert is_sentence(sentence)
    assert isinstance(text_or_place("", "吾輩.txt"), Path)
    for name in ("gpt2", "写真.png", "猫/犬", "my notes.txt", "my runs/", "https://x.org/猫", "word"):
        assert not is_sentence(name)


def test_markdown_goes_to_a_file_or_to_the_output(tmp_path):
    assert said("--toy", "--markdown", "walk.md", cwd=tmp_path) == "written: walk.md\n"
    written = (tmp_path / "walk.md").read_text(encoding="utf-8")
    assert written == said("--toy", "--markdown", "-", cwd=tmp_path)
    assert written.startswith("# Self-attention, step by step")


def test_the_name_of_a_written_file_is_in_no_language(tmp_path):
    """A date of `runs` is another word in Japanese."""
    for name in ("report of a walk.html", "one, two.html"):
        assert said("--toy", "--page", name, "--lang", "ja", cwd=tmp_path) == f"書き込み: {name}\n"


def test_a_translator_reads_the_target_or_its_own_translation(tmp_path):
    translator("marian").save_pretrained(tmp_path / "model")
    small_tokenizer().save_pretrained(tmp_path / "model")
    given = ("model", SENTENCE, "--layer", "3")
    shown = said(*given, "--target", TARGET, "--query-token", "buch", cwd=tmp_path)
    assert f"“{TARGET}”" in " ".join(shown.split())
    shown = said(*given, "--lang", "ja", cwd=tmp_path)
    assert "モデル自身の訳文" in "".join(shown.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("bundled", "a b", "--toy"), "leave out the sentence and the target (--target)"),
        (("--toy", "--target", "c d"), "leave out the sentence and the target (--target)"),
        (("--toy", "--layer", "0"), "leave out the model, layer and head"),
        (("--toy", "--dtype", "float64"), "leave out device, dtype"),
        (("--toy", "--query-token", "dog"), "choose one of animal, street, it, tired, or 0 to 3"),
        (("--padding",), "are for toy (--toy)"),
        (("--toy", "--markdown", "none/walk.md"), "cannot write none/walk.md"),
    ],
)
def test_bad_input(refused, arguments, says):
    refused("walk", *arguments, says=says)
