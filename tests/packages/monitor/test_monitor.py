"""`HeadMonitor` on three kinds of models: eager attention's numbers, unchanged losses, and the failures of training."""

import copy
import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from transformers import (
    AttentionInterface,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from attnscope import AttnscopeError
from attnscope.capture.functional import before_dropout
from attnscope.capture.load import load_model
from attnscope_monitor import HeadMonitor
from tests.command_processes import in_two_processes
from tests.tiny_models import tiny

TOKENS, WIDTH, LENGTH, STEPS, EVERY = 40, 32, 12, 6, 3
SIZES = {"vocab_size": TOKENS, "hidden_size": WIDTH, "num_hidden_layers": 2, "intermediate_size": 64}
SIDES = {
    f"{side}_{name}": value
    for side, heads in (("encoder", 4), ("decoder", 2))
    for name, value in (("layers", 2), ("attention_heads", heads), ("ffn_dim", 64))
}
MODELS = {
    "bert": lambda: BertForMaskedLM(BertConfig(**SIZES, num_attention_heads=4, max_position_embeddings=LENGTH)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2)),
    "bart": lambda: BartForConditionalGeneration(
        BartConfig(vocab_size=TOKENS, d_model=WIDTH, **SIDES, pad_token_id=0, decoder_start_token_id=2)
    ),
}
IDS = torch.randint(3, TOKENS, (64, LENGTH), generator=torch.Generator().manual_seed(1))
MASK, LABELLED = torch.ones(2, 6, LENGTH, dtype=torch.long)
MASK[:5, 4:] = 0  # most queries are padding, so that their scores would be the largest
LABELLED[1:, 6:] = 0
HELD = {"input_ids": IDS[:6], "attention_mask": MASK, "labels": IDS[:6].where(LABELLED > 0, -100)}


def built(name):
    torch.manual_seed(0)
    return MODELS[name]()


def trained(model, folder, monitor=None, rate=1e-3, **options):
    """Losses of every step, and what was logged beside."""
    from transformers import Trainer, TrainingArguments  # seconds, which every worker would take

    rows = [{"input_ids": row, "labels": row} for row in IDS]
    arguments = TrainingArguments(
        str(folder), max_steps=STEPS, learning_rate=rate, logging_steps=1, use_cpu=True, disable_tqdm=True, **options
    )
    trainer = Trainer(model, arguments, train_dataset=rows)
    if monitor is not None:
        monitor.log = trainer.log
        trainer.add_callback(monitor)
    trainer.train()
    logged = trainer.state.log_history
    return [line["loss"] for line in logged if "loss" in line], [line for line in logged if "heads/sink_max" in line]


def by_eager(model, monkeypatch):
    """The numbers of each call, ``(layer, head)``, from the arguments and results of every softmax."""
    model = model.eval()
    model.set_attn_implementation("eager")
    calls, softmax = [], torch.nn.functional.softmax

    def noted(scores, *arguments, **options):
        weights = softmax(scores, *arguments, **options)
        calls.append((scores.detach().double(), weights.detach().double()))
        return weights

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(torch.nn.functional, "softmax", noted)
        held = (
            HELD if model.config.is_encoder_decoder else {name: HELD[name] for name in ("input_ids", "attention_mask")}
        )
        model(**held)
    sides = {"encoder": MASK > 0, "decoder": LABELLED > 0}
    found = {name: [] for name in ("logit", "entropy", "entropy_share", "sink", "reach")}
    unlike = False  # whether any padded query has a larger score
    for number, (scores, weights) in enumerate(calls):
        decodes = model.config.is_encoder_decoder and number >= model.config.encoder_layers
        crosses = decodes and (number - model.config.encoder_layers) % 2 == 1
        query, key = sides["decoder" if decodes else "encoder"], sides["decoder" if decodes > crosses else "encoder"]
        allowed = (weights > 0)[:, :1] & key[:, None, None]
        rows = query[:, None].expand(weights.shape[:3])
        uniform = torch.log(allowed.sum(-1).double()).expand(rows.shape)
        place = torch.arange(LENGTH)
        of_rows = {
            "entropy": -torch.xlogy(weights, weights).sum(-1),
            "sink": weights[..., 0],
            "reach": (weights * (place[:, None] - place).abs()).sum(-1),
            "uniform": uniform,
        }
        means = {name: ((values * rows).sum(-1) / rows.sum(-1)).mean(0).numpy() for name, values in of_rows.items()}
        means["entropy_share"] = means["entropy"] / means.pop("uniform")
        own, every = (
            scores.masked_fill(~(allowed & counted[..., None]), -torch.inf).amax((0, 2, 3)).numpy()
            for counted in (rows, torch.ones_like(rows))
        )
        means["logit"], unlike = own, unlike or bool((own != every).any())
        for name, values in means.items():
            found[name].append(np.pad(values, (0, 4 - len(values)), constant_values=np.nan))
    assert unlike
    return {name: np.stack(values) for name, values in found.items()}


@pytest.mark.parametrize("name", MODELS)
def test_the_numbers_are_eager_attentions_and_the_losses_do_not_change(name, tmp_path, monkeypatch):
    tables = []
    monitor = HeadMonitor(HELD, every=EVERY, table=lambda _, of_heads: tables.append(of_heads))
    own, _ = trained(built(name), tmp_path / "own", report_to=[])
    model = built(name)
    watched, logged = trained(model, tmp_path / "watched", monitor, report_to=[])
    assert own == watched
    assert len(own) == STEPS
    assert [line["step"] for line in logged] == monitor.dataset.step.values.tolist() == [0, EVERY, STEPS]
    last = monitor.dataset.isel(step=-1)
    for number, expected in by_eager(model, monkeypatch).items():
        np.testing.assert_allclose(last[number].values, expected, rtol=1e-5, atol=1e-5, err_msg=number)
    assert logged[-1]["heads/logit_max"] == pytest.approx(float(last.logit.max()))
    assert sum(name.startswith("heads/") for name in logged[-1]) == 5  # whatever the number of layers
    assert len(tables) == 3
    table = tables[-1].set_index(["layer", "head"])
    assert float(table.entropy[1, 2]) == float(last.entropy.sel(layer=1, head=2))


def test_a_model_that_draws_random_numbers_trains_alike():
    model = built("bert")
    model.register_forward_pre_hook(lambda *_: (torch.rand(1), None)[1])
    before = torch.get_rng_state()
    HeadMonitor(HELD)(model, 0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", MODELS)
def test_collapse_and_large_scores_come_out_with_a_large_learning_rate_alone(name, tmp_path, caplog):
    said = {}
    for rate in (1e-3, 0.5):
        caplog.clear()
        monitor = HeadMonitor(HELD, every=EVERY)
        with caplog.at_level(logging.WARNING, "attnscope"):
            trained(built(name), tmp_path / str(rate), monitor, rate, lr_scheduler_type="constant", report_to=[])
        said[rate] = [record.getMessage() for record in caplog.records if record.name == "attnscope"]
        last = monitor.dataset.isel(step=-1)
        failed = float(last.entropy_share.min()) < 0.01, float(last.logit.max()) > 100
        assert failed == ((rate == 0.5),) * 2
    assert said[1e-3] == []
    assert [line.split("has ")[1].split(" (")[0] for line in sorted(said[0.5], key=len)] == [
        "a score above 100",
        "an entropy below 1% of the uniform row's",
    ]


def test_a_head_that_rests_on_a_learned_sink_has_not_collapsed(caplog):
    model = tiny("gpt_oss").model.eval()
    for layer in model.layers:
        layer.self_attn.sinks.data.fill_(24.0)
    monitor = HeadMonitor({"input_ids": IDS[:6]})
    with caplog.at_level(logging.WARNING, "attnscope"):
        monitor(model, 0)
    assert not caplog.text
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = torch.stack(model(IDS[:6], output_attentions=True).attentions).double()
    assert weights.sum(-1).max() < 1e-3
    shares = weights / weights.sum(-1, keepdim=True)
    uniform = (weights > 0).sum(-1).double().log().mean((1, 3))
    entropy = torch.special.entr(shares).sum(-1).mean((1, 3)) / uniform
    np.testing.assert_allclose(monitor.dataset.entropy_share[0], entropy, rtol=1e-4)


def test_scalars_reach_tensorboard_and_mixed_precision_trains_alike(tmp_path, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    own, _ = trained(built("bert"), tmp_path / "own", bf16=True, report_to=[])
    monitor = HeadMonitor(HELD, every=EVERY)
    watched, _ = trained(built("bert"), tmp_path / "watched", monitor, bf16=True, report_to=["tensorboard"])
    assert own == watched
    events = accumulator.EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    points = events.Scalars("train/heads/entropy_min")
    assert [point.step for point in points] == [0, EVERY, STEPS]
    np.testing.assert_allclose([point.value for point in points], monitor.dataset.entropy[:, 0].min("head"), rtol=1e-6)


def test_texts_in_a_loop_of_ones_own():
    loaded = load_model("bundled")
    model = loaded.model.train()
    generator = torch.get_rng_state()
    monitor = HeadMonitor(["The tide comes in twice a day.", "It goes out."], loaded.tokenizer)
    scalars = [monitor(model, step) for step in (0, 10)]
    assert scalars[0] == scalars[1]
    assert monitor.dataset.sink.shape == (2, 3, 4)
    assert model.training
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_weights_that_are_not_finite_are_reported_and_do_not_stop_the_training(caplog):
    model, monitor = built("llama"), HeadMonitor(HELD)
    assert np.isfinite([*monitor(model, 0).values()]).all()
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[:8] = torch.nan
    with caplog.at_level(logging.WARNING, "attnscope"):
        assert np.isnan(monitor(model, 1)["heads/logit_max"])
    assert np.isfinite(monitor.dataset.logit[1, 0]).all()
    assert "step 1: head 1.0 has scores that are not finite" in caplog.text


def test_weights_that_are_not_finite_at_the_first_step_do_not_stop_the_training(caplog):
    model, monitor = built("llama"), HeadMonitor(HELD)
    weight = model.model.layers[1].self_attn.q_proj.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight[:8] = torch.nan
        assert monitor(model, 0) == {}
        weight.copy_(before)
    assert "step 0: the weights are not finite in model.layers.1.self_attn.q_proj.weight" in caplog.text
    assert np.isfinite([*monitor(model, 1).values()]).all()
    assert monitor.dataset.step == [1]


def test_a_model_of_several_processes_has_the_numbers_of_the_model_inside():
    import torch.distributed as processes

    processes.init_process_group("gloo", rank=0, world_size=1, store=processes.HashStore())
    try:
        batch = {"input_ids": IDS[:6]}
        model, held, own, whole = built("llama"), HeadMonitor(batch), HeadMonitor(), HeadMonitor(batch)
        model = dropping(model, 0.0)
        whole(model, 0)
        together = torch.nn.parallel.DistributedDataParallel(model)
        held(together, 0)
        own.measure_next(together, 0)
        together(**batch)
    finally:
        processes.destroy_process_group()
    xr.testing.assert_identical(held.dataset, whole.dataset)
    assert own.dataset.layer_name.equals(whole.dataset.layer_name)
    for number, values in whole.dataset.data_vars.items():
        np.testing.assert_allclose(own.dataset[number], values, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_measured_says_so():
    with pytest.raises(AttnscopeError, match=r"the held batch has no tokens: its input_ids have the shape \(0, 8\)"):
        HeadMonitor({"input_ids": torch.zeros(0, 8, dtype=torch.long)})(built("llama"), 0)
    with pytest.raises(AttnscopeError, match="texts need a tokenizer"):
        HeadMonitor(["The tide comes in."])
    with pytest.raises(AttnscopeError, match="expected a model of transformers"):
        HeadMonitor(HELD)(torch.nn.Linear(2, 2), 0)


def dropping(model, share):
    """Drop a share of the attention weights, and nothing else."""
    for part in model.modules():
        own = share if "Attention" in type(part).__name__ else 0.0
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if isinstance(kept := getattr(part, name, None), torch.nn.Dropout):
                kept.p = own
            elif kept is not None:
                setattr(part, name, own)
    return model.train()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_the_own_pass_of_a_training_has_the_numbers_of_a_held_batch_before_dropout(name, attention):
    held = {"input_ids": IDS[:6], "labels": IDS[:6]} if name == "bart" else HELD
    numbers = {}
    for share in (0.0, 0.5):
        model = dropping(built(name), share)
        model.set_attn_implementation(attention)
        monitor, beside, logged = HeadMonitor(), HeadMonitor(held), []
        monitor.log = logged.append
        monitor.measure_next(model, 7)
        model(**held).loss.backward()
        model(**held)  # not measured
        assert beside(model, 7).keys() == logged[0].keys()
        assert monitor.dataset.step == [7]
        assert len(logged) == 1
        numbers[share] = monitor.dataset.isel(step=0)
        of_held = beside.dataset.isel(step=0, layer=slice(1 if share else None))  # the first layer alone is alike
        for number, values in of_held.data_vars.items():
            own = numbers[share][number].isel(layer=slice(1 if share else None))
            np.testing.assert_allclose(own, values, rtol=1e-5, atol=1e-6, err_msg=number)
    assert abs(numbers[0.0].logit - numbers[0.5].logit)[1:].max() > 1e-4  # weights were dropped


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}], ids=["checkpointed", "accumulated"])
@pytest.mark.parametrize("name", MODELS)
def test_losses_do_not_change_in_the_own_pass_of_a_training(name, options, tmp_path):
    monitor, both = HeadMonitor(every=EVERY), [dropping(built(name), 0.1) for _ in range(2)]
    if not options:
        for model in both:  # the old name warns where there is the new one
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    own, _ = trained(both[0], tmp_path / "own", report_to=[], **options)
    watched, logged = trained(both[1], tmp_path / "watched", monitor, report_to=[], **options)
    assert own == watched
    assert [line["step"] for line in logged] == monitor.dataset.step.values.tolist() == [0, EVERY]
    assert monitor.dataset.sizes["layer"] == (6 if name == "bart" else 2)
    assert all("forward" not in vars(part) for part in both[1].modules() if part is not both[1])  # nothing is left


def test_parameters_spread_over_processes_are_measured_in_the_own_pass_alone():
    import torch.distributed as processes
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    whole = HeadMonitor({"input_ids": IDS[:6]})
    whole(built("llama"), 0)
    processes.init_process_group("gloo", rank=0, world_size=1, store=processes.HashStore())
    try:
        model, monitor = built("llama"), HeadMonitor()
        for part in (*model.model.layers, model):
            fully_shard(part, mesh=init_device_mesh("cpu", (1,)))
        monitor.measure_next(model, 0)
        model(input_ids=IDS[:6]).logits.sum().backward()
    finally:
        processes.destroy_process_group()
    for number, values in whole.dataset.data_vars.items():
        np.testing.assert_allclose(monitor.dataset[number], values, rtol=1e-6, atol=1e-7)


def test_attention_out_of_reach_stops_the_first_step(caplog):
    def by_hand(module, query, key, value, mask, **_):
        return (query @ key.mT).softmax(-1) @ value, None

    model, monitor = built("bert"), HeadMonitor()
    AttentionInterface.register("by_hand", by_hand)
    model.set_attn_implementation("by_hand")
    monitor.measure_next(model, 0)
    with pytest.raises(AttnscopeError, match="no attention of BertForMaskedLM was captured"):
        model(input_ids=IDS[:6])
    model.set_attn_implementation("sdpa")
    model.bert.encoder.layer[1].attention.self.config = copy.deepcopy(model.config)
    model.bert.encoder.layer[1].attention.self.config._attn_implementation = "by_hand"
    with pytest.raises(AttnscopeError, match="has measured nothing yet"):
        _ = monitor.dataset
    monitor.measure_next(model, 1)
    model(input_ids=IDS[:6])
    assert "no attention was captured in bert.encoder.layer.1.attention" in caplog.text
    with pytest.raises(AttnscopeError, match="there is no held batch"):
        monitor(model, 2)
    with pytest.raises(AttnscopeError, match="DataParallel"):
        monitor.measure_next(torch.nn.DataParallel(model), 3)
    assert not before_dropout.get()


def test_evaluations_before_the_pass_are_not_measured_and_a_second_call_replaces_the_first():
    model, monitor, expected = dropping(built("llama"), 0.0), HeadMonitor(), HeadMonitor({"input_ids": IDS[:6]})
    monitor.measure_next(model, 0)
    monitor.measure_next(model, 1)
    with torch.no_grad():
        model(input_ids=IDS[6:12])
    model.generate(IDS[6:8], max_new_tokens=3, do_sample=False, pad_token_id=0)
    model(input_ids=IDS[:6]).logits.sum().backward()
    expected(model, 1)
    assert monitor.dataset.step.values.tolist() == [1]
    for number, values in expected.dataset.data_vars.items():
        np.testing.assert_allclose(monitor.dataset[number], values, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("how", ["wrapped", "in place", "flash"])
def test_a_batch_of_a_training_whose_attention_is_out_of_reach_is_measured_before_it(how, monkeypatch):
    """The batch that the training reads, in a pass without dropout: its losses do not change."""
    model, expected, tables = dropping(built("llama"), 0.1), HeadMonitor({"input_ids": IDS[:6]}), []
    expected(model, 3)
    monitor = HeadMonitor(log=tables.append)
    called = model
    if how == "flash":  # a stand-in: the library needs a GPU
        sdpa = AttentionInterface()["sdpa"]
        monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", sdpa)
        model.config._attn_implementation = "flash_attention_2"
    elif how == "wrapped":
        called = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    losses = []
    for watched in (False, True, False):
        torch.manual_seed(0)
        if watched:
            monitor.measure_next(called, 3)
            with torch.no_grad():
                called(input_ids=IDS[6:12])  # an evaluation is not measured
            torch.manual_seed(0)
        losses.append(float(called(input_ids=IDS[:6], labels=IDS[:6]).loss.detach()))
    assert losses[0] == losses[1] == losses[2]
    assert len(tables) == 1
    assert model.training
    for number, values in expected.dataset.data_vars.items():
        np.testing.assert_allclose(monitor.dataset[number], values, rtol=1e-6, atol=1e-6)


def measure_a_share(how, folder):
    """In one of two processes: what the monitor of this one has."""
    from torch import distributed

    if how == "trainer":
        monitor = HeadMonitor(every=3, statistics=["max_weight"])
        options = {"ddp_backend": "gloo", "per_device_train_batch_size": 4}
        trained(dropping(built("llama"), 0.0), Path(folder), monitor, report_to=[], **options)
    else:
        distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(dropping(built("llama"), 0.0))
        monitor = HeadMonitor(statistics=["max_weight"])
        compiled = torch.compile(model, backend="eager")
        monitor.measure_next(compiled, 0)
        rank = distributed.get_rank()
        compiled(input_ids=IDS[rank * 4 : rank * 4 + 4]).logits.sum().backward()
    monitor.dataset.to_netcdf(Path(folder) / f"{how}-{os.environ['RANK']}.nc")
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["compiled", "trainer"])
def test_processes_measure_the_texts_of_all(how, tmp_path):
    """Each of two processes has the numbers of both batches, which are those of one process that reads both."""
    in_two_processes(measure_a_share, how, tmp_path, cwd=tmp_path)
    one, other = (xr.load_dataset(tmp_path / f"{how}-{rank}.nc") for rank in (0, 1))
    xr.testing.assert_identical(one, other)
    if how != "trainer":
        expected = HeadMonitor({"input_ids": IDS[:8]}, statistics=["max_weight"])
        expected(dropping(built("llama"), 0.0), 0)
        for number, values in expected.dataset.data_vars.items():
            np.testing.assert_allclose(one[number], values, rtol=1e-5, atol=1e-6, err_msg=number)
    else:
        assert one.step.values.tolist() == [0, 3]
        assert bool(one.max_weight_low.notnull().all())  # from eight texts; four have no interval


def test_a_trainer_that_compiles_needs_a_held_batch():
    from transformers import TrainerControl, TrainerState, TrainingArguments

    arguments = TrainingArguments("unused", use_cpu=True, torch_compile=True)
    with pytest.raises(AttnscopeError, match=r"the Trainer compiles the model \(torch_compile\): give the monitor"):
        HeadMonitor().on_step_begin(arguments, TrainerState(), TrainerControl(), model=built("llama"))
