"""Arguments of environments: the values that may be given, and their form in a file.

Every process of a run makes its environments from the run's file, so that an argument needs an exact written form.
An environment receives its arguments as they were given. The exceptions are NumPy's numbers and arrays, and paths,
which become plain numbers, lists and text. `config` and the environment check call these functions.

A file writes None as "None", and a value that TOML does not have as in Python: goal = { python_literal = "(3, 4)" }.
"""

import ast
import json
import sys
import types
import warnings
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from penstock.machine.foreign_errors import shortened
from penstock.machine.system_errors import not_utf8

NONE = "None"
"""Spelling of None in a file, because TOML has no null."""

_LITERAL = "python_literal"
"""The only key of a table that stands for a value in Python's spelling. A dict with this key alone is so written, too.
"""

_NAMES = {
    "inf": float("inf"),
    "Infinity": float("inf"),
    "nan": float("nan"),
    "NaN": float("nan"),
    "true": True,
    "false": False,
    "null": None,
}
"""Names of values in Python's `repr` of floats, and in JSON."""

_EXACT_KINDS = "biufUO"
"""Kinds of NumPy's types whose values have an exact plain form."""

_SCALARS = (bool, int, float, str, types.NoneType)


_MOST_LEVELS, _MOST_BITS = 100, 14_000
"""Levels of nesting and bits of an integer that a file can hold. Python writes integers of up to 4,300 digits."""


def plain(value: object) -> object:
    """Returns an argument as environments receive it. Raises `ValueError` with the accepted forms if it is refused."""
    return _plain(value, 0)


def _plain(value: object, level: int) -> object:
    kind = type(value)
    if level > _MOST_LEVELS:
        raise ValueError(f"is nested in more than {_MOST_LEVELS} levels, or contains itself; give a flat value")
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError(f"is an integer of {value.bit_length()} bits; give it as text, and convert it")
    if kind in _SCALARS:
        if isinstance(value, str) and (reason := not_utf8(value)):
            raise ValueError(reason)
        return value
    if isinstance(value, (list, tuple)) and kind in (list, tuple):
        return kind(_plain(each, level + 1) for each in value)
    if isinstance(value, dict) and kind is dict:
        return {_plain(name, level + 1): _plain(each, level + 1) for name, each in value.items()}
    if isinstance(value, PurePath):
        return _converted(value, str(value))
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and (isinstance(value, numpy.generic) or kind is numpy.ndarray):
        array: Any = value
        made = array.tolist() if array.dtype.kind in _EXACT_KINDS else array
        if type(made) is not kind:
            return _converted(value, made) if isinstance(made, list) else _plain(made, level)
    raise ValueError(
        "must be a number, true, false, text, None, a path, an array of numbers, or a list, tuple or dict of these; got"
        f" {shortened(repr(value))} ({kind.__qualname__}); give a plain value, and convert it in the environment"
    )


def written(value: object) -> object:
    """Returns a plain argument in the form that a TOML file and JSON can hold."""
    if value is None:
        return NONE
    if isinstance(value, list):
        return [written(each) for each in value]
    if isinstance(value, dict) and value.keys() != {_LITERAL} and all(isinstance(name, str) for name in value):
        return {name: written(each) for name, each in value.items()}
    return {_LITERAL: repr(value)} if isinstance(value, (dict, tuple)) or value == NONE else value


def written_table(arguments: Mapping[str, object]) -> dict[str, object]:
    """Returns a table of named arguments in the form that a TOML file and JSON can hold."""
    return {name: written(value) for name, value in arguments.items()}


def read(value: object) -> object:
    """Returns the argument of its form in a file. Raises `ValueError` if a literal can't be read."""
    if value == NONE:
        return None
    if isinstance(value, list):
        return [read(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {_LITERAL}:
        return {name: read(each) for name, each in value.items()}
    try:
        return literal(value[_LITERAL])
    except ValueError:
        raise ValueError(
            f'{_LITERAL} must be text with a value as in Python, such as "(1, 2)"; got {value[_LITERAL]!r}'
        ) from None


def read_tables(value: object) -> object:
    """Returns a table of named arguments, or a list of tables, of its form in a file. Raises `ValueError` as `read`."""
    if isinstance(value, list):
        return [read_tables(each) for each in value]
    # An argument may have any name.
    return {name: read(each) for name, each in value.items()} if isinstance(value, dict) else value


def text_of_table(arguments: Mapping[str, object]) -> str:
    """Returns a table of named arguments as JSON."""
    return json.dumps(written_table(arguments))


def table_of_text(text: str) -> dict[str, Any]:
    """Returns the table of named arguments of its JSON. Raises `ValueError` if there is none."""
    try:
        table = read_tables(json.loads(text))
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(table, dict):
        raise ValueError(f"{text:.80} is not a table")
    return table


def literal(text: object) -> object:
    """Returns the value that text spells in Python, in which JSON's names may be used. Raises `ValueError`."""
    try:
        assert isinstance(text, str)
        return ast.literal_eval(_Named().visit(ast.parse(text.strip(), mode="eval")))
    except (AssertionError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None


class _Named(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_NAMES[node.id]) if node.id in _NAMES else node


def _converted(value: object, made: object) -> object:
    """Returns the plain form of an argument in another form, with a warning at the caller's line."""
    result = plain(made)
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] in ("penstock", "pydantic"):
        level, frame = level + 1, frame.f_back
    form = "list" if isinstance(result, list) else "text"
    warnings.warn(
        f"the environment receives the {form} {shortened(repr(result))} as an argument, which was given as"
        f" {type(value).__name__}",
        stacklevel=level,
    )
    return result
