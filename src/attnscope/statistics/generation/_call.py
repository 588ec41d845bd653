"""One `generate` call of a model, watched from beginning to end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import GenerationMixin, PreTrainedModel

from attnscope.capture import capture_of, decoder_start, verify, watching
from attnscope.errors import AttnscopeError
from attnscope.statistics.generation._observer import GenerationObserver
from attnscope.statistics.generation._spans import GivenSpans, Prompts
from attnscope.statistics.generation._texts import Written, texts_of

if TYPE_CHECKING:
    from attnscope.capture import Site

_TRIED = 32  # tokens of the prompt on which the capture is checked
_CANNOT = {
    "guidance_scale": "the model reads two texts by turns",
    "assistant_early_exit": "the model drafts with some of its own layers",
    "custom_generate": "it is not known what the model then reads",
    "output_attentions": "attention is seen in another way, which gives no weights back",
}


@dataclass(frozen=True, eq=False)
class GenerationCall:
    """One ``model.generate(...)``: the model, its own method, and what the caller gives it.

    Examples
    --------
    >>> import torch
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> config = GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=9, n_positions=8, eos_token_id=None)
    >>> model, ids = GPT2LMHeadModel(config).eval(), torch.tensor([[5, 6]])
    >>> options = {"max_new_tokens": 3, "do_sample": False, "attention_mask": torch.ones_like(ids), "pad_token_id": 0}
    >>> output, (text,) = GenerationCall(model, model.generate, (ids,), options).run(None)
    >>> output[0, 2:].tolist() == text.new, text.measured["entropy"].shape
    (True, (3, 1, 2))
    """

    model: PreTrainedModel
    generate: Callable[..., Any]
    given: tuple[Any, ...]
    named: Mapping[str, Any]

    def run(self, spans: GivenSpans | None) -> tuple[Any, list[Written]]:
        """Generate, and measure each new token: what the model returns, and a record of each sequence.

        Raises
        ------
        AttnscopeError
            If it generates in a way in which it is not known which rows write the text.
        """
        self._check()
        prompts = Prompts(self._ids, self._mask, spans)
        observer = GenerationObserver(self.sites, prompts, is_pair=self._is_pair)
        named: dict[str, Any] = dict(self.named)
        asked = {"return_dict_in_generate": True, "disable_compile": True}  # what is compiled is not seen
        if named.get("generation_config") is None:
            named |= asked
        else:
            named["generation_config"] = copy.deepcopy(named["generation_config"])
            named["generation_config"].update(**asked)
        with watching(self.model, observer, weights_suffice=True), observer.reading(self.model):
            output = self.generate(*self.given, **named)
        beams = getattr(output, "beam_indices", None)
        pad = self._setting("pad_token_id")
        texts = texts_of(observer, output.sequences, beams, self._ends, pad if isinstance(pad, int) else None)
        return output if self._setting("return_dict_in_generate") else output.sequences, texts

    def _check(self) -> None:
        name = type(self.model).__name__
        if _own_method(type(self.model)) is not GenerationMixin.__dict__["generate"]:
            raise AttnscopeError(
                f"{name} has a generate() of its own, and it is not known what it reads in each pass"
            )
        if self.model.training:
            raise AttnscopeError(f"{name} is in training mode: call model.eval() first")
        for setting, reason in _CANNOT.items():
            value = self._setting(setting)
            if value not in {None, False} and not (setting == "guidance_scale" and value == 1):
                raise AttnscopeError(
                    f"generate({setting}={value!r:.40}) cannot be watched: {reason}. Leave it out"
                )
        if self._setting("cache_implementation") == "paged":
            raise AttnscopeError(
                "generate(cache_implementation='paged') cannot be watched: it mixes texts in a pass"
            )
        if self._is_pair and (self.named.get("assistant_model") or self._setting("prompt_lookup_num_tokens")):
            raise AttnscopeError(f"assisted generation of {name}, an encoder-decoder, cannot be watched")
        mask = self._mask
        if not self._is_pair and mask is not None and bool((mask[:, -1] == 0).any()):
            raise AttnscopeError(
                "a prompt is padded on the right, so the model would go on after padding: pad on the left "
                "(tokenizer.padding_side = 'left')"
            )

    @property
    def _is_pair(self) -> bool:
        return bool(self.model.config.is_encoder_decoder)

    def _setting(self, name: str) -> Any:
        """What holds for this call: as it is asked for, else as the model is set."""
        for holder in (self.named, self.named.get("generation_config"), self.model.generation_config):
            value = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
            if value is not None:
                return value
        return None

    @cached_property
    def _main(self) -> Tensor:
        """What the model is given to read: ids, embeddings, or what its encoder takes."""
        usual = ("input_ids", "inputs_embeds", self.model.main_input_name)
        known = [self.given[0] if self.given else self.named.get("inputs"), *map(self.named.get, usual)]
        main = next((value for value in known if isinstance(value, Tensor)), None)
        if main is None:
            raise AttnscopeError(
                "generate() was given nothing to go on with that can be watched: give input_ids"
            )
        return main

    @property
    def _ids(self) -> Tensor | None:
        return None if self._main.is_floating_point() or self._main.ndim != 2 else self._main  # noqa: PLR2004

    @cached_property
    def _mask(self) -> Tensor | None:
        """Where the prompts are padded: as it is said, else as transformers tells it."""
        mask = self.named.get("attention_mask")
        if mask is not None or self._ids is None or self._is_pair:
            return mask
        pad, ends = self._setting("pad_token_id"), self._ends
        return None if pad is None or pad in ends else (self._ids != pad).long()

    @property
    def _ends(self) -> list[int]:
        """Tokens that end a text."""
        ends = self._setting("eos_token_id")
        return [] if ends is None else [int(end) for end in torch.as_tensor(ends).flatten()]

    @cached_property
    def sites(self) -> dict[tuple[str, int], Site]:
        """The layers in which a token looks at those before it or at a source, checked on the prompt's beginning."""
        if self._is_pair and capture_of(self.model) != "registry":
            raise AttnscopeError(_by_weights(self.model))
        ids = self._ids
        if ids is None:
            whole = self._main[:1] if self._is_pair else self._main[:1, :_TRIED]
            key = self.model.main_input_name if self._is_pair else "inputs_embeds"
            inputs = {key: whole}
        else:
            first = ids[0] if self._mask is None else ids[0][self._mask[0] > 0]
            inputs = {"input_ids": first[:_TRIED].repeat(2 if len(first) == 1 else 1)[None]}
        inputs = {name: value.to(self.model.device) for name, value in inputs.items()}
        if self._is_pair:
            start = decoder_start(self.model)([0, *self._ends[:1]])
            inputs["decoder_input_ids"] = torch.full((1, 2), start, device=self.model.device)
        seen, _ = verify(self.model, inputs, text="the prompt", weights_suffice=True)
        if self._is_pair and capture_of(self.model) != "registry":
            raise AttnscopeError(_by_weights(self.model))
        calls: dict[str, int] = {}
        sites: dict[tuple[str, int], Site] = {}
        for site in seen:
            number = calls[site.name] = calls.get(site.name, -1) + 1
            if site.kind != "self":
                sites[site.name, number] = site
        if not sites:
            raise AttnscopeError(
                f"no layer of {type(self.model).__name__} looks back only: generate() is for causal models"
            )
        return sites


def _own_method(kind: type) -> Any:
    """The `generate` that a class has, of its own or inherited."""
    return next((base.__dict__["generate"] for base in kind.__mro__ if "generate" in base.__dict__), None)


def _by_weights(model: PreTrainedModel) -> str:
    return (
        f"{type(model).__name__} does not attend through transformers' attention registry, and its encoder and decoder "
        "run apart in generate(): it cannot be watched there"
    )
