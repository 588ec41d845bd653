"""A session loads its model once, and its verbs give what they give apart."""

import pytest
import torch
import xarray as xr

import attnscope
from attnscope.capture import load, verify

TEXTS = ["The tide comes in twice a day, and twice a day it goes out again.", "Ships wait for it."]


def test_two_verbs_load_once_and_give_what_they_give_apart(monkeypatch):
    loads = []

    def counted(*given):
        loads.append(given)
        return from_checkpoint(*given)

    from_checkpoint = load.from_checkpoint
    monkeypatch.setattr(load, "from_checkpoint", counted)
    session = attnscope.Session("bundled", (text for text in TEXTS), window=16, seed=3)
    scanned, explained = session.scan(band=4), session.explain(seed=0)
    assert len(loads) == 1
    xr.testing.assert_identical(scanned, attnscope.scan("bundled", TEXTS, window=16, seed=3, band=4))
    apart = attnscope.explain("bundled", TEXTS, window=16)
    xr.testing.assert_identical(explained, apart)
    assert explained.attrs["signature"] == apart.attrs["signature"]


def test_an_option_that_a_verb_lacks_is_rejected():
    session = attnscope.Session(texts=TEXTS, targets=TEXTS)
    with pytest.raises(attnscope.AttnscopeError, match=r"attnscope\.roles has no targets, which this session has"):
        session.roles()


def test_a_model_is_verified_once_until_it_changes(monkeypatch):
    checks, verified = [], verify._verified

    def counted(*given, **options):
        checks.append(given)
        return verified(*given, **options)

    monkeypatch.setattr(verify, "_verified", counted)
    session = attnscope.Session("bundled", TEXTS, window=16)
    for verb in (session.scan, session.explain, session.scan):
        verb()
    assert len(checks) == 1
    with torch.no_grad():
        next(session.model.model.parameters()).mul_(1.5)
    session.scan()
    assert len(checks) == 2
