"""The pages of the site fit windows of the usual widths, in both color schemes."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.docs.browser import PROGRAM, SITE, Browser, Scheme, opened
from tests.docs.pages import ROOT

DOCS = ROOT / "docs"
WIDTHS = (390, 1280, 1366, 1440)
FINDINGS = (Path(__file__).parent / "page_findings.js").read_text()

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        PROGRAM is None, reason="Chromium is not installed (Debian: apt install chromium-headless-shell)"
    ),
]


@pytest.fixture(scope="module")
def pages() -> list[Path]:
    """The pages of the last build, or of a new one if a source has changed since."""
    built, sources = SITE / "searchindex.js", [path for path in DOCS.rglob("*.*") if path.suffix != ".pyc"]
    if not built.exists() or max(path.stat().st_mtime for path in sources) > built.stat().st_mtime:
        # Sphinx leaves pages that the sources no longer have.
        shutil.rmtree(SITE, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "sphinx", "-q", "-E", DOCS, SITE], cwd=ROOT, check=True)
    return sorted(SITE.rglob("*.html"))


def findings(browser: Browser, page: Path) -> dict[str, list[str]]:
    """Returns the findings of a page, with the windows that have them."""
    found: dict[str, list[str]] = {}
    browser.show(page)
    for scheme in get_args(Scheme):
        browser.prefer(scheme)
        for width in WIDTHS:
            browser.resize(width)
            for each in browser.run(FINDINGS):
                found.setdefault(each, []).append(f"{width} {scheme}")
    return found


def test_every_page_fits_every_window(pages: list[Path]) -> None:
    with opened() as browser:
        found = [
            f"{page.relative_to(SITE)}: {each} ({', '.join(windows)})"
            for page in pages
            for each, windows in findings(browser, page).items()
        ]
    assert not found, "\n".join(found)


WIDE = '<p style="width: 2000px">wide</p>'
CASES: dict[str, tuple[str, str]] = {
    "a wide page": (WIDE, "wider than the window"),
    "a table that is cut off": (f'<div style="overflow: hidden">{WIDE}</div>', "cut off"),
    "a part that scrolls": (f'<div style="overflow: auto">{WIDE}</div>', "cut off"),
    "a broken word": ('<code style="display: block; width: 3em; overflow-wrap: anywhere">unbreakable</code>', "broken"),
    "hyphens without their option": ('<p style="width: 3em">and and --json</p>', "broken"),
    "a white picture in the dark": (
        '<img style="width: 9px" src="data:image/svg+xml,<svg xmlns=\'http://www.w3.org/2000/svg\'/>">',
        "picture",
    ),
    "a table in its box": (f'<div class="table-wrapper" style="overflow: auto">{WIDE}</div>', ""),
    "code in its box": (f'<pre style="overflow: auto">{WIDE}</pre>', ""),
    "a name that breaks": ('<code style="display: block; width: 4em">total_<wbr>steps</code>', ""),
}


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_found(case: str, tmp_path: Path) -> None:
    body, finding = CASES[case]
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><body><article role=main>{body}</article>")
    with opened() as browser:
        found: Any = findings(browser, page)
    assert all(finding in each for each in found)
    assert bool(found) == bool(finding)
