# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What a type checker and an editor see of verbs: `pyright` reads this file, and nothing runs it.

A comment that ignores an error is itself an error where there is none.
"""

import xarray as xr

import attnscope
import attnscope_lineage


def results_have_the_type_of_the_verb() -> tuple[xr.Dataset, xr.DataTree]:
    attnscope_lineage.align("translator", ["A text."], ["Ein Text."]).to_dict()
    return attnscope.scan("gpt2", ["A text."], window=64, statistics=["entropy"]), attnscope.explain(limit=3)


def a_session_has_the_options_of_its_verbs() -> tuple[xr.Dataset, xr.DataTree]:
    session = attnscope.Session("gpt2", ["A text."], limit=3)
    return session.scan(band=4, window=64), session.explain(band=4, interventions=True)


def a_name_that_a_verb_does_not_have() -> None:
    attnscope.scan(windows=3)  # pyright: ignore[reportCallIssue]
    attnscope_lineage.walk(layers=3)  # pyright: ignore[reportCallIssue]
    attnscope.Session().scan(windows=3)  # pyright: ignore[reportCallIssue]


def a_value_of_another_type() -> None:
    attnscope.scan(window="3")  # pyright: ignore[reportArgumentType]
    attnscope.patch(what="head")  # pyright: ignore[reportArgumentType]
    attnscope.Session().scan(window="3")  # pyright: ignore[reportArgumentType]
    attnscope.Session().intervene(search="yes")  # pyright: ignore[reportArgumentType]
