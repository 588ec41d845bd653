"""Whoever dies, each piece of work is answered once."""

from itertools import pairwise

import pytest

from attnscope import AttnscopeError
from attnscope.store.workers import Crew
from tests.store.workers.simulated_workers import Simulated

COUNT = 20


class Worker:
    """Notes what it is asked for."""

    def __init__(self, done):
        self.done, self.own = done, []

    def do(self, number):
        self.own.append(number)
        self.done.append(number)
        return None if number >= COUNT else number


def crew_of(seed=0, size=3, **given):
    done, workers = [], []

    def begin():
        workers.append(Worker(done))
        return workers[-1], "ready"

    engine = Simulated(begin, seed, size=size, **given)
    return Crew(engine, size), engine, done, workers


def ask(number):
    return lambda worker: worker.do(number)


@pytest.mark.parametrize("count", [None, COUNT])
@pytest.mark.parametrize("seed", range(30))
def test_each_piece_is_answered_once_whoever_dies(seed, count):
    crew, engine, done, workers = crew_of(seed, size=1 + seed % 4, deaths=seed % 7)
    assert sorted(crew.hand_out(ask, count)) == list(range(COUNT))
    repeated = len([number for number in done if number < COUNT]) - COUNT
    assert repeated <= engine.died  # a death costs one piece of work at most
    back = [later < earlier for worker in workers for earlier, later in pairwise(worker.own)]
    assert sum(back) <= engine.died  # only for what a lost one had
    assert sorted(crew.hand_out(ask, 3)) == [0, 1, 2]  # what nobody waits for any more disturbs no later round


@pytest.mark.parametrize("seed", range(30))
def test_those_that_are_left_go_back_where_nobody_comes_instead(seed):
    crew, engine, _, _ = crew_of(seed, deaths=2, more=False)
    assert sorted(crew.hand_out(ask)) == list(range(COUNT))
    assert len(engine.begun) == 3 + engine.died


def test_an_idle_worker_takes_what_a_slow_one_has_not():
    crew, engine, *_ = crew_of(size=2)
    answers = crew.hand_out(ask)
    first = next(answers)
    slow = next(iter(engine.queues))
    asked, engine.queues[slow] = engine.queues[slow], []  # it does nothing
    others = [next(answers) for _ in range(COUNT - 1 - len(asked))]
    engine.queues[slow] += asked
    assert sorted([first, *others, *answers]) == list(range(COUNT))


def test_what_the_only_worker_had_last_is_done_by_the_next():
    class Dying(Simulated):
        def wait(self):
            last = next((one for one, queue in self.queues.items() if queue and len(self.done) == 2), None)
            return super().wait() if last is None or self.died else self.die(last)

    engine = Dying(lambda: (Worker(engine.done), None), size=1)
    engine.done = []
    assert sorted(Crew(engine, 1).hand_out(ask, 3)) == [0, 1, 2]
    assert engine.died == 1


def test_work_that_ends_every_worker_is_reported():
    class Deadly(Simulated):
        def wait(self):
            first = next((one for one, queue in self.queues.items() if queue), None)
            return super().wait() if first is None else self.die(first)

    crew = Crew(Deadly(lambda: (Worker([]), None)), 2)
    with pytest.raises(AttnscopeError, match=r"tried to do unit 0 ended.*memory.*--workers"):
        list(crew.hand_out(ask))


def test_bad_luck_is_not_blamed_on_the_work_while_others_do_theirs():
    unlucky = ask(0)

    class Killing(Simulated):
        """Whoever has the first piece dies, a dozen times, each time after somebody else has answered."""

        answered = 0

        def wait(self):
            doomed = [worker for worker, queue in self.queues.items() if queue and queue[0][1] is unlucky]
            if doomed and self.died < min(12, self.answered):
                return self.die(doomed[0])
            hidden = {worker: self.queues.pop(worker) for worker in doomed if self.died < 12}
            event = super().wait()
            self.queues |= hidden
            self.answered += event.number is not None
            return event

    engine = Killing(lambda: (Worker([]), None), size=2)
    crew = Crew(engine, 2)
    assert sorted(crew.hand_out(lambda number: ask(number) if number else unlucky)) == list(range(COUNT))
    assert engine.died == 12
