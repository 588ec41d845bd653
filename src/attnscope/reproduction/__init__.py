"""Published papers, done again: their numbers and figures beside those of a model."""
