"""Exit codes of the commands."""

from penstock.errors import ConfigurationError, EnvironmentFailed, PenstockError, RankLost

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
