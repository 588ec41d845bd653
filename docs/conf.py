"""The documentation site: `sphinx-build -W docs build/site`. Its reference is written by `generate.py`."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import generate
import latex2mathml.converter
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator as HTMLTranslator

import attnscope

project, author = "attnscope", "The attnscope developers"
version = release = attnscope.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["conftest.py"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "cache"  # a notebook runs again when its code changes; -D nb_execution_mode=off skips it
nb_execution_in_temp = nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_output_stderr = "remove"  # progress

default_role = "py:obj"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_numpy_docstring, napoleon_google_docstring = True, False
napoleon_use_rtype = False
python_display_short_literal_types = True

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_math_renderer = "mathml"  # drawn by the browser, without a script
html_theme = "pydata_sphinx_theme"
html_title = "attnscope"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "attnscope"},
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_prev_next": True,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


REPOSITORY, SITE = "https://github.com/attnscope/attnscope", "https://attnscope.github.io/attnscope/"
ROOT = Path(__file__).parents[1]
#: Pages that are files of the repository.
FILES = {"project/changelog": "CHANGELOG.md", "project/contributing": "CONTRIBUTING.md"}


def read_as_on_github(_: Sphinx, page: str, source: list[str]) -> None:
    """Pages are written as GitHub shows them; on the site, pages that an index links to are in its navigation."""
    text = source[0]
    if page in FILES:
        text = (ROOT / FILES[page]).read_text(encoding="utf-8").replace("](docs/", "](../")
    text = re.sub(rf"\]\({SITE}([\w/.-]+?)(\.html)?\)", lambda link: f"](/{link[1]}{'.md' if link[2] else ''})", text)
    text = re.sub(r"\]\((?:\.\./)+([A-Z][\w.]+)\)", rf"]({REPOSITORY}/blob/main/\1)", text)
    below = {"index": r"\w+/index", "guides/notebooks": r"\.\./notebooks/[\w-]+"}.get(page, r"/?\w[\w./-]*")
    if page == "guides/notebooks" or page.endswith("index"):
        links = dict.fromkeys(re.findall(rf"\]\(({below})\.(?:md|ipynb)\)", text))
        text += "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(links) + "\n```\n"
    source[0] = text


def strip_blocks(_: Sphinx, doctree: nodes.document) -> None:
    """Doctests end with an empty line, which a page does not show."""
    for block in doctree.findall(nodes.literal_block):
        block.rawsource = block.astext().rstrip("\n")
        block.children = [nodes.Text(block.rawsource)]


def mathml(translator: HTMLTranslator, node: nodes.Element) -> None:
    """Write a formula as MathML."""
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    translator.body.append(latex2mathml.converter.convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Write the generated pages before anything is read."""
    generate.write(Path(__file__).parent / "reference")
    app.connect("source-read", read_as_on_github)
    app.connect("doctree-read", strip_blocks)
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))
