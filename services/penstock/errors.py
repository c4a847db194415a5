"""The exceptions that Penstock raises deliberately, and exit codes. `rpc.errors` maps them to gRPC status codes.

A message states what was received, what was expected, where, and what to do.
"""


class PenstockError(Exception):
    """Base class of all exceptions that Penstock raises deliberately.

    For example::

        try:
            outcome = penstock.evaluate("runs/first", episodes=20)
        except penstock.PenstockError as error:
            print(f"skipped: {error}")
    """


class ConfigurationError(PenstockError):
    """A setting, file, environment or folder that the user must change. Commands exit with code 2.

    For example::

        try:
            penstock.Config(epochs=0)
        except penstock.ConfigurationError as error:
            print(error)  # one line with the setting, its value and what it accepts
    """


class UnknownEnvironment(ConfigurationError):
    """An environment that no imported package registers."""


class ForeignCode(ConfigurationError):
    """A file or a message that names a module to import, which only the process's own settings may do.

    `finding` names the module and who names it; `remedy` tells how to allow the import.
    """

    def __init__(self, finding: str, remedy: str) -> None:
        super().__init__(f"{finding}; {remedy}")
        self.finding, self.remedy = finding, remedy


class DamagedFile(ConfigurationError):
    """A file that can't be read, or whose bytes differ from those written. `finding` names it and its fault."""

    def __init__(self, finding: str, remedy: str = "") -> None:
        super().__init__(f"{finding}; {remedy}" if remedy else finding)
        self.finding = finding


class InvalidSegment(PenstockError):
    """A segment or message that does not fit its schema or holds values out of range."""


class DamagedWindow(InvalidSegment):
    """A window whose bytes in the staging area differ from those the actor wrote. Messages may deliver it intact."""


class SchemaMismatch(PenstockError):
    """A peer or a store of another run or session: its schema, spaces or session differ."""


class NotReady(PenstockError):
    """The service is starting or draining, or the requested data does not exist yet. A retry may succeed."""


class Overloaded(PenstockError):
    """More actors, segments or bytes than the service was configured for."""


class Unavailable(PenstockError):
    """The peer can't be reached, or did not answer within its deadline."""


class PeerFailed(Unavailable):
    """The peer answered UNKNOWN: it met an unexpected error, which its log explains."""


class PermissionDenied(PenstockError):
    """A call by a client whose certificate does not allow it, or that does not prove the run's key."""


class PlaceLost(PenstockError):
    """An actor has lost its slot and must join as a new actor. `taken_by` is the slot's new incarnation; 0: none."""

    def __init__(self, message: str, taken_by: int = 0) -> None:
        super().__init__(message)
        self.taken_by = taken_by


class EnvironmentFailed(PenstockError):
    """An environment raised an exception or returned unusable values.

    Attributes:
        what: One line with the fault and the environment's id.
        environment: Index of the environment among those stepped together, or its run-wide number; None if several are
            stepped in one call.
    """

    def __init__(self, what: str, environment: int | None = None) -> None:
        super().__init__(what if environment is None else f"environment {environment}: {what}")
        self.what, self.environment = what, environment


class AllActorsFailed(PenstockError):
    """The environments of every actor failed repeatedly, so that there is nothing to train on."""


class Diverged(PenstockError):
    """Training no longer yields finite numbers. The run ends, and its last checkpoint is usable."""


class TrainingFailed(PenstockError):
    """Training had begun and ended for a reason that no restart cures. The run's saved files are usable."""


class RankLost(PenstockError):
    """Another rank of the learner has ended or does not answer, or did not connect. A start of all ranks cures it."""


class RunFinished(PenstockError):
    """The learner has ended the run."""


NOT_SERVING = 1
"""Result of `penstock health` for a service that is not ready."""

UNFIT = 1
"""Result of `penstock doctor` if a check failed."""

CRASHED = 1
"""Unexpected exception, with a traceback, or failure of an environment or another rank, with the reason in one line."""

USAGE_ERROR = 2
"""Mistake in a setting, a file or the environment that the user must correct first; one line names it."""

GAVE_UP = 3
"""Failure that a restart does not cure; one line states the reason."""

INTERRUPTED = 130
"""Ctrl-C; the exit code that shells use for it."""

BY_SIGNAL = 128
"""Added to the number of the signal that stopped a service without a launcher before the end of its run.

Docker, Swarm, Kubernetes and batch systems would take code 0 for the end of the run, and start nothing again.
"""


def exit_code(error: BaseException) -> int:
    """Returns the exit code of a command that ends by an error."""
    if isinstance(error, ConfigurationError):
        return USAGE_ERROR
    if isinstance(error, PenstockError) and not isinstance(error, (EnvironmentFailed, RankLost)):
        return GAVE_UP
    return CRASHED
