"""Error rates against known alignments, with models that look where they were planted to look."""

import pytest
import torch

from attnscope.lineage.align import best_aligning_head
from attnscope.lineage.data import train_subwords
from attnscope.lineage.parallel_text import generate_task
from attnscope.models.configs import RecurrentConfig
from attnscope.models.recurrent import RecurrentForConditionalGeneration
from tests.translation.small_translators import Reordering


@pytest.fixture(scope="module")
def text():
    return generate_task(40, seed=3, longest=15, shortest=4)


@pytest.fixture(scope="module")
def tokenizer(text):
    made = train_subwords([*text.source, *text.target], 1000)  # every word is one token
    made.model_max_length = 40
    return made


class Planted(Reordering):
    """Layer 1, head 0 looks at the known source word, but for the last `wrong` target words; others look at </s>."""

    def __init__(self, text, tokenizer, wrong=0):
        super().__init__()
        ids = tokenizer(text.source)["input_ids"]
        self.known = {tuple(one): {by: at for at, by in links} for one, links in zip(ids, text.alignments, strict=True)}
        self.wrong = wrong

    def planted(self, input_ids, attention_mask, n):
        batch, m = input_ids.shape
        weights = torch.zeros(2, batch, 2, n, m)
        for i in range(batch):
            end = int(attention_mask[i].sum())
            weights[:, i, :, :, end - 1] = 1
            known = self.known[tuple(input_ids[i, :end].tolist())]
            for by, at in known.items():
                seen = at if by < len(known) - self.wrong else (at + 1) % (end - 1)
                weights[1, i, 0, by] = torch.eye(m)[seen]
        return weights


def test_the_planted_head_is_found_and_has_no_error(text, tokenizer):
    found = best_aligning_head(Planted(text, tokenizer), tokenizer, text)
    assert (found.layer, found.head, found.score.error_rate) == (1, 0, 0)
    assert found.score.links == sum(len(links) for links in text.alignments[1::2])


def test_a_fixed_vector_has_no_alignment(text, tokenizer):
    sizes = {"vocab_size": len(tokenizer), "embedding_width": 4, "encoder_width": 3, "decoder_width": 6}
    model = RecurrentForConditionalGeneration(RecurrentConfig(attention="none", **sizes))
    assert best_aligning_head(model, tokenizer, text) is None
