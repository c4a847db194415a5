"""Builds the images of some commits without a cache, and writes their sizes and build times; needs Docker.

    python -m tests.package.image_sizes COMMIT ...

The result is build/image_sizes.json. TORCH_CPU_INDEX names an index of torch, as for Docker Compose.
"""

import argparse
import json
import os
import subprocess
import time
from pathlib import Path

from tests.support.results import provenance

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "build" / "image_sizes.json"
BASE = "python:3.11-slim-bookworm"
IMAGES = {
    "actor of CartPole": ("actor", "TORCH=auto", "PRESET=cartpole"),
    "actor with torch": ("actor", "TORCH=yes"),
    "learner": ("learner",),
}
"""Dockerfile and build arguments of each image. A commit ignores the arguments that it does not know."""


def size_mb(image: str) -> float:
    """Returns the size of an image with its base, in MB."""
    shown = subprocess.check_output(["docker", "image", "inspect", "--format={{.Size}}", image], text=True)
    return round(int(shown) / 1e6, 1)


def build(commit: str, image: str, base_mb: float) -> dict[str, float]:
    """Builds an image of a commit; returns its size without the base image, and the seconds."""
    dockerfile, *arguments = IMAGES[image]
    if index := os.environ.get("TORCH_CPU_INDEX"):
        arguments.append(f"TORCH_INDEX={index}")
    tag = f"penstock-{image.replace(' ', '-').lower()}:{commit}"
    command = ["docker", "build", "--quiet", "--no-cache", f"--file=Dockerfile.{dockerfile}", f"--tag={tag}"]
    # The cache of downloads as well, which a fresh host lacks.
    subprocess.run(["docker", "builder", "prune", "--all", "--force"], stdout=subprocess.DEVNULL, check=True)
    with subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE) as source:
        started = time.monotonic()
        options = [f"--build-arg={argument}" for argument in arguments]
        subprocess.run([*command, *options, "-"], stdin=source.stdout, stdout=subprocess.DEVNULL, check=True)
    result = {"mb": round(size_mb(tag) - base_mb, 1), "build_s": round(time.monotonic() - started, 1)}
    print(commit, image, result, flush=True)
    return result


def main() -> None:
    """Measures the commits in the order in which they are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", nargs="+", metavar="COMMIT")
    base_mb = size_mb(BASE)
    measured = []
    for given in parser.parse_args().commits:
        commit = subprocess.check_output(["git", "rev-parse", "--short=12", given], cwd=ROOT, text=True).strip()
        measured.append({"commit": commit, **{image: build(commit, image, base_mb) for image in IMAGES}})
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    # Not the working tree, of which nothing is built.
    last = subprocess.check_output(["git", "rev-parse", commit], cwd=ROOT, text=True).strip()
    result = {**provenance.of_this_run(), "commit": last, "base_image_mb": base_mb, "images": measured}
    OUTPUT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
