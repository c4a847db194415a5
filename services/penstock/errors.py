"""Everything Penstock raises on purpose.

A message says what came, what was expected, where, and what to do. `rpc.errors` holds the one table between these
types and gRPC status codes.
"""


class PenstockError(Exception):
    """The root: whatever Penstock raises on purpose."""


class ConfigurationError(PenstockError):
    """A setting, file, environment or folder that the user must change. Commands exit with code 2."""


class InvalidSegment(PenstockError):
    """A segment or message that does not fit its schema or holds values out of range."""


class SchemaMismatch(PenstockError):
    """Something that belongs to another run: its schema, its spaces or its session differ."""


class NotReady(PenstockError):
    """The service is starting or draining, or what was asked for is not there yet. Trying again may help."""


class Overloaded(PenstockError):
    """More actors, segments or bytes than the service was configured for."""


class Unavailable(PenstockError):
    """The peer can't be reached, or did not answer within its deadline."""


class PlaceLost(PenstockError):
    """An actor's place in the run is no longer good: it must join again, as somebody new."""


class RunFinished(PenstockError):
    """The learner has ended the run: there is nothing left to do."""
