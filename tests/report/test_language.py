"""One catalogue translates terminal, pages and figures; results and data stay in English."""

import ast
import html
import json
import re
import runpy
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from attnscope import AttnscopeError, scan, set_language, view
from attnscope.cli import app
from attnscope.report import language
from attnscope.report.language import wrapped
from attnscope.report.schema import HEAD, Finding, Quantity, Report, Table
from attnscope.results.figures.style import svg_of
from attnscope.results.page.heads import of_report
from tests.cli.command import attnscope
from tests.packages.lineage.compare.small_systems import SMALL

SOURCES = Path(__file__).parents[2]
SCRIPT = runpy.run_path(SOURCES / "scripts" / "messages.py")


@pytest.fixture(scope="module")
def entries():
    """The catalogue: Japanese by English."""
    return {one.id: one.string for one in SCRIPT["load"]() if one.id}


@pytest.fixture
def japanese():
    language.set_language("ja")
    yield
    language.set_language("en")


def test_every_entry_is_a_message_of_the_code_and_has_its_values(entries):
    known = {message for found in SCRIPT["messages"]().values() for message in found}
    assert not entries.keys() - known, "run scripts/messages.py"
    values = {one: sorted(language.PLACEHOLDER.findall(one)) for one in (*entries, *entries.values())}
    # of a plural, or a preposition, a translation may leave out what it has no word for
    assert not {one for one, other in entries.items() if not {*values[other]} <= {*values[one]}}
    assert all(entries.values())


def test_a_message_with_values_is_translated_by_its_own_entry(entries, japanese):
    filled = re.compile(r"\{(\d+)\}")
    wrong = {}
    for message, translated in entries.items():
        words = re.findall("[A-Za-z]{2,}", filled.sub("", message))
        if not filled.search(message) or not words or SCRIPT["sentences"](message):
            continue
        beside = re.findall(r"(?<=\})\{(\d+)\}", message)  # of values side by side, the first has everything
        value = lambda found: f"⟦{found[1]}⟧" * (found[1] not in beside)  # noqa: E731, B023
        found = language.translate(filled.sub(value, message))
        if found != filled.sub(value, translated):
            wrong[message] = found
    assert not wrong


def headings(path):
    """The headings that the quantities of a module have, as far as they are written out there."""
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call) or ast.unparse(call.func).split(".")[-1] not in {"Quantity", "with_ends"}:
            continue
        given = [getattr(one, "value", None) for one in call.args]
        named = {one.arg: getattr(one.value, "value", None) for one in call.keywords}
        if given and isinstance(given[0], str) and "data" not in {named.get("detail"), *given[4:5]}:
            heading = given[1] if len(given) > 1 else named.get("heading", "")
            yield heading or given[0].replace("_", " ")


def test_every_heading_of_a_table_is_translated(entries):
    modules = [path for root in ("src", "packages") for path in (SOURCES / root).rglob("*.py")]
    every = {heading for path in modules for heading in headings(path) if heading}
    assert len(every) > 150
    assert every - entries.keys() == {
        *("p", "AER", "UAS"),  # as in Japanese texts
        *("kernel agrees", "kernel chance", "kernel share", "offset of kernel"),  # headings are of the model's scheme
    }


REASON = "Invalid control character at: line 1 column 12 (char 11)"  # of a library, in its words
WRONG = (
    f"a.jsonl の 3 行目: JSON ではありません（{REASON}）。一行に一つの JSON オブジェクトが必要です。"
    "行を直すか削除してください"
)


@pytest.mark.usefixtures("japanese")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Head labels: self: 1, no fixed pattern: 8.", "ヘッドのラベル: 自分自身: 1、固定したパターンなし: 8。"),
        ("134 windows (17,109 tokens in all)", "134ウィンドウ（合計 17,109トークン）"),
        ("Share of the windows with each label", "各ラベルが付いたウィンドウの割合"),  # a message about texts
        ("Mean weight", "平均の重み"),
        ("gpt2", "gpt2"),
        ("S: (14, 14)", "S: (14, 14)"),
        ("Heads with a label, heads", "ラベルのあるヘッド、ヘッド"),
        ("no such command 'wakl'. Did you mean 'walk'?", "コマンド 'wakl' はありません。もしかして 'walk' ですか"),
        ("Head labels: within 16: 14, local: 2.", "ヘッドのラベル: 16トークン以内: 14、近傍: 2。"),
        ("The largest change is +3.528 (+3.176 to +4.222) nats.", "最大の変化は +3.528 nat（+3.176～+4.222）です。"),
        ("special_tokens", "special_tokens"),
        ("attnscope roles", "attnscope roles"),
        (
            "window (--window) is 0; expected a whole number of 1 or more",
            "window (--window) が 0 になっています。必要な値: 整数（1 以上）",
        ),
        (
            "steps (--steps) is -1; expected a whole number of 0 or more",
            "steps (--steps) が -1 になっています。必要な値: 整数（0 以上）",
        ),
        (f"a.jsonl, line 3: not JSON ({REASON}); expected one JSON object a line: correct or remove the line", WRONG),
        ("The largest change is -0.045 nats.", "最大の変化は -0.045 nat です。"),
        ("nobody has translated this sentence", "nobody has translated this sentence"),
    ],
)
def test_texts(text, expected):
    assert language.translate(text) == expected


@pytest.mark.usefixtures("japanese")
def test_a_page_is_translated_but_for_its_data():
    page = (
        '<html lang="en"><style>p.head { }</style><th title="uniform attention">Weight</th>'
        '<td><bdi translate="no">weight</bdi></td><td>label &amp; weight</td><p>Key <b>weight</b></p>'
        "<h1>Where the heads of <bdi>a&amp;b</bdi> attend</h1><script>weight</script>"
    )
    assert language.translate_html(page) == (
        '<html lang="ja"><style>p.head { }</style><th title="一様なアテンション">重み</th>'
        '<td><bdi translate="no">weight</bdi></td><td>label &amp; weight</td><p>キー <b>重み</b></p>'
        "<h1>a&amp;b のヘッドはどこにアテンションを向けているか</h1><script>weight</script>"
    )


def english(text):
    """Three words of English in a row, outside of names, options, quotations, masked texts and papers."""
    text = re.sub(r"“.*?”|`.*?`|'.*?'|.*<mask>.*|[A-Z]\w+( and [A-Z]\w+| et al\.)? \d{4}[^、。\n]*", "", text)
    return re.findall(r"(?:(?<![\w./-])[A-Za-z]?[a-z]+ ){2}[a-z]+(?![\w./-])", text)


#: Files whose longer strings are read as they are: programs, prompts, papers, data of other tools, fonts, docstrings.
UNTRANSLATED = {
    *("bundled/__init__.py", "copied.py", "detection/probes.py", "detection/role.py", "figures/style.py"),
    *("head_walk.py", "intervention/templates.py", "lessons/limits/numbers.py", "lessons/write.py", "options.py"),
    *("attnscope_circuits/export.py", "attnscope_relations/exports.py", "live/pictures.py", "live/server.py"),
    *("attnscope_lineage/check.py", "live/sounds.py", "results/notebook.py", "support/errors.py"),
}


def test_every_sentence_that_is_shown_is_translated(entries):
    lacking = {
        message
        for path, found in SCRIPT["missing"](entries).items()
        if not path.endswith(tuple(UNTRANSLATED))
        for message in found
        if len(re.findall("[A-Za-z]{2,}", language.PLACEHOLDER.sub("", message))) >= 4
    }
    assert lacking == {
        "article, adventure, exercise, essay, experiment",
        "is not one of",  # a part of an error of typer, which is replaced
        '{"text": "The tide", "spans": [[0, 3], [4, 8]]}',
        "<p>{0} <code>attnscope view MODEL TEXT</code></p>",
    }


def shown(page):
    """Texts of a page and their descriptions, without data, code and scripts."""
    page = re.sub(r"<(script|style|pre|code)\b.*?</\1>|<[^>]*translate=\"no\"[^>]*>[^<]*", " ", page, flags=re.DOTALL)
    described = re.findall(r'(?:title|alt|aria-label)="([^"]*)"', page)
    return html.unescape("\n".join([*re.split(r"<[^>]*>", page), *described]))


COMMANDS = {
    "scan": ("--limit", "4"),
    "explain": ("--limit", "4", "--window", "64"),
    "intervene": ("--limit", "6", "--window", "64"),
    "roles": ("--limit", "2"),
    "patch": (),
    "attribute": ("--limit", "4"),
    "card": ("--limit", "2", "--kept", "16+4", "--controls", "none"),
    "circuits": (),
    "edges": ("--draws", "1", "--method", "eap"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_speaks_japanese_and_its_data_english(command, tmp_path):
    given = (command, *COMMANDS[command], "--out", "run")
    printed = attnscope(*given, "--legend", "--lang", "ja", cwd=tmp_path)
    assert printed.returncode == 0
    assert not english(printed.stdout + printed.stderr)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert '<html lang="ja">' in page
    assert not english(shown(page))
    for figure in (tmp_path / "run" / "figures").glob("*.svg"):
        assert not english("\n".join(re.findall(r"<text[^>]*>([^<]*)", figure.read_text(encoding="utf-8"))))
    if command != "scan":  # one way of giving data for all
        return
    data = attnscope(*given, "--json", "--lang", "ja", cwd=tmp_path).stdout
    assert json.loads(data) == json.loads(attnscope(*given, "--json", cwd=tmp_path).stdout)
    assert '<html lang="en">' in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("japanese")
def test_summaries_pages_figures_and_views_in_python_are_in_the_language(monkeypatch):
    result = scan(limit=2, show=[])
    for shown in (repr(result.attnscope), result.attnscope._repr_html_()):
        assert "3層 × 4ヘッド、2ウィンドウ" in shown
        assert "8 ヘッドには固定したパターンがありません" in shown
    assert '<html lang="ja">' in result.attnscope.show().text
    shown = view("bundled", "The key.")
    assert '<html lang="ja">' in shown._page()
    figure = shown.figure()
    svg_of(figure)
    assert figure.axes[0].get_xlabel() == "キー"
    with pytest.raises(AttnscopeError, match="the language is 'fr'; expected 'en' or 'ja'"):
        set_language("fr")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    set_language()
    assert repr(result.attnscope).startswith("3 layers x 4 heads")


def test_translation_speaks_japanese(tmp_path):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL | {"attention": "additive"}))
    (tmp_path / "text.txt").write_text("one two\n")
    (tmp_path / "gold.txt").write_text("1-1 2p2\n")
    align = ("align", "system", "text.txt", "--target", "text.txt", "--gold", "gold.txt", "--out", "run")
    for given in (
        ("train", "small.yaml", "--out", "system"),
        ("translate", "system", "text.txt", "--out", "out.txt"),
        ("score", "out.txt", "--target", "text.txt", "--tokenize", "none", "--legend"),
        (*align, "--legend"),
        ("walk", "--toy"),
        ("runs", "list", "."),
    ):
        printed = attnscope(*given, "--lang", "ja", cwd=tmp_path)
        assert printed.returncode == 0, printed.stderr
        assert not english(printed.stdout + printed.stderr)
    assert not english(shown((tmp_path / "run" / "report.html").read_text(encoding="utf-8")))


@pytest.mark.parametrize("command", ["", *sorted(get_command(app).commands)])
def test_the_help_is_in_japanese(command, tmp_path):
    printed = attnscope(*filter(None, [command]), "--help", "--lang", "ja", cwd=tmp_path).stdout
    assert printed.startswith("使い方")
    assert not english(re.sub(r"^ +attnscope .*", "", printed, flags=re.MULTILINE))  # without examples


def test_lines_of_japanese_break_between_letters():
    assert wrapped("層の重み（gpt2 の平均）、次。", 8) == ["層の重み", "（gpt2", "の平", "均）、", "次。"]


def test_the_language_is_that_of_the_locale(monkeypatch, tmp_path):
    monkeypatch.setenv("LC_ALL", "ja_JP.UTF-8")
    assert attnscope("scan", "--limit", "0", cwd=tmp_path).stderr.startswith("attnscope: limit (--limit) が 0")
    assert "使い方" in attnscope("scan", "--help", cwd=tmp_path).stdout
    assert "Usage" in attnscope("scan", "--help", "--lang", "en", cwd=tmp_path).stdout
    assert attnscope("--help", cwd=tmp_path).stdout.startswith("使い方")
    assert attnscope("scan", "--lang", "fr", cwd=tmp_path).returncode == 2


@pytest.mark.usefixtures("japanese")
def test_a_page_translates_words_of_a_head_and_no_tokens():
    quantities = (*HEAD, Quantity("roles"), Quantity("copied", unit="token"))
    rows = [{"layer": 0, "head": head, "roles": "previous token", "copied": "weight"} for head in range(2)]
    report = Report(
        "", "", Finding(["No."], "not tested"), [Table("heads", "Heads", quantities, rows)], None, command="card"
    )
    shown = {one["name"]: one["text"][0] for one in of_report(report)["quantities"]}
    assert shown == {"roles": "前のトークン", "copied": "weight"}


def test_each_number_of_a_head_has_the_unit_of_its_statistic():
    quantities = (*HEAD, Quantity("statistic"), Quantity("change", unit="change"), Quantity("size", unit="deviations"))
    rows = [
        {"layer": 0, "head": head, "statistic": name, "change": 1.0, "size": 2.0}
        for head in range(2)
        for name in ("entropy", "max_weight")
    ]
    report = Report(
        "", "", Finding(["No."], "not tested"), [Table("heads", "Heads", quantities, rows)], None, command="diff"
    )
    units = {one["name"]: one["units"] for one in of_report(report)["quantities"]}
    assert list(units.values()) == ["nats", "SD", "", "SD"]


@pytest.mark.parametrize("words", ["compare foo", "lesson foo", "roles --only foo", "intervene --ablations foo"])
def test_names_that_are_typed_stay_in_errors(words, tmp_path):
    """Those that an error expects are what a command takes, in every language."""
    english, japanese = (attnscope(*words.split(), "--lang", one, cwd=tmp_path).stderr for one in ("en", "ja"))
    assert japanese != english
    (names,) = re.findall(r"[\w'.]+(?:, [\w'.]+){2,}", english)
    assert names in japanese
