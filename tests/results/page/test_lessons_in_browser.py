"""Lessons in a browser: what every page must be, exercises, slides, and the mathematics next to PyTorch."""

import re

import numpy as np
import pytest
import torch
from torch.nn import functional

import attnscope
from attnscope_lineage.lessons import LESSONS, exercises_of
from attnscope_lineage.lessons.write import write
from tests.packages.lineage.lessons.test_lessons import LANGUAGES, prose
from tests.results.page.test_accessible import COLOURS, EMPTY_HEADERS, UNREACHABLE, contrast


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """The page of each lesson in each language."""
    folder, written = tmp_path_factory.mktemp("lessons"), {}
    for language in LANGUAGES:
        attnscope.set_language(language)
        written |= {(name, language): write(name, folder / f"{name}.{language}.html") for name in LESSONS}
    attnscope.set_language("en")
    return written


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", LESSONS)
def test_a_page_is_one_small_file_that_loads_nothing_fits_a_phone_and_is_read_by_all(name, language, pages, visit):
    path = pages[name, language]
    text = path.read_text(encoding="utf-8")
    assert f'<html lang="{language}">' in text
    assert path.stat().st_size <= 2e6
    assert not re.search(r"<!--(prose|title)", text)
    wide = visit(path, width=1440)  # and sees that there is neither a request nor a complaint
    narrow = visit(path, width=390)
    for page, scheme in ((wide, "light"), (narrow, "light"), (narrow, "dark")):
        page.emulate_media(color_scheme=scheme)
        drawn = page.evaluate("[...document.querySelectorAll('[data-draw]')].map((one) => one.childElementCount)")
        assert drawn
        assert min(drawn) > 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(EMPTY_HEADERS) == []
        assert page.evaluate(UNREACHABLE) == []
        pale = [
            (text, colour, behind) for colour, behind, text in page.evaluate(COLOURS) if contrast(colour, behind) < 4.5
        ]
        assert not pale


def answered(page, exercise, answer):
    """The verdict of the page on an answer."""
    part = page.locator(f'.part[data-exercise="{exercise}"]')
    if isinstance(answer, str):
        part.locator(f'input[value="{answer}"]').check()
    else:
        for box, number in zip(part.locator(".asked input").all(), np.ravel(answer), strict=True):
            box.fill(f"{number:.4f}")
    part.get_by_role("button", name="Check").click()
    return part.locator(".verdict").get_attribute("data-verdict"), part.locator(".verdict").inner_text()


# all answers to an exercise at once: typed one by one, they take most of the time of these tests
VERDICTS = """([exercise, answers]) => {
    const part = document.querySelector(`.part[data-exercise="${exercise}"]`), verdict = part.querySelector(".verdict");
    return answers.map((answer) => {
        if (typeof answer === "string") part.querySelector(`input[value="${answer}"]`).click();
        else [...part.querySelectorAll(".asked input")].forEach((box, i) => { box.value = answer[i]; });
        part.querySelector("form button").click();
        return [verdict.dataset.verdict, verdict.innerText];
    }); }"""


@pytest.mark.parametrize("name", LESSONS)
def test_the_page_names_the_mistake(name, pages, visit):
    page = visit(pages[name, "en"])
    for exercise, record in exercises_of(name).items():
        verdict, said = answered(page, exercise, record.answer)
        assert (exercise, verdict, said[:6]) == (exercise, "right", "Right.")
        answers = [
            answer if isinstance(answer, str) else [f"{number:.4f}" for number in np.ravel(answer)]
            for answer in record.mistakes.values()
        ]
        verdicts = page.evaluate(VERDICTS, [exercise, answers])
        for mistake, (verdict, said) in zip(record.mistakes, verdicts, strict=True):
            assert (exercise, verdict) == (exercise, mistake)
            sentence = re.search(
                rf'data-exercise="{exercise}".*?data-for="{mistake}">(.*?)</li>', prose(name, "en"), re.DOTALL
            )[1]
            words = re.sub(r"<[^>]*>", "", sentence)
            assert re.sub(r"\s+", "", words)[:40] in re.sub(r"\s+", "", said)
        if not isinstance(record.answer, str):
            off = np.ravel(record.answer) + 7.77
            assert (exercise, answered(page, exercise, off)[0]) == (exercise, "wrong")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", LESSONS)
def test_each_slide_fits_a_screen(name, language, tmp_path, visit):
    attnscope.set_language(language)
    path = write(name, tmp_path / "slides.html", slides=True)
    attnscope.set_language("en")
    page = visit(path)
    page.set_viewport_size({"width": 1280, "height": 720})
    shown = page.evaluate(
        """slides.map((slide, at) => {
            turn(at);
            const empty = [...slide.querySelectorAll(".place")].filter((place) => !place.childElementCount);
            return [document.documentElement.scrollHeight, empty.length]; })"""
    )
    heights, empty = zip(*shown, strict=True)
    assert not any(empty)  # a slide is drawn when it is shown
    text = prose(name, language)
    assert len(heights) == text.count("<section") + text.count("<hr>")
    assert set(heights) == {720}
    assert page.evaluate("slides.every((one) => one.querySelector('h2') && one.children.length > 1)")


def test_slides_show_one_section_and_turn_by_arrow_keys(tmp_path, visit):
    page = visit(write("scores", tmp_path / "slides.html", slides=True))
    shown = "[...document.querySelectorAll('.part')].filter((one) => !one.hidden).map((one) => one.id)"
    assert page.evaluate(shown) == ["query"]
    page.keyboard.press("ArrowRight")
    second = page.evaluate(shown)
    assert len(second) == 1
    assert second != ["query"]
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(shown) == ["query"]


def test_the_mathematics_of_pages_is_that_of_pytorch(pages, visit):
    page = visit(pages["scores", "en"])
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(size, generator=generator, dtype=torch.float64) for size in ((5, 6), (7, 6), (7, 3)))
    mask = torch.zeros(5, 7, dtype=torch.float64).masked_fill(torch.arange(7) > torch.arange(5)[:, None], -torch.inf)
    row, gain, bias = (torch.randn(9, generator=generator, dtype=torch.float64) * 3 for _ in range(3))
    tensors = {"q": q, "k": k, "v": v, "row": row, "gain": gain, "bias": bias}
    computed = page.evaluate(
        """({q, k, v, row, gain, bias}) => {
            const mask = q.map((_, i) => k.map((_, j) => (j > i ? -Infinity : 0)));
            const {weights, output} = attention(q, k, v, {mask});
            return {weights, output, norm: layerNorm(row, gain, bias), gelu: row.map(gelu), erf: row.map(erf),
                variance: variance(row), entropy: entropy(softmax(row)), softmax: softmax(row)} }""",
        {name: value.tolist() for name, value in tensors.items()},
    )
    weights = torch.softmax(q @ k.T / 6**0.5 + mask, dim=-1)
    expected = {
        "weights": weights,
        "output": functional.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        "norm": functional.layer_norm(row, (9,), gain, bias),
        "gelu": functional.gelu(row),
        "erf": torch.erf(row),
        "variance": row.var(correction=0),
        "entropy": torch.distributions.Categorical(logits=row).entropy(),
        "softmax": torch.softmax(row, dim=-1),
    }
    for name, value in expected.items():
        torch.testing.assert_close(torch.tensor(computed[name], dtype=torch.float64), value, rtol=1e-12, atol=1e-12)


def test_numbers_are_read_as_people_type_them(pages, visit):
    page = visit(pages["scores", "en"])
    texts = {
        "0.5": 0.5,
        "1/4": 0.25,
        "0,25": 0.25,
        "−1.5": -1.5,
        ".5": 0.5,
        "０．５": 0.5,
        " 2 ": 2,
        "ー1": -1,
        "67%": 0.67,
    }
    assert page.evaluate("(texts) => texts.map(typed)", [*texts]) == [*texts.values()]
    assert page.evaluate("['', 'x', '1/', '1e', '--1', '64MiB'].map(typed).every(Number.isNaN)")


def test_zero_is_not_a_mistake_that_rounds_to_it(pages, visit):
    page = visit(pages["positions", "en"])
    assert answered(page, "shift", 0)[0] == "wrong"
    assert answered(page, "shift", -0.0039)[0] == "length"


def test_no_winner_is_named_where_all_weights_are_equal(pages, visit):
    page = visit(pages["roles", "en"])
    page.locator('input[name="word"][value="truck"]').check()
    page.locator('input[name="sharp"]').fill("0")
    assert "mixes all entries equally" in page.locator("[data-draw=dictionary] .say").inner_text()
    page.locator('input[name="sharp"]').fill("5")
    assert "“bus” first" in page.locator("[data-draw=dictionary] .say").inner_text()
    page = visit(pages["scores", "en"])
    page.locator('input[name="length"]').fill("0")
    assert "All scores are equal" in page.locator("[data-draw=query] .say").inner_text()


def test_a_wrong_answer_that_is_no_known_mistake_has_a_hint(pages, visit):
    page = visit(pages["scores", "en"])
    right = np.ravel(exercises_of("scores")["mask"].answer)
    hints = {
        "another order": right[::-1],
        "are percent": 100 * right,
        "sign is wrong": -right,
        "yours add up to 1.30": [0.8, 0.5, 0, 0],
        "more decimals": right + np.array([0.04, -0.04, 0, 0]),
    }
    for hint, answer in hints.items():
        verdict, said = answered(page, "mask", answer)
        assert (verdict, hint in said) == ("wrong", True), said
    page = visit(pages["heads", "en"])
    verdict, said = answered(page, "concat", 2 * np.ravel(exercises_of("heads")["concat"].answer))
    assert "2.00 times the right ones" in said
