"""The forward passes of a scan of sounds, piece after piece."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import torch

from attnscope.attention import output_of
from attnscope.capture import SpeechModel, Team, capture_notes, forward, verify, watching
from attnscope.errors import AttnscopeError
from attnscope.progress import tell_nobody
from attnscope.statistics._labelled import labelled
from attnscope.statistics._map_weights import ROWS, share_room
from attnscope.statistics._one_by_one import one_by_one
from attnscope.statistics._pass import StatisticsObserver
from attnscope.statistics._sample import WEIGHTS, WINDOWS, MapObserver, shown_heads, tile_size
from attnscope.statistics._sample_dataset import sample_dataset
from attnscope.statistics._turns import UNIT
from attnscope.statistics.sounds._pieces import Piece, SoundReading, pieces_of, read_piece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import xarray as xr
    from torch import Tensor

    from attnscope.attention import AttentionCall
    from attnscope.capture import Observer, Site
    from attnscope.corpus import Sounds, Window
    from attnscope.statistics._asked import Asked


class SoundMeasurement:
    """The forward passes of one scan of sounds: pieces have lengths of their own, and are read one at a time.

    Examples
    --------
    >>> import numpy as np
    >>> from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model
    >>> from attnscope.capture import load_speech_model
    >>> from attnscope.corpus import sounds_of
    >>> from attnscope.statistics._asked import Asked
    >>> sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    >>> convolutions = {"conv_dim": [8] * 7, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    >>> encoder = Wav2Vec2Model(Wav2Vec2Config(**sizes, **convolutions)).eval()
    >>> speech = load_speech_model(encoder, processor=Wav2Vec2FeatureExtractor())
    >>> sounds = sounds_of([{"array": np.zeros(length), "sampling_rate": 16_000} for length in (16_000, 32_000)])
    >>> job = SoundMeasurement(speech, sounds, None, ["entropy"], Asked())
    >>> [int(part.length[0]) for part in job.batches()]  # frames
    [49, 99]
    """

    unit = UNIT

    def __init__(
        self,
        speech: SpeechModel,
        sounds: Sounds,
        said: list[Window] | None,
        names: Sequence[str],
        asked: Asked,
    ) -> None:
        self.speech, self.sounds, self.said, self.limit = speech, sounds, said, asked.limit
        self.names, self.progress = names, asked.progress or tell_nobody
        self.observation = asked.observation
        self.notes: dict[str, str] = {}
        self.team = Team()
        counts: list[tuple[int, int]] = []
        rests: list[float] = []
        for piece in self.pieces():
            heard = speech.hear(piece.samples, piece.name)
            counts.append((heard.frames, heard.sounding))
            rests += [piece.left_out] if piece.left_out else []
        self.count, self.reach = len(counts), max(frames for frames, _ in counts) - 1
        self.band = asked.band_within(self.reach, f"windows of {self.reach + 1} frames")
        first = next(self.pieces())
        reading, _ = read_piece(first, speech)
        self.sites, _ = verify(
            speech.model,
            reading.inputs(speech.model),
            text=first.name,
            weights_suffice=True,
        )
        self.notes |= capture_notes(speech.model)
        self._check_frames(reading)
        every, sounding = (sum(part) for part in zip(*counts, strict=True))
        self.is_padded = sounding < every
        each = 1000 * speech.hear(first.samples, first.name).seconds
        note = f"Tokens are frames of {each:.0f} ms, named by the second at which they begin."
        if self.is_padded:
            windows = f"{self.count} window{'s' * (self.count > 1)}"
            note += (
                f" Of the {every:,} frames that the encoder reads in {windows}, {sounding:,} are sound: only these "
                "count as queries; as keys the others count as special tokens."
            )
        if rests:
            note += (
                f" Ends of long sounds that are shorter than a second are left out: {len(rests):,} "
                f"({sum(rests):.2f} s in all)."
            )
        self.notes["sounds"] = note

    @torch.no_grad()
    def _check_frames(self, reading: SoundReading) -> None:
        """Refuse a model whose encoder attends over other places than its frames."""
        model, frames = self.speech.model, reading.frames.valid.shape[1]

        def look(site: Site, call: AttentionCall) -> Tensor:
            if site.kind != "causal" and call.key.shape[2] != frames:
                raise AttnscopeError(
                    f"layer {site.index} ({site.name}) of {type(model).__name__} attends over {call.key.shape[2]} "
                    f"places, and its encoder makes {frames} frames: their times are not known"
                )
            return output_of(call) if call.key.shape[-1] else call.query

        with watching(model, look, weights_suffice=True):
            model(**reading.inputs(model))

    def pieces(self) -> Iterator[Piece]:
        """The pieces that are measured."""
        return islice(pieces_of(self.sounds, self.speech, self.said), self.limit)

    def batches(self, done: Callable[[range], bool] = lambda _: False) -> Iterator[xr.Dataset]:
        """Measure piece after piece, but those that are done."""
        return one_by_one(self.pieces(), self._measure, done, self.progress, count=self.count)

    @torch.no_grad()
    def _measure(self, piece: Piece, number: int) -> xr.Dataset:
        reading, _ = read_piece(piece, self.speech)
        observer = StatisticsObserver(
            self.names, self.band, reading, self.reach, observation=self.observation
        )
        model = self.speech.model
        with watching(model, observer, weights_suffice=True):
            forward(
                model, reading.inputs(model), lambda _: piece.name, lambda kind: reading.sides(kind)[0].valid
            )
        sizes = {"length": reading.text} | ({} if self.said is None else {"target_length": reading.target})
        sizes |= {"frames": reading.frames} if self.is_padded else {}
        return labelled(
            observer.stacked(),
            self.sites,
            self.band,
            self.reach,
            {name: side.valid.sum(1).cpu().numpy() for name, side in sizes.items()},
            [(piece.source, piece.start)],
            number,
        )

    @torch.no_grad()
    def watch_first(self, observer: Observer) -> Window:
        """Run the first piece with an observer; it is returned as a page shows it."""
        reading, window = read_piece(next(self.pieces()), self.speech)
        with watching(self.speech.model, observer, weights_suffice=True):
            self.speech.model(**reading.inputs(self.speech.model))
        return window

    @torch.no_grad()
    def sample(self, results: xr.Dataset, asked: Sequence[tuple[int, int]]) -> xr.Dataset | None:
        """The attention over the first pieces."""
        read = [read_piece(piece, self.speech) for piece in islice(self.pieces(), WINDOWS)]
        windows = [window for _, window in read]
        longest = min(ROWS, max(max(len(window), len(window.target or window)) for window in windows))
        listed = [
            shown_heads(results, asked, longest, windows) for windows in (1, *[WINDOWS] * (WINDOWS - 1))
        ]
        others = len(self.sites) * results.sizes["head"] - len(listed[0])
        observed: list[MapObserver] = []
        model = self.speech.model
        for (reading, _), of_window in zip(read, listed, strict=False):
            tile = tile_size(others, longest) if others and not observed else 0
            observer = MapObserver(of_window, WEIGHTS, tile, lambda: None)
            with watching(model, observer, weights_suffice=True):
                model(**reading.inputs(model))
            observed.append(observer)
            share_room([every.maps for every in observed], WEIGHTS)
        kinds = [site.kind for site in self.sites]
        return sample_dataset(
            observed, windows, kinds, results.sizes["head"], asked, with_decoder=self.said is not None
        )
