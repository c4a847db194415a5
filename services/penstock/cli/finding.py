"""What `penstock doctor` found of one thing. Made by `cli.doctor` and `cli.containers`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one thing.

    Attributes:
        subject: The thing.
        fit: Whether it does; None where it is not there and may not be needed, or can't be looked at.
        says: What was found, and what to do; one line.
    """

    subject: str
    fit: bool | None
    says: str
