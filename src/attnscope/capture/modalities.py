"""Modalities of the input: texts, images, sounds, videos, texts with images."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture import families, processors
from attnscope.capture.borrow import LoadedModel, inner_model, quiet
from attnscope.capture.checkpoint import Repository, saved_config
from attnscope.capture.encoders import reads_images, reads_sounds
from attnscope.capture.load import Model, load_model
from attnscope.capture.placement import AS_SAVED, Loading, device_of
from attnscope.capture.verify import TOLERANCE, verify
from attnscope.capture.watch import way_of
from attnscope.capture.watching import watching
from attnscope.kernels.engines import output_of
from attnscope.read.image_text import Expanded, PicturedText, PicturedTexts, pictured_of, written_in_parts
from attnscope.read.images import Images, images_of
from attnscope.read.picture_parts import IMAGE, PLACES, VIDEO
from attnscope.read.sounds import Sounds, sounds_of
from attnscope.read.videos import Clip, Video, Videos, videos_of
from attnscope.support.errors import AttnscopeError, explaining
from attnscope.support.state import own_state

if TYPE_CHECKING:
    from attnscope.capture.processors import Processor
    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall

Sense = Images | Sounds | PicturedTexts | Videos


def modality_of(model: Model, source: Any, *, field: str | None = None, revision: str | None = None) -> Sense | None:
    """Images, sounds, videos or texts with images in the input, if the model reads them; None for plain texts."""
    if source is None:  # the bundled text
        return None
    pictured = pictured_of(source, field)
    if pictured is not None and not (pictured.beside_images and reads_images(model, revision)):
        return pictured
    if pictured is not None and puts_images_into_texts(model, revision):
        return pictured
    images = images_of(source)
    videos = _videos(model, source, images, revision) if field is None else None
    if videos is not None:
        return videos
    if images is not None and (not images.beside_text or reads_images(model, revision)):
        return images
    sounds = sounds_of(source)
    if sounds is not None and (not sounds.beside_text or reads_sounds(model, revision)):
        return sounds
    return None


def _videos(model: Model, source: Any, images: Images | None, revision: str | None) -> Videos | None:
    """The input as videos, if the model reads them; images are then frames of a video."""
    if images is not None and not reads_videos(model, revision):
        return None
    videos = videos_of(source)
    if images is not None and videos is None:
        raise AttnscopeError(
            "found images, and the model reads videos; expected a folder of frames, a folder of such folders, or JSON "
            "Lines with video"
        )
    if videos is not None and images is None and not reads_videos(model, revision):
        raise AttnscopeError(
            "found videos without text, and the model reads none. Use a video encoder (VideoMAE, ViViT, V-JEPA 2, "
            "...), or add a text to each"
        )
    return videos


def reject_modalities(
    command: str, model: Model, source: Any, *, field: str | None = None, revision: str | None = None
) -> None:
    """Raise an error for images, sounds and texts with images if a command reads only plain texts."""
    sense = None if source is None else modality_of(model, source, field=field, revision=revision)
    if sense is None:
        return
    what = sense.called
    plain = ", or name the field of the text (--field text) to read that alone" * isinstance(sense, PicturedTexts)
    raise AttnscopeError(
        f"found {what}, and {command} reads only texts. Use scan, attnscope.weights or diff for {what}{plain}"
    )


_KEYS = ("pixel_values_videos", "pixel_values")  # names of the video among a model's arguments
_OF_VIDEOS = "video_preprocessor_config.json"
_WHAT = "image or video processor"


@dataclass(frozen=True, eq=False)
class VideoModel:
    """A video encoder with its processor."""

    loaded: LoadedModel  # the whole model
    model: PreTrainedModel  # the part that reads videos, without a head
    frames: int  # number of frames that it reads at a time, from its config
    processor: Any  # prepares the frames; None if videos are prepared already

    @property
    def key(self) -> str:
        """The argument of the model that is the video."""
        return self.model.main_input_name

    @property
    def leaves_out(self) -> bool:
        """Whether it has a predictor, which is skipped."""
        return bool(families.without_predictor(self.model))

    def chosen(self, count: int) -> list[int]:
        """Frames to read out of `count`: evenly spaced, as many as the model takes, or all if there are fewer."""
        if count <= self.frames:
            return list(range(count))
        return np.linspace(0, count - 1, self.frames).round().astype(int).tolist()

    def given(self, clip: Clip) -> dict[str, Any]:
        """Arguments of the forward pass: the frames ``(1, frame, channel, row, column)``, and no predictor."""
        if isinstance(clip.video, Video):
            pixels = clip.video.pixels()
            values = self._prepared(list(pixels[self.chosen(len(pixels))]), clip.name)
        else:
            values = clip.video[None]
        return {self.key: values.to(device_of(self.model), self.model.dtype), **families.without_predictor(self.model)}

    def _prepared(self, frames: list[np.ndarray], name: str) -> Tensor:
        more = {"do_sample_frames": False} if families.is_video_processor(self.processor) else {}
        with quiet(), explaining(f"the processor cannot process {name}", "Use frames of another size"):
            prepared = self.processor(frames, input_data_format="channels_last", return_tensors="pt", **more)
            return next(prepared[key] for key in _KEYS if key in prepared)


@own_state()
def load_video_model(
    source: Model, *, processor: Processor = None, need_processor: bool = True, loading: Loading = AS_SAVED
) -> VideoModel:
    """Load a video encoder with its processor, without a classifier's head."""
    loaded = load_model(source, need_tokenizer=False, **vars(loading))
    model: Any = loaded.model.base_model
    frames = families.frames_of(model.config)
    if frames is None or model.main_input_name not in _KEYS:
        raise AttnscopeError(
            f"{type(loaded.model).__name__} reads {loaded.model.main_input_name}, not videos. Use a video encoder "
            "(VideoMAE, ViViT, V-JEPA 2, ...)"
        )
    if need_processor and (processor is None or isinstance(processor, str | Path)):
        repository = processors.tokenizer_repository(
            source, processor, _WHAT, revision=loading.revision, more=f", or frames as {model.main_input_name}"
        )
        processor = _load_processor(repository, trust_remote_code=loading.trust_remote_code)
    return VideoModel(loaded, model, frames, processor if need_processor else None)


def reads_videos(source: Model, revision: str | None = None) -> bool:
    """Whether a model reads videos without text, according to its config."""
    inner: Any = inner_model(source)
    if isinstance(inner, transformers.PreTrainedModel):
        return inner.base_model.main_input_name in _KEYS and families.frames_of(inner.config) is not None
    saved = saved_config(inner, revision)
    with suppress(Exception):  # a broken config raises an error when the model is loaded
        config: Any = transformers.AutoConfig.for_model(**saved)  # fills in defaults that the file leaves out
        return families.frames_of(config) is not None and not hasattr(config, "text_config")
    return False


def _load_processor(repository: Repository, *, trust_remote_code: bool) -> Any:
    """The model's image processor with Pillow, or its video processor if it has one."""
    named = str((repository.read("preprocessor_config.json") or {}).get("video_processor_type") or "")
    if not repository.find(_OF_VIDEOS) and not named:
        return processors.load_image_processor(repository, trust_remote_code=trust_remote_code)
    return processors.load_video_processor(
        repository, "frames as a processor gives them", trust_remote_code=trust_remote_code
    )


@dataclass(frozen=True, eq=False)
class PicturedModel:
    """A vision-language model with its processor."""

    loaded: LoadedModel  # the whole model, and its tokenizer
    decoder: PreTrainedModel  # the part that reads text with images; its layers are measured
    processor: Any  # puts images into a text
    pieces: frozenset[int]  # tokens for pieces of an image or a frame

    def read(
        self, item: PicturedText, template: str | None = None, *, to_continue: bool = False
    ) -> tuple[Expanded, dict[str, Any]]:
        """Tokens and arguments of the forward pass for a text with images or videos.

        With `to_continue` a text has no end token, and a chat ends before the assistant's answer.
        """
        text, contents = item.text, None
        if text is None:
            text, contents = written_in_parts(item, self.processor, template, to_answer=to_continue)
        for kind, items in ((IMAGE, item.images), (VIDEO, item.videos)):
            text = self._marked(text, kind, len(items), item)
        count = len(item.images) + len(item.videos)
        filmed = _pictured_videos(item)
        begins = self.loaded.tokenizer.bos_token
        with quiet(), explaining(f"{item.name}: the processor cannot process it", "Are the images large enough?"):
            read = self.processor(
                text=[text],
                images=_pillow(item) or None,
                **filmed,
                return_tensors="pt",
                return_offsets_mapping=True,
                return_text_replacement_offsets=True,
                add_special_tokens=not (begins and text.startswith(begins)),
            )
        inputs = dict(read)
        spans = [(int(start), int(end)) for start, end in inputs.pop("offset_mapping")[0]]
        offsets: Any = inputs.pop("text_replacement_offsets", [])
        replaced: list[dict[str, Any]] = list(offsets[0]) if len(offsets) else []
        if len(replaced) != count:
            raise AttnscopeError(
                f"{type(self.processor).__name__} does not report the tokens of {VIDEO if item.videos else IMAGE}s. "
                "Use a model whose processor does (LLaVA, Qwen-VL, Idefics3, InternVL, Gemma3, ...)"
            )
        expanded, gained = _expanded(text, replaced)
        if max((end for _, end in spans), default=0) > len(expanded):
            raise AttnscopeError(
                f"{type(self.processor).__name__} adds unreported tokens to a text, so the characters of its tokens "
                "are unknown. Choose another model"
            )
        regions = None
        if contents is not None:
            regions = tuple(part._replace(start=gained(part.start), end=gained(part.end)) for part in contents)
        images, videos = (_written(replaced, kind) for kind in (IMAGE, VIDEO))
        if to_continue:
            last = max((at for at, (start, end) in enumerate(spans, 1) if end > start), default=len(spans))
            inputs = {name: _first_tokens(value, len(spans), last) for name, value in inputs.items()}
            spans = spans[:last]
        ids = tuple(inputs["input_ids"][0].tolist())
        text_with_images = Expanded(item.name, expanded, ids, tuple(spans), images, self.pieces, regions, videos)
        return text_with_images, {name: self._placed(value) for name, value in inputs.items()}

    def _marked(self, text: str, kind: str, count: int, item: PicturedText) -> str:
        """The text with the model's own mark for each image or video; their numbers must match."""
        mark = getattr(self.processor, f"{kind}_token", None)
        mark_text, placeholder = (None if mark is None else str(getattr(mark, "content", mark))), PLACES[kind]
        if mark_text is None and not count:
            return text
        if mark_text is None:
            raise AttnscopeError(
                f"{item.name}: {type(self.processor).__name__} reads no {kind}s. Pass frames as images"
            )
        marked = (
            text.replace(placeholder, self._form(kind, mark_text))
            if item.text is not None and placeholder in text
            else text
        )
        marks = marked.count(mark_text)
        if marks != count:
            form = placeholder if mark_text == placeholder else f"{placeholder} or {mark_text}"
            raise AttnscopeError(
                f"{item.name}: found {count} {kind}{'s' * (count != 1)}, and {marks} mark{'s' * (marks != 1)} in "
                f"the text. Write {form} for each {kind}"
            )
        return marked

    def _form(self, kind: str, mark: str) -> str:
        """A mark with the special tokens that the chat template writes around it (Qwen-VL: start and end)."""
        template = getattr(self.processor, "chat_template", None) or self.loaded.tokenizer.chat_template
        if not template:
            return mark
        text = {"type": "text", "text": "x"}
        chats = ([{"role": "user", "content": parts}] for parts in ([text], [{"type": kind}, text]))
        write = partial(self.processor.apply_chat_template, chat_template=template, tokenize=False)
        try:
            bare, whole = map(str, map(write, chats))
        except Exception:  # noqa: BLE001 a template may ask for more, or reject a chat
            return mark
        start = next((at for at, pair in enumerate(zip(bare, whole, strict=False)) if len({*pair}) > 1), len(bare))
        inserted = whole[start : len(whole) - len(bare) + start]
        special = "|".join(map(re.escape, self.loaded.tokenizer.all_special_tokens))
        match = re.search(f"(?:{special})*{re.escape(mark)}(?:{special})*", inserted)
        return match[0] if match else mark

    def _placed(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        model = self.loaded.model
        return value.to(device_of(model), model.dtype if value.is_floating_point() else value.dtype)

    def run(self, inputs: dict[str, Any]) -> Tensor:
        """Output of the whole model."""
        return families.main_output(self.loaded.model(**families.without_cache(self.loaded.model), **inputs))

    @torch.no_grad()
    def decoder_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of the decoder, after images are put into the text."""
        seen: list[dict[str, Any]] = []

        def look(_: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            seen.append(dict(zip(self.decoder.forward.__code__.co_varnames[1:], arguments, strict=False)) | options)
            raise _StopForwardError

        with suppress(_StopForwardError), self.decoder.register_forward_pre_hook(look, with_kwargs=True):
            self.run(inputs)
        if len(seen) != 1:
            raise AttnscopeError(
                f"{type(self.loaded.model).__name__} does not call its {type(self.decoder).__name__} once for a text, "
                "so it cannot be measured"
            )
        return {name: value for name, value in seen[0].items() if value is not None}

    @torch.no_grad()
    def verify(self, inputs: dict[str, Any], name: str) -> list[Site]:
        """Check the captured attention of the decoder, and that the output of the whole model does not change."""
        kind = type(self.loaded.model).__name__
        with explaining(f"{kind} cannot read {name}", "Are processor and model made for each other?"):
            decoder_inputs = self.decoder_inputs(inputs)
            expected = self.run(inputs)
        sites = verify(self.decoder, decoder_inputs, text=name, weights_suffice=True, looks_back=False)

        def attend(_: Site, call: AttentionCall) -> Tensor:
            return output_of(call) if call.key.shape[-1] else call.query

        with watching(self.decoder, attend, weights_suffice=True):
            output = self.run(inputs)
        limit = TOLERANCE.get(output.dtype, 1e-4) * max(1e-6, float(expected.double().abs().max()))
        difference = float((expected.double() - output.double()).abs().max())
        if not difference <= limit:
            raise AttnscopeError(
                f"capturing the decoder changes the output of {kind} (by {difference:.1e}), so it cannot be measured"
            )
        way_of(self.loaded.model).calls = len(sites)
        return sites

    def processing(self) -> str:
        """Hash of the settings of the processor, without its tokenizer."""
        plain = (str, int, float, bool, dict, list, type(None))
        settings = {name: value for name, value in vars(self.processor).items() if isinstance(value, plain)}
        readers = (getattr(self.processor, f"{kind}_processor", None) for kind in (IMAGE, VIDEO))
        return processors.hash_of_settings(settings, *(reader.to_dict() for reader in readers if reader is not None))


def _first_tokens(value: Any, tokens: int, count: int) -> Any:
    """The first tokens of an argument with a number for each token; others as they are."""
    is_of_tokens = isinstance(value, torch.Tensor) and value.shape == (1, tokens)
    return value[:, :count] if is_of_tokens else value


class _StopForwardError(Exception):
    """Ends a forward pass early."""


@own_state()
def load_pictured_model(
    source: Model, *, processor: Processor = None, loading: Loading = AS_SAVED, videos: bool = False
) -> PicturedModel:
    """Load a vision-language model with its processor."""
    loaded = load_model(source, need_tokenizer=False, **vars(loading))
    model, name = loaded.model, type(loaded.model).__name__
    decoder = model.get_decoder()
    image_id = families.image_token_of(model.config)
    if image_id is None or decoder is model or not isinstance(decoder, transformers.PreTrainedModel):
        raise AttnscopeError(
            f"{name} does not read texts with images. Use a vision-language model (LLaVA, Qwen-VL, ...), or name the "
            "field of the text (--field text) to read only that"
        )
    if processor is None or isinstance(processor, str | Path):
        repository = processors.tokenizer_repository(source, processor, "processor", revision=loading.revision)
        processor = processors.load_processor(
            repository, model, trust_remote_code=loading.trust_remote_code, videos=videos
        )
    tokenizer: Any = getattr(processor, "tokenizer", None)
    if getattr(processor, "image_token", None) is None or not getattr(tokenizer, "is_fast", False):
        raise AttnscopeError(
            f"{type(processor).__name__} is not a processor of {name}; expected one with image_token and a fast "
            "tokenizer"
        )
    if videos and getattr(processor, "video_processor", None) is None:
        raise AttnscopeError(
            f"{type(processor).__name__} has no video processor, and these texts have videos. Load it with torchvision "
            "installed, or pass frames as images"
        )
    video_id = families.video_token_of(model.config)
    pieces = frozenset({image_id} if video_id is None else {image_id, video_id})
    return PicturedModel(replace(loaded, tokenizer=tokenizer), decoder, processor, pieces)


def puts_images_into_texts(source: Model, revision: str | None = None) -> bool:
    """Whether a model reads texts with images, according to its config."""
    inner: Any = inner_model(source)
    if isinstance(inner, transformers.PreTrainedModel):
        return families.image_token_of(inner.config) is not None
    return families.image_token_of(SimpleNamespace(**saved_config(inner, revision))) is not None


def _written(replaced: list[dict[str, Any]], kind: str) -> tuple[tuple[int, int], ...]:
    """The inserted characters for each image or video."""
    return tuple((part["new_span"][0], part["new_span"][1]) for part in replaced if part["type"] == kind)


def _pictured_videos(item: PicturedText) -> dict[str, Any]:
    """Arguments of a processor for videos: all frames, and their times if known."""
    if not item.videos:
        return {}
    metadata = [
        {"total_num_frames": len(video.frames), "frames_indices": list(range(len(video.frames))), "fps": video.rate}
        for video in item.videos
    ]
    settings = {"do_sample_frames": False, "input_data_format": "channels_first", "video_metadata": metadata}
    return {
        "videos": [np.ascontiguousarray(video.pixels().transpose(0, 3, 1, 2)) for video in item.videos],
        "videos_kwargs": settings,
    }


def _pillow(item: PicturedText) -> list[Any]:
    from PIL import Image as pillow  # noqa: N813

    return [pillow.fromarray(pixels) for pixels in item.pixels()]


def _expanded(text: str, replaced: list[dict[str, Any]]) -> tuple[str, Any]:
    """The text with the inserted parts, and a function from characters of the original to those of the result."""
    parts: list[str] = []
    last = 0
    for part in replaced:
        start, end = part["span"]
        parts += [text[last:start], part["replacement"]]
        last = end

    def gained(position: int) -> int:
        before = [part for part in replaced if part["span"][1] <= position]
        return position + (before[-1]["new_span"][1] - before[-1]["span"][1] if before else 0)

    return "".join((*parts, text[last:])), gained
