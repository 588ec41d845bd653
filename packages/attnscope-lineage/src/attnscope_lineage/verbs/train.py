"""`attnscope_lineage.train`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnscope.options import Tell
from attnscope.verbs import verb
from attnscope_lineage.options import TrainConfig

if TYPE_CHECKING:
    import xarray as xr


@verb()
def train(
    config: Annotated[
        TrainConfig | Path | str | None,
        "Train with these settings, or a YAML file of them. Without settings and data, the preset in `PRESETS` for "
        "this type of model (by default additive attention) is trained on the generated task, which takes a few "
        "minutes on two cores.",
    ] = None,
    out: Annotated[
        Path | str,
        "Write the training to this folder. A stopped training resumes from its last checkpoint, if the folder is "
        "the same.",
    ] = "attnscope-model",
    *,
    progress: Annotated[
        Tell | None,
        "Called with a `Progress` for every line of the log, with ``update``, ``loss`` (nats per target token "
        "since the previous line), ``tokens/s`` and the metrics of the last validation (``validation loss``, ...).",
    ] = None,
    **settings: object,
) -> "xr.Dataset":
    """Train a translation model or a masked language model. Without data: a generated task, in a few minutes.

    Returns
    -------
    xarray.Dataset
        On the validation text at the end: ``loss`` (nats per token), for translation ``bleu`` (greedy), and on the
        generated task, for a model with attention, ``alignment_error_rate`` of its best head against the known
        alignments (between 0 and 1; see `best_aligning_head`) with its interval, ``alignment_error_rate_lower`` and
        ``alignment_error_rate_upper``, with the controls ``alignment_diagonal``, ``alignment_chance`` (random words)
        and ``alignment_chance_level`` (below which random words fall in 1 of 100 cases). The learning curve:
        ``validation_loss`` and ``validation_bleu (validation_update)``; ``training_loss``, ``learning_rate``,
        ``tokens_per_second``, ``tokens`` (target tokens seen), ``seconds`` and ``epoch (training_update)``, an entry
        for each line of the log.
        Attributes: ``signature``, ``model``, ``chosen`` (which weights were saved), ``left_out``;
        ``.encoding["source"]`` is the folder.

    Raises
    ------
    AttnscopeError
        If settings, texts or the folder are invalid.
    """
    from contextlib import nullcontext

    from attnscope.capture.load import usable_device
    from attnscope.store.files import local_folder
    from attnscope.store.folder import OwnedFolder
    from attnscope.support.state import own_random_numbers, own_threads
    from attnscope_lineage.checkpoints import training_results
    from attnscope_lineage.config import settings_for
    from attnscope_lineage.training import Training, finished_metrics, processes, threads_of_one

    chosen = settings_for(config, **settings)
    folder = OwnedFolder(local_folder(out), "train")
    threads = own_threads(chosen.threads or threads_of_one())
    with (
        own_random_numbers(),
        threads,
        processes(usable_device(chosen.device).type) as group,
        folder if group.first else nullcontext(),
    ):
        if finished_metrics(chosen, folder.look()) is None:
            Training(chosen, folder, group, progress).run()
        return training_results(folder.look())
