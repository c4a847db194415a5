"""The terminal that draws README's first screen shows what a real one shows."""

import io
import re

import pytest
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from docs.images.first_screen import COLUMNS, ROWS, Screen, Shown, picture


def plain(screen: Screen) -> list[str]:
    return [Text.from_ansi(line).plain.rstrip() for line in screen.lines]


def test_a_panel_is_redrawn_in_its_place_and_lines_stay_above_it() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=COLUMNS, color_system="256")
    screen, seen = Screen(("$ command",)), 0
    with Live(console=console, auto_refresh=False) as live:
        for content in ("[bold]one[/bold]\n[green]line[/green]", "two", "three\nlines\nof text"):
            live.update(Panel(content), refresh=True)
            console.print(f"news before {content[:3]}", markup=False)
            screen.write(output.getvalue()[seen:])
            seen = len(output.getvalue())
    screen.write(output.getvalue()[seen:])
    shown = plain(screen)
    assert shown[:4] == ["$ command", "news before [bo", "news before two", "news before thr"]
    assert [line.strip("│ ") for line in shown[5:-1]] == ["three", "lines", "of text"]


def test_a_sequence_that_the_terminal_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown escape sequence"):
        Screen().write("\x1b[10;20Htext")


def test_the_picture_has_each_line_once_wraps_at_the_width_and_ends_with_the_last_rows() -> None:
    lines = tuple(f"line {number}" for number in range(ROWS + 3))
    drawn = picture([Shown(0.0, lines), Shown(1.0, (*lines, "x" * (COLUMNS + 1)))], took_s=30.0)
    assert drawn.count(">line 5<") == 1
    assert "30 seconds, shown in 1" in drawn
    last = drawn.rpartition('<g transform="translate')[2]
    assert len(re.findall("<use", last)) == ROWS
    assert [len(row) for row in re.findall(r">(x+)</text>", drawn)] == [COLUMNS, 1]
