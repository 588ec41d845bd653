"""Public functions refuse arguments of wrong types by name, before anything is done."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack, get_origin

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn
from transformers import BertConfig, BertModel

import attnscope
import attnscope_lineage
import attnscope_relations
from attnscope import AttnscopeError, opened
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model
from attnscope.catalogue import function_of, verbs
from attnscope.explanation.analyses.shift import cross_spectrum
from attnscope.options import Reading
from attnscope.support.checked import alternatives, bare, checked, declaration

VERBS = [*verbs()]
PUBLIC = {f"attnscope.{name}": function_of(name) for name in VERBS}
for package in (attnscope, attnscope_lineage, attnscope_relations):
    source = Path(package.__file__).parent
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        # every worker does this while it collects, and parsing takes long
        for node in ast.parse(text).body if "\n@checked" in text else ():
            decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
            if isinstance(node, ast.FunctionDef) and any(re.match(r"checked\b", one) for one in decorators):
                name = ".".join((package.__name__, *path.relative_to(source).with_suffix("").parts))
                PUBLIC.setdefault(f"{name}.{node.name}", getattr(importlib.import_module(name), node.name))
WRONG = b"neither a number nor a string"
PLAIN = {int, float, bool, str, Path, Sequence}
#: What must be given to verbs, where it is not a name.
GIVEN = {
    **{name: object() for name in ("before", "after", "changes", "weights")},
    "heads": "0.1",
    "module": nn.Identity(),
    "results": xr.Dataset(),
    "layer": 0,
    "head": 0,
    "threshold": 0.5,
}


def test_every_public_function_checks():
    assert len(PUBLIC) > 20
    unchecked = {
        name
        for name, function in PUBLIC.items()
        if not re.match(r"@(checked|verb)\b", inspect.getsource(inspect.unwrap(function)))
    }
    assert not unchecked


def test_a_verb_takes_its_model_first_and_then_texts():
    """As README.md says of them."""
    first = {verb: [*inspect.signature(PUBLIC[f"attnscope.{verb}"]).parameters][:2] for verb in VERBS}
    of_models = {verb: names for verb, names in first.items() if "model" in names}
    assert len(of_models) > 10
    assert {verb for verb, names in of_models.items() if names != ["model", "texts"]} == {
        "circuits",
        "edges",
        "edit",
        "patch",
    }
    assert first["patch"] == ["model", "pairs"]
    assert {verb: first[verb][0] for verb in ("train", "compare", "diff", "score")} == {
        "train": "config",
        "compare": "systems",
        "diff": "before",
        "score": "hypotheses",
    }


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_names_each_argument_of_a_wrong_type(verb):
    function = PUBLIC[f"attnscope.{verb}"]
    parameters = declaration(function)
    plain = [
        name
        for name, parameter in parameters.items()
        if (kinds := {get_origin(kind := bare(one)) or kind for one in alternatives(parameter.annotation)}) & PLAIN
        and Any not in kinds  # what takes it refuses it, with more words
        and parameter.kind not in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}
    ]
    assert plain or verb in {"edit", "runs"}
    before = needed(function)
    for name in plain:
        with pytest.raises(AttnscopeError, match=rf"^{name} is of type bytes; expected "):
            function(**(before | {name: WRONG}))


@pytest.mark.usefixtures("no_types")
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_rejects_what_is_no_value_of_any_kind(verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function = PUBLIC[f"attnscope.{verb}"]
    parameters = inspect.signature(function).parameters
    before = needed(function)
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD or (verb, name) == ("watch", "spans"):  # read with a prompt
            continue
        several = [object()] if parameter.kind is parameter.VAR_POSITIONAL else []
        named = {} if several else {name: object()}
        with pytest.raises(AttnscopeError) as error:
            function(*several, **(before | named))
        assert len(str(error.value).splitlines()) <= 2


@pytest.mark.usefixtures("no_types")
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_fails_by_nothing_else_than_its_own_error(verb, tmp_path, monkeypatch):
    """Whatever it is given, for each argument in turn; what fits may be taken."""
    monkeypatch.chdir(tmp_path)
    function = PUBLIC[f"attnscope.{verb}"]
    parameters = inspect.signature(function).parameters
    before = needed(function) | {name: "nowhere" for name in ("model", "config") if name in parameters}
    before |= {"systems": ["nowhere"]} if verb == "compare" else {}
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD or (verb, name) == ("watch", "spans"):
            continue
        for value in of_all_kinds():
            if value is None and parameter.default is None:
                continue
            several = [value] if parameter.kind is parameter.VAR_POSITIONAL else []
            named = {} if several else {name: value}
            said = said_by(function, *several, **(before | named))
            assert len(said.splitlines()) <= 2
            assert said or value is not None


def said_by(function, *several, **named):
    """What a call is refused by; nothing where it is not."""
    try:
        function(*several, **named)
    except AttnscopeError as error:
        return str(error)
    return ""


def of_all_kinds():
    yield from (None, 3, -1, 10**40, 2.5, float("nan"), True, "", b"x", {"a": 1}, {1}, [], [None], [b"x"], [[1]])
    yield from (object(), (number for number in (1, 2)), (_ for _ in ()), range(2))
    yield from (np.int64(3), np.array([1, 2]), torch.tensor([1, 2]), Path("nowhere"))


def needed(function):
    """What must be given to a function."""
    return {
        name: (0, 0) if function is attnscope.examples and name == "head" else GIVEN.get(name, "nowhere")
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}
    }


_SIZES = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}


@pytest.mark.usefixtures("no_types")
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: attnscope_lineage.walk(layer="0"), "layer is '0' (str); expected a whole number or None"),
        (lambda: attnscope_lineage.walk(head=True), "head is True (bool); expected a whole number"),
        (lambda: attnscope.scan(show=["3,x"]), "show is '3,x'; expected heads as layer.head, with commas between"),
        (
            lambda: attnscope.scan(statistics=["entropy", 3]),
            "statistics is ['entropy', 3] (list); expected a list of strings or a string or None",
        ),
        (lambda: attnscope.intervene(curves=2.5), "curves is 2.5 (float); expected True or False"),
        (lambda: cross_spectrum(band=(3, 10, 12)), "band is (3, 10, 12) (tuple); expected two whole numbers or None"),
        (lambda: attnscope.runs(["a"], "b"), "folders is (['a'], 'b') (tuple); expected a list of strings or paths"),
        (lambda: attnscope.intervene(task=object()), "task is of type object; expected a string or Task or None"),
        (
            lambda: attnscope_lineage.translate("bundled", b"x"),
            "the text is of type bytes; expected a string, a pathlib.Path, or a list of sentences",
        ),
        (
            lambda: attnscope_lineage.translate("bundled", [None]),
            "line 1 of the text is of type NoneType; expected a sentence",
        ),
        (
            lambda: attnscope_lineage.score(["a"], []),
            "targets is empty; expected sentences, a pathlib.Path, or several of these",
        ),
        (lambda: attnscope.diff(None, None), "scan is of type NoneType; expected a scan"),
        *(
            (lambda given=given: attnscope.scan(offsets=given), f"offsets is {said}; expected a list of whole numbers")
            for given, said in ((-1, "-1 (int)"), (np.array([-1.0]), "of type ndarray"), ({-1: 1}, "{-1: 1} (dict)"))
        ),
        (
            lambda: attnscope.scan(tokenizer=3),
            "tokenizer is 3 (int); expected a tokenizer, a processor, a folder or a hub id",
        ),
        (lambda: attnscope.scan(nn.Linear(2, 2), "x"), "Linear is not a model of transformers. Use attnscope.watch"),
        (lambda: attnscope.scan((torch.rand(1, 2, 5, 5),), "x"), "found arrays; expected a model of transformers"),
        (
            lambda: attnscope.scan("bundled", torch.rand(1, 8, 6, 6).softmax(-1)),
            "rows of the array of shape (1, 8, 6, 6) sum to 1, like attention weights",
        ),
        (
            lambda: attnscope.intervene(steps=10**11),
            "steps (--steps) is 100000000000; expected a whole number from 0 to 10000",
        ),
        (
            lambda: attnscope.measure_weights([torch.eye(6).expand(1, 1, 6, 6)], band=10**12),
            "band (--band) is 1000000000000; expected a whole number from 1 to 10",
        ),
        (lambda: attnscope_lineage.walk(model=nn.Linear(2, 2)), "Linear is not a transformers model: pass a tensor X"),
        (lambda: attnscope_lineage.compare({"a": 3}), "a is 3 (int); expected a file of settings"),
    ],
)
def test_messages_name_the_argument_its_value_and_what_is_expected(call, says):
    with pytest.raises(AttnscopeError) as error:
        call()
    assert str(error.value).startswith(says)
    assert len(str(error.value).splitlines()) <= 2


@pytest.mark.usefixtures("no_types")
def test_a_compiled_model_is_the_model_itself():
    bert = BertModel(BertConfig(vocab_size=4096, **_SIZES)).eval()
    compiled = torch.compile(bert, backend="eager")
    assert load_model(compiled, need_tokenizer=False).model is bert
    found, expected = (attnscope.scan(one, "The tide is out.", tokenizer=MODEL) for one in (compiled, bert))
    assert found.entropy.equals(expected.entropy)


def test_what_users_give_in_their_place_is_taken():
    @checked
    def told(count: "int | None" = None, share: "float" = 1.0, band: "tuple[int, int] | None" = None) -> tuple:
        return count, share, band

    assert told(np.int64(3), 1, [3, 10]) == (3, 1, [3, 10])
    assert told(share=np.float32(0.5), band=np.array([3, 10])) == (None, 0.5, [3, 10])
    assert [type(value) for value in told(np.int64(3), np.float32(0.5))] == [int, float, type(None)]
    with pytest.raises(TypeError, match=r"told\(\) has no argument 'bands': use band$"):
        told(bands=3)


MEASURES_ALL = (
    "scan() has no argument 'layers', since it measures all heads: select from the result, as in "
    "result.sel(layer=0, head=3)"
)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: attnscope.scan(text="The tide."), "scan() has no argument 'text': use texts"),
        (lambda: attnscope.scan(corpus=["The tide."]), "scan() has no argument 'corpus': use texts"),
        (lambda: attnscope.scan(model_name="gpt2"), "scan() has no argument 'model_name': use model"),
        (lambda: attnscope.scan(tokeniser="gpt2"), "scan() has no argument 'tokeniser': use tokenizer"),
        (lambda: attnscope.scan(max_length=8), "scan() has no argument 'max_length': use window"),
        (lambda: attnscope.scan(out_dir="runs"), "scan() has no argument 'out_dir': use out"),
        (lambda: attnscope.scan(layers=[0]), MEASURES_ALL),
        (lambda: attnscope.examples(head="2.3"), "examples() has no argument 'head': use heads"),
        (lambda: attnscope.weights("bundled", "The tide.", layers=1), "weights() has no argument 'layers': use layer"),
        (lambda: attnscope.patch(clean="a", corrupted="b"), "patch() has no argument 'clean': use pairs"),
        (lambda: attnscope.view(text="The tide."), "view() has no argument 'text': use texts"),
        (lambda: attnscope.Session(text="The tide."), "Session() has no argument 'text': use texts"),
    ],
)
def test_an_argument_that_a_newcomer_tries_names_the_one_to_use(call, says):
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == says


@pytest.mark.parametrize("pairs", ["The tide comes in.", ["The tide comes in.", "The tide goes out."]])
def test_texts_in_place_of_pairs_get_the_form_of_a_pair(pairs):
    with pytest.raises(
        AttnscopeError, match=r'^found a text in place of pairs\. Write \{"clean": "\.\.\.", "corrupted"'
    ):
        attnscope.patch("bundled", pairs)


def test_what_is_left_out_of_the_shared_parameters_reaches_a_verb_as_its_default():
    shown = inspect.signature(attnscope.scan).parameters
    assert {name: shown[name].default for name in ("trust_remote_code", "repair", "by_line", "chat")} == dict.fromkeys(
        ("trust_remote_code", "repair", "by_line", "chat"), False
    )
    reached = taking_shared(limit=3)
    assert (reached["limit"], reached["seed"], reached["device"], reached["trust_remote_code"]) == (3, 0, None, False)
    with pytest.raises(TypeError, match=r"taking_shared\(\) has no argument 'limits': use limit$"):
        taking_shared(limits=3)
    with pytest.raises(AttnscopeError, match=r"limit .* is 0"):
        taking_shared(limit=0)


@checked
def taking_shared(**reading: "Unpack[Reading]") -> dict[str, object]:
    return {**reading}


LATE = {
    "card": [{"needles": "absent"}, {"published": "absent"}, {"controls": "none_such"}, {"kept": [(0, 1)]}],
    "roles": [{"needles": "absent"}, {"only": "none_such"}],
    "patch": [{"pairs": Path("absent")}, {"receiver": "1"}],
    "edges": [{"pairs": Path("absent")}, {"sizes": [2.0]}],
    "attribute": [{"pairs": Path("absent")}],
    "intervene": [{"ablations": ["none_such"]}, {"steps": -1}],
    "head_outputs": [{"on": "none_such"}],
    **{verb: [] for verb in ("explain", "circuits")},
}


@pytest.mark.parametrize("verb", LATE)
@pytest.mark.usefixtures("no_types")
def test_what_needs_no_model_is_checked_before_one_is_loaded(verb, tmp_path, monkeypatch):
    monkeypatch.setattr(opened, "load_model", lambda *_, **__: pytest.fail("a model is loaded"))
    (tmp_path / "notes.txt").write_text("of somebody else")
    folders = [] if verb == "head_outputs" else [{"out": tmp_path}, {"out": tmp_path / "notes.txt"}]
    for settings in [*LATE[verb], *folders]:
        with pytest.raises(AttnscopeError):
            function_of(verb)(**settings)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


#: Options that change no number, and what a signature has by other names (the model, the texts, the answers of pairs).
NO_NUMBERS = {"model", "texts", "pairs", "answer", "wrong", "batch_size", "variants"}
OTHER_NAMES = {"forbid_offsets", "forbid_first", "forbid_tokens", "together", "receiver"}


def of_settings(function):
    """The names that the settings of a verb's signature are made of, and all strings in it."""
    named = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))):
        targets = [*getattr(node, "targets", []), getattr(node, "target", None)]
        if any(getattr(target, "value", target) and "settings" in ast.unparse(target) for target in targets if target):
            named |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            named |= {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
    return named


@pytest.mark.parametrize("name", ["patch", "edges", "attribute", "intervene", "circuits"])
def test_a_setting_that_changes_numbers_is_in_the_signature(name):
    """Else a finished run of other settings would answer."""
    function = function_of(name)
    own = set(inspect.signature(inspect.unwrap(function)).parameters) - {"reading"}
    assert own - NO_NUMBERS - OTHER_NAMES <= of_settings(function)
