import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch

from penstock.errors import Diverged
from penstock.learning.run.publication import Publication
from penstock.types.run import Weights
from tests.support.machine.timing import PATIENCE_S
from tests.support.training.policies import weights_of
from tests.support.training.training import make_batch, make_learner


class Sink:
    """Keeps what is published, and the threads that published it, once it is open."""

    def __init__(self) -> None:
        self.published: list[Weights] = []
        self.threads: set[str] = set()
        self.open = threading.Event()
        self.open.set()

    def publish(self, weights: Weights) -> None:
        assert self.open.wait(PATIENCE_S)
        self.published.append(weights)
        self.threads.add(threading.current_thread().name)


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink()
    yield sink
    sink.open.set()


@pytest.mark.parametrize("beside", [False, True])
def test_each_version_is_published_with_the_parameters_that_it_had(sink: Sink, beside: bool) -> None:
    learner, batch, expected = make_learner(), make_batch(), []
    if beside:
        sink.open.clear()
    with closing(Publication(learner, sink, beside=beside)) as publication:
        for version in (3, 4):
            learner.train(batch, 0.0)
            expected.append(weights_of(learner.policy, version))
            publication.publish(version)
        # Changes the parameters while both versions wait to be encoded.
        learner.train(batch, 0.0)
        sink.open.set()
        publication.finish()
    assert sink.published == expected
    assert sink.threads == {"publication_0" if beside else "MainThread"}


def test_a_learner_on_a_cpu_needs_no_further_thread(sink: Sink) -> None:
    before = threading.active_count()
    with closing(Publication(make_learner(), sink)) as publication:
        publication.publish(0)
        assert threading.active_count() == before
    assert len(sink.published) == 1


def test_training_waits_while_two_versions_are_not_published(sink: Sink) -> None:
    sink.open.clear()
    with closing(Publication(make_learner(), sink, beside=True)) as publication:
        publication.publish(0)
        publication.publish(1)
        third = threading.Thread(target=publication.publish, args=(2,))
        third.start()
        third.join(0.1)
        assert third.is_alive() and not sink.published
        sink.open.set()
        third.join(PATIENCE_S)
        publication.finish()
    assert [weights.version for weights in sink.published] == [0, 1, 2]


@pytest.mark.parametrize("beside", [False, True])
def test_a_value_that_is_not_finite_is_not_published(sink: Sink, beside: bool) -> None:
    learner = make_learner()
    with torch.no_grad():
        learner.optimizer.state["exp_avg"][3] = torch.inf
    with closing(Publication(learner, sink, beside=beside)) as publication:
        with pytest.raises(Diverged, match="neither published nor saved"):
            publication.publish(0)
        publication.finish()
    assert not sink.published


def test_an_error_of_the_thread_ends_training(sink: Sink) -> None:
    def fail(weights: Weights) -> None:
        raise OSError(f"version {weights.version} is lost")

    sink.publish = fail  # type: ignore[method-assign]
    with closing(Publication(make_learner(), sink, beside=True)) as publication:
        publication.publish(7)
        with pytest.raises(OSError, match="version 7 is lost"):
            publication.finish()
