"""Models whose heads are spread over processes are rejected by all that measures or changes heads."""

import pytest
import torch
import transformers as T

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODELS
from attnscope.catalogue import function_of
from tests.command_processes import in_two_processes


def split_by_transformers(folder):
    from transformers.distributed import DistributedConfig

    return T.AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2))


def split_by_torch(folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, mesh = T.AutoModelForCausalLM.from_pretrained(folder), init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        plan = {f"{name}_proj": ColwiseParallel() for name in "qkv"} | {"o_proj": RowwiseParallel()}
        parallelize_module(layer.self_attn, mesh, plan)
    return model


def try_all(folder, how):
    """In one of two processes: what each verb says of the model that they share."""
    import attnscope_circuits
    from attnscope_monitor import HeadMonitor

    torch.distributed.init_process_group("gloo")
    model = {"transformers": split_by_transformers, "torch": split_by_torch}[how](folder)
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
        with pytest.raises(AttnscopeError, match=r"each process has a part of the heads .* \(tensor-parallel\), and"):
            call()
        print(name)
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["transformers", "torch"])
def test_heads_that_processes_share_are_not_taken_for_all(how, tmp_path):
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    T.LlamaForCausalLM(T.LlamaConfig(vocab_size=400, intermediate_size=128, **sizes)).save_pretrained(tmp_path)
    rejected = in_two_processes(try_all, tmp_path, how, cwd=tmp_path)
    assert [len(names.split()) for names in rejected] == [11, 11]
