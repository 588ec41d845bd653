"""`train`: a training in a folder, begun or gone on with."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import xarray as xr

from attnscope.capture.load import usable_device
from attnscope.lineage.checkpoints import training_results
from attnscope.lineage.config import TrainConfig, settings_for
from attnscope.lineage.loop import NO_MATTER, Training, processes, threads_of_one
from attnscope.store.files import local_folder
from attnscope.store.folder import OwnedFolder
from attnscope.support.arguments import validated
from attnscope.support.progress import Tell
from attnscope.support.state import own_random_numbers, own_threads


@validated
@own_random_numbers()
def train(
    config: TrainConfig | Path | str | None = None,
    out: Path | str = "attnscope-model",
    *,
    progress: Tell | None = None,
    **settings: object,
) -> xr.Dataset:
    """Train a model of the lineage: on parallel text, on plain text, or on the generated task.

    Parameters
    ----------
    config
        Settings, or a YAML file of them. Without them and without data: those of `PRESETS` for this kind of model (by
        default additive attention) on the generated task, learned in a few minutes on two cores.
    out
        Folder of the training; given again, it goes on where it was stopped.
    progress
        Called with a `Progress` for every line of the log: it tells of ``update``, ``loss`` (nats per target token,
        since the line before), ``tokens/s`` and the metrics of the last validation (``validation loss``, ...).
    **settings
        Fields of `TrainConfig`, which take the place of those in `config`.

    Returns
    -------
    xarray.Dataset
        On the validation text at the end: ``loss`` (nats per token), for translation ``bleu`` (greedy), and on the
        generated task, for a model with attention, ``alignment_error_rate`` of its best head against the known
        alignments (between 0 and 1; see `best_aligning_head`) with its interval, ``alignment_error_rate_lower`` and
        ``alignment_error_rate_upper``, beside those of the diagonal and of random words, ``alignment_diagonal`` and
        ``alignment_chance`` (``alignment_chance_level``: these go below it in 1 of 100). The learning curve:
        ``validation_loss`` and ``validation_bleu (validation_update)``; ``training_loss``, ``learning_rate``,
        ``tokens_per_second``, ``tokens`` (target tokens seen), ``seconds`` and ``epoch (training_update)``, an entry
        for each line of the log.
        Attributes: ``signature``, ``model``, ``chosen`` (which weights were kept), ``left_out``;
        ``.encoding["source"]`` holds the folder.

    Raises
    ------
    AttnscopeError
        For settings, texts and folders that do not fit: see the message.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> small = dict(task_pairs=100, vocabulary=320, encoder_width=4, decoder_width=8, updates=1, average=1)
    >>> result = train(out=Path(folder.name) / "model", **small)
    >>> result.loss.ndim, dict(result.training_loss.sizes), result.attrs["model"]
    (0, {'training_update': 1}, 'recurrent')
    >>> folder.cleanup()
    """
    config = settings_for(config, **settings)
    folder = OwnedFolder(local_folder(out), "train")
    threads = own_threads(config.threads or threads_of_one())
    with threads, processes(usable_device(config.device).type) as group, folder if group.first else nullcontext():
        if finished_metrics(config, folder.look()) is None:
            Training(config, folder, group, progress).run()
        return training_results(folder.look())


def finished_metrics(config: TrainConfig, folder: OwnedFolder) -> dict[str, float] | None:
    """What a finished training with these settings ended with, if all of it is whole; else None."""
    if not folder.state.get("complete") or folder.damaged():
        return None
    before = TrainConfig(**folder.state["config"]).settings()
    same = {**before, **NO_MATTER} == {**config.settings(), **NO_MATTER}
    return folder.state["metrics"] if same else None
