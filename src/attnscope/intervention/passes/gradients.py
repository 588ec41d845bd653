"""What the gradient says a head is worth, beside what taking it out shows: importance and attribution patching."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.capture.families import main_output
from attnscope.capture.watching import watching
from attnscope.intervention.passes.attend import output_with_gradient
from attnscope.intervention.passes.questions import Questions
from attnscope.intervention.passes.replacements import donor_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.capture.watch import Site
    from attnscope.intervention.passes.pairs import EncodedPairs
    from attnscope.kernels.call import AttentionCall

    #: From the number of a call and its output to the output that goes on.
    Gate = Callable[[int, Tensor], Tensor]


@dataclass(eq=False)
class HeadGradients:
    """Forward and backward passes of one model that keep each head's output and its gradient.

    Examples
    --------
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> from attnscope.read import Batch
    >>> from attnscope.measure import Reading
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    >>> ids = torch.tensor([[5, 6, 7]])
    >>> batch = Batch(ids, torch.ones_like(ids).bool(), torch.zeros_like(ids).bool())
    >>> asked = Questions(Reading(batch, batch), torch.tensor([[1]]), torch.tensor([[6]]), [])
    >>> gradients = HeadGradients(BertForMaskedLM(config).eval()).of(asked)
    >>> [gradient.shape for _, gradient in gradients]
    [torch.Size([1, 2, 3, 4]), torch.Size([1, 2, 3, 4])]
    """

    model: PreTrainedModel
    _outputs: list[Tensor] = field(default_factory=list)
    _gate: Gate | None = None

    def of(
        self, questions: Questions, gate: Gate | None = None, towards_donor: float | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Output of each call and the gradient of the loss there, ``(text, head, query, value_width)`` each.

        The loss is that of `Questions.scores`, each text's own.

        Parameters
        ----------
        questions
            A batch.
        gate
            Changes each call's output before it goes on. The gradient is taken at what goes on.
        towards_donor
            How far token embeddings are moved to those of the text before in the batch: 0 not at all, 1 all the way.
        """
        reading = questions.reading
        inputs = reading.inputs(self.model)
        others: dict[str, Tensor] = {}
        if towards_donor is not None:
            for name, side in (("input_ids", reading.text), ("decoder_input_ids", reading.target)):
                if name in inputs:
                    others[name] = side.input_ids.roll(1, 0).gather(1, donor_positions(side.valid))

        def loss(logits: Tensor) -> Tensor:
            logits = logits.gather(1, questions.places[..., None].expand(-1, -1, logits.shape[-1]))
            return questions.scores(logits[None])["loss"].sum()

        return self.of_inputs(inputs, loss, gate, others, towards_donor or 0.0)

    def of_inputs(
        self,
        inputs: dict[str, Tensor],
        quantity: Callable[[Tensor], Tensor],
        gate: Gate | None = None,
        others: Mapping[str, Tensor] | None = None,
        share: float = 0.0,
    ) -> list[tuple[Tensor, Tensor]]:
        """Output of each call and the gradient there of a quantity of the logits.

        Parameters
        ----------
        inputs
            Arguments of the forward pass.
        quantity
            From the logits to one number.
        gate
            As in `of`.
        others, share
            Token ids, by the name of the input, to whose embeddings those of `inputs` are moved by so much.
        """
        self._outputs, self._gate = [], gate
        moved = _embeddings_moved(self.model, inputs, others or {}, share)
        with _frozen(self.model), watching(self.model, self._observe), moved, torch.enable_grad():
            wanted = quantity(main_output(self.model(**inputs)))
            gradients = torch.autograd.grad(wanted, self._outputs, allow_unused=True, materialize_grads=True)
        outputs, self._outputs = self._outputs, []
        return [(output.detach(), gradient) for output, gradient in zip(outputs, gradients, strict=True)]

    def _observe(self, _: Site, call: AttentionCall) -> Tensor:
        output = output_with_gradient(call)
        if self._gate is not None:
            output = self._gate(len(self._outputs), output)
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        self._outputs.append(output)
        return output


def answers_difference(gradients: HeadGradients, pairs: EncodedPairs, share: float | None) -> list[Tensor]:
    """Gradient at each call of the answers' logits minus the wrong ones', `share` of the way to the corrupted text.

    Parameters
    ----------
    gradients
        What records the gradients of each call's output.
    pairs
        Pairs of texts, as the model reads them.
    share
        Share of the way from the clean to the corrupted text; None for the clean text alone.

    Returns
    -------
    list of Tensor
        One for each call, ``(pair, head, query, value_width)``.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from attnscope.intervention.passes import EncodedPairs
    >>> model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_head=2, n_layer=2, vocab_size=9, n_positions=4)).eval()
    >>> clean, corrupted, last = torch.tensor([[5, 6]]), torch.tensor([[7, 6]]), torch.tensor([[1]])
    >>> pairs = EncodedPairs(clean, corrupted, last, torch.tensor([3]), torch.tensor([4]), ((),), ((),))
    >>> gradients = answers_difference(HeadGradients(model), pairs, None)
    >>> [gradient.shape for gradient in gradients]
    [torch.Size([1, 2, 2, 4]), torch.Size([1, 2, 2, 4])]
    >>> gradients[1][0, :, 0].any()  # of the last layer, only the last query leads to the answer
    tensor(False)
    """

    def difference(logits: Tensor) -> Tensor:
        asked = logits.gather(1, pairs.places[..., None].expand(-1, -1, logits.shape[-1]))
        return pairs.difference(asked).sum()

    others = {} if share is None else {"input_ids": pairs.corrupted}
    layers = gradients.of_inputs({"input_ids": pairs.clean}, difference, others=others, share=share or 0.0)
    return [gradient for _, gradient in layers]


def importance(layers: Sequence[tuple[Tensor, Tensor]]) -> list[Float[np.ndarray, "text head"]]:
    r"""Head importance of Michel et al. (2019), equation 2, for each text.

    :math:`|\langle O_h, \partial L/\partial O_h\rangle|`: the size of the loss's slope in a gate on the head, at 1.

    Examples
    --------
    >>> output, gradient = torch.ones(1, 2, 2, 1), torch.tensor([[[[1.0], [-3.0]], [[2.0], [-2.0]]]])
    >>> importance([(output, gradient)])[0].tolist()  # the slopes of the second head's queries cancel
    [[2.0, 0.0]]
    """
    return [_summed(output * gradient).abs().double().cpu().numpy() for output, gradient in layers]


def attribution(
    layers: Sequence[tuple[Tensor, Tensor]], stands_in: Sequence[Tensor]
) -> list[Float[np.ndarray, "text head"]]:
    r"""Attribution patching: the change of the loss to first order, where O' stands in for the heads' output.

    :math:`\langle O'_h - O_h, \partial L/\partial O_h\rangle`; Nanda (2023), Syed, Rager & Conmy (2023).

    Parameters
    ----------
    layers
        Output of the heads of each call, ``(text, head, query, value_width)``, and the gradient of the loss by it.
    stands_in
        What stands in for the output of each call, O', of the same shape.

    Returns
    -------
    list of numpy.ndarray
        One for each call, ``(text, head)``, nats.

    Examples
    --------
    >>> output, gradient = torch.ones(1, 1, 2, 1), torch.tensor([[[[1.0], [2.0]]]])
    >>> attribution([(output, gradient)], [torch.zeros(1, 1, 2, 1)])[0].tolist()
    [[-3.0]]
    """
    return [
        _summed((other - output) * gradient).double().cpu().numpy()
        for (output, gradient), other in zip(layers, stands_in, strict=True)
    ]


def gates_towards(stands_in: Sequence[Tensor], share: float) -> Gate:
    """Move every head's output towards what stands in for it: 0 leaves it, 1 replaces it.

    Parameters
    ----------
    stands_in
        What stands in for the output of each call, ``(text, head, query, value_width)``.
    share
        Share of the way, 0 to 1.

    Examples
    --------
    >>> gates_towards([torch.zeros(1, 1, 1, 1)], 0.25)(0, torch.ones(1, 1, 1, 1)).item()
    0.75
    """
    return lambda call, output: torch.lerp(output, stands_in[call].to(output), share)


def _summed(product: Tensor) -> Tensor:
    return product.sum((2, 3))


@contextmanager
def _frozen(model: nn.Module) -> Generator[None]:
    """No gradient of weights is computed."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in learning:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


@contextmanager
def _embeddings_moved(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], others: Mapping[str, Tensor], share: float
) -> Generator[None]:
    if not others:
        yield
        return
    table: Any = model.get_input_embeddings()
    pairs = [(inputs[name], other) for name, other in others.items()]

    def move(module: nn.Module, given: tuple[Any, ...], embedded: Tensor) -> Tensor:
        own: Any = type(module).forward
        for ids, other in pairs:
            if ids.shape == given[0].shape and bool((ids == given[0]).all()):
                return torch.lerp(embedded, own(module, other), share)
        return embedded

    hook = table.register_forward_hook(move)
    try:
        yield
    finally:
        hook.remove()
