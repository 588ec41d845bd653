"""A dry run counts the passes of a run, finds their memory without weights, and writes nothing."""

import json
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers as T
from torch import nn

import attnscope
from attnscope.bundled import MODEL, MODELS
from attnscope.catalogue import function_of, verbs
from attnscope.intervention.stack import StackedPasses
from attnscope.plan import Live
from attnscope.report.render import as_json
from attnscope.report.schema import Report
from attnscope.support.checked import declaration
from attnscope.support.errors import AttnscopeError
from tests.cli.command import attnscope as typed
from tests.image_models import SIDE, vision_model

TASKS = MODELS["bundled:tasks"]
TEXTS = ["The tide comes in twice a day, and twice a day it goes out again. " * 8, "The moon pulls at the sea. " * 20]
PLANNED = [name for name in verbs() if "dry_run" in declaration(function_of(name))]


def run_of(report):
    return as_json(report, "")["tables"]["run"][0]


def memory_of(report):
    return {row["device"]: row for row in as_json(report, "")["tables"]["memory"]}


@pytest.fixture(scope="module")
def without_weights(tmp_path_factory):
    """The bundled causal model without its weights."""
    folder = tmp_path_factory.mktemp("config") / "model"
    shutil.copytree(TASKS, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


OPTIONS = {
    "circuits": {},
    "patch": {"pairs": "agreement"},
    "edges": {"pairs": "agreement"},
    "examples": {"heads": [(0, 1)]},
}
OPTIONS |= {"relations": {"query": "tide", "key": "day"}}


@pytest.mark.parametrize("verb", PLANNED)
def test_every_verb_with_a_model_is_planned_with_and_without_weights(verb, without_weights, tmp_path):
    options = OPTIONS.get(verb, {"texts": TEXTS})
    options |= {"texts": TEXTS} if "texts" in declaration(function_of(verb)) else {}
    plans = [
        function_of(verb)(model, dry_run=True, out=tmp_path / "run", **options) for model in (TASKS, without_weights)
    ]
    runs = [*map(run_of, plans)]
    assert all(isinstance(plan, Report) for plan in plans)
    assert memory_of(plans[0])["cpu"]["weights"] == memory_of(plans[1])["cpu"]["weights"] > 0
    assert [run["passes"] for run in runs] == [runs[0]["passes"]] * 2
    assert (runs[0]["seconds"] is not None) == (verb != "circuits")
    assert runs[1]["seconds"] is None
    assert not [*tmp_path.iterdir()]


def test_a_scan_has_the_windows_and_the_results_that_are_planned():
    settings = {"window": 12, "batch_size": 2, "limit": 5}
    plan, results = (attnscope.scan(TASKS, TEXTS, dry_run=dry, **settings) for dry in (True, False))
    run = run_of(plan)
    assert (run["texts"], run["tokens"]) == (results.sizes["window"], int(results.length.sum()))
    assert run["batches"] == run["passes"] == -(-run["texts"] // 2)
    summary = {"label", "label_share", "majority_share"}
    stored = sum(
        values.nbytes
        for name, values in results.data_vars.items()
        if "window" in values.dims and "layer" in values.dims and name not in summary
    )
    assert run["disk"] * 1e9 == pytest.approx(stored, rel=0.1)


def test_pools_keep_the_statistics_of_every_window(tmp_path):
    settings = {"window": 12, "batch_size": 2, "limit": 6, "statistics": "entropy,profile"}
    whole, pooled = (
        run_of(attnscope.scan(TASKS, TEXTS, dry_run=True, **settings, **more)) for more in ({}, {"pool": 3})
    )
    attnscope.scan(TASKS, TEXTS, out=tmp_path / "run", pool=3, **settings)
    windows = attnscope.open_run(tmp_path / "run", part="windows")
    kept = sum(values.nbytes for values in windows.data_vars.values() if "layer" in values.dims)
    assert pooled["texts"] == windows.sizes["pooled_window"]
    assert pooled["disk"] * 1e9 == pytest.approx(whole["disk"] * 1e9 / 3 + kept, rel=0.02)


def test_blocks_run_as_often_as_planned():
    """Between runs over two and over four batches, so that what comes before the first does not count."""
    model = T.AutoModelForCausalLM.from_pretrained(TASKS)
    tokenizer = T.AutoTokenizer.from_pretrained(TASKS)
    texts = [" ".join(TEXTS)] * 4
    calls = []
    model.base_model.get_submodule("layers.0").register_forward_hook(lambda *_: calls.append(1))
    for verb, options in (("scan", {}), ("attribute", {}), ("roles", {"controls": "none", "only": ["previous_token"]})):
        seen, planned = [], []
        for limit in (2, 4):
            settings = {"limit": limit, "window": 16, "batch_size": 1, "tokenizer": tokenizer, **options}
            plan = function_of(verb)(model, texts, dry_run=True, **settings)
            calls.clear()
            function_of(verb)(model, texts, **settings)
            seen.append(len(calls))
            planned.append(run_of(plan)["passes"])
        assert seen[1] - seen[0] == planned[1] - planned[0] > 0, verb


def test_an_ablation_of_a_later_layer_is_a_smaller_part_of_a_pass(without_weights):
    config = T.AutoConfig.from_pretrained(without_weights)
    layers = config.num_hidden_layers
    settings = {"window": 16, "limit": 1, "steps": 0, "ablations": ["zero"]}
    passes = [
        run_of(attnscope.intervene(without_weights, TEXTS, heads=[(layer, 0)] * 1, dry_run=True, **settings))["passes"]
        for layer in (0, layers - 1)
    ]
    assert passes == [2, round(1 + 1 / layers)]


def test_memory_is_that_of_tensors_alive_at_once():
    with torch.device("meta"):
        model, given = nn.Sequential(nn.Linear(8, 1000), nn.ReLU(), nn.Linear(1000, 4)), torch.zeros(5, 8)
    with torch.no_grad(), Live(model, "cpu") as live:
        model(given)
    assert live.most["cpu"] == 2 * 5 * 1000 * 4  # before and after the ReLU
    assert live.now["cpu"] == 0


def test_a_large_model_is_planned_on_devices_that_are_not_here(tmp_path):
    sizes = {"hidden_size": 8192, "num_hidden_layers": 20, "num_attention_heads": 64, "num_key_value_heads": 8}
    config = T.LlamaConfig(**sizes, intermediate_size=28672, vocab_size=128256, dtype="bfloat16")
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    how = {"window": 2048, "batch_size": 1, "tokenizer": MODEL, "dry_run": True, "device_map": "auto"}
    ids = np.random.default_rng(0).integers(5, 99, (2, 2048)).tolist()
    plan = attnscope.scan(tmp_path, ids, max_memory={0: "20GB", 1: "20GB", 2: "20GB"}, **how)
    memory = memory_of(plan)
    assert memory.pop("cpu")["total"] == run_of(plan)["disk"]  # results are on the host
    assert [*memory] == ["cuda:0", "cuda:1", "cuda:2"]
    assert sum(row["weights"] for row in memory.values()) == pytest.approx(38.4, abs=0.1)  # 19.21 billion, of 2 bytes
    ends = [tuple(map(int, row["layers"].split("-"))) for row in memory.values()]
    assert [ends[0][0], ends[-1][1]] == [0, 19]
    assert all(first[1] + 1 == second[0] for first, second in pairwise(ends))
    assert all(row["available"] == 20 > row["total"] > row["weights"] for row in memory.values())
    small = attnscope.scan(tmp_path, ids, max_memory={0: "10GB", "cpu": "5GB"}, **how)
    assert "disk" in memory_of(small)


def test_what_does_not_fit_is_told_with_what_would_help(without_weights):
    settings = {"device_map": {"": 0}, "max_memory": {0: "3MB"}, "batch_size": 8, "window": 16}
    plan = attnscope.scan(without_weights, TEXTS * 20, dry_run=True, **settings)
    _, lacks, helps, time = plan.finding.sentences
    assert "It does not fit:" in lacks
    assert "--dtype bfloat16" in helps
    assert "does not fit" in time
    assert run_of(plan)["seconds"] is None


def test_several_models_and_sounds_are_rejected(tmp_path):
    with pytest.raises(AttnscopeError, match="plans one model"):
        attnscope.scan([MODEL, TASKS], TEXTS, dry_run=True)
    T.Wav2Vec2Config(hidden_size=8, num_hidden_layers=1, num_attention_heads=2).save_pretrained(tmp_path)
    with pytest.raises(AttnscopeError, match="plans runs over texts and images: scan a few sounds"):
        attnscope.scan(tmp_path, [{"array": np.zeros(16_000), "sampling_rate": 16_000}], dry_run=True)


@pytest.mark.parametrize("kind", ["vit", "clip"])
def test_a_scan_of_images_runs_as_planned(kind):
    """Of the tower alone, where a model reads texts too."""
    model, processor = vision_model(kind)
    pixels = torch.rand(5, 3, SIDE, SIDE)
    plan, results = (
        attnscope.scan(model, pixels, tokenizer=processor, batch_size=2, dry_run=dry) for dry in (True, False)
    )
    tokens = int(results.length[0])
    run = run_of(plan)
    assert "5 images" in plan.finding.sentences[0]
    assert f"2 x {tokens}" in plan.finding.sentences[0]
    assert [run["texts"], run["batches"], run["tokens"]] == [5, 3, 5 * tokens]
    memory = memory_of(plan)["cpu"]
    assert memory["weights"] == pytest.approx(sum(one.nbytes for one in (*model.parameters(), *model.buffers())) / 1e9)
    assert memory["activations"] > 2 * tokens * 4 / 1e9
    with pytest.raises(AttnscopeError, match="counts patches"):
        attnscope.scan(vision_model("swin")[0], pixels, batch_size=2, dry_run=True)


def test_the_command_prints_the_plan(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    done = typed("scan", "bundled", "text.txt", "--window", "16", "--dry-run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tables"]["run"][0]["tokens"] > 0
    done = typed("intervene", "bundled", "text.txt", "--dry-run", "--lang", "ja", cwd=tmp_path)
    assert "秒" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_plan_of_patch_has_the_variants_of_the_run(monkeypatch):
    """Of long pairs: logits are those of one position, and states those of all tokens."""
    same, seen = " the" * 60, []
    pairs = [{"clean": f"a{same}", "corrupted": f"a a{same[4:]}", "answer": " the", "wrong": " a"}] * 2
    run = StackedPasses.run

    def counted(self, edits, variants, *more, **named):
        seen.append(variants * self._texts)
        return run(self, edits, variants, *more, **named)

    settings = {"steps": 0, "by_position": True, "heads": [(1, 0), (1, 1)]}
    plan = attnscope.patch(TASKS, pairs, dry_run=True, **settings)
    monkeypatch.setattr(StackedPasses, "run", counted)
    attnscope.patch(TASKS, pairs, **settings)
    assert f"up to {max(seen)} x 6" in plan.finding.sentences[0]
