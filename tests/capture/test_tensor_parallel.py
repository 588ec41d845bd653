"""Models whose heads are spread over processes are rejected by all that measures or changes heads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import transformers as T

ROOT = Path(__file__).parents[2]

SPLIT = """
import sys, torch, transformers as T
from torch import distributed
import attnscope
from attnscope.catalogue import function_of
import attnscope_circuits
from attnscope.bundled import MODELS
from attnscope_monitor import HeadMonitor
from attnscope.support.errors import AttnscopeError

distributed.init_process_group("gloo")
folder, how = sys.argv[1:]
if how == "transformers":
    from transformers.distributed import DistributedConfig
    model = T.AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2))
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    model, mesh = T.AutoModelForCausalLM.from_pretrained(folder), init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        plan = {f"{name}_proj": ColwiseParallel() for name in "qkv"} | {"o_proj": RowwiseParallel()}
        parallelize_module(layer.self_attn, mesh, plan)
ids = torch.arange(5, 25)[None]
assert model(ids).logits.shape == (1, 20, 400)
tokenizer = T.AutoTokenizer.from_pretrained(MODELS["bundled:tasks"])
texts = {"texts": ["The tide comes in twice a day."], "tokenizer": tokenizer}
calls = {
    "circuits": lambda: attnscope_circuits.circuits(model, tokenizer=tokenizer),
    "edit": lambda: attnscope.edit(model, {(0, 1): torch.zeros_like}, on="z").__enter__(),
    "held": lambda: HeadMonitor({"input_ids": ids})(model, 0),
    "next": lambda: HeadMonitor().measure_next(torch.nn.Sequential(model), 0),
    "session": lambda: attnscope.Session(model, **texts),
}
for verb in ("scan", "intervene", "attribute", "roles", "explain", "generate"):
    calls[verb] = lambda verb=verb: function_of(verb)(model, **texts)
for name, call in calls.items():
    try:
        call()
        print(name, "measured", flush=True)
    except AttnscopeError as error:
        assert "each process has a part of the heads of this model (tensor-parallel), and" in str(error), name
print("rejected", len(calls), flush=True)
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["transformers", "torch"])
def test_heads_that_processes_share_are_not_taken_for_all(how, tmp_path):
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    T.LlamaForCausalLM(T.LlamaConfig(vocab_size=400, intermediate_size=128, **sizes)).save_pretrained(tmp_path)
    (tmp_path / "split.py").write_text(SPLIT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([*command, str(tmp_path / "split.py"), str(tmp_path), how], env=environment,
                          capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["rejected", "11"] * 2
