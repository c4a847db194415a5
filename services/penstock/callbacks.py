"""Callbacks (`learner.callbacks`): code of one's own that watches a run, adds numbers to its records, and may end it.

    from penstock.callbacks import Callback, Training

    class StopAtSuccess(Callback):
        def on_evaluation(self, training, record):
            if (record["info_success"] or 0.0) >= 0.9:
                training.stop("success rate 0.9")

`learning.run.own_callbacks` calls them in the learner's process, on the thread that trains, so training waits for each
call. docs/callbacks.md is the guide.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    # They import torch and all settings, which a script that only defines a callback need not do.
    from penstock.algo.policies import Policy
    from penstock.config import Config

__all__ = ["Callback", "Record", "Training"]

Record = Mapping[str, float | None]
"""Numbers by name, as in `metrics.jsonl`; None where not known."""


class Training(Protocol):
    """The run, as a callback sees it."""

    @property
    def config(self) -> "Config":
        """Settings of the run."""

    @property
    def policy(self) -> "Policy":
        """Policy that is trained, a torch module on the learner's device. A callback may read it, not change it."""

    @property
    def env_steps(self) -> int:
        """Environment steps trained."""

    @property
    def version(self) -> int:
        """Version of the policy, which counts batches."""

    def log(self, name: str, value: float) -> None:
        """Adds a number, which the records name callback_NAME: the mean of the values since the last record.

        In `on_evaluation`, it belongs to the record of this evaluation. A tensor of one number is taken, too.
        """

    def stop(self, reason: str) -> None:
        """Ends the run after this batch, as if it had reached its limit. The summary has the reason."""


class Callback:
    """A callback that does nothing. A subclass overrides what it needs, and is made once, without arguments."""

    def on_start(self, training: Training) -> None:
        """Called before the first batch of a session, also of a run that is resumed."""

    def on_batch(self, training: Training, record: Record) -> None:
        """Called after each batch, with its statistics, `return_mean`, `episodes` and the `info_` numbers."""

    def on_evaluation(self, training: Training, record: Record) -> None:
        """Called with each result of an evaluation, also with the final one, of the best checkpoint."""

    def on_end(self, training: Training, stopped: str) -> None:
        """Called at the end of training, before the final evaluation, with the reason as in `summary.json`.

        It is not called if training failed.
        """
