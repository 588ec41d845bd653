"""Analyses of some windows, without what `study` does for texts."""

from attnscope.explanation.study import Study


def of_windows(analysis):
    """The analysis as a function of a model and all of these windows, whether the model meets its needs or not."""

    def call(model, windows, *given, **settings):
        study = Study(model, windows)
        study.few_texts = len(study.windows)
        return analysis.alone(study, *given, **settings)

    return call
