"""A model of the caller's is given back as it was, and is run by one thread at a time."""

import contextlib
import gc
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers as T
from torch import nn

import attnscope
import attnscope_lineage
from attnscope.bundled import MODEL
from attnscope.capture.borrow import _locks, borrowed
from attnscope.capture.load import load_model
from attnscope.capture.watch import current
from attnscope.capture.watching import watching
from attnscope.explanation.study import study
from attnscope_yamamoto2023.positions.table import position_cca
from attnscope_yamamoto2023.relearn import relearn_positions
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer
from tests.tiny_models import tiny

TEXTS = ["The tide comes in twice a day, and twice a day it goes out again. " * 12]


def in_two_modes(model):
    """Every third module is in eval mode, the others train; all take gradients but the first parameter."""
    for number, module in enumerate(model.modules()):
        module.training = number % 3 > 0
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    next(model.parameters()).requires_grad_(False)
    return model


def configs(config):
    return [config, *(one for name in config.sub_configs for one in configs(getattr(config, name)))]


def state(model):
    """All of a model that a caller could see changed, but hooks that transformers keeps once it has made them."""
    modules = list(model.modules())
    return {
        "modes": [module.training for module in modules],
        "attention": [one._attn_implementation for one in configs(model.config)],
        "hooks": [
            [hook for hook in kept.values() if "output_capturing" not in hook.__qualname__]
            for module in modules
            for kept in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        ],
        "gradients": [(one.requires_grad, one.grad.data_ptr(), float(one.grad.sum())) for one in model.parameters()],
        "values": [float(one.detach().double().sum()) for one in model.state_dict().values()],
        "settings": model.config.to_dict(),
    }


def masked_model():
    return load_model(MODEL, device="cpu").model


def scan(model, **options):
    return attnscope.scan(model, TEXTS, tokenizer=MODEL, limit=2, **options)


def explain(model, **options):
    return attnscope.explain(model, TEXTS, tokenizer=MODEL, window=16, limit=2, interventions=True, **options)


def relearn(model, **options):
    return relearn_positions(model, TEXTS, tokenizer=MODEL, steps=1, batch_size=2, limit=2, **options)


def walk(model, **options):
    return attnscope_lineage.walk(model, "The tide is out.", tokenizer=MODEL, **options)


def translate(model, **options):
    return attnscope_lineage.translate(model, ["a b c"], tokenizer=small_tokenizer(), beams=2, **options)


def align(model, **options):
    return attnscope_lineage.align(model, ["a b c"], ["b a"], tokenizer=small_tokenizer(), **options)


def translator():
    return small_model("bart")


VERBS = {
    "scan": (masked_model, scan),
    "explain": (masked_model, explain),
    "walk": (masked_model, walk),
    "relearn_positions": (masked_model, relearn),
    "position_cca": (masked_model, lambda model: position_cca(model, TEXTS, tokenizer=MODEL, window=24, limit=3)),
    "projections": (masked_model, lambda model: study(model, TEXTS, tokenizer=MODEL, limit=2).evidence),
    "translate": (translator, translate),
    "align": (translator, align),
}


@pytest.mark.parametrize(
    ("verb", "implementation"), [*((verb, "sdpa") for verb in VERBS), ("scan", "eager"), ("translate", "eager")]
)
def test_a_verb_leaves_a_model_as_it_was(verb, implementation):
    make, run = VERBS[verb]
    model = in_two_modes(make())
    model.set_attn_implementation(implementation)
    before = state(model)
    run(model)
    assert state(model) == before


class Stopped(Exception):  # noqa: N818 says what it is
    pass


@pytest.mark.parametrize("verb", [scan, translate, "failing"])
def test_so_it_does_when_it_is_stopped_or_fails(verb):
    def progress(*_):
        raise Stopped

    model = in_two_modes((translator if verb is translate else masked_model)())
    before = state(model)
    if verb == "failing":
        model.encoder.layers[1].forward = lambda *_, **__: 1 / 0
        with pytest.raises(attnscope.AttnscopeError, match="fails on the first window: division by zero"):
            scan(model)
    else:
        with pytest.raises(Stopped):
            verb(model, progress=progress)
    assert state(model) == before


_REGISTERS = {
    nn.Module.register_forward_hook.__code__,
    nn.Module.register_forward_pre_hook.__code__,
    torch.utils.hooks.RemovableHandle.__init__.__code__,
    contextlib.ExitStack.enter_context.__code__,
    contextlib.ExitStack._push_cm_exit.__code__,
    contextlib.ExitStack._push_exit_callback.__code__,
    contextlib._GeneratorContextManager.__enter__.__code__,
}


class Interrupting:
    """Ctrl-C at one line among those that run while hooks are registered; before that, a count of these lines."""

    def __init__(self, line=None, time=0):
        self.line, self.time, self.counted = line, time, Counter()

    def __call__(self, frame, event, _):
        return self.at_line if event == "call" and frame.f_code in _REGISTERS else None

    def at_line(self, frame, event, _):
        if event == "line":
            line = frame.f_code.co_filename, frame.f_lineno
            self.counted[line] += 1
            if line == self.line and self.counted[line] == self.time:
                raise KeyboardInterrupt
        return self.at_line


def traced(tracer, run, model):
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        run(model)
    finally:
        sys.settrace(before)


def edit(model):
    with attnscope.edit(model, {(0, 0): torch.zeros_like}, on="output"):
        pass


def test_ctrl_c_at_any_line_that_registers_hooks_leaves_none():
    model = in_two_modes(tiny("gpt2"))
    before = state(model)
    edit(model)
    counting = Interrupting()
    traced(counting, edit, model)
    assert len(counting.counted) > 30
    for number, (line, times) in enumerate(counting.counted.items()):
        with pytest.raises(KeyboardInterrupt):
            traced(Interrupting(line, 1 + number * 7919 % times), edit, model)
        assert state(model) == before, line
        assert not any("forward" in vars(part) for part in model.modules()), line
        assert current.get() is None, line


def test_a_pass_of_a_second_thread_is_rejected_while_a_model_is_measured():
    loaded = load_model(MODEL, device="cpu")
    model, ids = loaded.model, loaded.tokenizer("The tide is out.", return_tensors="pt").input_ids
    expected = scan(model)
    inside, rejected, finish = threading.Event(), list[str](), threading.Event()

    def slowly(*_):
        inside.set()
        finish.wait(0.3)

    def use():
        with torch.no_grad(), model.get_input_embeddings().register_forward_hook(slowly):
            model(ids)  # it has begun before the scan, which waits for its end
            while not finish.is_set():
                try:
                    model(ids)
                except attnscope.AttnscopeError as error:
                    rejected.append(str(error))
                    finish.wait(0.01)

    thread = threading.Thread(target=use)
    thread.start()
    inside.wait()
    found = scan(model)
    finish.set()
    thread.join()
    assert found.drop_attrs().equals(expected.drop_attrs())
    assert len(rejected) > 0
    assert {message.partition(".")[0] for message in rejected} == {
        "EncoderForMaskedLM is in use by attnscope in another thread"
    }
    with attnscope.edit(model, {(0, 1): torch.zeros_like}), ThreadPoolExecutor(1) as pool:
        with pytest.raises(attnscope.AttnscopeError, match="in another thread"):
            pool.submit(model, ids).result()
        model(ids)


def test_a_module_is_watched_in_one_thread_at_a_time():
    model, outcomes = tiny("gpt2"), list[str]()
    both = threading.Barrier(2)

    def wait(*_):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)

    def use():
        try:
            model(torch.arange(8)[None])
            outcomes.append("ran")
        except attnscope.AttnscopeError as error:
            both.abort()
            outcomes.append(str(error))

    with attnscope.watch(model) as seen, model.transformer.h[0].register_forward_hook(wait), torch.no_grad():
        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert max(outcomes) == "ran"
    assert "runs in two threads at once while it is watched" in min(outcomes)
    assert seen.result().sizes["window"] == 1


def test_every_part_gets_its_own_attention_back():
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    decoder = T.BertConfig(**sizes, is_decoder=True, add_cross_attention=True)
    config = T.EncoderDecoderConfig.from_encoder_decoder_configs(T.BertConfig(**sizes), decoder)
    model = T.EncoderDecoderModel(config)
    config = model.config
    config._attn_implementation = "sdpa"
    config.encoder._attn_implementation = "eager"
    before = [one._attn_implementation for one in configs(config)]
    assert sorted(set(before)) == ["eager", "sdpa"]
    with borrowed(model):
        config._attn_implementation = "eager"
    assert [one._attn_implementation for one in configs(config)] == before
    with watching(model, lambda *_: None):
        assert {one._attn_implementation for one in configs(config)} == {"attnscope"}
    assert [one._attn_implementation for one in configs(config)] == before


def test_four_scans_in_four_threads_give_four_equal_results():
    model = in_two_modes(masked_model())
    before = state(model)
    expected = scan(model)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(scan, [model] * 4))
    assert all(one.drop_attrs().equals(expected.drop_attrs()) for one in found)
    assert state(model) == before


@pytest.mark.parametrize("part", [lambda model: model, lambda model: model.bert])
def test_a_second_thread_waits_and_a_thread_may_borrow_again(part):
    model = tiny("bert")
    inside = threading.Event()

    def borrow():
        with borrowed(part(model)):
            inside.set()

    with borrowed(model), borrowed(model):
        waiting = threading.Thread(target=borrow)
        waiting.start()
        assert not inside.wait(0.2)
    waiting.join(10)
    assert inside.is_set()


def test_a_model_that_was_borrowed_is_forgotten_with_its_last_reference():
    gc.collect()
    before = len(_locks)
    model = tiny("bert")
    with borrowed(model):
        assert len(_locks) == before + 1
    del model
    gc.collect()
    assert len(_locks) == before


def test_a_model_compiled_in_place_runs_as_it_is_and_stays_compiled():
    loaded = load_model(MODEL, device="cpu")
    expected = attnscope.scan(loaded, TEXTS, limit=1, window=16)
    model = loaded.model
    model.compile(backend="eager")
    made = model._compiled_call_impl
    found = attnscope.scan(model, TEXTS, limit=1, window=16, tokenizer=loaded.tokenizer)
    assert found.profile.equals(expected.profile)
    assert model._compiled_call_impl is made
