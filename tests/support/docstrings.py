"""The examples in the docstrings of the Python API."""

import inspect
import textwrap
from collections.abc import Iterator

import penstock

_MARK = "For example::"


def examples() -> dict[str, str]:
    """Returns the code of each example by the name of what it shows, such as penstock.Run or penstock.Config.load."""
    return {name: _code(text) for name, text in _docstrings() if _MARK in text}


def _docstrings() -> Iterator[tuple[str, str]]:
    for name in penstock.__all__:
        public = getattr(penstock, name)
        yield f"penstock.{name}", inspect.getdoc(public) or ""
        for member, value in vars(public).items() if inspect.isclass(public) else ():
            if not member.startswith("_") and inspect.isfunction(value):
                yield f"penstock.{name}.{member}", inspect.getdoc(value) or ""


def _code(text: str) -> str:
    lines = text.partition(_MARK)[2].splitlines()[1:]
    end = next((number for number, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    return textwrap.dedent("\n".join(lines[:end])).strip()
