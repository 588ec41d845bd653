"""Masks that are never written out: the same as transformers' own, and a scan under them keeps no matrix."""

import pytest
import torch
import transformers as T
from transformers import masking_utils as M

from attnscope.capture import registry as _row_masks
from attnscope.capture.forward import forward
from attnscope.capture.registry import attnscope_attention, row_mask
from attnscope.capture.watching import watching
from attnscope.kernels import sampled as _sampled
from attnscope.kernels.bins import far_starts
from attnscope.kernels.call import RowMeasures
from attnscope.kernels.masks import RowMask
from attnscope.measure.passes import StatisticsObserver, WindowBatch
from attnscope.measure.quantities import DEFAULT
from attnscope.measure.row_samples import RowSample
from attnscope.measure.rows import indicator_columns, reduce_call
from attnscope.read.windows import Batch
from tests.kernels.largest_tensor import Largest
from tests.kernels.statistics_of_weights import from_weights

N = 768  # whose square is more than `MASK_ENTRIES`
SIZES = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": N}
PADDED = torch.ones(2, 9, dtype=torch.bool)
PADDED[0, 6:] = PADDED[1, :4] = False
GAPS = PADDED.clone()
GAPS[0, 2] = False
BLOCKS = torch.tensor([[-1, -1, 0, 0, 0, -1, 1, 1, -1]]).expand(2, -1)
PLACES = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1]]).expand(2, -1)
PACKED = M.find_packed_sequence_indices(PLACES)
FUNCTIONS = {
    "causal": M.causal_mask_function,
    "all": M.bidirectional_mask_function,
    "window": M.sliding_window_causal_mask_function(3),
    "both ways": M.sliding_window_bidirectional_mask_function(2),
    "chunks": M.chunked_causal_mask_function(4, torch.tensor([0, 1])),
    "packed": M.and_masks(
        M.packed_sequence_mask_function(PACKED), M.remap_positions_for_packed_sequence(M.causal_mask_function, PLACES)
    ),
    "images": M.or_masks(M.causal_mask_function, M.blockwise_overlay(BLOCKS)),
    "holes": lambda text, head, query, key: (key - query) % 2 == 0,
}
OPTIONS = {
    "plain": {},
    "padded": {"attention_mask": PADDED},
    "gaps": {"attention_mask": GAPS},
    "not padded": {"attention_mask": torch.ones_like(PADDED)},
    "by vmap": {"use_vmap": True, "attention_mask": PADDED},
    "later queries": {"q_length": 3, "q_offset": 6, "attention_mask": PADDED},
    "later keys": {"q_length": 4, "q_offset": 5, "kv_length": 5, "kv_offset": 4, "attention_mask": PADDED},
    "all written": {"allow_is_causal_skip": False},
    "both skips": {"allow_is_bidirectional_skip": True, "local_size": 3},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_mask_known_by_its_rows_is_transformers_own(function, options, monkeypatch):
    asked = {"q_length": 9, "kv_length": 9, "mask_function": FUNCTIONS[function], **OPTIONS[options]}
    expected = M.sdpa_mask(2, **asked)
    monkeypatch.setattr(_row_masks, "MASK_ENTRIES", 0)
    found = row_mask(2, **asked)
    assert (found is None) == (expected is None)
    if expected is None:
        return
    assert isinstance(found, RowMask) or function in {"holes", "images"} or options == "gaps"
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()


def window():
    return T.MistralForCausalLM(T.MistralConfig(**SIZES, sliding_window=100)), torch.ones(2, N, dtype=torch.bool)


def padded():
    valid = torch.ones(2, N, dtype=torch.bool)
    valid[0, 500:] = valid[1, :300] = False
    return T.LlamaForCausalLM(T.LlamaConfig(**SIZES)), valid


class LargestMatrix(Largest):
    """Counts masks where they are written out too, which a mode does not see."""

    def __init__(self, monkeypatch):
        super().__init__()
        written = RowMask.written

        def counted(mask, **options):
            self.numbers = max(self.numbers, mask.numel())
            return written(mask, **options)

        monkeypatch.setattr(RowMask, "written", counted)


@pytest.mark.parametrize("rows", [None, 16], ids=["all", "some rows"])
@torch.no_grad()
def test_a_scan_makes_no_matrix_of_its_window_and_equals_eager_attention(rows, monkeypatch):
    torch.manual_seed(0)
    (model, _), (_, valid) = window(), padded()
    for parameter in model.eval().parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(3, 60, (2, N), generator=torch.Generator().manual_seed(0))
    special = torch.zeros_like(valid)
    batch = Batch(ids, valid, special)
    # how many rows the fused kernel takes at once: else it would be all of these
    monkeypatch.setattr(_sampled, "_ROWS", 128)
    sample = None if rows is None else RowSample(rows)
    observer = StatisticsObserver(DEFAULT, 5, WindowBatch(batch, batch), N - 1, sample=sample)
    given = {"input_ids": ids, "attention_mask": valid.long(), "logits_to_keep": 1}
    with LargestMatrix(monkeypatch) as largest, watching(model, observer):
        forward(model, given, str)
    assert largest.numbers < N * N

    model.set_attn_implementation("eager")
    weights = model(**given, output_attentions=True).attentions
    columns = indicator_columns(valid, special).double()[:, None]
    names = DEFAULT if rows is None else ("band_sum", "profile", "outside", "first_token")
    for layer, matrix in enumerate(weights):
        measured = from_weights(matrix.double(), 5, far_starts(5, N - 1))
        known = RowMeasures(log_sum_exp=measured["mass"], columns=matrix.double() @ columns, **measured)
        expected = reduce_call(known, names, valid, valid)
        for name in names:
            found = observer.layers()[layer][name]
            torch.testing.assert_close(found, expected[name], atol=2e-5, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("case", [window, padded])
@torch.no_grad()
def test_attention_that_nothing_measures_makes_no_matrix_either(case, monkeypatch):
    torch.manual_seed(0)
    model, valid = case()
    ids = torch.randint(3, 60, (2, N), generator=torch.Generator().manual_seed(0))
    expected = model.eval()(input_ids=ids, attention_mask=valid.long()).logits
    with LargestMatrix(monkeypatch) as largest, watching(model, lambda site, call: None):
        found = model(input_ids=ids, attention_mask=valid.long()).logits
    assert largest.numbers < N * N
    torch.testing.assert_close(found[valid], expected[valid])


def test_what_a_model_writes_into_a_mask_is_heeded():
    q, k, v = torch.randn(3, 1, 2, 7, 4, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(7)[None]
    mask = RowMask(rows * 0, rows + 1, 7)
    whole = mask.written()
    for each in (mask, whole):
        each[:, :, 2:4, 1] = False
        each[0, 0, 5].fill_(value=True)
    found, expected = (attnscope_attention(torch.nn.Identity(), q, k, v, each)[0] for each in (mask, whole))
    assert torch.equal(found, expected)
