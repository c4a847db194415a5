"""Pydantic's errors in the words of the settings."""

import difflib
from collections.abc import Sequence

import pydantic

_AUTO = "literal['auto']"
_NUMBERS = (["constrained-float"], ["constrained-int"])
"""Pydantic's names of the alternatives of a setting that is a number or auto."""


def explain(error: pydantic.ValidationError, names: Sequence[str]) -> str:
    """Returns all errors in one line; `names` are those of all settings, as section.key."""
    lines = []
    for item in error.errors(include_url=False):
        place = [str(part) for part in item["loc"]]
        if place[-1:] == [_AUTO]:
            # The error of the number, the alternative to auto, is explained already.
            continue
        or_auto = ", or 'auto'" if place[-1:] in _NUMBERS else ""
        where = ".".join(place[:-1] if or_auto else place)
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown setting {where}; {_remedy(where, names)}")
        elif item["type"] == "value_error":
            # An error about several settings names them itself.
            of_one_setting = len(item["loc"]) > 1
            lines.append(f"{where} {item['ctx']['error']}" if of_one_setting else str(item["ctx"]["error"]))
        else:
            lines.append(f"{where}: {item['msg']}{or_auto}, got {item['input']!r}")
    return "; ".join(lines)


def _remedy(unknown: str, names: Sequence[str]) -> str:
    written = unknown.lower().replace("-", "_")
    sections = dict.fromkeys(name.partition(".")[0] for name in names)
    similar = list(names) if "." in written else list(sections)
    of_that_key = [name for name in names if name.partition(".")[2] == written.rpartition(".")[2]]
    meant = ([written] if written in similar else of_that_key) or difflib.get_close_matches(written, similar, n=1)
    return f"did you mean {' or '.join(meant)}?" if meant else "`penstock train --help` lists all settings"
