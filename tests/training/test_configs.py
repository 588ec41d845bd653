"""The settings of our own trainings are settings."""

from pathlib import Path

import pytest

from attnscope import AttnscopeError
from attnscope.lineage.config import read_config

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_they_are_read_and_their_command_is_told(path):
    config = read_config(path)
    assert config.source or config.text
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("name", ["task_pairs", "task_longest"])
def test_settings_of_the_generated_task_are_refused_beside_a_text(name, tmp_path):
    with pytest.raises(AttnscopeError, match=f"{name} is of the generated task, and text is given in its place"):
        read_config(model="masked-lm", text=tmp_path / "text", **{name: 300})


def test_a_file_without_a_setting_trains_nothing(tmp_path):
    for text in ("", "# updates: 10\n"):
        (tmp_path / "settings.yaml").write_text(text)
        with pytest.raises(AttnscopeError, match=r"holds no setting; expected one 'name: value' a line, or \{\}"):
            read_config(tmp_path / "settings.yaml")
    (tmp_path / "settings.yaml").write_text("{}")
    assert read_config(tmp_path / "settings.yaml") == read_config()
