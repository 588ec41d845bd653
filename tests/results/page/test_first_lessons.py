"""The lessons on scores and roles: the numbers under every slider and choice next to NumPy and PyTorch."""

import numpy as np
import pytest
import torch

from attnscope_lineage.lessons import numbers_of
from attnscope_lineage.lessons.write import write

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    return {name: write(name, folder / f"{name}.html") for name in ("scores", "roles")}


def move(page, name, value):
    """Set a slider."""
    page.locator(f'input[type="range"][name="{name}"]').evaluate(
        "(one, value) => { one.value = value; one.dispatchEvent(new Event('input')); }", value
    )


def choose(page, name, value):
    page.locator(f'input[type="radio"][name="{name}"][value="{value}"]').evaluate("(one) => one.click()")


def numbers(page, part, caption):
    """The numbers of a figure, as they are before they are rounded."""
    figure = page.locator(f"#{part} figure").filter(has=page.locator("figcaption", has_text=caption)).first
    rows = figure.locator("tr:has([data-value])").evaluate_all(
        "(rows) => rows.map((row) => [...row.querySelectorAll('[data-value]')].map((one) => Number(one.dataset.value)))"
    )
    return np.array(rows)


def point(page, part, name):
    """Where a picture of the plane draws an arrow or a point."""
    drawn = page.locator(f'#{part} [data-name="{name}"]').last
    return np.array([float(drawn.get_attribute(f"data-{axis}")) for axis in "xy"])


def softmax(scores, dim=-1):
    return torch.softmax(torch.as_tensor(scores, dtype=torch.float64), dim=dim).numpy()


def columns(values):
    """A column of bars."""
    return np.asarray(values)[:, None]


# --- scores ---


@pytest.mark.parametrize(
    ("angle", "length", "exponent"), [(37, 1.5, 0), (-120, 2.8, 0), (90, 0, 0), (10, 2, -1.5), (10, 2, 1.5)]
)
def test_a_query_gives_its_weights_and_output(angle, length, exponent, pages, visit):
    page, given = visit(pages["scores"]), numbers_of("scores")
    for name, value in {"angle": angle, "length": length, "temperature": exponent}.items():
        move(page, name, value)
    turned = np.radians(angle)
    query = length * np.array([np.cos(turned), np.sin(turned)])
    weights = softmax(np.array(given["keys"]) @ query / (2**0.5 * 10**exponent))
    np.testing.assert_allclose(numbers(page, "query", "The row of weights"), columns(weights), **CLOSE)
    np.testing.assert_allclose(point(page, "query", "output"), weights @ np.array(given["values"]), **CLOSE)
    np.testing.assert_allclose(point(page, "query", "q"), query, **CLOSE)


def test_the_query_follows_the_pointer_and_the_output_stays_within_the_values(pages, visit):
    page = visit(pages["scores"])
    plane = page.locator("#query svg.drags")
    plane.scroll_into_view_if_needed()
    box = plane.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + box["height"] * 0.6, steps=4)
    page.mouse.up()
    query = point(page, "query", "q")
    assert query[0] < -0.8
    assert query[1] < 0
    inside = page.evaluate(
        """(at) => { const corners = hullOf(lesson.numbers.values);
            return corners.every(([x, y], i) => { const [u, v] = corners[(i + 1) % corners.length];
                return (u - x) * (at[1] - y) - (v - y) * (at[0] - x) >= 0; }) }""",
        point(page, "query", "output").tolist(),
    )
    assert inside


def mulberry(seed):
    """The generator of pages: normal numbers by Box and Muller from mulberry32."""
    state = seed

    def uniform():
        nonlocal state
        state = (state + 0x6D2B79F5) & 0xFFFFFFFF
        mixed = ((state ^ (state >> 15)) * (1 | state)) & 0xFFFFFFFF
        mixed = ((mixed + (((mixed ^ (mixed >> 7)) * (61 | mixed)) & 0xFFFFFFFF)) ^ mixed) & 0xFFFFFFFF
        return ((mixed ^ (mixed >> 14)) & 0xFFFFFFFF) / 2**32

    while True:
        size = np.sqrt(-2 * np.log(1 - uniform()))
        yield size * np.cos(2 * np.pi * uniform())


@pytest.mark.parametrize("step", [0, 3, 6])
def test_variance_saturation_and_gradient_by_width(step, pages, visit):
    page, width = visit(pages["scores"]), 2**step
    move(page, "width", step)
    normal = mulberry(width)
    draws = np.array([next(normal) for _ in range(200 * 9 * width)]).reshape(200, 9, width)
    products = np.einsum("nd,nkd->nk", draws[:, 0], draws[:, 1:])
    np.testing.assert_allclose(
        numbers(page, "scaling", "Weights without scaling"), columns(softmax(products[0])), **CLOSE
    )
    scaled = softmax(products[0] / width**0.5)
    np.testing.assert_allclose(numbers(page, "scaling", "Weights after"), columns(scaled), **CLOSE)
    measured = page.evaluate("(width) => randomScores(width)", width)
    for kind, scores in (("plain", products), ("scaled", products / width**0.5)):
        weights = softmax(scores)
        jacobian = np.einsum("ni,ij->nij", weights, np.eye(8)) - np.einsum("ni,nj->nij", weights, weights)
        expected = {
            "variance": scores.var(),
            "largest": weights.max(-1).mean(),
            "gradient": np.linalg.norm(jacobian, axis=(1, 2)).mean(),
        }
        assert measured[kind] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", ["none", "causal", "padding", "both"])
@pytest.mark.parametrize("how", ["added", "multiplied"])
def test_a_mask_is_added_or_multiplied(kind, how, pages, visit):
    page, scores = visit(pages["scores"]), np.array(numbers_of("scores")["scores"])
    choose(page, "mask", kind)
    choose(page, "how", how)
    hidden = np.zeros((5, 5), dtype=bool)
    if kind in {"causal", "both"}:
        hidden |= np.triu(np.ones((5, 5), dtype=bool), 1)
    if kind in {"padding", "both"}:
        hidden[:, -1] = True
    weights = softmax(np.where(hidden, -np.inf, scores)) if how == "added" else softmax(scores) * ~hidden
    shown = numbers(page, "mask", "A: weights")
    np.testing.assert_allclose(shown, np.c_[weights, weights.sum(-1)], **CLOSE)
    if how == "added":
        np.testing.assert_array_equal(numbers(page, "mask", "M: mask"), np.where(hidden, -np.inf, 0.0))


@pytest.mark.parametrize("last", ["tired", "wide"])
@pytest.mark.parametrize("reach", [1, 4])
def test_convolution_recurrence_and_attention_of_the_last_word(last, reach, pages, visit):
    page, given = visit(pages["scores"]), numbers_of("scores")
    choose(page, "last", last)
    move(page, "kernel", reach)
    move(page, "words", 50)
    words = [*given["sentence"], last]
    x = 1.4 * np.array([given["vectors"][word] for word in words])
    np.testing.assert_allclose(numbers(page, "compare", "Attention: by"), columns(softmax(x @ x[-1] / 3**0.5)), **CLOSE)
    state = np.eye(len(words))[0]  # the linear recurrence itself, with every word as a direction of its own
    for word in np.eye(len(words))[1:]:
        state = 0.7 * state + 0.3 * word
    np.testing.assert_allclose(numbers(page, "compare", "Recurrence: by"), columns(state), **CLOSE)
    kernel = np.r_[np.zeros(len(words) - reach - 1), np.full(reach + 1, 1 / (reach + 1))]
    np.testing.assert_allclose(numbers(page, "compare", "Convolution: by"), columns(kernel), **CLOSE)
    np.testing.assert_array_equal(numbers(page, "compare", "Steps"), columns([-(-49 // reach), 49, 1]))
    note = "The three columns still show the 11 words; the steps below them are for 50."
    assert page.locator("#compare .say").inner_text().endswith(note)


# --- roles ---


def projected():
    given = numbers_of("roles")
    x = torch.tensor(given["x"], dtype=torch.float64)
    return x, *(x @ torch.tensor(given[name], dtype=torch.float64) for name in ("queryMap", "keyMap", "valueMap"))


@pytest.mark.parametrize("word", ["cat", "tiger", "wolf", "truck"])
@pytest.mark.parametrize("sharp", [0, 5, 40])
def test_a_dictionary_mixes_entries(word, sharp, pages, visit):
    page, given = visit(pages["roles"]), numbers_of("roles")
    choose(page, "word", word)
    move(page, "sharp", sharp)
    weights = softmax(sharp * np.array(given["headwords"]) @ np.array(given["sought"][word]))
    np.testing.assert_allclose(numbers(page, "dictionary", "Keys:"), columns(weights), **CLOSE)
    np.testing.assert_allclose(
        numbers(page, "dictionary", "Content:"), columns(weights @ np.array(given["contents"])), **CLOSE
    )


def test_each_map_gives_its_matrix(pages, visit):
    page = visit(pages["roles"])
    for letter, expected in zip("qkv", projected()[1:], strict=True):
        choose(page, "map", letter)
        np.testing.assert_allclose(numbers(page, "maps", "The result"), expected.numpy(), **CLOSE)
    page.locator("#maps .matrix button").nth(4).click()  # row 1, column 1 of V
    assert page.locator("#maps .say").inner_text().endswith("= 1.00")


@pytest.mark.parametrize(("q", "k"), [(0, 0), (0, 90), (0, -90), (-75, 30), (60, 60)])
def test_scores_depend_on_the_product_of_the_maps(q, k, pages, visit):
    page, points = visit(pages["roles"]), np.array(numbers_of("roles")["plane"])
    move(page, "q", q)
    move(page, "k", k)

    def turned(degrees):
        turn = np.radians(degrees)
        return points @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])

    expected = softmax(turned(q) @ turned(k).T / 2**0.5)
    np.testing.assert_allclose(numbers(page, "spaces", "Weights: which"), expected, **CLOSE)
    said = page.locator("#spaces .say").inner_text()
    assert ("S is symmetric" in said) == (q == k)
    numbers_said = f"“it” gives “animal” the weight {expected[3, 0]:.2f}, and “animal” gives “it” {expected[0, 3]:.2f}."
    assert (numbers_said in said) == (q != k)
    if (q, k) == (0, -90):  # the angle that the prose orders
        assert expected[3].argmax() == 0
        assert expected[0].argmin() == 3
        assert np.diag(expected).max() < 0.25
    assert ("most to itself" in said) == (q == k)


@pytest.mark.parametrize(
    ("kind", "says"), [("none", "takes its value"), ("k", "weights have changed"), ("v", "same to the last digit")]
)
def test_an_exchange_of_keys_moves_weights_and_one_of_values_does_not(kind, says, pages, visit):
    page, (_, q, k, v), other = visit(pages["roles"]), projected(), [1, 0, 2, 3]
    choose(page, "swap", kind)
    weights = torch.softmax(q @ (k[other] if kind == "k" else k).T / 2**0.5, dim=-1)
    output = weights @ (v[other] if kind == "v" else v)
    np.testing.assert_allclose(numbers(page, "swap", "Weights of"), columns(weights[3].numpy()), **CLOSE)
    np.testing.assert_allclose(numbers(page, "swap", "Output of"), output[3:].numpy(), **CLOSE)
    assert says in page.locator("#swap .say").inner_text()


def test_the_summary_is_attention_of_pytorch(pages, visit):
    page, (_, q, k, v) = visit(pages["roles"]), projected()
    output = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    np.testing.assert_allclose(numbers(page, "summary", "O = A V"), output.numpy(), **CLOSE)
    np.testing.assert_allclose(numbers(page, "summary", "S ="), (q @ k.T / 2**0.5).numpy(), **CLOSE)
    for caption, expected in (("Q =", q), ("K =", k), ("V =", v)):
        np.testing.assert_allclose(numbers(page, "summary", caption), expected.numpy(), **CLOSE)
    choose(page, "token", "0")
    framed = page.locator("#summary figure").last.locator("tr:has(.marked) th").all_inner_texts()
    assert framed == ["animal"]
