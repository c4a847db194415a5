"""Provenance of a benchmark's result: the fields that every result file begins with."""

from datetime import UTC, datetime

from helpers.provenance import of_this_run


def provenance() -> dict[str, object]:
    """Returns the machine (processor, cores, memory), the commit, the versions, and the time in UTC."""
    return {**of_this_run(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
