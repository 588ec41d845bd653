"""What is given to a public function is of a kind that it takes, or is refused in a line."""

import pytest
import torch
from transformers import BertConfig, BertModel

import attnscope
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model

_SIZES = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
BERT = BertModel(BertConfig(vocab_size=4096, **_SIZES)).eval()

CALLS = [
    (lambda: attnscope.scan(torch.nn.Linear(2, 2), "x"), "Linear is not a model of transformers. Use attnscope.watch"),
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
    (lambda: attnscope.explain(completion=b"x"), "completion (--completion) is b'x'; expected one of minimal"),
    (lambda: attnscope.roles(needles=3), "needles is 3 (int); expected a file of JSON Lines"),
    (lambda: attnscope.explain(3), "model is 3 (int)"),
    (lambda: attnscope.translate(3, ["a"]), "model is 3 (int)"),
    (lambda: attnscope.translate("bundled", 3), "the text is 3 (int); expected a string, a pathlib.Path"),
    (lambda: attnscope.align("bundled", ["a"], [3]), "line 1 of the target is 3 (int)"),
    (lambda: attnscope.walk(texts=3), "texts is 3 (int); expected a string or Tensor or None"),
    (lambda: attnscope.walk(model=torch.nn.Linear(2, 2)), "Linear is not a transformers model: pass a tensor X"),
    (lambda: attnscope.walk(query_token=[3]), "query_token is [3] (list); expected a whole number"),
    (lambda: attnscope.score(3, [["a"]]), "hypotheses is 3 (int)"),
    (lambda: attnscope.score([[1, 2]], [["a", "b"]]), "line 1 of system 1 is 1 (int)"),
    (lambda: attnscope.compare(3), "systems is 3 (int)"),
    (lambda: attnscope.compare({"a": 3}), "a is 3 (int); expected a file of settings"),
    (lambda: attnscope.train(3), "config is 3 (int)"),
    (lambda: load_model(torch.compile(BERT, backend="eager"), need_tokenizer=False).model is BERT, "True"),
    (
        lambda: scanned(torch.compile(BERT, backend="eager")).equals(scanned(BERT)) and "output" not in vars(BERT),
        "True",
    ),
]


def scanned(model):
    return attnscope.scan(model, "The tide is out.", tokenizer=MODEL).entropy


@pytest.mark.usefixtures("no_types")
@pytest.mark.parametrize(("call", "says"), CALLS)
def test_other_types_raise_and_compiled_models_load(call, says):
    try:
        found = str(call())
    except attnscope.AttnscopeError as error:
        found = str(error)
    assert found.startswith(says)
    assert len(found.splitlines()) <= 2
