"""Texts of 1 to 40 tokens: every command ends in success or in one line, with page and figures.

python -m benchmarks.tiny_texts                       # 100 cases of each command
python -m benchmarks.tiny_texts scan diff --cases 500
"""

# ruff: noqa: S101 what a command has to do is asserted

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.command import attnscope

from attnscope.bundled import MODEL

SIZES = {
    "vocab_size": 640,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
}
BOTH = {"d_model": 16, "vocab_size": 640} | {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))
}
MODELS = {
    "encoder": {
        "bundled": None,
        "bert": lambda ids: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **ids)),
    },
    "causal": {
        "gpt2": lambda ids: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=640, n_embd=16, n_head=2, n_layer=2, n_positions=64, **ids)
        ),
        "llama": lambda ids: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **ids)),
    },
    "both": {
        "bart": lambda ids: transformers.BartForConditionalGeneration(
            transformers.BartConfig(**BOTH, max_position_embeddings=64, decoder_start_token_id=2, **ids)
        ),
        "t5": lambda ids: transformers.T5ForConditionalGeneration(
            transformers.T5Config(
                vocab_size=640, d_model=16, d_kv=8, num_heads=2, num_layers=1, d_ff=16, decoder_start_token_id=0, **ids
            )
        ),
    },
}
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
ONE = ("a", "I", ".", ",", "1", "the", "of", "and", "in", "to", "was", "he")  # each a token
PIECES = (*ONE, *["dog", "猫", "は", "é", "👩\u200d🚀", "don't", "3.5", "<mask>", "</s>", "<user>"], "\n", "\t", "   ")
COMMON = {"window": (3, 4, 5, 6, 8, 10, 16), "limit": (1, 2, 6), "batch-size": (1, 3)}
OPTIONS = {
    "scan": COMMON
    | {"words": ("unicode", "space"), "groups": ("types", "roles"), "rows": (16,), "pool": (1, 2), "task": ("1/1",)}
    | {"band": (1, 3, 60), "offsets": ("-1", "-30"), "stride": (1, 2), "clusters": (2, 5), "until": (0.3,)}
    | {"statistics": ("entropy", "default,recent_top_key", "profile"), "show": ("0.0,1.1",), "window": (5, 11, 16, 40)},
    "generate": COMMON
    | {"new-tokens": (1, 2, 5), "beams": (1, 2, 3), "span": ("x=the.*",), "groups": ("types",), "sample": (True,)}
    | {"cache": ("static", "none")},
    "roles": COMMON
    | {"controls": ("none",), "only": ("previous_token", "induction,local", "retrieval"), "needles": ("none",)},
    "explain": {"band": (1, 2, 3), "frequencies": ("1:2",), "interventions": (True,), "layer": (0, 1), "limit": (2, 6)},
    "intervene": COMMON
    | {"ablations": ("zero", "mean", "resample"), "steps": (0, 1, 2), "search": (True,), "curves": (True,)}
    | {"together": ("0.0,0.1",), "forbid-offset": (-1, 0), "forbid-first": (True,), "no-why": (True,), "band": (1, 2)},
    "patch": {"what": ("heads", "residual"), "by-position": (True,), "direction": ("denoising", "noising")}
    | {"receiver": ("1.0",), "steps": (0, 2)},
    "diff": {"words": ("unicode", "space"), "rows": (16,), "groups": ("types",), "band": (1, 60), "window": (11, 16)},
    "walk": {"layer": (0, 1), "head": (0, 1), "query-token": ("0", "1", "the"), "lang": ("ja",), "markdown": ("-",)},
}
CANNOT = {"generate": {"encoder"}, "patch": {"both"}}
WITH_TARGETS, WITH_CHATS = {"scan", "diff", "explain", "intervene", "walk"}, {"scan", "generate"}

_piece = (
    st.sampled_from(ONE)
    | st.sampled_from(PIECES)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=2)
)
_content = st.lists(_piece, min_size=1, max_size=38).map(" ".join)
_plain = st.lists(st.sampled_from(ONE), min_size=1, max_size=38).map(" ".join)
_line = (_content.map(lambda text: " ".join(text.split())) | _plain).filter(bool)
_message = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": _content})


def save_models(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    for name, make in ((name, make) for makers in MODELS.values() for name, make in makers.items() if make):
        torch.manual_seed(0)
        make(ids).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    (folder / "chat.jinja").write_text(TEMPLATE)


def _some(draw, choices):
    """A few of the options, each with one of its values."""
    names = draw(st.lists(st.sampled_from(list(choices)), max_size=3, unique=True))
    values = [(name, draw(st.sampled_from(choices[name]))) for name in names]
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in values]


def _pairs(draw):
    """Pairs of texts that differ in some words, all as long."""
    length, where = draw(st.integers(1, 38)), draw(st.integers(0, 37))
    for _ in range(draw(st.integers(1, 7))):
        clean = [draw(st.sampled_from(ONE)) for _ in range(length)]
        corrupted = [*clean[: where % length], draw(st.sampled_from(ONE)), *clean[where % length + 1 :]]
        answers = draw(st.lists(st.sampled_from(ONE), min_size=2, max_size=2, unique=True))
        content = (" ".join(clean), " ".join(corrupted), *(f" {answer}" for answer in answers))
        yield dict(zip(("clean", "corrupted", "answer", "wrong"), content, strict=True))


def _asked(draw, command, kind, home):
    """The texts as the command line names them; files of them are written."""
    if command == "walk":
        return ([f"--target={draw(_line)}"] if kind == "both" and draw(st.booleans()) else []) + ["--", draw(_content)]
    if command == "patch":
        (home / "pairs.jsonl").write_text("\n".join(map(json.dumps, _pairs(draw))))
        return ["pairs.jsonl"]
    forms = ["plain", "lines"] + ["chat"] * (command in WITH_CHATS)
    form = draw(st.sampled_from(["pairs"] if kind == "both" and command in WITH_TARGETS else forms))
    number = draw(st.integers(1, 8))
    if form == "chat":
        chats = [draw(st.lists(_message, min_size=1, max_size=3)) for _ in range(number)]
        (home / "chat.jsonl").write_text("\n".join(json.dumps({"messages": chat}) for chat in chats))
        return ["chat.jsonl", "--chat-template", "chat.jinja"]
    texts = [draw(_content if form == "plain" else _line) for _ in range(number)]
    (home / "text.txt").write_text("\n".join(texts), newline="")
    if form != "pairs":
        return ["text.txt", *(["--by-line"] if form == "lines" else [])]
    (home / "target.txt").write_text("\n".join(draw(_line) for _ in texts), newline="")
    return ["text.txt", "--target", "target.txt"]


def _reject(constant):
    message = f"{constant} is not JSON"
    raise ValueError(message)


def _said(*words, cwd):
    """What the command prints; None where it ends in a line that says why."""
    found = attnscope(*words, cwd=cwd)
    print(words[0], "|", found.returncode, found.stderr.strip()[:300], flush=True)
    if not found.returncode:
        if "--json" in words:
            json.loads(found.stdout, parse_constant=_reject)
        return found.stdout
    assert found.returncode == 2, found.stderr
    assert found.stderr.startswith("attnscope: "), found.stderr
    assert len(found.stderr.strip().splitlines()) <= 2, found.stderr
    assert not found.stdout, found.stdout
    return None


def try_texts(command, home, cases):
    """A short text is measured, or rejected in a line."""

    @settings(max_examples=cases, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data):
        kind = data.draw(st.sampled_from([kind for kind in MODELS if kind not in CANNOT.get(command, ())]))
        models = [data.draw(st.sampled_from(list(MODELS[kind]))) for _ in range(1 + (command == "diff"))]
        words = [*_some(data.draw, OPTIONS[command]), *_asked(data.draw, command, kind, home)]
        if command == "explain":  # of full windows alone
            words.append(f"--window={data.draw(st.sampled_from([5, 6, 7, 8, 10, 16]))}")
        if command == "walk":
            _said(command, *models, *words, cwd=home)
            return
        words += data.draw(st.sampled_from([[], ["--json"], ["--csv"]]))
        verb = "scan" if command == "diff" else command
        for number, model in enumerate(models):
            shutil.rmtree(home / f"out-{number}", ignore_errors=True)
            said = _said(verb, model, *words, f"--out=out-{number}", cwd=home)
            if said is None:
                return
            assert (home / f"out-{number}" / "report.html").exists()
        assert _said("runs", "show", f"out-{number}", cwd=home)
        if command == "diff":
            shutil.rmtree(home / "out", ignore_errors=True)
            _said(command, "out-0", "out-1", "--out=out", cwd=home)
        else:
            assert _said(verb, model, *words, f"--out=out-{number}", cwd=home) == said  # what was kept

    run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", choices=[*OPTIONS, []])
    parser.add_argument("--cases", type=int, default=100)
    given_words = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        save_models(Path(place))
        for one in given_words.commands or OPTIONS:
            try_texts(one, Path(place), given_words.cases)
