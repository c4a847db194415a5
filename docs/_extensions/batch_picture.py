"""Draws docs/images/batch.svg: the segments, windows and gradient steps of one batch with the defaults."""

from pathlib import Path

from penstock.config import Config

PICTURE = Path(__file__).parents[1] / "images" / "batch.svg"
_SIDE, _GAP, _PER_ROW = 18, 4, 16
_FRESH, _REPLAYED, _INK = "#2a7f9e", "#c9d3da", "#24323c"


def write_picture() -> None:
    """Writes the picture if it differs from that of the defaults."""
    if not PICTURE.exists() or PICTURE.read_text() != picture():
        PICTURE.write_text(picture())


def picture() -> str:
    """Returns the picture as SVG."""
    config = Config()
    sampling, ppo, length = config.sampling, config.ppo, config.actor.unroll_length
    segments, fresh, window = sampling.batch_segments, sampling.fresh_segments, config.actor.environments
    steps = ppo.epochs * ppo.minibatches
    pitch, top = _SIDE + _GAP, 66
    squares = [
        f'<rect x="{20 + (each % _PER_ROW) * pitch}" y="{top + each // _PER_ROW * pitch}" width="{_SIDE}"'
        f' height="{_SIDE}" rx="3" fill="{_FRESH if each < fresh else _REPLAYED}"/>'
        for each in range(segments)
    ]
    brackets = [
        _line(20 + begin * pitch, top - 6, 20 + (begin + window) * pitch - _GAP, top - 6)
        + _text(20 + begin * pitch, top - 12, f"window of actor {number}")
        for number, begin in enumerate(range(0, fresh, window))
    ]
    right, bottom = 20 + _PER_ROW * pitch + 24, top + -(-segments // _PER_ROW) * pitch
    notes = [
        _text(20, 26, f"one batch: {segments} segments of {length} steps, {segments * length:,} steps", bold=True),
        _text(right, top + 14, f"fresh: {fresh} segments, {fresh * length} steps, one window per actor"),
        _text(right, top + pitch + 14, f"replayed: {segments - fresh} segments, drawn by priority and age"),
        _text(right, top + 2 * pitch + 14, f"{ppo.epochs} passes of {ppo.minibatches} minibatches:"),
        _text(right, top + 3 * pitch + 14, f"at most {steps} updates, then version k becomes k + 1"),
    ]
    body = "\n".join([*squares, *brackets, *notes])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 360} {bottom + 16}" font-family="sans-serif"'
        f' font-size="13" fill="{_INK}">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _line(x1: int, y1: int, x2: int, y2: int) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{_INK}"/>'


def _text(x: int, y: int, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}"{weight}>{text}</text>'
