"""`attnscope generate`: it takes a prompt, and prints texts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from attnscope.cli.output import new_console, run
from attnscope.options import Typed
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.cli.options import Output

_TEXTS = 3  # that are printed
_PROMPT = 200  # characters of a prompt's end


def generate(
    arguments: dict[str, Any],
    output: "Output",
    *,
    prompt: Annotated[
        Sequence[str], Typed(repeated=True), "Continue this prompt, instead of text files; may be repeated."
    ] = (),
) -> None:
    """Run the command."""
    if prompt and "texts" in arguments:
        raise AttnscopeError("found both files of text and --prompt; expected one of them")
    if prompt:
        arguments["texts"] = prompt
    run("generate", output, first=_print_texts, **arguments)


def _print_texts(results: "xr.Dataset") -> None:
    """The end of each prompt, and what the model wrote."""
    from rich.text import Text

    console, texts = new_console(), results.sizes["sequence"]
    for number in range(min(texts, _TEXTS)):
        text = results.isel(sequence=number)
        tokens, length = [str(token) for token in text.text_token.values], int(text.prompt_length)
        prompt, new = "".join(tokens[:length]), "".join(tokens[length:])
        begin = "…" if len(prompt) > _PROMPT else ""
        console.print(Text(f"{text.source.item()}: ", style="dim"), end="")
        console.print(Text(begin + prompt[-_PROMPT:], style="dim") + Text(new, style="bold"))
        console.print()
    if texts > _TEXTS:
        console.print(f"and {count(texts - _TEXTS, 'text')} more: --json has all\n", style="dim")
