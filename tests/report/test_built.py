"""The wheel has the compiled catalogue of messages in place of its source."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from attnscope.report.language import read_catalogue

ROOT = Path(__file__).parents[2]
LOCALE = Path("attnscope", "report", "locale", "ja", "LC_MESSAGES")


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_the_catalogue_is_compiled_where_a_package_is_built(kind, tmp_path):
    for package in ("hatchling", "hatch_fancy_pypi_readme", "editables"):
        pytest.importorskip(package)
    build = f"from hatchling.build import build_{kind} as build; build({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(tmp_path)
        catalogues = [name for name in files.namelist() if name.endswith((".po", ".mo"))]
    if kind == "editable":  # imports the checkout, whose source is read
        assert catalogues == []
    else:
        assert catalogues == [(LOCALE / "attnscope.mo").as_posix()]
        assert read_catalogue(tmp_path / LOCALE) == read_catalogue(ROOT / "src" / LOCALE)
