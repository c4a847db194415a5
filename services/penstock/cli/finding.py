"""The result of one check of `penstock doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check.

    Attributes:
        subject: Name of the thing that was checked.
        fit: Whether the check passed; None if the thing is missing and may not be needed, or can't be examined.
        detail: Result and remedy in one line.
    """

    subject: str
    fit: bool | None
    detail: str
