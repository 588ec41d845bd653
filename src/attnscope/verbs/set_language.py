"""`attnscope.set_language`."""

from typing import Annotated

from attnscope.verbs import verb


@verb()
def set_language(
    name: Annotated[
        str | None,
        'Choose ``"en"``, the default in Python, or ``"ja"``. None stands for the locale\'s language '
        "(``LC_ALL``, ``LC_MESSAGES``, ``LANG``), which commands use by default.",
    ] = None,
) -> None:
    """Choose the language of summaries, pages, figures and views: English or Japanese.

    Names and values in results stay in English, and so do errors. A command has the option ``--lang``.

    Raises
    ------
    AttnscopeError
        If there is no such language.

    Examples
    --------
    >>> import attnscope
    >>> result = attnscope.scan(limit=4)
    >>> attnscope.set_language("ja")
    >>> "ヘッド" in repr(result.attnscope)
    True
    >>> attnscope.set_language("en")
    """
    from attnscope.report.language import set_language as choose

    choose(name)
