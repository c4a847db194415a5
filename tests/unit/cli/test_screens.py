"""What terminals of 80 and 120 columns show of a run, with fixed data."""

import re
from pathlib import Path

import pytest

from tests.unit.cli import screens

FAR = 10_000
"""Columns of a terminal in which nothing is folded."""


def words(screen: str) -> list[str]:
    """Returns the words of a screen, without what is drawn, and without signs between words and lines."""
    return re.sub(r"[─-▟·,\\]", " ", screen).split()


def test_the_screens_are_those_of_the_file() -> None:
    assert screens.text() == screens.FILE.read_text(), (
        "run python -m tests.unit.cli.screens, and look at the difference"
    )


def test_the_documentation_shows_these_screens() -> None:
    page = (Path(__file__).parents[3] / "docs" / "getting-started.md").read_text()
    shown = re.findall(r"```text\n(.*?\n)```", page, re.DOTALL)
    assert len(shown) == 3
    assert set(shown) <= set(screens.screens(80).values())


@pytest.mark.parametrize("width", [*screens.WIDTHS, 90, 100])
def test_no_word_is_broken_and_none_is_lost(width: int) -> None:
    whole = screens.screens(FAR)
    broken = {
        f"{name}: {sorted(set(words(whole[name])) ^ set(words(screen)))}"
        for name, screen in screens.screens(width).items()
        if sorted(words(screen)) != sorted(words(whole[name]))
    }
    assert not broken


@pytest.mark.parametrize("width", screens.WIDTHS)
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    found = [line for screen in screens.screens(width).values() for line in screen.splitlines() if len(line) > width]
    assert not found
