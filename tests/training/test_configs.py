"""The settings of our own trainings are settings."""

from pathlib import Path

import pytest

from attnscope.training.config import read_config

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_they_are_read_and_their_command_is_told(path):
    config = read_config(path)
    assert config.source or config.text
    assert path.read_text(encoding="utf-8").startswith("# ")
