"""Draws README's terminal and film: `make pictures`.

It runs the commands of README's quick start in a terminal of 80 columns, and writes what the terminal showed as
docs/images/terminal.svg and the film of the trained policy as docs/images/lander.webp. The terminal is shown faster
than it ran, as its title says.
"""

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from moviepy import VideoFileClip
from PIL import Image, ImageDraw, ImageOps
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

IMAGES = Path(__file__).parent
ROOT = IMAGES.parents[1]
COMMANDS = ("penstock train LunarLander-v3", "penstock evaluate --record-video")

COLUMNS, ROWS = 80, 27
CELL_WIDTH, LINE_HEIGHT, FONT_SIZE, MARGIN, TITLE_HEIGHT = 8.4, 17, 14, 14, 30
WIDTH, HEIGHT = round(COLUMNS * CELL_WIDTH + 2 * MARGIN), TITLE_HEIGHT + ROWS * LINE_HEIGHT + 2 * MARGIN
SHOWN_WIDTH = 520
"""Pixels of the picture in README, beside the film."""
SHOWN_S, FRAME_S, KEY_S, LAST_S = 11.0, 0.25, 0.06, 4.0
"""Seconds of the animation in which the commands run, of a frame, of a typed character, and of the last frame."""
THEME = TerminalTheme(
    (13, 17, 23),
    (201, 209, 217),
    [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34), (88, 166, 255), (188, 140, 255), (57, 197, 207)]
    + [(177, 186, 196)],
    [(110, 118, 129), (255, 161, 152), (86, 211, 100), (227, 179, 65), (121, 192, 255), (210, 168, 255)]
    + [(86, 212, 221), (240, 246, 252)],
)
FAINT, EDGE, PROMPT = "#8b949e", "#6e7681", "\x1b[32m$\x1b[0m "

FILM_WIDTH, FILM_FRAMES_PER_S, FILM_LAST_S = 300, 16, 2.0


@dataclass(frozen=True, slots=True)
class Shown:
    """The lines of a terminal, with escape sequences for colours, from a number of seconds on."""

    seconds: float
    lines: tuple[str, ...]


class Screen:
    """A terminal that knows what Penstock writes: text, colours, erased lines, and steps up to earlier lines."""

    def __init__(self, lines: Sequence[str] = ()) -> None:
        self._lines, self._row = [*lines, ""], len(lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines so far, without empty ones at the end."""
        last = max((row for row, line in enumerate(self._lines) if line), default=-1)
        return tuple(self._lines[: last + 1])

    def write(self, output: str) -> None:
        """Takes complete output of a program. Raises `ValueError` for an unknown sequence."""
        for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+|\x1b", output):
            if part == "\n":
                self._row += 1
                self._lines += [""] * (self._row == len(self._lines))
            elif part.endswith("A") and part.startswith("\x1b["):
                self._row -= int(part[2:-1] or 1)
            elif part == "\x1b[2K":
                self._lines[self._row] = ""
            elif part.startswith("\x1b") and not part.endswith(("m", "h", "l")):
                raise ValueError(f"unknown escape sequence {part!r}")
            elif part != "\r" and not part.startswith("\x1b[?"):
                self._lines[self._row] += part


def main() -> None:
    """Runs the commands, and writes both pictures."""
    with tempfile.TemporaryDirectory() as folder:
        shown, took_s = played(Path(folder))
        (IMAGES / "terminal.svg").write_text(picture(shown, took_s))
        (film,) = Path(folder).glob("runs/*/videos/*.mp4")
        write_film(film, IMAGES / "lander.webp")


def played(folder: Path) -> tuple[list[Shown], float]:
    """Returns the frames of the animation, in its seconds, and the seconds that the commands took."""
    environment = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'services'}:{os.environ.get('PYTHONPATH', '')}",
        "TERM": "xterm-256color",
    }
    (folder / "penstock").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m penstock "$@"\n')
    (folder / "penstock").chmod(0o755)
    recordings = [recorded(command, folder, environment) for command in COMMANDS]
    took_s = sum(recording[-1][0] for recording in recordings)
    speed = max(1.0, took_s / SHOWN_S)
    frames: list[Shown] = []
    lines: tuple[str, ...] = ()
    now = 0.0
    for command, recording in zip(COMMANDS, recordings, strict=True):
        frames += [Shown(now + KEY_S * typed, (*lines, PROMPT + command[:typed])) for typed in range(len(command) + 1)]
        now += KEY_S * len(command) + 0.3
        screen, slots = Screen((*lines, PROMPT + command)), {}
        for seconds, output in recording:
            screen.write(output)
            at = now + seconds / speed
            slots[int(at / FRAME_S)] = Shown(at, screen.lines)  # the last one of each interval
        frames += slots.values()
        lines = screen.lines
        now += recording[-1][0] / speed + 0.6
    frames.append(Shown(now, (*lines, PROMPT)))
    return frames, took_s


def recorded(command: str, folder: Path, environment: dict[str, str]) -> list[tuple[float, str]]:
    """Returns what a command writes to a terminal, with the seconds since its start. Exits if the command fails."""
    words = shlex.split(command)
    started = time.monotonic()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe(words[0], words, environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    outputs: list[tuple[float, bytes]] = []
    while output := _read(terminal):
        outputs.append((time.monotonic() - started, output))
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{command} failed:\n{b''.join(output for _, output in outputs).decode()}")
    return [(seconds, output.decode()) for seconds, output in outputs]


def _read(terminal: int) -> bytes:
    """Returns the next output that is followed by a pause, so that no frame has half of a panel."""
    output = b""
    while not output or select.select([terminal], [], [], 0.02)[0]:
        try:
            output += os.read(terminal, 1 << 16)
        except OSError:
            break  # the program has ended
    return output


def picture(frames: Sequence[Shown], took_s: float) -> str:
    """Returns the animation as SVG: all frames beside each other, of which a window shows one after the other."""
    end = frames[-1].seconds + LAST_S
    drawing = Drawing()
    strip, steps = [], []
    for number, frame in enumerate(frames):
        rows = [row for line in frame.lines for row in wrapped(line)][-ROWS:]
        uses = [
            f'<use href="#{drawing.line(row)}" y="{LINE_HEIGHT * place}"/>' for place, row in enumerate(rows) if row
        ]
        strip.append(f'<g transform="translate({number * WIDTH})">{"".join(uses)}</g>')
        steps.append(f"{frame.seconds / end:.3%}{{transform:translateX({-number * WIDTH}px)}}")
    title = f"{took_s:.0f} seconds, shown in {frames[-1].seconds:.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SHOWN_WIDTH}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        "\n<style>"
        "text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        f"font-size:{FONT_SIZE}px;fill:{THEME.foreground_color.hex}}}"
        f"#strip{{transform:translateX({-(len(frames) - 1) * WIDTH}px);animation:play {end:.2f}s step-end infinite}}"
        "@media(prefers-reduced-motion:reduce){#strip{animation:none}}"
        f"{''.join(drawing.styles())}@keyframes play{{{''.join(steps)}}}</style>\n"
        f"<defs>{''.join(drawing.lines())}</defs>\n"
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8" fill="{THEME.background_color.hex}"'
        f' stroke="{EDGE}"/>\n<g fill="{EDGE}"><circle cx="18" cy="16" r="5"/><circle cx="36" cy="16" r="5"/>'
        f'<circle cx="54" cy="16" r="5"/></g><text x="{WIDTH / 2}" y="21" text-anchor="middle"'
        f' style="fill:{FAINT}">{title}</text>\n'
        f'<svg x="{MARGIN}" y="{TITLE_HEIGHT + MARGIN}" width="{WIDTH - 2 * MARGIN}" height="{HEIGHT - TITLE_HEIGHT}">'
        f'<g id="strip">\n{chr(10).join(strip)}\n</g></svg>\n</svg>\n'
    )


def wrapped(line: str) -> list[Text]:
    """Returns the rows of a line, in a terminal as wide as the recorded one."""
    text = Text.from_ansi(line)
    cuts = range(COLUMNS, len(text), COLUMNS)
    return list(text.divide(cuts)) if cuts else [text]


class Drawing:
    """The lines of a picture, each once, and the styles in them."""

    def __init__(self) -> None:
        self._console = Console(color_system="truecolor", width=COLUMNS)
        self._lines: dict[str, str] = {}
        self._styles: dict[str, str] = {}

    def line(self, row: Text) -> str:
        """Returns the name of a line."""
        texts, column = [], 0
        for segment in row.render(self._console):
            # Text of a known width begins at its own column: the font of a reader may have another width.
            for found in re.finditer(r"\S+(?: \S+)*", segment.text):
                x, length = (column + found.start()) * CELL_WIDTH, len(found[0]) * CELL_WIDTH
                texts.append(
                    f'<text x="{x:.4g}" y="{FONT_SIZE}" textLength="{length:.4g}" lengthAdjust="spacingAndGlyphs"'
                    f"{self._class(segment.style)}>{escape(found[0], quote=False)}</text>"
                )
            column += len(segment.text)
        return self._lines.setdefault("".join(texts), f"l{len(self._lines)}")

    def _class(self, style: Style | None) -> str:
        rules = []
        if style is not None and style.bold:
            rules.append("font-weight:bold")
        if style is not None and style.color is not None and not style.color.is_default:
            rules.append(f"fill:{_hex(style.color)}")
        elif style is not None and style.dim:
            rules.append(f"fill:{FAINT}")
        if not rules:
            return ""
        return f' class="{self._styles.setdefault(";".join(rules), f"s{len(self._styles)}")}"'

    def lines(self) -> Iterator[str]:
        """Yields the definitions of the lines."""
        return (f'<g id="{name}">{content}</g>\n' for content, name in self._lines.items())

    def styles(self) -> Iterator[str]:
        """Yields the rules of the styles."""
        return (f".{name}{{{rules}}}" for rules, name in self._styles.items())


def _hex(color: Color) -> str:
    return color.get_truecolor(THEME).hex


def write_film(film: Path, output: Path) -> None:
    """Writes the middle of a film as an animated picture, as high as the terminal; its last frame stays for a while."""
    width, height = FILM_WIDTH, round(HEIGHT * SHOWN_WIDTH / WIDTH)
    frames = []
    with VideoFileClip(str(film)) as clip:
        for pixels in clip.iter_frames(fps=FILM_FRAMES_PER_S):
            frame = ImageOps.fit(Image.fromarray(pixels), (width, height), Image.Resampling.LANCZOS)
            ImageDraw.Draw(frame).rectangle((0, 0, width - 1, height - 1), outline=EDGE)
            frames.append(frame)
    durations = [1000 // FILM_FRAMES_PER_S] * (len(frames) - 1) + [round(1000 * FILM_LAST_S)]
    frames[0].save(output, save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=80, method=6)


if __name__ == "__main__":
    main()
