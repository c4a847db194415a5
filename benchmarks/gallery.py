"""Trains every preset, films its policy, and writes the result for docs/gallery.md.

    make gallery                                      # every preset that names an environment
    make gallery ARGS='--presets cartpole pendulum'   # these alone; the result keeps its other rows

Runs are in build/gallery. A run that has ended is kept, so that the command continues after an interruption. Films are
docs/images/gallery/PRESET.webp; games of OpenSpiel have no pictures. Some presets need extras: penstock[atari],
penstock[box2d], penstock[mujoco], penstock[openspiel]. Then
`python -m benchmarks.tables --adopt build/bench/gallery.json` writes the page.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

from moviepy import VideoFileClip
from PIL import Image

from penstock.config import Config, build
from penstock.machine.files import write_json
from penstock.presets import preset_names, preset_values
from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from tests.support.results.provenance import of_this_run

ROOT = Path(__file__).parents[1]
RUNS, OUTPUT = ROOT / "build" / "gallery", ROOT / "build" / "bench" / "gallery.json"
RESULT, FILMS = ROOT / "results" / "gallery.json", ROOT / "docs" / "images" / "gallery"
WIDTH, FRAMES_PER_S, SHOWN_S, QUALITY = 160, 12, 6.0, 60
"""Pixels of width, frames per second, seconds and quality of a film on the page."""


def presets() -> dict[str, Config]:
    """Returns the presets that name an environment."""
    return {name: build(values) for name in preset_names() if "environment" in (values := preset_values(name))}


def trained(name: str, config: Config) -> dict[str, object]:
    """Trains a preset and films its policy, unless a run of it has ended; returns its row of the result."""
    folder = RunFolder(RUNS / name)
    # The modules of presets with an environment of ours are in examples.
    place, trust = (ROOT / "examples", ["--trust-code"]) if config.environment.imports else (ROOT, [])
    if not folder.summary.exists():
        _run(["train", "--preset", name, "--run-dir", str(folder.root)], place)
    if not config.environment.id.startswith("open_spiel:"):
        film = folder.root / "film.mp4"
        _run(["evaluate", str(folder.root), *trust, "--output", str(film)], place)
        FILMS.mkdir(parents=True, exist_ok=True)
        write_film(film, FILMS / f"{name}.webp")
    summary = Summary.read(folder.summary)
    assert summary.evaluation is not None, f"the run of {name} has no evaluation"
    return {
        "preset": name,
        "env_id": summary.env_id,
        "command": ("cd examples && " if trust else "") + shlex.join(["penstock", "train", "--preset", name]),
        "env_steps": summary.env_steps,
        "wall_s": summary.total_wall_s,
        "return_mean": summary.evaluation.return_mean,
        "return_std": summary.evaluation.return_std,
        "episodes": summary.evaluation.episodes,
        "threshold": summary.threshold,
        "env_steps_to_threshold": summary.env_steps_to_threshold,
        "provenance": of_this_run(),
    }


def write_film(film: Path, output: Path) -> None:
    """Writes the beginning of a film as an animated picture."""
    with VideoFileClip(str(film)) as clip:
        shown = clip.subclipped(0.0, min(SHOWN_S, clip.duration))
        height = round(WIDTH * clip.h / clip.w)
        frames = [
            Image.fromarray(pixels).resize((WIDTH, height), Image.Resampling.LANCZOS)
            for pixels in shown.iter_frames(fps=FRAMES_PER_S)
        ]
    duration = 1_000 // FRAMES_PER_S
    frames[0].save(output, save_all=True, append_images=frames[1:], duration=duration, loop=0, quality=QUALITY)


def _run(words: list[str], place: Path) -> None:
    print(f"{'=' * 10} penstock {shlex.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "penstock", *words], cwd=place, check=True)


def main() -> int:
    """Trains the chosen presets, and writes the result after each."""
    of_name = presets()
    parser = argparse.ArgumentParser(prog="make gallery", description=__doc__.splitlines()[0])
    parser.add_argument("--presets", nargs="+", choices=list(of_name), default=list(of_name), metavar="PRESET")
    chosen = parser.parse_args().presets
    rows = {row["preset"]: row for row in json.loads(RESULT.read_text())["rows"]} if RESULT.exists() else {}
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        rows[name] = trained(name, of_name[name])
        write_json(OUTPUT, {"provenance": of_this_run(), "rows": [rows[each] for each in of_name if each in rows]})
    print(f"written to {OUTPUT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
