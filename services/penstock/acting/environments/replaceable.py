"""The environments of an actor, which are made again after a failure and for another variant."""

from collections.abc import Callable

from penstock.acting.environments.progress import Progress
from penstock.acting.environments.vectors import Environments
from penstock.acting.protocols import Log, Process
from penstock.errors import ConfigurationError, EnvironmentFailed
from penstock.machine import foreign_errors
from penstock.types.spaces import EnvironmentSpec

Make = Callable[[int | None, EnvironmentSpec | None], Environments]
"""Function that makes the environments of a variant (None: of all, in turn) with these spaces (None: any).

Raises `ConfigurationError`."""


class ReplaceableEnvironments:
    """The environments of one actor. Used only on the process's main thread.

    Attributes:
        current: Environments of the current variant.
    """

    def __init__(self, make: Make, progress: Progress, process: Process, log: Log) -> None:
        """Makes the environments of the first variant.

        An actor needs their spaces to join the run, and receives its own variant only by joining. Raises
        `ConfigurationError` if they can't be made, or `EnvironmentFailed` under a launcher, whose check has made them
        before.
        """
        self._make_variant, self._progress, self._process, self._log = make, progress, process, log
        self._spec: EnvironmentSpec | None = None
        self._variant: int | None = 0
        try:
            self.current = self._make()
        except ConfigurationError as error:
            if process.supervised:
                raise EnvironmentFailed(str(error)) from error
            raise
        self._spec = self.current.spec

    @property
    def spec(self) -> EnvironmentSpec:
        """Spaces of the environments, the same in all variants."""
        return self.current.spec

    def become(self, variant: int | None) -> None:
        """Switches to the environments of this variant; None: of all in turn. Raises as `make_again`."""
        if variant != self._variant:
            self._variant = variant
            self.make_again()

    def make_again(self) -> None:
        """Closes the environments, in any state, and makes new ones. Raises `EnvironmentFailed` if that fails."""
        self.close()
        try:
            self.current = self._make()
        except ConfigurationError as error:
            raise EnvironmentFailed(str(error)) from error

    def close(self) -> None:
        """Closes the environments; an error is only logged."""
        close_logged(self.current, self._log)

    def _make(self) -> Environments:
        self._progress.doing = "make"
        try:
            return self._make_variant(self._variant, self._spec)
        finally:
            self._progress.doing = ""
            self._process.restore_process()


def close_logged(environments: Environments, log: Log) -> None:
    """Closes environments; an error is only logged."""
    try:
        environments.close()
    except foreign_errors.MISBEHAVIOUR as error:
        log.warning("closing an environment failed", error=foreign_errors.describe(error))
