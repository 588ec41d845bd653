"""Trainings that take a fraction of a second, on sixty pairs."""

from contextlib import contextmanager, suppress
from random import Random

from attnscope.store.folder import OwnedFolder
from attnscope_lineage.config import TrainConfig
from attnscope_lineage.training import Processes, Training

_TINY = {
    "vocabulary": 300,
    "batch_tokens": 150,
    "schedule": "constant",
    "warmup": 0,
    "log_every": 1,
    "validate_every": 1,
    "precision": "float32",
    "metric": "loss",
    "device": "cpu",
}
_OF_MODELS = {
    "transformer": {"width": 8, "heads": 2, "feed_forward": 8, "layers": 1},
    "recurrent": {"embedding_width": 4, "encoder_width": 4, "decoder_width": 8},
    "masked-lm": {"width": 8, "heads": 2, "feed_forward": 8, "layers": 1, "longest": 8},
}


@contextmanager
def small_training(folder, progress=None, *, model="transformer", **settings):
    """A training, where it stands in this folder; its text lies beside it."""
    draw = Random(0)
    lines = [" ".join(draw.choices("abcdefgh", k=draw.randint(1, 8))) for _ in range(60)]
    source, target = folder.parent / "source.txt", folder.parent / "target.txt"
    source.write_text("\n".join(lines))
    target.write_text("\n".join(lines).upper())
    texts = {"text": source} if model == "masked-lm" else {"source": source, "target": target}
    config = TrainConfig(model=model, **texts, **_TINY | _OF_MODELS[model] | settings)
    with OwnedFolder(folder, "train") as owned:
        training = Training(config, owned, Processes(), progress)
        yield training
        training.log.close()


class Stopped(Exception):  # noqa: N818 says what it is
    pass


def small_train(folder, stop=None, **settings):
    """Train to the end, or until the log tells of update `stop`, before its checkpoint is written."""

    def progress(told):
        if told.details["update"] == stop:
            raise Stopped

    with small_training(folder, progress, **settings) as training, suppress(Stopped):
        training.run()
