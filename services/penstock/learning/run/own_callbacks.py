"""The callbacks of a user (`learner.callbacks`): imports, calls and measures them, and keeps what they log.

An exception of a callback, a name or a value that can't be recorded, and a changed policy end the run in one line.
`config.foreign_code` has refused names that a file alone gives.
"""

import contextlib
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from penstock.callbacks import Callback
from penstock.callbacks import Record as Numbers
from penstock.config import Config
from penstock.errors import ConfigurationError, TrainingFailed
from penstock.learning.durable.records import Record
from penstock.learning.step.learner import Learner
from penstock.machine import environment_names, foreign_errors
from penstock.machine.module_imports import import_for, instance_for

_SETTING = "learner.callbacks"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_MOST_NAMES = 64
_MOST_CHARACTERS = 200


class OwnCallbacks:
    """The callbacks of a run, and the `Training` that they get. Used by the training thread.

    Attributes:
        config, policy: As in `callbacks.Training`.
        env_steps, version: As there; the training run keeps them up to date.
        stop_reason: Reason for which a callback has ended the run, with its name; empty until then.
    """

    def __init__(self, config: Config, learner: Learner, spent: Callable[[float], None]) -> None:
        """Imports and makes the callbacks. `spent` gets the seconds of their calls.

        Raises `ConfigurationError` if one can't be imported or made, or is not a callback.
        """
        self.config, self.policy = config, learner.policy
        self._of_policy = [*self.policy.parameters(), *self.policy.buffers()]
        self.env_steps = self.version = 0
        self.stop_reason = ""
        self._spent, self._calling = spent, ""
        self._callbacks = {name: _made(name) for name in config.learner.callbacks}
        self._logged: defaultdict[str, list[float]] = defaultdict(list)
        self._names = set[str]()

    def log(self, name: str, value: object) -> None:
        """Implements `Training`."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _Misuse(f"logged the name {name!r}", "use up to 40 lower-case letters, digits and underscores")
        self._names.add(name)
        if len(self._names) > _MOST_NAMES:
            raise _Misuse(f"logged {len(self._names)} names", f"log at most {_MOST_NAMES} in all")
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError):
            shown = foreign_errors.shortened(repr(value))
            raise _Misuse(f"logged {shown} as {name}", "log a number, or a tensor of one number") from None
        self._logged[name].append(number)

    def stop(self, reason: str) -> None:
        """Implements `Training`. The first reason counts."""
        text = foreign_errors.one_line(str(reason))[:_MOST_CHARACTERS]
        self.stop_reason = self.stop_reason or f"{environment_names.short(self._calling)}: {text or 'no reason given'}"

    def start(self) -> None:
        """Calls `on_start` of each callback. Raises `ConfigurationError` if one fails, as nothing has been trained."""
        try:
            self._call("on_start")
        except TrainingFailed as failed:
            raise ConfigurationError(str(failed)) from failed

    def trained(self, record: Callable[[], Numbers]) -> None:
        """Calls `on_batch` with the numbers that `record` returns. Raises `TrainingFailed` if a callback fails."""
        if self._callbacks:
            self._call("on_batch", record())

    def end(self, stopped: str) -> None:
        """Calls `on_end`. Raises `TrainingFailed` if a callback fails."""
        self._call("on_end", stopped)

    def completed(self, record: Record) -> Record:
        """Returns a record with what the callbacks have logged; calls `on_evaluation` with those of evaluations.

        Raises `TrainingFailed` if a callback fails.
        """
        if not self._callbacks:
            return record
        if record.kind == "training":
            means = self._take()
        else:
            kept, self._logged = self._logged, defaultdict(list)
            self._call("on_evaluation", {"env_steps": record.env_steps, **record.values})
            means, self._logged = self._take(), kept
        return record.with_own(means)

    def _take(self) -> dict[str, float | None]:
        """Returns the means of what was logged since the last call, None where not finite, by name."""
        means = {name: sum(values) / len(values) if values else math.nan for name, values in self._logged.items()}
        self._logged.clear()
        return {name: mean if math.isfinite(mean) else None for name, mean in means.items()}

    def _call(self, event: str, *arguments: Any) -> None:
        for name, callback in self._callbacks.items():
            self._calling = name
            with self._measured(), self._guarded(name, event), torch.no_grad():
                getattr(callback, event)(self, *arguments)

    @contextlib.contextmanager
    def _measured(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent(time.perf_counter() - started)

    @contextlib.contextmanager
    def _guarded(self, name: str, event: str) -> Iterator[None]:
        """Raises `TrainingFailed` for an exception of a callback, and if it changes the policy."""
        before = self._changes
        try:
            yield
        except foreign_errors.MISBEHAVIOUR as error:
            foreign_errors.let_ctrl_c_pass(error)
            what, remedy = f"failed in {event}: {foreign_errors.explain(error)}", "correct it"
            if isinstance(error, _Misuse):
                place = foreign_errors.place_of(error)
                what, remedy = f"{error.what} in {event}{place and f' ({place})'}", error.remedy
            raise TrainingFailed(f"learner.callbacks {name!r} {what}; {remedy}") from error
        if self._changes != before:
            raise TrainingFailed(
                f"learner.callbacks {name!r} changed the parameters of the policy in {event}; a callback may only read"
                " them, and a loss (learner.loss) may train them"
            )

    @property
    def _changes(self) -> int:
        """Number of operations that have changed a tensor of the policy in place."""
        return sum(each._version for each in self._of_policy)


class _Misuse(Exception):
    """A wrong argument of `log`, with the remedy."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


def _made(name: str) -> Callback:
    found = import_for(_SETTING, name, kind="class", examples="file.py:MyCallback or my_package.module:MyClass")
    if not isinstance(found, type) or not issubclass(found, Callback):
        what = "names nothing" if found is None else "does not name a subclass of penstock.callbacks.Callback"
        place, _ = environment_names.split(name)
        raise ConfigurationError(
            f"{_SETTING} {name!r} {what} in {place}; correct the part after the colon, or derive it from Callback"
        )
    return instance_for(_SETTING, name, found)
