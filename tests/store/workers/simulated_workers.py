"""An engine of workers in this process, whose events come in an order that a seed draws."""

import random

from attnscope.store.workers import Event, RayEngine


class Simulated(RayEngine):
    """Workers that begin, answer and die whenever they like.

    `deaths` are so many at most; without `more`, only the first `size` workers ever begin.
    """

    def __init__(self, begin, seed=0, deaths=0, size=3, *, more=True):
        self.begin, self.rng, self.deaths = begin, random.Random(seed), deaths
        self.size, self.more = size, more
        self.begun, self.died = [], 0
        self.starting, self.held, self.queues = [], {}, {}

    def start(self):
        number = len(self.begun)
        self.begun.append(number)
        if self.more or number < self.size:
            self.starting.append(number)
        return number

    def submit(self, worker, number, request):
        self.queues[worker].append((number, request))

    def wait(self):
        busy = [worker for worker, queue in self.queues.items() if queue]
        alive = [*self.starting, *self.queues]
        if self.died < self.deaths and self.rng.random() < 0.3 and (self.more or len(alive) > 1):
            return self.die(self.rng.choice(alive))
        chosen = self.rng.choice([*self.starting, *busy])  # fails where nobody has anything to do
        if chosen in self.starting:
            self.starting.remove(chosen)
            self.queues[chosen] = []
            self.held[chosen], reply = self.begin()
            return Event(chosen, None, reply)
        number, request = self.queues[chosen].pop(0)
        return Event(chosen, number, request(self.held[chosen]))

    def die(self, worker):
        self.died += 1
        if worker in self.starting:
            self.starting.remove(worker)
        queue, held = self.queues.pop(worker, []), self.held.pop(worker, None)
        if queue and self.rng.random() < 0.8:
            queue[0][1](held)  # done, and lost
        return Event(worker, is_lost=True)
