"""Shares of collection through real services: two fast actors, and a learner that is slower than both."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.types.replay import SamplingPlan
from tests.support.services.servers import Actor, LiveReplay, Loopback, Recorder, Trainer, plan_with, until

WINDOW, FRESH = 2, 8


def is_full(loopback: Loopback, server: LiveReplay, plan: SamplingPlan) -> Callable[[], bool]:
    """Returns whether the actors have used all the room that the gate has."""

    def full() -> bool:
        counts = loopback.replay_status(server).counts
        return bool(counts.unseen + counts.leased == plan.outstanding_limit)

    return full


def train(loopback: Loopback, server: LiveReplay, trainer: Trainer, plan: SamplingPlan, batches: int) -> Counter[int]:
    """Trains batches slowly and returns the number of fresh segments of each slot, from what the batches' heads say."""
    slots: Counter[int] = Counter()
    for _ in range(batches):
        batch = trainer.next()
        until(is_full(loopback, server, plan), "the actors to use all room")
        slots.update(batch.head.slots.tolist())
        trainer.commit(batch)
    return slots


@pytest.mark.parametrize("degree", [1, 3])
def test_weights_of_3_and_1_yield_trained_windows_of_3_to_1(loopback: Loopback, degree: int) -> None:
    server, recorder = loopback.replay(), Recorder()
    plan = plan_with(
        fresh_segments=FRESH,
        batch_segments=FRESH,
        off_policy_degree=degree,
        slot_weights=(3.0, 1.0),
        least_share=0.2,
    )
    sinks = [loopback.sink(slot, server) for slot in range(2)]
    until(lambda: loopback.replay_status(server).actors == 2, "both actors to connect")
    source = loopback.source(server, plan)
    trainer = Trainer(source, recorder, plan)
    early = Actor(sinks[1], recorder, lambda: trainer.published, slot=1)
    until(lambda: early.sent >= FRESH // WINDOW, "one actor to collect a batch alone")
    actors = [Actor(sinks[0], recorder, lambda: trainer.published, slot=0), early]
    # The room of d + 1 batches is shared unequally then, and the next one makes up for it.
    train(loopback, server, trainer, plan, 2 * (degree + 1))
    counted = train(loopback, server, trainer, plan, 40)
    assert counted[0] == pytest.approx(0.75 * 40 * FRESH, abs=2 * WINDOW)
    # A plan of the same session changes the shares at once, and actors stay connected.
    source.adjust(replace(plan, slot_weights=(1.0, 3.0)))
    train(loopback, server, trainer, plan, degree + 4)
    counted = train(loopback, server, trainer, plan, 40)
    assert counted[1] == pytest.approx(0.75 * 40 * FRESH, abs=2 * WINDOW)
    # The slots that the heads name are those of the actors that sent the segments.
    assert Counter(name[0] for name in trainer.fresh[-40 * FRESH :]) == counted
    for actor in actors:
        actor.end()
