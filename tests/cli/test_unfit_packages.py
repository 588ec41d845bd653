"""A package that is installed and does not fit ends in two lines, not in a traceback."""

import importlib
import os
import subprocess
import sys


def install_broken(package, reason, place):
    """A package that cannot be imported, below a folder."""
    for folder in (package, f"{package}-99.0.dist-info"):
        (place / folder).mkdir(parents=True)
    (place / package / "__init__.py").write_text(f"raise RuntimeError({reason!r})\n")
    (place / f"{package}-99.0.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: 99.0\n"
    )


def test_a_text_is_read_without_a_torchvision_that_cannot_be_imported(tmp_path):
    install_broken("torchvision", "operator torchvision::nms does not exist", tmp_path / "stub")
    (tmp_path / "text.txt").write_text("The tide is out.")
    paths = [str(tmp_path / "stub"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(  # packages are imported anew
        [sys.executable, "-m", "attnscope", "scan", "bundled", "text.txt", "--no-report", "--statistics", "entropy"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_package_that_cannot_be_imported_is_named(tmp_path, monkeypatch, refused):
    install_broken("unfit", "made for another PyTorch", tmp_path / "stub")
    monkeypatch.syspath_prepend(tmp_path / "stub")
    monkeypatch.setattr("attnscope.cli.app", lambda **_: importlib.import_module("unfit"))
    refused(
        "scan",
        says="attnscope: unfit is installed and cannot be imported: made for another PyTorch.\nInstall the unfit",
    )
