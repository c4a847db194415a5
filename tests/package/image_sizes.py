"""Builds both images of some commits and writes their sizes; needs Docker.

    python -m tests.package.image_sizes COMMIT ...

The result is build/image_sizes.json.
"""

import argparse
import json
import subprocess
from pathlib import Path

from helpers import provenance

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "build" / "image_sizes.json"
BASE = "python:3.11-slim-bookworm"


def size_mb(image: str) -> float:
    """Returns the size of an image with its base, in MB."""
    shown = subprocess.check_output(["docker", "image", "inspect", "--format={{.Size}}", image], text=True)
    return round(int(shown) / 1e6, 1)


def sizes_of(commit: str) -> dict[str, object]:
    """Builds the images of a commit and returns their sizes without the base image."""
    name = subprocess.check_output(["git", "rev-parse", "--short=12", commit], cwd=ROOT, text=True).strip()
    sizes: dict[str, object] = {"commit": name}
    for image in ("actor", "learner"):
        tag = f"penstock-{image}:{name}"
        with subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE) as source:
            build = ["docker", "build", "--quiet", f"--file=Dockerfile.{image}", f"--tag={tag}", "-"]
            subprocess.run(build, stdin=source.stdout, stdout=subprocess.DEVNULL, check=True)
        sizes[f"{image}_mb"] = round(size_mb(tag) - size_mb(BASE), 1)
    print(sizes)
    return sizes


def main() -> None:
    """Measures the commits in the order in which they are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", nargs="+", metavar="COMMIT")
    commits = parser.parse_args().commits
    result = {
        **provenance.of_this_run(),
        "base_image_mb": size_mb(BASE),
        "images": [sizes_of(commit) for commit in commits],
    }
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
