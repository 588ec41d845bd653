"""The page in a real browser: it loads nothing, says nothing on the console, and does what it offers."""

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import xarray as xr

import attnscope
from attnscope.report.signature import Signature
from attnscope.store.arrays import unpacked
from tests.packages.lineage.translation.small_translators import small_recurrent, small_tokenizer
from tests.results.page.color_schemes import fitting_schemes
from tests.results.page.planted_explanation import explain_page_of, only
from tests.results.page.planted_result import HOSTILE, in_tiles, planted, scan_page, translated, with_bins


@pytest.fixture(scope="module")
def made():
    made = planted(layers=3, heads=4, texts=12, tokens=48, rank=12)
    made.sample["token"].values[0, 20 : 20 + len(HOSTILE)] = HOSTILE
    return made


@pytest.fixture(scope="module")
def path(made, tmp_path_factory):
    return scan_page(made.result, made.sample, tmp_path_factory.mktemp("report") / "report.html")


def choose(page, index):
    page.click(f'[data-head="{index}"]')
    page.wait_for_selector(f'#panel-text[data-head="{index}"]')


def head_of_kind(made, kind):
    return int(np.flatnonzero(made.kinds.ravel() == kind)[0])


def shades(page):
    return np.array(page.eval_on_selector_all(".token", "all => all.map(t => Number(t.style.getPropertyValue('--w')))"))


def test_a_click_fills_the_panel(visit, path, made):
    page = visit(path)
    choose(page, 6)
    assert page.text_content("#head-title") == "Layer 1, head 2"
    painted = """() => { const c = byId('map'), paper = c.getContext('2d');
        return new Set(new Uint32Array(paper.getImageData(0, 0, c.width, c.height).data.buffer)).size }"""
    assert page.evaluate(painted) > 20
    page.click("#tab-numbers")
    assert page.locator("#panel-numbers tbody tr").count() == 12
    mean = float(made.result["entropy"].values[:, 1, 2].mean())
    assert float(page.text_content("#panel-numbers tbody tr:first-child td")) == pytest.approx(mean, rel=0.01)
    page.click("#tab-profile")
    assert page.locator("#profile circle").count() == 21
    page.wait_for_selector("#distribution rect", state="attached")  # its counts are unpacked first
    assert "all heads, mean over windows" in page.text_content("#distribution")
    assert page.evaluate("location.hash") == "#1.2/profile"


def test_the_address_leads_back_to_head_tab_window_and_token(visit, path):
    page = visit(path, fragment="#2.1/text/t9")
    assert page.text_content("#head-title") == "Layer 2, head 1"
    assert page.get_attribute('[data-token="9"]', "aria-selected") == "true"
    page.click("#tab-numbers")
    page.click('[data-head="4"]')
    assert page.evaluate("location.hash") == "#1.0/numbers"
    page.go_back()
    page.go_back()
    assert page.text_content("#head-title") == "Layer 2, head 1"
    assert page.is_visible("#panel-text")
    for nothing in ("#9.9/text", "#2.1/none/w99/t99999", "#%E0%A4%A"):
        assert visit(path, fragment=nothing).text_content("#head-title").startswith("Layer")


def test_a_word_is_found_in_the_text(visit, path, made):
    page = visit(path)
    page.keyboard.press("/")
    tokens = [str(token) for token in made.sample["token"].values[0]]
    page.keyboard.type(tokens[15])
    page.keyboard.press("Enter")
    selected = page.text_content('.token[aria-selected="true"]')
    assert selected.strip() == tokens[15].strip()
    page.fill("#find", "no such word")
    page.press("#find", "Enter")
    assert page.text_content("#found") == "not in this window"


def test_uniform_attention_is_next_to_what_has_a_null(visit, path, made, tmp_path):
    page = visit(path)
    page.click("#tab-numbers")
    assert "Uniform" not in page.text_content("#panel-numbers thead")
    layers = np.linspace(1.0, 2.0, made.result.sizes["layer"])
    even = xr.DataArray(layers, dims="layer") + xr.zeros_like(made.result.length, dtype=float)
    page = visit(scan_page(made.result.assign(equal_entropy=even), made.sample, tmp_path / "report.html"))
    choose(page, 6)  # in layer 1
    page.click("#tab-numbers")
    rows = page.eval_on_selector_all(
        "#panel-numbers tbody tr", "all => all.map(row => [...row.cells].map(cell => cell.textContent.trim()))"
    )
    at = page.eval_on_selector_all("#panel-numbers th[scope=col]", "all => all.map(one => one.textContent)")
    column = at.index("Uniform attention")
    assert [row[0].startswith("Entropy") for row in rows if row[column]] == [True]
    assert float(rows[0][column]) == pytest.approx(layers[1], rel=0.01)
    assert {len(row) for row in rows} == {len(at)}


@pytest.mark.parametrize("alone", [True, False])
def test_the_share_of_each_bin_of_offsets_is_drawn_for_the_chosen_head(visit, made, tmp_path, alone):
    result = with_bins(made.result)
    own = (result.bin_sum / result.length).mean("window").values
    result.bin_sum[:, 2, 1] = np.nan  # a head that is not there
    shown = result[["bin_sum", "equal_bin_sum", "length"]] if alone else result
    page = visit(scan_page(shown, made.sample, tmp_path / "report.html"))
    choose(page, 6)
    assert page.text_content("#head-title") == "Layer 1, head 2"
    page.click("#tab-profile")
    said = page.eval_on_selector_all("#offsets g title", "all => all.map(one => one.textContent)")
    left = np.flatnonzero(result.bin_first.values <= 0)  # nothing lies to the right
    assert len(said) == len(left)
    equal = (result.equal_bin_sum / result.length).mean("window").values[1]
    heights = page.eval_on_selector_all("#offsets rect.bin", "all => all.map(one => one.height.baseVal.value)")
    np.testing.assert_allclose(np.array(heights) / sum(heights), own[1, 2, left], atol=1e-4)
    for text, bin_ in zip(said, left, strict=True):
        first, last = int(result.bin_first[bin_]), int(result.bin_last[bin_])
        where = f"offset {first}:" if first == last else f"offsets {first} to {last}:"
        assert text.replace("−", "-").startswith(where)
        shares = [float(found) for found in re.findall(r"([\d.]+)%", text)]
        assert shares == pytest.approx([100 * own[1, 2, bin_], 100 * equal[bin_]], rel=0.006)
    assert "uniform attention" in page.text_content("#offsets .clusters")
    if alone:  # then the largest bin colours the grid
        peak = own[1, 2, left[:-1]].max()
        assert f"in one bin of offsets other than 0: {peak:.3g}" in page.text_content("#readout")
        assert page.locator(".absent").count() == 1


def test_where_nothing_ranks_heads_the_page_opens_at_one_with_content_and_says_so(visit, made, tmp_path):
    top = made.result.max_weight.drop_attrs()
    shown = made.result[["length"]].assign(learned_sink=top * 0, top_key=top, equal_top_key=top.mean("head") * 0 + 0.9)
    path = scan_page(shown, made.sample, tmp_path / "report.html")
    page = visit(path)
    layer, head = np.unravel_index(np.argmax(abs(top.mean("window") - 0.9).values), (3, 4))
    assert page.text_content("#head-title") == f"Layer {layer}, head {head}"
    assert f"opens at head {layer}.{head}, the furthest from uniform attention" in page.text_content("#opens")
    assert "on the key that receives most" in page.locator("#colour option:checked").text_content()
    assert "on the key that receives most" in page.text_content("#readout")
    assert visit(path, fragment="#2.3").text_content("#head-title") == "Layer 2, head 3"
    same = scan_page(shown[["learned_sink"]], made.sample, tmp_path / "same.html")
    assert "equal for all heads" in visit(same).text_content("#opens")
    assert not visit(scan_page(made.result, None, tmp_path / "all.html")).locator("#opens").count()


def test_the_keyboard_suffices(visit, path):
    page = visit(path)
    choose(page, 5)
    page.focus('[data-head="5"]')
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "Layer 2, head 2" in page.text_content("#readout")
    page.keyboard.press("Enter")
    assert page.text_content("#head-title") == "Layer 2, head 2"
    assert page.locator("#grid button[tabindex='0']").count() == 1
    assert page.get_attribute('[data-head="10"]', "aria-label").startswith("Layer 2, head 2: ")


def test_the_statistic_colours_the_grid(visit, path, made):
    page = visit(path)
    assert page.input_value("#colour") == "labels"
    colour = "e => getComputedStyle(e).backgroundColor"
    before = page.eval_on_selector('[data-head="0"]', colour)
    page.select_option("#colour", label="Mean offset (negative is left)")
    assert page.eval_on_selector('[data-head="0"]', colour) != before
    assert "Mean offset (negative is left) (tokens)" in page.text_content("#scale")
    page.hover('[data-head="4"]')
    value = float(made.result["mean_offset"].values[:, 1, 0].mean())
    shown = page.text_content("#readout").split("Mean offset (negative is left): ")[1].split(" ")[0]
    assert float(shown.replace("−", "-")) == pytest.approx(value, rel=0.01)


@pytest.mark.parametrize(("kind", "offset"), [("previous", -1), ("self", 0)])
def test_pointing_at_a_token_shades_what_it_looks_at(visit, path, made, kind, offset):
    page = visit(path)
    choose(page, head_of_kind(made, kind))
    page.hover('[data-token="10"]')
    assert shades(page).argmax() == 10 + offset
    assert "attends most to" in page.text_content("#note")
    first = page.locator("#partners tbody tr").first.text_content()
    assert first.startswith(made.sample["token"].values[0, 10 + offset])
    page.mouse.move(0, 0)
    assert shades(page).argmax() == page.evaluate("kept()") + offset  # back to the token that is kept
    keys, weights = made.listed(*divmod(head_of_kind(made, kind), 4))  # which shows best what the head does
    along = (weights * (keys == np.arange(48)[:, None] + offset)).sum(1)
    assert along[page.evaluate("kept()")] > 0.85 * along[1:-1].max()


def test_to_this_token_reads_a_column(visit, path, made):
    page = visit(path)
    choose(page, head_of_kind(made, "previous"))
    page.check("input[value=to]")
    page.click('[data-token="10"]')
    assert shades(page).argmax() == 11
    assert "is attended to by" in page.text_content("#partners caption")


def test_the_browser_reads_the_weights_that_were_packed(visit, path, made):
    page = visit(path)
    choose(page, 3)
    keys, weights = page.evaluate("[Array.from(state.map.key), Array.from(state.map.weight)]")
    true_keys, true = (part.ravel() for part in made.listed(0, 3))
    kept = true >= 2.0**-16.03  # as it is rounded
    assert keys == true_keys[kept].tolist()
    np.testing.assert_allclose(weights, true[kept], rtol=0.0221)


def test_pointing_at_the_map_names_query_key_and_weight(visit, path, made):
    page = visit(path)
    choose(page, head_of_kind(made, "previous"))
    page.locator("#map").scroll_into_view_if_needed()
    cell = """() => { const box = byId('map').getBoundingClientRect();
        for (let y = 0; y < box.height; y++) for (let x = 0; x < box.width; x++) {
            const c = drawn.cell(x, y);
            if (c && c[0] === 5 && c[1] === 4) return [box.x + x + 2, box.y + y + 2]; } }"""
    page.mouse.move(*page.evaluate(cell))
    assert page.text_content("#map-readout").startswith("query 5 “than” → key 4 “more”: 0.")
    assert "than (position 5) attends to" in page.text_content("#partners caption")
    _, listed = made.listed(*divmod(head_of_kind(made, "previous"), 4))
    share = f"{100 * listed.sum() / 48:.1f}%"
    assert (
        page.text_content("#map-share")
        == f"; the pairs that are drawn hold {share} of this head's weight; dots, no data: a token to itself"
    )
    page.click('[data-token="25"]')
    page.check("input[value=near]")
    assert page.evaluate("drawn.cell(byId('map').clientWidth - 10, byId('map').clientHeight - 10)") == [32, 32]


def test_hostile_tokens_are_text(visit, path):
    page = visit(path)
    shown = page.eval_on_selector_all(".token", "all => all.map(t => t.textContent)")[20 : 20 + len(HOSTILE)]
    assert shown == [
        *HOSTILE[:8],
        "aU+0009bU+000A",
        "U+0000U+0007U+001B",
        "U+202ErtlU+2028",
        "$x_1$",
        "\uffff",
        "∅",
        "  ",
        "{{ 7 * 7 }}",
        " word ",
        "U+3000",
    ]
    assert page.locator("img").count() == 0
    for index in range(20, 20 + len(HOSTILE)):
        page.focus(f'[data-token="{index}"]')


def test_a_missing_head_cannot_be_chosen(visit, made, tmp_path):
    result, sample = made.result.copy(deep=True), made.sample
    for name, variable in result.data_vars.items():
        if {"layer", "head"} <= set(variable.dims):
            result[name].loc[{"layer": 1, "head": 3}] = -1 if name == "label" else np.nan
    page = visit(scan_page(result, sample, tmp_path / "r.html"))
    before = page.text_content("#head-title")
    page.click('[data-head="7"]')
    assert page.text_content("#head-title") == before
    assert "absent" in page.get_attribute('[data-head="7"]', "class")


def test_cross_attention_goes_from_the_target_to_the_source(visit, made, tmp_path):
    result = made.result.assign_coords(layer_kind=("layer", ["cross"] * 3))
    page = visit(scan_page(result, translated(made.sample, "cross", tokens=12), tmp_path / "r.html"))
    choose(page, head_of_kind(made, "previous"))
    source, target = page.locator(".tokens").all()
    target.locator('[data-token="10"]').hover()
    assert "t10 (position 10) attends to" in page.text_content("#partners caption")
    assert page.locator("#partners tbody tr").first.text_content().startswith(made.sample["token"].values[0, 9])
    assert shades(page).argmax() == 9  # the source stands first
    assert not shades(page)[48:].any()
    source.locator('[data-token="5"]').hover()  # no query: nothing is shown of it
    assert f"t{page.evaluate('kept()')} (position" in page.text_content("#partners caption")
    page.check("input[value=to]")
    source.locator('[data-token="5"]').click()
    assert shades(page).argmax() == 48 + 6
    assert page.text_content("#partners tbody tr:first-child th") == "t6"
    page.check("input[value=near]")
    assert page.evaluate("drawn.cell(byId('map').clientWidth - 10, byId('map').clientHeight - 10)") == [11, 15]


def test_a_head_without_a_fixed_pattern_has_a_small_map_in_place_of_a_flat_line(visit, made, tmp_path):
    names = ["previous", "next", "leftward", "rightward", "self", "mixed"]
    page = visit(scan_page(made.result.assign_coords(cluster=names), made.sample, tmp_path / "r.html"))
    page.wait_for_selector("#grid canvas")
    drawn = page.eval_on_selector_all("#grid button:has(canvas)", "all => all.map(one => Number(one.dataset.head))")
    shares = (made.result.label == names.index("mixed")).mean("window").values.ravel()
    assert drawn == np.flatnonzero(shares > 0.5).tolist()
    head = head_of_kind(made, "sink")
    dark = f"""() => {{ const one = document.querySelector('[data-head="{head}"] canvas'), paper = one.getContext('2d');
        const ink = [0, 0], wide = 4 * one.width; // of the first column, and of the others
        const {{ data }} = paper.getImageData(0, 0, one.width, one.height);
        data.forEach((part, i) => {{ ink[+(i % wide >= 4)] += 255 - part; }});
        return ink[0] / (ink[1] / (one.width - 1)) }}"""
    assert page.evaluate(dark) > 2  # the first column is that of the first token
    assert "the attention map of the first window" in page.text_content("#meaning")
    page.select_option("#colour", "entropy")
    assert page.locator("#grid canvas").count() == 0


@pytest.mark.parametrize(("layers", "heads"), [(20, 4), (40, 12)])
def test_every_layer_of_the_map_is_reached_on_a_phone(visit, tmp_path, layers, heads):
    made = planted(layers=layers, heads=heads, texts=2, tokens=16, rank=4)
    page = visit(scan_page(made.result, None, tmp_path / "r.html"), width=390)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")  # the map stays in view
    grid = page.locator("#grid").bounding_box()
    assert grid["y"] >= 0
    assert grid["y"] + grid["height"] < 0.5 * 900
    page.locator("#grid").evaluate("one => one.scrollTo(0, one.scrollHeight)")
    if layers * heads > 400:
        box = page.locator("#grid canvas").bounding_box()
        page.mouse.click(box["x"] + 3, box["y"] + box["height"] - 4)
    else:
        page.click(f'[data-head="{(layers - 1) * heads}"]')
    assert page.text_content("#head-title") == f"Layer {layers - 1}, head 0"


def test_the_map_is_saved_for_a_paper_by_the_name_of_its_head(visit, path, made):
    page = visit(path, scheme="dark")
    index = head_of_kind(made, "previous")
    choose(page, index)
    layer, head = divmod(index, 4)
    page.check("input[value=near]")
    with page.expect_download() as download:
        page.click("#map-frame figcaption >> text=SVG")
    assert download.value.suggested_filename == f"head-{layer}.{head}-map.svg"
    drawing = ET.parse(download.value.path())  # noqa: S314 a file of our own page
    assert all(one.tag.startswith("{http://www.w3.org/2000/svg}") for one in drawing.iter())
    words = [one.text for one in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert words[0] == f"Layer {layer}, head {head}"
    assert {"query ↓", "key →", "weight", "0.25"} <= set(words)
    kept = page.evaluate("drawn.view")
    tokens = page.evaluate("names[0]")[kept["first"] : kept["first"] + kept["count"]]
    cut = [token if len([*token]) <= 16 else f"{token[:15]}…" for token in tokens]
    assert [word for word in words if word in cut] == 2 * cut  # queries, then keys


def test_the_signature_is_a_line_to_copy(visit, path, made):
    page = visit(path)
    assert page.inner_text("#cite") == Signature.from_json(made.result.attrs["signature"]).format()
    page.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    page.click(".cite >> text=BibTeX")
    assert page.evaluate("copied").startswith("@software{attnscope,")
    page.click(".cite >> text=Copy")
    assert page.evaluate("copied") == page.inner_text("#cite")
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(); }")
    page.click(".cite >> text=Copied >> nth=0")
    page.wait_for_function("getSelection().toString() === document.getElementById('cite').textContent")


@pytest.mark.parametrize("width", [360, 1600])
def test_the_page_fits_any_screen_in_light_and_dark(visit, path, width):
    assert list(fitting_schemes(visit(path, width=width), width)) == ["light", "dark"]


def test_a_head_in_tiles_says_so_and_how_to_see_more(visit, tmp_path):
    made = planted(layers=3, heads=4, texts=3, tokens=32, rank=32)
    head = head_of_kind(made, "previous")
    page = visit(scan_page(made.result, in_tiles(made, divmod(head, 4), 8), tmp_path / "r.html"))
    choose(page, head)
    assert "in tiles of 8 × 8 tokens" in page.text_content("#map-share")
    layer, column = divmod(head, 4)
    assert f"attnscope scan … --show {layer}.{column} " in page.text_content("#tiled")
    page.hover('[data-token="12"]')
    assert page.locator("#partners tbody tr").first.locator("td").first.text_content() == "8–15"
    share = made.listed(layer, column)[1].reshape(4, 8, 4, 8)[1, :, 1].sum() / 8
    shown = page.locator("#partners tbody tr").first.locator("td").nth(2).text_content()
    assert float(shown) == pytest.approx(share, rel=0.05)
    choose(page, head + 1)
    assert (
        page.text_content("#map-share")
        == "; the pairs that are drawn hold 100% of this head's weight; dots, no data: a token to itself"
    )
    assert page.is_hidden("#tiled")


def test_a_model_of_one_head_that_looks_across_has_a_page(visit, tmp_path):
    """A recurrent translation model: cross-attention, and nothing else."""
    result = attnscope.scan(
        small_recurrent("additive"),
        ["the hat of a man", "ab ab"],
        targets=["der hut", "ba ab ab"],
        tokenizer=small_tokenizer(),
        window=40,
        band=3,
        out=tmp_path / "run",
        show=[],
    )
    sample = unpacked((tmp_path / "run" / "sample.npz").read_bytes())
    page = visit(scan_page(result, sample, tmp_path / "report.html"))
    assert page.text_content("#head-title") == "Layer 0, head 0"
    assert "1 × 1" in page.text_content("#overview-title")
    assert page.locator("[data-head]").first.bounding_box()["width"] <= 150
    assert "Target (decoder input): queries" in page.text_content("#panel-text")


@pytest.fixture(scope="module")
def explanation_drawn(explained, tmp_path_factory):
    """A page of few figures, as they are."""
    some = only(explained, "verdict", "phase_map", "position_content")
    return explain_page_of(some, tmp_path_factory.mktemp("drawn") / "report.html")


@pytest.mark.parametrize("width", [360, 1600])
def test_figures_are_drawn_and_fit_any_screen_in_light_and_dark(visit, explanation_drawn, width):
    page = visit(explanation_drawn, width=width)
    assert min(page.eval_on_selector_all(".plate img", "all => all.map(image => image.naturalWidth)")) > 100
    for _ in fitting_schemes(page, width):
        plate = page.evaluate("getComputedStyle(document.querySelector('.plate')).backgroundColor")
        assert plate == page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor")


def test_speakers_of_a_chat_are_underlined(visit, made, tmp_path):
    sample = made.sample
    roles = np.full(sample["token"].shape, "", object)
    roles[0, 1:10], roles[0, 10:20] = "user", "assistant"
    page = visit(scan_page(made.result, sample.assign_coords(role=(("window", "query"), roles)), tmp_path / "r.html"))
    assert page.locator('.token[data-role="user"]').count() == 9
    assert page.locator(".roles span").all_text_contents() == ["user", "assistant"]
    assert page.locator(".token").nth(12).get_attribute("title") == "position 12, assistant"


def test_frames_of_a_sound_are_a_timeline(visit, made, tmp_path):
    names = made.sample["token"].values.copy()
    names[:] = [f"{index * 0.25:.2f}s" for index in range(names.shape[1])]
    sample = made.sample.assign_coords(token=(("window", "query"), names))
    sound = visit(scan_page(made.result.assign_attrs(reads="sounds"), sample, tmp_path / "r.html"))
    text = visit(scan_page(made.result, sample, tmp_path / "t.html"))
    assert not text.locator(".timeline").count()  # of words that look like times
    page = sound
    boxes = page.eval_on_selector_all(
        ".timeline .token", "all => all.slice(0, 8).map(t => t.getBoundingClientRect().y)"
    )
    assert len(set(boxes[:4])) == len(set(boxes[4:])) == 1  # four frames a second, a line each
    assert boxes[4] > boxes[3]
    assert page.locator(".second").all_text_contents()[:3] == ["0 s", "1 s", "2 s"]


def test_a_page_in_japanese_knows_cross_attention(visit, made, tmp_path):
    result = made.result.assign_coords(layer_kind=("layer", ["cross"] * 3))
    attnscope.set_language("ja")
    try:
        path = scan_page(result, translated(made.sample, "cross", tokens=12), tmp_path / "r.html")
    finally:
        attnscope.set_language("en")
    page = visit(path)
    choose(page, 0)
    assert page.text_content("#head-layer").endswith("交差アテンション")
    assert page.evaluate("crossed()")
