"""An explanation that several tests read."""

import pytest

import attnscope


@pytest.fixture(scope="session")
def bundled():
    """That of the bundled model on 8 windows of the bundled text."""
    return attnscope.explain(limit=8)
