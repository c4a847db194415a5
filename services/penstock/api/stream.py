"""`penstock.stream`: a run as an iterator over its records. The run is trained in another thread of this process."""

import atexit
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

from penstock.api.run import TrainedRun
from penstock.api.training import Follower, Record, refuse_in_a_service, train_followed
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.machine.environment_names import Environment


def stream(
    what: Environment | Config | None = None,
    /,
    *,
    preset: str | None = None,
    resume: bool = False,
    progress: bool | None = None,
    verbose: int | None = None,
    trust_code: bool = False,
    **settings: object,
) -> "Stream":
    """Trains an agent as an iterator over the records of the run's metrics. Takes the arguments of `penstock.train`.

    For example::

        records = penstock.stream("CartPole-v1", total_steps=50_000)
        for record in records:
            if record["kind"] == "evaluation" and record["return_mean"] > 400:
                break
        print(records.run)

    Training begins with the iteration, and does not wait for the loop. A loop that ends early, by `break` or an
    exception, ends the run with its summary: the learner finishes its batch and saves a checkpoint, and the run can be
    resumed. Each record is a dict, as a callback of `penstock.train` receives it (docs/reading-a-run.md).

    Raises:
        ConfigurationError: The call is in a file that a service imports. The iteration raises the errors of
            `penstock.train`.
    """
    refuse_in_a_service("penstock.stream")
    train = functools.partial(
        train_followed,
        what=what,
        preset=preset,
        resume=resume,
        progress=progress,
        verbose=verbose,
        trust_code=trust_code,
        settings=settings,
    )
    return Stream(train)


class Stream:
    """Iterator over the records of a run that it trains. `penstock.stream` makes one. Used by one thread, once.

    For example::

        records = penstock.stream("CartPole-v1", total_steps=50_000)
        returns = [record["return_mean"] for record in records if record["kind"] == "evaluation"]
        print(returns, records.run.verdict)
    """

    def __init__(self, train: Callable[[Follower], TrainedRun]) -> None:
        """Takes the function that trains, and passes its records to another one."""
        self._train = train
        self._records = SimpleQueue[Record | None]()
        self._thread: threading.Thread | None = None
        self._ending, self._seen = threading.Event(), False
        self._run: TrainedRun | None = None
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[Record]:
        """Trains the run, and yields its records until it ends. Raises the errors of `penstock.train`."""
        if self._thread is not None:
            raise ConfigurationError("a stream is iterated once; call penstock.stream again, with resume=True to go on")
        # At the end of the program, a daemon does not keep it from ending the run.
        self._thread = threading.Thread(target=self._work, name="penstock-stream", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        return self._yielded()

    @property
    def run(self) -> TrainedRun:
        """The run with its summary, after the iteration. Raises `ConfigurationError` before, or the run's error."""
        if self._error is not None:
            raise self._error
        if self._run is None:
            raise ConfigurationError("the run of this stream has not ended; iterate it, or end it with close()")
        return self._run

    def close(self) -> None:
        """Ends the run, and waits for its end: for the current batch and its checkpoint."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        atexit.unregister(self.close)

    def _yielded(self) -> Iterator[Record]:
        try:
            # The thread ends with None in any case.
            while (record := self._records.get()) is not None:
                yield record
        finally:
            self.close()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            self._run = self._train(self._follow)
        except BaseException as error:
            self._error = error
        finally:
            self._records.put(None)

    def _follow(self, records: Sequence[Record]) -> bool:
        for record in records:
            self._seen = True
            self._records.put(record)
        # Read once, because another thread may set it meanwhile.
        ending = self._ending.is_set()
        if ending and not self._seen:
            # As Ctrl-C before training, which leaves no folder.
            raise KeyboardInterrupt
        return ending
