"""Public functions refuse arguments of wrong types by name, before anything is done."""

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Unpack

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import attnscope
from attnscope import AttnscopeError
from attnscope.capture.parameters import Reading
from attnscope.explanation.analyses.shift import cross_spectrum
from attnscope.support.arguments import validated

VERBS = [name for name in attnscope.__all__ if inspect.isfunction(getattr(attnscope, name))]
PUBLIC = {f"attnscope.{name}": getattr(attnscope, name) for name in VERBS}
for path in sorted(Path(attnscope.__file__).parent.rglob("*.py")):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
        if isinstance(node, ast.FunctionDef) and any(re.match(r"validated\b", one) for one in decorators):
            name = ".".join(("attnscope", *path.relative_to(Path(attnscope.__file__).parent).with_suffix("").parts))
            PUBLIC.setdefault(f"{name}.{node.name}", getattr(importlib.import_module(name), node.name))
WRONG = b"neither a number nor a string"
PLAIN = (
    "int",
    "Count",
    "Natural",
    "Draws",
    "Seed",
    "float",
    "bool",
    "str",
    "Path",
    "Sequence[str",
    "Sequence[int",
    "Sequence[tuple",
)


def test_every_public_function_checks():
    assert len(PUBLIC) > 20
    unchecked = {
        name
        for name, function in PUBLIC.items()
        if not re.match(r"(@reads\(.*\)\n)?@(validated|verb)(\(.*\))?\n", inspect.getsource(inspect.unwrap(function)))
    }
    assert not unchecked


def test_no_public_signature_takes_or_gives_whatever_there_is():
    functions = PUBLIC
    untyped = {
        f"{name}: {annotation}"
        for name, function in functions.items()
        for annotation in annotations_of(function)
        if any("Any" in meaning.split() for meaning in meanings(annotation, function))
    }
    assert not untyped


def annotations_of(function):
    signature = inspect.signature(function)
    given = [parameter.annotation for parameter in signature.parameters.values()]
    return map(inspect.formatannotation, (*given, signature.return_annotation))


def meanings(annotation, function):
    """An annotation, and what the names in it stand for, in words."""
    known = inspect.unwrap(function).__globals__
    for text in (
        annotation,
        *(repr(known[name]) for name in re.findall(r"\w+", annotation) if name in known and name != "Row"),
    ):
        yield re.sub(r"\W", " ", text)


def test_a_model_is_given_in_the_same_forms_everywhere():
    given = {
        name: {*parameters["model"].annotation.split(" | ")}
        for name, function in PUBLIC.items()
        if "model" in (parameters := inspect.signature(function).parameters)
        and name != "attnscope.detection.roles.control"  # it changes the weights of a model object
    }
    assert len(given) > 10
    assert all("Model" in forms for forms in given.values())
    of_verbs = {form for verb in VERBS for form in given.get(f"attnscope.{verb}", ())}
    assert of_verbs == {"Model", "None"}
    assert {form for forms in given.values() for form in forms} == {"Model", "Study", "None"}


def test_a_verb_that_loads_a_model_takes_how_it_is_loaded():
    how = {"device", "dtype", "revision", "trust_remote_code"}
    lacking = {
        verb: how - {*parameters}
        for verb in VERBS
        if "model" in (parameters := inspect.signature(PUBLIC[f"attnscope.{verb}"]).parameters)
    }
    assert len(lacking) > 10
    assert not any(lacking.values())


def test_a_verb_takes_its_model_first_and_then_texts():
    """As README.md says of them."""
    first = {verb: [*inspect.signature(PUBLIC[f"attnscope.{verb}"]).parameters][:2] for verb in VERBS}
    of_models = {verb: names for verb, names in first.items() if "model" in names}
    assert len(of_models) > 10
    assert {verb for verb, names in of_models.items() if names != ["model", "texts"]} == {"patch"}
    assert first["patch"] == ["model", "pairs"]
    assert {verb: first[verb][0] for verb in ("train", "compare", "diff", "score")} == {
        "train": "config",
        "compare": "systems",
        "diff": "before",
        "score": "hypotheses",
    }


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "train"])
def test_a_verb_has_no_parameters_without_a_name(verb):
    """Those of `train` are the fields of its settings, which are checked there."""
    kinds = {parameter.kind for parameter in inspect.signature(PUBLIC[f"attnscope.{verb}"]).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_names_each_argument_of_a_wrong_type(verb):
    function = PUBLIC[f"attnscope.{verb}"]
    parameters = inspect.signature(function).parameters
    plain = [
        name
        for name, parameter in parameters.items()
        if any(part.strip().startswith(PLAIN) for part in parameter.annotation.split("|"))
        and parameter.kind not in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}
        and name != "model"  # `load_model` refuses it, with more words
        and "Lines" not in parameter.annotation
    ]
    assert plain or verb == "runs"
    before = needed(function)
    for name in plain:
        with pytest.raises(AttnscopeError, match=rf"^{name} is of type bytes; expected "):
            function(**(before | {name: WRONG}))


@pytest.mark.usefixtures("no_types")
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_refuses_what_is_no_value_of_any_kind(verb, tmp_path, monkeypatch):
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
        name: fitting(parameter)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}
    }


def fitting(parameter):
    """Something that the signature takes."""
    for name, value in (("Dataset", xr.Dataset()), ("Module", nn.Identity())):
        if name in parameter.annotation:
            return value
    takes_text = any(part in parameter.annotation for part in ("str", "Path", "Lines", "Model"))
    if any(part in parameter.annotation for part in ("int", "Count", "Natural")) and not takes_text:
        return 0
    return "nowhere" if takes_text else object()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: attnscope.walk(layer="0"), "layer is '0' (str); expected a whole number or None"),
        (lambda: attnscope.walk(head=2.5), "head is 2.5 (float); expected a whole number"),
        (lambda: attnscope.walk(head=True), "head is True (bool); expected a whole number"),
        (
            lambda: attnscope.scan(show=["3.6"]),
            "show is ['3.6'] (list); expected a list of entries that are two whole numbers or True or False or None",
        ),
        (
            lambda: attnscope.scan(statistics=["entropy", 3]),
            "statistics is ['entropy', 3] (list); expected a list of strings or a string or None",
        ),
        (
            lambda: attnscope.diff(object(), object(), statistics="entropy"),
            "statistics is 'entropy' (str); expected a list of strings or None",
        ),
        (lambda: attnscope.intervene(curves=2.5), "curves is 2.5 (float); expected True or False"),
        (lambda: cross_spectrum(band=(3, 10, 12)), "band is (3, 10, 12) (tuple); expected two whole numbers or None"),
        (lambda: attnscope.runs(["a"], "b"), "folders is (['a'], 'b') (tuple); expected a list of strings or paths"),
        (
            lambda: attnscope.translate("bundled", ["a"], tokenizer=3),
            "tokenizer is 3 (int); expected a tokenizer, a folder or a hub id",
        ),
        (
            lambda: attnscope.align("bundled", ["a"], ["a"], gold=object()),
            "gold is of type object; expected a string or a path or Gold or None",
        ),
        (lambda: attnscope.intervene(task=object()), "task is of type object; expected a string or Task or None"),
        (
            lambda: attnscope.translate("bundled", None),
            "the text is of type NoneType; expected a string, a pathlib.Path, or a list of sentences",
        ),
        (
            lambda: attnscope.translate("bundled", b"x"),
            "the text is of type bytes; expected a string, a pathlib.Path, or a list of sentences",
        ),
        (
            lambda: attnscope.translate("bundled", {"a": 1}),
            "the text is {'a': 1} (dict); expected a string, a pathlib.Path, or a list of sentences",
        ),
        (lambda: attnscope.translate("bundled", [None]), "line 1 of the text is of type NoneType; expected a sentence"),
        (
            lambda: attnscope.align("bundled", ["a"], None),
            "the target is of type NoneType; expected a string, a pathlib.Path, or a list of sentences",
        ),
        (
            lambda: attnscope.score(None, ["a"]),
            "hypotheses is of type NoneType; expected sentences, a pathlib.Path, or several of these",
        ),
        (
            lambda: attnscope.score(["a"], None),
            "targets is of type NoneType; expected sentences, a pathlib.Path, or several of these",
        ),
        (
            lambda: attnscope.score(["a"], []),
            "targets is empty; expected sentences, a pathlib.Path, or several of these",
        ),
        (lambda: attnscope.diff(None, None), "scan is of type NoneType; expected a scan"),
        *(
            (
                lambda given=given: attnscope.scan(offsets=given),
                f"offsets is {said}; expected a list of whole numbers or None",
            )
            for given, said in (
                (-1, "-1 (int)"),
                (np.int64(-1), "of type int64"),
                (torch.tensor([-1, -2]), "of type Tensor"),
                (np.array([-1.0]), "of type ndarray"),
                ((offset for offset in (-1, -2)), "of type generator"),
                ({-1: "before"}, "{-1: 'before'} (dict)"),
            )
        ),
        (lambda: attnscope.contrasts(object()), "results is of type object; expected xr.Dataset"),
        (lambda: attnscope.explain(analyses=[3]), "analyses is [3] (list); expected a list of strings or Analysis"),
        (
            lambda: attnscope.scan(tokenizer=3),
            "tokenizer is 3 (int); expected a tokenizer, a processor, a folder or a hub id",
        ),
    ],
)
def test_what_is_said(call, said, no_types):
    with pytest.raises(AttnscopeError) as error:
        call()
    assert str(error.value) == said


def test_what_users_give_in_their_place_is_taken():
    @validated
    def told(count: "int | None" = None, share: "float" = 1.0, band: "tuple[int, int] | None" = None) -> tuple:
        return count, share, band

    assert told(np.int64(3), 1, [3, 10]) == (3, 1, [3, 10])
    assert told(share=np.float32(0.5), band=np.array([3, 10])) == (None, 0.5, [3, 10])
    assert [type(value) for value in told(np.int64(3), np.float32(0.5))] == [int, float, type(None)]
    with pytest.raises(TypeError, match="unexpected keyword argument 'bands'"):
        told(bands=3)


def test_what_is_left_out_of_the_shared_parameters_reaches_a_verb_as_its_default():
    shown = inspect.signature(attnscope.scan).parameters
    assert {name: shown[name].default for name in ("trust_remote_code", "repair", "by_line", "chat")} == dict.fromkeys(
        ("trust_remote_code", "repair", "by_line", "chat"), False
    )
    reached = taking_shared(limit=3)
    assert (reached["limit"], reached["seed"], reached["device"], reached["trust_remote_code"]) == (3, 0, None, False)
    with pytest.raises(TypeError, match=r"taking_shared\(\) got an unexpected keyword argument 'limits'"):
        taking_shared(limits=3)
    with pytest.raises(AttnscopeError, match=r"limit .* is 0"):
        taking_shared(limit=0)


@validated
def taking_shared(**reading: "Unpack[Reading]") -> dict[str, object]:
    return {**reading}
