"""The examples in the docstrings of the Python API."""

import inspect
import re
import textwrap
from collections.abc import Iterator

import penstock

_MARK = re.compile(r"For example(,.*)?::\n")


def examples() -> dict[str, str]:
    """Returns the code of each example by the name of what it shows, such as penstock.Run or penstock.Config.load."""
    found = ((name, text, _MARK.search(text)) for name, text in _docstrings())
    return {name: _code(text[mark.end() :]) for name, text, mark in found if mark}


def trains(code: str) -> bool:
    """Returns whether an example trains a run, which takes seconds with few steps."""
    return any(call in code for call in ('penstock.train("', 'penstock.stream("'))


def _docstrings() -> Iterator[tuple[str, str]]:
    for name in penstock.__all__:
        public = getattr(penstock, name)
        yield f"penstock.{name}", inspect.getdoc(public) or ""
        for member, value in vars(public).items() if inspect.isclass(public) else ():
            if not member.startswith("_") and inspect.isfunction(value):
                yield f"penstock.{name}.{member}", inspect.getdoc(value) or ""


def _code(text: str) -> str:
    lines = text.splitlines()
    end = next((number for number, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    return textwrap.dedent("\n".join(lines[:end])).strip()
