"""Everything Penstock raises on purpose.

A message says what came, what was expected, where, and what to do. `rpc.errors` holds the one table between these
types and gRPC status codes.
"""


class PenstockError(Exception):
    """The root: whatever Penstock raises on purpose."""


class ConfigurationError(PenstockError):
    """A setting, file, environment or folder that the user must change. Commands exit with code 2."""


class DamagedFile(ConfigurationError):
    """A file of a run that can't be read, or whose bytes are not those that were written.

    Attributes:
        finding: The file and what is wrong with it, without what to do.
    """

    def __init__(self, finding: str, remedy: str = "") -> None:
        super().__init__(f"{finding}; {remedy}" if remedy else finding)
        self.finding = finding


class InvalidSegment(PenstockError):
    """A segment or message that does not fit its schema or holds values out of range."""


class DamagedWindow(InvalidSegment):
    """The service read other bytes in a staging area than the actor wrote; in messages the window may arrive."""


class SchemaMismatch(PenstockError):
    """Something that belongs to another run: its schema, its spaces or its session differ."""


class NotReady(PenstockError):
    """The service is starting or draining, or what was asked for is not there yet. Trying again may help."""


class Overloaded(PenstockError):
    """More actors, segments or bytes than the service was configured for."""


class Unavailable(PenstockError):
    """The peer can't be reached, or did not answer within its deadline."""


class PeerFailed(Unavailable):
    """The peer answered UNKNOWN: an error that it did not expect itself, and that its log explains."""


class PlaceLost(PenstockError):
    """An actor's place in the run is no longer good: it must join again as a new actor.

    Attributes:
        taken_by: The incarnation that has taken the actor's slot; 0 if none has.
    """

    def __init__(self, message: str, taken_by: int = 0) -> None:
        super().__init__(message)
        self.taken_by = taken_by


class EnvironmentFailed(PenstockError):
    """An environment raised an exception, or returned what can't be used.

    Attributes:
        what: One line: what it did, and its id.
        environment: Its index among those that are stepped together, or its run-wide number; None where several are
            stepped in one call.
    """

    def __init__(self, what: str, environment: int | None = None) -> None:
        super().__init__(what if environment is None else f"environment {environment}: {what}")
        self.what, self.environment = what, environment


class AllActorsFailed(PenstockError):
    """The environments of every actor failed again and again: there is nothing to train on."""


class Diverged(PenstockError):
    """Training makes no finite numbers any more; the run ends, and its last checkpoint is good."""


class TrainingFailed(PenstockError):
    """Training that had begun ended for a reason that no restart cures; what the run has saved is good."""


class RunFinished(PenstockError):
    """The learner has ended the run: there is nothing left to do."""
