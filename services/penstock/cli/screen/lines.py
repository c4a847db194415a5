"""Lines of text: in a terminal, long ones continue below their text at the next word; elsewhere nothing is folded.

Programs and grep read whole lines.
"""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

_INDENT = 2
"""Columns by which the continuation of a line without a label is indented."""

_CONTINUED = " \\"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text, whose continuation is indented by this number of columns."""

    text: Text
    indent: int = _INDENT

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the folded line, or the whole one to a console that does not wrap (see `show`)."""
        if options.no_wrap:
            yield self.text
            return
        for number, line in enumerate(self.text.divide(self._folds(options.max_width))):
            line.rstrip()
            folded = Text(" " * self.indent if number else "") + line
            # A word that is longer than the terminal, such as a path, stays whole.
            folded.no_wrap, folded.overflow = True, "ignore"
            yield folded

    def _folds(self, width: int) -> list[int]:
        """Returns the offsets of the words with which the lines after the first begin."""
        folds, plain = list[int](), self.text.plain
        column = begin = len(plain) - len(plain.lstrip())
        for word in re.finditer(r"\S+\s*", plain):
            size = cell_len(word[0].rstrip())
            if begin < column and column + size > width and size <= width - self.indent:
                folds.append(word.start())
                column = begin = self.indent
            column += cell_len(word[0])
        return folds

    @property
    def plain(self) -> str:
        """The whole line without styles."""
        return self.text.plain


def named(name: str, line: str | Text, style: str = "", *, width: int = 13) -> Line:
    """Returns a line with a label, which takes at least this number of columns."""
    label = f"{name:<{width - 1}} "
    return Line(Text.assemble((label, "dim"), line if isinstance(line, Text) else (line, style)), len(label))


def show(console: Console, *shown: RenderableType) -> None:
    """Prints each of these on its own lines; a `str` has no markup, and continues as a `Line`."""
    for each in shown:
        console.print(
            Line(Text(each)) if isinstance(each, str) else each, soft_wrap=not console.is_terminal, crop=False
        )


def show_command(console: Console, label: str, command: str) -> None:
    """Prints a command for the user to copy: in one line if it fits, else with the shell's sign of continuation."""
    room = console.width - len(label)
    # A quoted word may have blanks, at which it must not be parted.
    if console.is_terminal and len(command) > room and not {"'", '"'} & set(command):
        parts = textwrap.wrap(command, room - len(_CONTINUED), break_long_words=False, break_on_hyphens=False)
        command = f"{_CONTINUED}\n{' ' * len(label)}".join(parts)
    console.print(Text.assemble((label, "dim"), command), soft_wrap=True)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table, whose rows have the same number of cells."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
