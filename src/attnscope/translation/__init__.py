"""Translation: parallel text, subwords and batches; training, translating, aligning, scoring, comparing.

Each module is imported by its name: the settings of a training are wanted for ``--help``, before PyTorch is.
"""
