"""The known name that a mistyped one probably means. The one bound of similarity for questions such as "did you mean".

A wrong suggestion costs the user more than none, so a name of which less than this agrees has none.
"""

import difflib
import re
from collections.abc import Iterable

_BOUND = 0.75
"""Share of the letters of both names that must agree, in order: `trian` is close to train, `atari` is not to taxi."""

_LEAST_BEGINNING = 4
"""Letters with which a word of a name is recognised by its beginning, as evaluate by `eval`."""


def similar(given: str, names: Iterable[str]) -> str | None:
    """Returns the name that is closest to a given one, without regard to case and separators; None if none is close."""
    known = {_plain(name): name for name in reversed(list(names))}
    own = _plain(given)
    if close := difflib.get_close_matches(own, known, n=1, cutoff=_BOUND):
        return known[close[0]]
    if len(own) < _LEAST_BEGINNING:
        return None
    begun = [name for plain, name in known.items() if any(word.startswith(own) for word in (plain, *plain.split("-")))]
    return begun[-1] if begun else None


def question(name: str | None) -> str:
    """Returns the question whether a name is meant; empty for None."""
    return f"did you mean {name}?" if name else ""


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "-", name.lower()).strip("-")
