"""Pages in the light and in the dark."""


def fitting_schemes(page, width):
    """Light and dark, one after the other: nothing is wider than the screen, and the paper is as it was asked for."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        channels = paper.removeprefix("rgb(").removesuffix(")").split(",")
        assert (sum(map(int, channels)) > 3 * 128) == (scheme == "light")
        yield scheme
