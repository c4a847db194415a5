"""The error of the package check."""


class Failure(Exception):
    """A distribution, or what it installs, is not as expected."""
