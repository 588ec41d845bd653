"""A walk in words: both languages say all of it, tables hold the walk's numbers, Markdown is whole, lines fit."""

import io
import re
import string
from functools import cache

import numpy as np
import pytest
import torch
from matplotlib.mathtext import MathTextParser
from numpy.testing import assert_allclose
from rich.cells import cell_len
from rich.console import Console

from attnscope.bundled import MODEL
from attnscope.kernels.heads import SelfAttention
from attnscope_lineage import walk
from attnscope_lineage.head_walk import walk_inputs, walk_toy, with_forms
from attnscope_lineage.steps import LANGUAGES, markdown, steps, terminal, words
from tests.packages.lineage.translation.small_translators import small_tokenizer
from tests.packages.lineage.walk.walked_translators import SENTENCE, TARGET, translator, walk_translator
from tests.tiny_models import inputs, tiny

LONG = " ".join([SENTENCE] * 4)
FAMILIES = ("gpt2", "gemma2", "gpt_oss", "qwen3", "t5", "bart")


def of_family(family, layer=1):
    given = {name: tensor[:1] for name, tensor in inputs(family, padded=False)[0].items()}
    return walk_inputs(tiny(family), given, layer=layer, head=3, token=7)


@pytest.fixture(scope="module")
def walks():
    """One of every kind: what is shown differs by mask, form, bias, cap, sinks and side."""
    nasty = "Costs $5 * 3 | `a_b` <i>x</i> #1 ~ [l](u) \\ $$ 猫\n☕ {place}"
    return [
        walk_toy(),
        with_forms(walk_toy(causal=True)),
        walk_toy(padding=True),
        walk_toy(padding=True, causal=True),
        walk(device="cpu"),
        walk(MODEL, "吾輩は猫である。", layer=2, head=1, query_token="猫", device="cpu"),
        walk(MODEL, nasty, device="cpu"),
        *(of_family(family) for family in FAMILIES),
        of_family("bart", layer=3),
        walk_translator("marian"),
        walk_translator("marian", layer=2),
        walk_translator("marian", layer=3, targets=TARGET),
        walk(SelfAttention(8), torch.rand(2, 4, 8)),
    ]


parsed = cache(MathTextParser("path").parse)  # both languages have the same formulas


def places(text):
    return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name is not None)


def test_japanese_says_all_that_english_says():
    english, japanese = words("en"), words("ja")
    assert english.keys() == japanese.keys()
    for key, text in english.items():
        assert set(places(text)) == set(places(japanese[key])), key
        has_words = re.search(r"[a-z]{3}", re.sub(r"{\w+}", "", text))
        assert not has_words or re.search("[ぁ-ヿ一-龯]", japanese[key]), key


@pytest.mark.parametrize("language", LANGUAGES)
def test_markdown_is_whole(walks, language):
    for one in walks:
        written = markdown(one, language)
        assert re.sub(r"\\.", "", written.split("$$")[0]).count("$") == 0
        blocks = re.findall(r"^\$\$\n(.+)\n\$\$$", written, flags=re.MULTILINE)
        outside = re.sub(r"^\$\$\n.+\n\$\$$", "", written, flags=re.MULTILINE)
        assert len(blocks) >= 5
        assert "$" not in re.sub(r"\\.", "", outside)
        for block in blocks:
            parsed(f"${block}$")
            assert block.count("{") == block.count("}")
            assert block.count(r"\left") == block.count(r"\right")
        for table in re.findall(r"(?:^\|.*\n)+", written, flags=re.MULTILINE):
            rows = [re.sub(r"\\.", "", line).count("|") for line in table.splitlines()]
            assert len(set(rows)) == 1, table


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("width", "step"), [(60, 2), (120, 8)])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(walks, language, width, step):
    """Each of them in one language where there is the least room; their tables are the same in both."""
    for one in walks[LANGUAGES.index(language) :: step]:
        console = Console(width=width, file=io.StringIO(), force_terminal=False)
        console.print(terminal(one, language, width=width))
        lines = console.file.getvalue().splitlines()
        assert max(cell_len(line.rstrip()) for line in lines) <= width
        assert not [line for line in lines if re.search(r"[\d.-]…", line) and "₁" not in line]


@pytest.mark.parametrize("columns", [3, 8])
def test_rows_of_weights_add_up_in_the_columns_that_are_shown(walks, columns):
    """The weight of the keys that have no column is in the last one."""
    for one in walks:
        (table,) = (
            table for step in steps(one, columns=columns) for table in step.tables if re.match("A: ", table.caption)
        )
        assert len(table.headings) <= 1 + columns
        for name, *cells in table.rows:
            row = one["weights"][int(name.split()[0])]
            assert sum(float(cell or 0) for cell in cells) == pytest.approx(row.sum(), abs=1e-3 * len(cells))


@pytest.mark.parametrize("columns", [3, 4, 8])
def test_each_row_of_weights_has_its_largest_one(walks, columns):
    recurrent = walk(translator("bilinear-gru"), LONG, tokenizer=small_tokenizer(), device="cpu", targets=LONG)
    for one, name in (*((one, "weights") for one in walks), (recurrent, "alpha")):
        (table,) = (
            table for step in steps(one, columns=columns) for table in step.tables if re.match("(A|α): ", table.caption)
        )
        shown = {int(heading.split("\n")[0]) for heading in table.headings if heading[:1].isdigit()}
        rows = [int(name.split()[0]) for name, *_ in table.rows]
        assert one.token in rows
        assert {int(one[name][row].argmax()) for row in rows} <= shown


@pytest.mark.parametrize(
    ("language", "sentence"), [("en", r"add up to ([\d.]+)\."), ("ja", r"重みの和は ([\d.]+) です")]
)
def test_a_row_with_hidden_columns_says_what_they_add_up_to(walks, language, sentence):
    for one in walks:
        (softmax,) = (step for step in steps(one, language, columns=4) if "exp(" in step.plain_formula)
        _, *headings = softmax.tables[0].headings
        shown = [int(heading.split("\n")[0]) for heading in headings if heading[0].isdigit()]
        hidden = np.delete(one["weights"][one.token], shown)
        said = [re.search(sentence, text) for text in softmax.text[1:]]
        assert [float(found[1]) for found in said if found] == [pytest.approx(hidden.sum(), abs=6e-3)] * bool(
            len(hidden)
        )


def test_the_mask_is_added_to_the_scores(walks):
    """softmax(S + M) is A, with M as it is shown: 0 or −∞."""
    for one in walks:
        shown = steps(one, columns=1000, rows=1000)
        added = [step for step in shown if "softmax(S + M)" in step.plain_formula]
        assert bool(added) == (not one["allowed"].all())
        for step in added[:1]:
            (table,) = (table for table in step.tables if table.caption.startswith("M: "))
            mask = np.array([[float(cell.replace("−∞", "-inf")) for cell in row[1:]] for row in table.rows])
            exponentials = np.exp(one["scores"] + mask)
            weights = exponentials / exponentials.sum(-1, keepdims=True)
            if one["weights"].sum(-1).min() > 1 - 1e-9:  # a learned sink takes a share
                assert_allclose(weights, one["weights"], atol=1e-9)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_last_step_sums_the_head_up(walks, language):
    """Shapes of each product fit, and its result is the matrix that the walk has."""
    for one in walks:
        table = steps(one, language)[-1].tables[0]
        assert [row[0][0] for row in table.rows] == ["Q", "K", "V", "S", "A", "O"]
        names = ("Q", "K", "V", "scores", "weights", "head_output")
        for (_, sizes), name in zip(table.rows, names, strict=True):
            *factors, result = ([int(size) for size in part.split("×")] for part in re.split(" [·→] ", sizes))
            assert tuple(result) == one[name].shape
            if factors:
                (rows, inner), (also_inner, columns) = factors
                assert inner == also_inner
                assert [rows, columns] == result


def test_the_default_follows_it_to_its_noun():
    walked = walk(device="cpu")
    row = walked["weights"][walked.token]
    assert (walked.tokens[walked.token].strip(), walked.keys[int(row.argmax())].strip()) == ("it", "animal")
    assert row.max() > 0.9
    wide = walk("bundled:pronoun", "The animal didn't cross the street because it was too wide.", query_token="it")
    assert wide.keys[int(wide["weights"][wide.token].argmax())].strip() == "street"


@pytest.mark.parametrize("language", LANGUAGES)
def test_one_of_a_thing_is_not_called_several(walks, language):
    for one in [*walks, walk(SelfAttention(8), torch.rand(1, 4, 8))]:
        assert not re.search(r"\b1 (heads|layers|texts|columns)\b|全 1 ヘッド", markdown(one, language))


def test_words_of_the_lessons_are_found_in_japanese():
    shown = "".join(words("ja").values())
    assert not [word for word in ("パディング", "凸結合", "長距離依存", "自己回帰") if word not in shown]


def test_a_split_character_is_explained_and_spaces_are_marked():
    lists = {
        sentence: [" ".join(steps(walk(MODEL, sentence, device="cpu"), language)[0].text) for language in ("en", "ja")]
        for sentence in ("How 猫 sat", "How it sat")
    }
    english, japanese = lists["How 猫 sat"]
    assert "猫₁ 猫₂ 猫₃ are pieces of one character" in english
    assert "猫₁ 猫₂ 猫₃ は 1 文字の断片" in japanese
    assert not any("pieces of one" in text or "断片" in text for text in lists["How it sat"])
    assert all("1 ␣H · 2 ow · 3 ␣it" in text for text in lists["How it sat"])
