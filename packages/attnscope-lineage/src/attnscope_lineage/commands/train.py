"""`attnscope train`: parse, call, print."""

import inspect
import logging
import math
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from rich.text import Text

from attnscope.cli.options import folder
from attnscope.cli.output import new_console, print_note, progress_bar
from attnscope.report.language import translate
from attnscope.support.numbers import percent

_OF_ALIGNMENT = ("error_rate", "error_rate_lower", "error_rate_upper", "diagonal", "chance", "chance_level")
_CONFIG = Annotated[Path | None, typer.Argument(help="YAML file of settings; flags override its values.")]
_OUT = Annotated[
    Path,
    typer.Option(parser=folder, help="Folder of the training. A stopped training resumes from its last checkpoint."),
]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    from attnscope_lineage.config import TrainConfig, shown_default

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("config", keyword, default=None, annotation=_CONFIG),
        inspect.Parameter("out", keyword, default=Path("attnscope-model"), annotation=_OUT),
    ]
    for name, field in TrainConfig.model_fields.items():
        kind, choices = _kind(field.annotation)
        described, _, default = (field.description or "").partition("[default: ")
        shown = shown_default(name, default.rstrip("]") if default else str(field.default))
        option = typer.Option(
            help=described.strip(), metavar="|".join(choices) or None, show_default=False if shown == "None" else shown
        )
        parameters.append(inspect.Parameter(name, keyword, default=None, annotation=Annotated[kind | None, option]))
    command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _kind(annotation: Any) -> tuple[Any, tuple[str, ...]]:
    """The type that a flag is read as, and the words that it may be."""
    if get_origin(annotation) in {Union, UnionType}:
        annotation = next(kind for kind in get_args(annotation) if kind is not NoneType)
    if get_origin(annotation) is Literal:
        return str, get_args(annotation)
    return annotation, ()


@with_settings
def train(config: Path | None, out: Path, **settings: Any) -> None:
    """Train a translation model or a masked language model. Without data: a generated task, in a few minutes."""
    from attnscope_lineage.config import describe_preset, settings_for

    logging.getLogger("attnscope").setLevel(logging.INFO)  # sizes, and what a validation finds
    asked = settings_for(config, **settings)  # before PyTorch is imported: a wrong flag is refused at once

    from attnscope.store.folder import OwnedFolder
    from attnscope_lineage import train as run
    from attnscope_lineage.checkpoints import Checkpoints
    from attnscope_lineage.training import is_first, updates_done

    folder = OwnedFolder(out, "train").look()
    done, checkpoints = updates_done(asked, folder), Checkpoints(folder)
    if config is None and not (asked.source or asked.text) and is_first():
        print_note(describe_preset(asked))
    with progress_bar("train", shown=is_first()) as show:
        if done and is_first():
            finished = f"{out} has a finished training of {done} updates"
            held = finished if folder.state.get("complete") else f"{out} has {done} updates of a training"
            print_note(held + (f", and continues to {asked.updates}" if asked.updates > done else ""))
        try:
            results = run(asked, out, progress=show)
        except KeyboardInterrupt:
            folder.look()
            kept = f"update {checkpoints.updates()[-1]}" if checkpoints.updates() else "the beginning"
            if is_first():
                print_note(f"repeat the command to resume from {kept}")
            raise
    if not is_first():
        return
    console = new_console()
    shown = ", ".join(
        f"{name} {float(results[name.lower()]):.2f}" for name in ("loss", "BLEU") if name.lower() in results
    )
    console.print(f"validation: {shown}", style="bold")
    if "alignment_error_rate" in results:
        rate, lower, upper, diagonal, chance, level = (
            percent(float(results.get(f"alignment_{name}", math.nan))) for name in _OF_ALIGNMENT
        )
        console.print(f"alignments: error rate {rate} ({lower} to {upper}) against the known ones")
        console.print(f"to compare: the diagonal {diagonal}; random words {chance}, below {level} in 1 of 100")
    console.print(Text(f"{translate('model')}: {out}"), soft_wrap=True)
    if not (asked.source or asked.text):
        console.print("one vector, attention and a Transformer side by side: attnscope compare")
