"""A package that is installed and does not fit ends in two lines, not in a traceback."""

import os
import subprocess
import sys

import pytest

from attnscope.support.errors import unimportable


def scan_with_broken(package, reason, tmp_path):
    stub = tmp_path / "stub"
    for folder in (package, f"{package}-99.0.dist-info"):
        (stub / folder).mkdir(parents=True)
    (stub / package / "__init__.py").write_text(f"raise RuntimeError({reason!r})\n")
    (stub / f"{package}-99.0.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: 99.0\n"
    )
    (tmp_path / "text.txt").write_text("The tide is out.")
    paths = [str(stub), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(  # packages are imported anew
        [sys.executable, "-m", "attnscope", "scan", "bundled", "text.txt", "--no-report", "--statistics", "entropy"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_text_is_read_without_a_torchvision_that_cannot_be_imported(tmp_path):
    said = scan_with_broken("torchvision", "operator torchvision::nms does not exist", tmp_path)
    assert said.returncode == 0, said.stderr


def test_a_package_that_cannot_be_imported_is_named(tmp_path):
    said = scan_with_broken("accelerate", "made for another PyTorch", tmp_path)
    assert said.returncode == 2
    assert said.stderr.splitlines() == [
        "attnscope: accelerate is installed and cannot be imported: made for another PyTorch.",
        "Install the accelerate that is made for the PyTorch here, or remove it: pip uninstall accelerate",
    ]


def test_an_error_of_our_own_is_none_of_a_package():
    with pytest.raises(KeyError) as raised:
        {}["width"]
    assert unimportable(raised.value) is None
