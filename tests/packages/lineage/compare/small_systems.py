"""Settings of systems that are trained within a second, on the generated task."""

SMALL = {
    "task_pairs": 200,
    "task_longest": 10,  # words: as many as gradients have shares
    "vocabulary": 400,
    "batch_tokens": 300,
    "updates": 6,
    "validate_every": 3,
    "log_every": 2,
    "warmup": 4,
    "average": 2,
    "threads": 1,
    "precision": "float32",  # on every processor
    "metric": "loss",
    "model": "recurrent",
    "embedding_width": 6,
    "encoder_width": 8,
    "decoder_width": 10,
}
