"""`attnscope_lineage.walk`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from attnscope.options import IN_PYTHON, Flag, Model, Seed, Tell, TextModelOptions, Typed
from attnscope.verbs import verb
from attnscope_lineage.options import AnyTensor

if TYPE_CHECKING:
    from attnscope_lineage.head_walk import Walk
    from attnscope_lineage.recurrent_walk import RecurrentWalk


@verb()
def walk(
    model: Annotated[
        Model | None,
        "Follow a head of this model: a folder or a hub id. See `attnscope.scan`; or PyTorch's "
        "``nn.MultiheadAttention``; or a module of one head or several, with linear layers for queries, keys and "
        "values (or one for all three) and at most one for the output, which maps X to its output, or to its "
        "output and weights. By default bundled:pronoun, a model of few words; of your own text, bundled.",
    ] = None,
    texts: Annotated[
        str | Sequence[str] | Path | AnyTensor | None,
        Typed(repeated=True),
        "Follow this sentence, in quotes; of several, the shortest, with the padding of their batch. Or a file of "
        "an image or sound, in any form of `attnscope.scan`, for a model that reads it: tokens are then patches "
        "(``r0c0`` in row 0 and column 0) or frames (named by the second at which they begin). A sentence has at "
        "least two tokens. For a module, X of shape ``(text, token, width)``, whose first text is shown. By "
        "default one about a tired animal.",
    ] = None,
    *,
    targets: Annotated[
        str | None,
        Flag("target"),
        "Let the decoder of an encoder-decoder say this sentence, in quotes. The decoder reads it shifted by one "
        "token, as in training. By default the model's own translation. It is greedy.",
    ] = None,
    layer: Annotated[
        int | None,
        "Follow a head of this layer, counted from 0. Layers are attention calls, as in `attnscope.scan`. In layer "
        "0 of ``bundled`` each head attends to a single token, so that the division by √d_k changes little; in "
        '``bundled:pronoun`` the head of layer 1 attends from "it" to its noun. By default 0; of the bundled '
        "models 1.",
    ] = None,
    head: Annotated[int, "Follow this head, counted from 0."] = 0,
    query_token: Annotated[
        int | str | None,
        Typed(),
        "Follow the row of this token: a position, or a piece of the text. In decoder layers the text is the "
        "target. By default the last; of the default sentence and of ``bundled:pronoun`` 'it'. A special token is "
        "not the last.",
    ] = None,
    forms: Annotated[
        bool, "Compare the head with sparse and linear forms of attention. They have the same queries, keys and values."
    ] = False,
    toy: Annotated[bool, "Follow an example without a model: one head with planted weights."] = False,
    causal: Annotated[bool, "Mask later tokens, with --toy."] = False,
    padding: Annotated[bool, "Show a sentence with padding, and its mask, with --toy."] = False,
    seed: Annotated[Seed | None, "Seed the numbers of --toy. By default 0."] = None,
    progress: Annotated[
        Tell | None,
        IN_PYTHON,
        "Called with a `Progress` before loading the model, before the forward pass, and at the end.",
    ] = None,
    **reading: Unpack[TextModelOptions],
) -> "Walk | RecurrentWalk":
    """Follow one head over one sentence, every step in numbers.

    Each number is computed here in float64, by the equations of Vaswani et al. (2017, section 3.2), and compared with
    the model's own. If they do not agree, attnscope stops with an error.

    Returns
    -------
    Walk
        The numbers; of a recurrent translator of `attnscope train`, a `RecurrentWalk` with all decoder steps. Use
        `attnscope_lineage.steps.steps` to explain them, and `markdown` or `terminal` to format them.

    Raises
    ------
    AttnscopeError
        If the steps differ from the model's own numbers, a text is empty or too long, a layer, head or token does not
        exist, a target is given for a model that is not an encoder-decoder, or no target for one that cannot translate.

    References
    ----------
    Vaswani et al., "Attention is all you need" (2017), section 3.2; Bahdanau et al., "Neural machine translation by
    jointly learning to align and translate" (2015), section 3, for recurrent translators.

    Examples
    --------
    >>> steps = walk(texts="The tide comes in twice a day.", layer=0, head=1)
    >>> dict(steps.arrays.weights.sizes)
    {'query': 16, 'key': 16}
    >>> max(steps.errors.values()) < 1e-5  # largest relative difference from the model's own numbers
    True
    >>> walk(toy=True).tokens
    ('animal', 'street', 'it', 'tired')
    """
    from dataclasses import replace
    from pathlib import Path

    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from attnscope.bundled import ANSWERS_IT, MODEL, MODELS
    from attnscope.capture.borrow import inner_model
    from attnscope.capture.modalities import modality_of
    from attnscope.capture.placement import device_of
    from attnscope.measure.passes import WindowBatch
    from attnscope.opened import Opened
    from attnscope.support.errors import AttnscopeError
    from attnscope.support.progress import Progress, no_progress
    from attnscope_lineage.head_walk import (
        BUNDLED_LAYER,
        FOLLOWED,
        NO_FORMS,
        SENTENCE,
        check_number,
        read_texts,
        shortest_of,
        walk_inputs,
        walk_module,
        walk_sense,
        walk_toy,
        walk_translator,
        with_forms,
        with_padding,
    )
    from attnscope_lineage.models.recurrent import RecurrentForConditionalGeneration

    if toy:
        conflicts = {
            "the sentence and the target (--target)": texts is not None or targets is not None,
            "the model, layer and head": model is not None or layer is not None or head != 0,
            "device, dtype, tokenizer, revision and trust_remote_code": any(reading.values()),
        }
        for options, is_set in conflicts.items():
            if is_set:
                raise AttnscopeError(f"toy (--toy) has its own model and numbers: leave out {options}, or toy")
        token = FOLLOWED if query_token is None else query_token
        walked = walk_toy(seed=seed or 0, token=token, causal=causal, padding=padding)
        return with_forms(walked) if forms else walked
    if seed is not None or causal or padding:
        raise AttnscopeError("seed, causal and padding are for toy (--toy): add it, or leave them out")
    if isinstance(model, type):
        raise AttnscopeError(f"model is the class {model.__name__}; expected an instance of it")
    inner = inner_model(model)
    if isinstance(inner, nn.Module) and not isinstance(inner, PreTrainedModel):
        if not isinstance(texts, Tensor) or targets is not None or any(reading.values()):
            raise AttnscopeError(
                f"{type(model).__name__} is not a transformers model: pass a tensor X (text, token, width) instead of "
                "a sentence, and leave out options for models (tokenizer, device, ...)"
            )
        check_number("layer", layer or 0, 1)
        walked = walk_module(inner, texts, head=head, token=query_token)
        return with_forms(walked) if forms else walked
    if model is None:
        model = ANSWERS_IT if texts is None else MODEL  # the first knows few words
    if layer is None:
        bundled = isinstance(model, str | Path) and model in {*MODELS, MODEL}
        layer = BUNDLED_LAYER if bundled else 0
    tell = progress or no_progress
    tell(Progress("loading the model", 0.0))
    sense = None if texts is None else modality_of(model, texts, revision=reading["revision"])
    if sense is not None and not forms:
        return walk_sense(model, sense, targets, (layer, head), query_token, reading)
    if isinstance(texts, Tensor | Path) or (texts is not None and not isinstance(texts, str) and not len(texts)):
        raise AttnscopeError(f"texts is a {type(texts).__name__}; pass a sentence, or an image or sound without forms")
    sentence, *others = [SENTENCE] if texts is None else [texts] if isinstance(texts, str) else texts
    loaded = Opened.of(model).load(reading, heads=[(layer, head)])
    tell(Progress("walk", 0.5))
    if isinstance(loaded.model, RecurrentForConditionalGeneration):
        if forms or others:
            raise AttnscopeError(NO_FORMS if forms else "a recurrent translator is followed over one sentence")
        return walk_translator(loaded, sentence, targets, (layer, head), query_token)
    longest = None
    if others:
        sentence, longest = shortest_of([sentence, *others], loaded.tokenizer)
    source, target, translated = read_texts(sentence, targets, loaded)
    windows = [source.window] if longest is None else [source.window, longest]
    if target is not None:  # both rows of a batch decode the same
        windows = [replace(window, target=target.window) for window in windows]
    pad = loaded.tokenizer.pad_token_id
    batch = WindowBatch.of(windows, pad or 0, device_of(loaded.model))
    walked = walk_inputs(loaded.model, batch.inputs(loaded.model), layer=layer, head=head, name=loaded.name)
    tell(Progress("walk", 1.0))
    if longest is not None:
        walked, source = with_padding(walked, source, len(longest))
    queries = source if target is None or walked.kind == "self" else target
    knows_it = sentence == SENTENCE or (isinstance(model, str | Path) and str(model) == ANSWERS_IT)
    if query_token is None and knows_it and queries is source and FOLLOWED in map(str.strip, source.window.tokens):
        query_token = FOLLOWED
    walked = replace(
        walked,
        tokens=queries.window.tokens,
        keys=(source if walked.kind == "cross" else queries).window.tokens,
        token=queries.position(query_token),
        target="" if target is None else target.text,
        translated=translated,
    )
    return with_forms(walked) if forms else walked
