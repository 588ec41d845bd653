"""What a beginner types wrong is answered in Japanese where the language is Japanese; what is typed stays as it is."""

import re
import shlex

import pytest

from attnscope import cli
from attnscope.report.language import fits, set_language

WRONG = """
scan note.txt
scan bundled missing.txt
scan bundeled
scan --window 0
scan --band x
scan --statistics entropie
scan --device cuda:99
scan --dtype float31
scan --windw 3
scan --lang fr
scan --task 3/2
skan
intervene --heads 0,1
intervene --heads 9.9
intervene --heads mine
intervene --ablations meen
intervene --forbid-offset x
explain --analyses wavez
roles --only inducton
patch bundled:tasks agrement
patch bundled nope.jsonl
relations bundled
diff a b
runs show nowhere
runs export nowhere --to latex
lesson nope
walk --check nofile.py
examples --heads 0.1,9.9
train nothing.yaml
"""


@pytest.fixture(autouse=True)
def in_english_again():
    yield
    set_language("en")


@pytest.mark.parametrize("typed", WRONG.strip().split("\n"))
def test_a_beginner_s_mistakes_are_answered_in_japanese(typed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["attnscope", "--lang", "ja", *shlex.split(typed)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    told = capsys.readouterr().err.strip()
    assert re.search("[ぁ-ん]", told), told
    assert fits(told.removeprefix("attnscope: ")), told  # no clause in English
