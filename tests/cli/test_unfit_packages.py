"""A package that is installed and does not fit ends in two lines, not in a traceback."""

import os
import subprocess
import sys

import pytest

from attnscope.errors import unimportable


def test_a_torchvision_for_another_pytorch_is_named(tmp_path):
    stub = tmp_path / "stub"
    for folder in ("torchvision", "torchvision-0.28.0.dist-info"):
        (stub / folder).mkdir(parents=True)
    (stub / "torchvision" / "__init__.py").write_text(
        'raise RuntimeError("operator torchvision::nms does not exist")\n'
    )
    (stub / "torchvision-0.28.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n"
    )
    (tmp_path / "text.txt").write_text("The tide is out.")
    paths = [str(stub), os.environ.get("PYTHONPATH", "")]
    said = subprocess.run(  # packages are imported anew
        [sys.executable, "-m", "attnscope", "scan", "bundled", "text.txt"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2
    assert said.stderr.splitlines() == [
        "attnscope: torchvision is installed and cannot be imported: operator torchvision::nms does not exist.",
        "Install the torchvision that is made for the PyTorch here, or take it away: pip uninstall torchvision",
    ]


def test_an_error_of_our_own_is_none_of_a_package():
    with pytest.raises(KeyError) as raised:
        {}["width"]
    assert unimportable(raised.value) is None
