"""The result of one check of `penstock doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check: its subject, and the result and remedy in one line.

    `fit` is whether the check passed; None if the subject is missing and may not be needed, or can't be examined.
    """

    subject: str
    fit: bool | None
    detail: str
