"""What a model makes of a text: for each sentence its translations, the best first."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from attnscope._numbers import count

_SHOWN = 10  # sentences: more are counted
_LONGEST = 60  # characters of a text that is shown


@dataclass(frozen=True)
class Translation:
    """A translation and its score.

    Attributes
    ----------
    text
        The translation.
    score
        Log-probability in nats over ``tokens ** length_penalty``, the end counted; None if it was not asked for
        (``scores=True``), NaN of an empty line, for which nothing was generated. Of a line that was split, the sum over
        its pieces.
    left_out
        Tokens of the source that were cut off.

    Examples
    --------
    >>> whole, cut = Translation("Es ist Ebbe.", score=-0.4), Translation("Es ist", left_out=3)
    >>> [(one.text, one.score) for one in (whole, cut) if not one.left_out]
    [('Es ist Ebbe.', -0.4)]
    """

    text: str
    score: float | None = None
    left_out: int = 0


@dataclass(frozen=True, repr=False)
class Translations(Sequence[tuple[Translation, ...]]):
    """The translations of a text: a sequence with an entry for each sentence. A notebook shows it as a table.

    Attributes
    ----------
    sources
        The sentences.
    candidates
        For each sentence its translations, the best first; one of an empty sentence, which is empty.

    Examples
    --------
    >>> candidates = (Translation("a dog", -0.5), Translation("dog", -1.2)), (Translation(""),)
    >>> made = Translations(("ein Hund", ""), candidates)
    >>> made.texts
    ['a dog', '']
    >>> len(made), made[0][1].score
    (2, -1.2)
    >>> made
    2 sentences translated, the best of up to 2 each
    ein Hund → a dog (-0.50)
    → (–)
    """

    sources: tuple[str, ...]
    candidates: tuple[tuple[Translation, ...], ...]

    @property
    def texts(self) -> list[str]:
        """The best translation of each sentence."""
        return [several[0].text for several in self.candidates]

    @property
    def left_out(self) -> list[int]:
        """Tokens of each sentence that were cut off."""
        return [several[0].left_out for several in self.candidates]

    def __len__(self) -> int:
        return len(self.candidates)

    @overload
    def __getitem__(self, line: int) -> tuple[Translation, ...]: ...
    @overload
    def __getitem__(self, line: slice) -> Translations: ...
    def __getitem__(self, line: int | slice) -> tuple[Translation, ...] | Translations:
        """Return the translations of one sentence, or of some of them; the first sentence is 0.

        Raises
        ------
        IndexError
            If there is no such sentence.
        """
        if isinstance(line, slice):
            return Translations(self.sources[line], self.candidates[line])
        if not -len(self) <= line < len(self):
            raise IndexError(f"there is no sentence {line}: there are {len(self)}, and the first is 0")
        return self.candidates[line]

    def __repr__(self) -> str:
        shown = (f"{source} → {best}".strip() for source, best in self._shown())
        return "\n".join([self._said, *shown, *self._more])

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align: left">{html.escape(source)}</td>'
            f'<td style="text-align: left">{html.escape(best)}</td></tr>'
            for source, best in self._shown()
        )
        more = "".join(f"<p>{said}</p>" for said in self._more)
        return f"<p>{self._said}</p><table>{rows}</table>{more}"

    @property
    def _said(self) -> str:
        most = max(map(len, self.candidates), default=1)
        best = f", the best of up to {most} each" if most > 1 else ""
        tokens = [left_out for left_out in self.left_out if left_out]
        cut = f", {len(tokens)} of them cut ({count(sum(tokens), 'token')} left out)" if tokens else ""
        return f"{len(self)} sentence{'s' * (len(self) != 1)} translated{best}{cut}"

    @property
    def _more(self) -> list[str]:
        return [f"... and {len(self) - _SHOWN} more"] if len(self) > _SHOWN else []

    def _shown(self) -> Iterator[tuple[str, str]]:
        """The first sentences, and of each the best translation with its score where scores were asked for."""
        scored = any(several[0].score is not None for several in self.candidates)
        for source, several in zip(self.sources[:_SHOWN], self.candidates, strict=False):
            best = several[0]
            number = "–" if best.score is None or math.isnan(best.score) else f"{best.score:.2f}"
            yield _on_a_line(source), (_on_a_line(best.text) + f" ({number})" * scored).strip()


def _on_a_line(text: str) -> str:
    """A text as a line that is not too long to look at."""
    shown = " ".join(text.split())
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1].rstrip() + "…"
