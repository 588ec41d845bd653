"""What is given to a public function is of a kind that it takes, or is refused in a line.

Checks of the annotations, which other tests run under, would be faster: so this runs in a process of its own.
"""

import json
import subprocess
import sys

import pytest

CALLS = {
    'attnscope.scan(torch.nn.Linear(2, 2), "x")': "model is of type Linear; expected a model of transformers, a folder",
    'attnscope.scan((torch.rand(1, 2, 5, 5),), "x")': "model is of type tuple",
    "attnscope.explain(3)": "model is 3 (int)",
    'attnscope.translate(3, ["a"])': "model is 3 (int)",
    'attnscope.translate("bundled", 3)': "the text is 3 (int); expected a string, a pathlib.Path",
    'attnscope.align("bundled", ["a"], [3])': "line 1 of the target is 3 (int)",
    "attnscope.walk(texts=3)": "texts is 3 (int); expected one sentence",
    "attnscope.walk(model=torch.nn.Linear(2, 2))": "model is of type Linear",
    "attnscope.walk(query_token=[3])": "query_token is of type list",
    'attnscope.score(3, [["a"]])': "hypotheses is 3 (int)",
    'attnscope.score([[1, 2]], [["a", "b"]])': "line 1 of system 1 is 1 (int)",
    "attnscope.compare(3)": "systems is 3 (int)",
    'attnscope.compare({"a": 3})': "a is 3 (int); expected a file of settings",
    "attnscope.train(3)": "config is 3 (int)",
    "load_model(torch.compile(BERT), need_tokenizer=False).model is BERT": "True",
    'scanned(torch.compile(BERT)).equals(scanned(BERT)) and not "output" in vars(BERT)': "True",
}

PROGRAM = """
import json, sys
import attnscope, torch
from attnscope.bundled import MODEL
from attnscope.capture import load_model
from transformers import BertConfig, BertModel

sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
BERT = BertModel(BertConfig(vocab_size=4096, **sizes)).eval()

def scanned(model):
    return attnscope.scan(model, "The tide is out.", tokenizer=MODEL).entropy

def found(call):
    try:
        return str(eval(call))
    except attnscope.AttnscopeError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__} {error}"

print(json.dumps([found(call) for call in json.load(sys.stdin)]))
"""


@pytest.fixture(scope="module")
def found():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(list(CALLS)),
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(CALLS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("call", CALLS)
def test_what_is_of_another_kind_is_refused_and_a_compiled_model_is_taken(call, found):
    assert found[call].startswith(CALLS[call])
    assert len(found[call].splitlines()) <= 2
