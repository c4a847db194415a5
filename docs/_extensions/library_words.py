"""Tables of the words of other libraries, with Penstock's setting or answer for each of them, for the reference.

`library_words.toml` has the words; Penstock's code has the answers.
"""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from penstock.config import Config, merge
from penstock.config.answers import ANSWERS
from penstock.config.names import ALIASES, answered, in_sections, setting_of, spelled

LIBRARIES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


class Word(NamedTuple):
    """A word of a library, what its users call with it, and values; the library's default is the first."""

    library: str
    call: str
    name: str
    values: list[object]


def words() -> Iterator[Word]:
    """All words of all libraries."""
    for library, entry in LIBRARIES.items():
        for call, names in entry["words"].items():
            for name, values in names.items():
                yield Word(library, call, name, values)


def sections() -> list[str]:
    """Returns a heading and the tables of each library, as paragraphs of Markdown."""
    found = []
    for library, entry in LIBRARIES.items():
        found += [f"## {entry['library']}", f"The words are from version {entry['version']}."]
        for call in entry["words"]:
            rows = _rows([word for word in words() if (word.library, word.call) == (library, call)])
            found.append("\n".join([f"| `{call}` | Penstock |", "|---|---|", *rows]))
    return found


def settings_text(answer: dict[str, object]) -> str:
    """Returns the settings that an answer stands for, as Markdown."""
    named = in_sections(answer)
    sections = merge(named.sections, answered(named.questions, lambda found: Config()))
    return ", ".join(
        f"`{section}.{key} = {_text(each)}`"
        for section, settings in sections.items()
        if isinstance(settings, dict)
        for key, each in settings.items()
    )


def _rows(found: list[Word]) -> list[str]:
    """Returns the rows of a table. Words with the same answer share one, which then has no values."""
    sharing: dict[str, list[Word]] = {}
    for word in found:
        sharing.setdefault(_does(word, values=False), []).append(word)
    return [
        f"| {', '.join(f'`{word.name}`' for word in group)} | {_does(group[0], values=len(group) == 1)} |"
        for group in sharing.values()
    ]


def _does(word: Word, *, values: bool) -> str:
    """Returns a word's setting, or Penstock's answers to its values, which precede them if `values`."""
    if setting := setting_of(word.name):
        alias = ALIASES.get(spelled(word.name))
        unit = f", which counts {alias.unit}" if alias and alias.unit else ""
        return f"`{setting}`{unit}"
    accepted, lines = [], []
    for value in word.values:
        answer = ANSWERS[spelled(word.name)](None if value == "None" else value, Config())
        if isinstance(answer, str):
            lines.append((value, answer))
        elif answer:
            accepted.append((value, answer))
    texts = [(value, settings_text(answer)) for value, answer in accepted]
    texts += [(value, _escaped(line)) for value, line in lines]
    return "; ".join(f"`{_text(value)}`: {text}" if values else text for value, text in texts) or "accepted"


def _text(value: object) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def _escaped(text: str) -> str:
    return text.replace("<", r"\<").replace("|", r"\|")
