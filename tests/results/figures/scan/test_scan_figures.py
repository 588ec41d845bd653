"""Figures show the numbers of the result, name what they show, and refuse what does not exist."""

import io
from importlib.util import find_spec
from itertools import combinations

import matplotlib as mpl
import numpy as np
import pytest
from fontTools.ttLib import TTFont
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.patches import Wedge

from attnscope.results.figures import maps as pies_module
from attnscope.results.figures import style as text_module
from attnscope.results.figures.maps import block_shares, label_pies, offset_shares, weight_maps
from attnscope.results.figures.scan import first_rows, group_maps, overview, profile_curves
from attnscope.results.figures.style import COLUMN, PAGE, cluster_colours, drawable, save_figure, svg_of
from attnscope.support.errors import AttnscopeError
from tests.results.page.planted_result import HOSTILE, NAMES, planted, with_bins, with_blocks, with_groups


@pytest.fixture(scope="module")
def made():
    return planted()


def rows(made):
    """The sample as `weight_maps` takes it."""
    heads = list(np.ndindex(made.kinds.shape))
    return first_rows(made.sample, heads, made.sample.sizes["query"])


def in_figure(figure):
    """Whether everything drawn lies within the figure's edges."""
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    return box.x0 >= -0.01 and box.y0 >= -0.01 and box.x1 <= width + 0.01 and box.y1 <= height + 0.01


def drawn(figure):
    figure.savefig(io.BytesIO(), format="png")
    return figure


def test_group_maps_show_the_head_and_both_nulls(made):
    result = with_groups(made.result)
    figure = drawn(group_maps(result, [(1, 2), (0, 0)]))
    assert in_figure(figure)
    names = ("group_weight", "position_group_weight", "equal_group_weight")
    for axes, name in zip(figure.axes[:3], names, strict=True):
        at = {"layer": 1, "head": 2} if "head" in result[name].dims else {"layer": 1}
        mean = result[name].isel(at, drop=True).mean("window").values[:2, :2]
        np.testing.assert_allclose(axes.images[0].get_array(), mean)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["user", "<b>"]
    with pytest.raises(AttnscopeError, match="group_maps needs group_weight"):
        group_maps(made.result, [(0, 0)])


def test_pies_are_the_label_shares(made, monkeypatch):
    wedges = []

    def remember(*args, **kwargs):
        wedges.append(Wedge(*args, **kwargs))
        return wedges[-1]

    monkeypatch.setattr(pies_module, "Wedge", remember)
    label_pies(made.result)
    labels = made.result["label"].values
    for layer, head in np.ndindex(labels.shape[1:]):
        angles = [w.theta2 - w.theta1 for w in wedges if w.center == (head, layer)]
        counts = np.bincount(labels[:, layer, head])
        assert sorted(angles) == pytest.approx(sorted(360 * counts[counts > 0] / len(labels)))


@pytest.mark.parametrize(("layers", "heads"), [(1, 16), (24, 16)])
@pytest.mark.parametrize("draw", [label_pies, lambda r: overview(r, "mean_offset")], ids=["pies", "mean_offset"])
def test_every_size_fits(layers, heads, draw):
    figure = drawn(draw(planted(layers, heads, texts=3, tokens=6, rank=2).result))
    assert in_figure(figure)
    assert figure.get_size_inches()[0] in {COLUMN, PAGE}


# what people with each kind of colour blindness see: Machado, Oliveira and Fernandes (2009), severity 1
_SEEN = {
    "all": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def lab(colour, seen):
    """CIELAB of a colour as it is seen: distances are what people tell apart, about 2.3 at the least."""
    rgb = np.array(to_rgb(colour))
    linear = np.clip(np.asarray(seen) @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ linear / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("names", [[*NAMES, *"abcd"], ["leftward", *(f"leftward {i}" for i in range(2, 11))]])
@pytest.mark.parametrize("seen", list(_SEEN))
def test_colours_of_clusters_differ_with_any_colour_vision(names, seen):
    points = [lab(colour, _SEEN[seen]) for colour in cluster_colours(names)]
    assert min(np.linalg.norm(one - other) for one, other in combinations(points, 2)) > 15


def test_map_of_a_complete_sample_is_the_weights():
    sample = rows(planted(tokens=20, rank=20))
    axes = weight_maps(sample, [(0, 1)], tokens=15).axes[0]
    shown = np.asarray(axes.images[0].get_array())
    for query in range(15):
        keys, weights = sample["key"].values[0, 1, query], sample["weight"].values[0, 1, query]
        expected = dict(zip(keys, weights, strict=True))
        np.testing.assert_allclose(shown[query], [expected[key] for key in range(15)])


@pytest.mark.parametrize("installed", ["as here", "no other font"])
def test_any_token_is_drawn_without_a_missing_glyph(made, monkeypatch, tmp_path, installed):
    if installed == "no other font":
        monkeypatch.setattr(text_module, "_CJK_FONTS", ())
    sample = rows(made).copy(deep=True)
    sample["token"].values[: len(HOSTILE)] = HOSTILE
    save_figure(weight_maps(sample, [(0, 0)], tokens=len(HOSTILE)), tmp_path / "hostile")  # warnings are errors


@pytest.fixture
def no_fonts(monkeypatch):
    """A machine without fonts: matplotlib's own, and the Japanese one that is installed with attnscope."""
    monkeypatch.setattr(text_module.font_manager, "findSystemFonts", lambda *_: [])
    monkeypatch.setattr(fontManager, "ttflist", [font for font in fontManager.ttflist if "mpl-data" in font.fname])
    monkeypatch.setattr(text_module, "LACKING", set())
    remembered = text_module._family_with, text_module._installed_since, fontManager._findfont_cached
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


def test_japanese_needs_no_installed_font(no_fonts, caplog):
    figure = Figure()
    title = figure.suptitle(drawable("猫が静かに座っている。"))
    svg_of(figure)
    assert title.get_text() == "猫が静かに座っ…"
    assert text_module.JAPANESE_FONT in title.get_fontfamily()
    assert caplog.messages == []


def test_a_script_that_no_font_has_is_named_once_and_written_as_it_is(no_fonts, caplog, tmp_path):
    figure = Figure()
    figure.text(0.5, 0.5, drawable("ไทย"))
    files = [save_figure(figure, tmp_path / name)[0] for name in ("first", "second")]  # warnings are errors
    assert [message[:50] for message in caplog.messages] == ["figures: no installed font covers Thai (ย), so PNG"]
    assert "ไทย" in files[0].read_text("utf-8")


def test_a_font_that_is_newer_than_the_list_of_fonts_is_found(no_fonts, monkeypatch, caplog, tmp_path):
    """As after `apt-get install`: matplotlib keeps its list for ever."""
    font = TTFont(find_spec("matplotlib_fontja").submodule_search_locations[0] + "/fonts/ipaexg.ttf")
    for record in font["name"].names:
        record.string = "Newly Installed"
    for table in font["cmap"].tables:
        table.cmap = {ord("ย"): font.getBestCmap()[ord("猫")]}
    font.save(tmp_path / "new.ttf")
    monkeypatch.setattr(text_module.font_manager, "findSystemFonts", lambda *_: [str(tmp_path / "new.ttf")])
    assert text_module._family_with("ย") == "Newly Installed"


def test_profile_is_the_mean_and_the_band_the_quantiles(made):
    axes = profile_curves(made.result, [(1, 2)]).axes[0]
    values = made.result["profile"].values[:, 1, 2]
    (line,) = [one for one in axes.lines if len(one.get_xdata()) == 21]
    np.testing.assert_allclose(line.get_ydata(), values.mean(axis=0))
    vertices = axes.collections[0].get_paths()[0].vertices
    for offset, low, high in zip(range(-10, 11), *np.quantile(values, [0.1, 0.9], axis=0), strict=True):
        edge = vertices[vertices[:, 0] == offset, 1]
        assert (edge.min(), edge.max()) == (pytest.approx(low), pytest.approx(high))


def test_every_head_is_a_dot_beside_the_median_and_uniform_attention(made):
    result = with_blocks(made.result)
    figure = drawn(block_shares(result))
    assert in_figure(figure)
    mean = result.block_recall.mean("window")
    for axes, kept in zip(figure.axes, (5, 10, 25), strict=True):
        assert axes.get_title(loc="left") == f"Best {kept}% of the blocks"
        own = mean.sel(kept=kept).values
        (dots,) = axes.lines
        np.testing.assert_allclose(dots.get_ydata(), own.ravel())
        np.testing.assert_array_equal(dots.get_xdata(), np.repeat(np.arange(4), 4))
        bars = np.array([part[0, 1] for part in axes.collections[0].get_segments()])
        np.testing.assert_allclose(bars, np.median(own, axis=1))
        equal = result.equal_block_recall.mean("window").sel(kept=kept)
        np.testing.assert_allclose(axes.patches[0].get_data().values, equal)


def test_every_head_is_a_row_of_shares_beside_uniform_attention_on_one_scale(made):
    result = with_bins(made.result)
    figure = drawn(offset_shares(result))
    assert in_figure(figure)
    left = result.bin_first.values <= 0  # nothing lies to the right
    own = (result.bin_sum / result.length).mean("window").values[..., left]
    equal = (result.equal_bin_sum / result.length).mean("window").values[:, left]
    heads, even = (axes.images[0] for axes in figure.axes[:2])
    np.testing.assert_allclose(heads.get_array(), own.reshape(-1, left.sum()))
    np.testing.assert_allclose(even.get_array(), np.repeat(equal, own.shape[1], 0))
    assert heads.norm.vmax == even.norm.vmax == pytest.approx(max(own.max(), equal.max()))
    names = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert names[-4:] == ["−3…−4", "−2", "−1", "0"]
    assert "mean over 12 windows" in figure.get_suptitle()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: overview(m.result, "sharpness"), r"unknown statistic 'sharpness'.*entropy, first_token"),
        (lambda m: profile_curves(m.result, [(4, 0)]), "layer 4 has no head 0: layers go from 0 to 3"),
        (lambda m: profile_curves(m.result, [(0, 9)]), "layer 0 has no head 9.*heads from 0 to 3"),
        (lambda m: profile_curves(m.result, []), "heads is empty"),
        (lambda m: profile_curves(m.result, [3]), r"pairs \(layer, head\)"),
        (lambda m: profile_curves(m.result.drop_vars("profile"), [(0, 0)]), "needs profile, but the result has"),
        (lambda m: weight_maps(rows(m), [(0, 0)], tokens=0), "tokens must be at least 1, found 0"),
        (lambda m: weight_maps(m.result, [(0, 0)]), "needs token, key, weight"),
        (lambda m: label_pies(m.result.drop_vars("label")), "needs label"),
    ],
)
def test_errors_say_what_exists(made, call, message):
    with pytest.raises(AttnscopeError, match=message):
        call(made)


def test_the_users_settings_neither_matter_nor_change(made, tmp_path):
    plain = save_figure(overview(made.result, "entropy"), tmp_path / "plain")[2].read_bytes()
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "black", "figure.dpi": 33}):
        before = dict(mpl.rcParams)
        other = save_figure(overview(made.result, "entropy"), tmp_path / "other")[2].read_bytes()
        assert dict(mpl.rcParams) == before
    assert plain == other


def test_figures_are_the_same_each_time_their_text_is_text_and_glyphs_travel_with_them(made, tmp_path):
    paths, again = (save_figure(overview(made.result, "entropy"), tmp_path / name) for name in ("new/f.v2", "g"))
    assert [path.name for path in paths] == ["f.v2.svg", "f.v2.pdf", "f.v2.png"]
    svg, pdf, png = (path.read_bytes() for path in paths)
    assert [svg, pdf, png] == [path.read_bytes() for path in again]
    assert b">Head</text>" in svg
    assert b"<dc:date>" not in svg
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert b"CreationDate" not in pdf
    assert b"Software" not in png
