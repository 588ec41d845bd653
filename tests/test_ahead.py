"""Items that another thread makes in advance."""

import threading
from time import monotonic, sleep

import pytest

from attnscope.support.ahead import ahead


def test_order_and_number_are_kept():
    assert list(ahead(iter(range(10)))) == list(range(10))
    assert list(ahead(iter(()))) == []


def test_the_next_items_are_made_while_the_caller_works():
    made = []
    items = ahead((made.append(threading.current_thread()) or number for number in range(9)), most=3)
    assert next(items) == 0
    until = monotonic() + 10
    while len(made) < 4 and monotonic() < until:
        sleep(0.001)
    assert len(made) == 4
    assert set(made) != {threading.current_thread()}
    items.close()
    assert len(made) <= 5


def test_an_error_comes_in_its_turn():
    items = ahead(6 // (3 - number) for number in range(9))
    assert [next(items) for _ in range(3)] == [2, 3, 6]
    with pytest.raises(ZeroDivisionError):
        next(items)
    assert list(items) == []
