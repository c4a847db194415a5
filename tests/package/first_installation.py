"""`make package`: builds sdist and wheel, installs the wheel into an empty environment, and trains there.

It fails if a distribution lacks a file, if the core is larger than `LARGEST_MB` or has an optional package, if the
first run does not reach its threshold, or if a message about a missing package is not right. Times are only recorded.
The result is build/package.json. With `--extras`, it also installs all other extras, and an environment without torch,
for their sizes. With `--short`, the wheel alone is installed, beside the packages of this environment, and trains once.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.package import distributions, installed
from tests.package.failure import Failure
from tests.support.results import provenance

OUTPUT = distributions.ROOT / "build" / "package.json"
LARGEST_MB = 1250
"""Largest size of the core with torch for CPUs. Of 1,200 MB, torch and what it requires take 870 MB, numba 213 MB."""

FURTHER_EXTRAS = ("atari", "box2d", "minigrid", "mujoco", "gpu", "onnx", "hub", "wandb", "mlflow", "trackio")
"""Extras that no command needs."""


def check(folder: Path, *, extras: bool) -> dict[str, object]:
    """Runs all steps in an empty folder; returns the result. Raises `Failure` and `subprocess.CalledProcessError`."""
    begun = time.monotonic()
    (folder / "sources").mkdir()
    built = distributions.build(distributions.copy_sources(folder / "sources"), folder / "dist")
    distributions.check_wheel(built)
    distributions.check_sdist(built)
    _say(begun, f"built {built.sdist.name} and {built.wheel.name}")
    environment = installed.create(folder / "environment")
    install_s = environment.install(str(built.wheel))
    contents = installed.describe(environment)
    _say(begun, f"installed {contents['packages']} packages, {contents['site_packages_mb']} MB")
    # PyPI's torch for Linux brings CUDA, whose size is not Penstock's concern.
    cpu = not list(environment.site.glob("nvidia*"))
    if cpu and contents["site_packages_mb"] > LARGEST_MB:
        raise Failure(f"the core takes {contents['site_packages_mb']} MB, more than {LARGEST_MB} MB")
    first = installed.train(environment, folder, "first")
    _say(begun, f"trained in {first['seconds']} s")
    second = installed.train(environment, folder, "second")
    added_mb = installed.check_messages(environment, folder, "second")
    _say(begun, "the messages about missing packages are right")
    smaller: dict[str, object] = {}
    if extras:
        added_mb |= installed.add_extras(environment, *FURTHER_EXTRAS)
        without = installed.create(folder / "without_torch")
        smaller = {"without_torch": installed.without_torch(without, built.wheel, folder, "second")}
        _say(begun, f"installed what needs no torch: {smaller}")
    return {
        **provenance.of_this_run(),
        "sdist_kb": round(built.sdist.stat().st_size / 1e3, 1),
        "wheel_kb": round(built.wheel.stat().st_size / 1e3, 1),
        "install_seconds_with_downloads": round(install_s, 1),
        "core": contents,
        "first_train": first,
        "second_train": second,
        "added_by_extras_mb": added_mb,
        **smaller,
    }


def check_short(folder: Path) -> dict[str, object]:
    """Checks sdist and wheel, and trains with the wheel beside the packages of this environment."""
    (folder / "sources").mkdir()
    built = distributions.build(distributions.copy_sources(folder / "sources"), folder / "dist")
    distributions.check_wheel(built)
    distributions.check_sdist(built)
    environment = installed.create(folder / "environment")
    environment.install_beside(built.wheel)
    return {**provenance.of_this_run(), "train": installed.train(environment, folder, "first")}


def main() -> int:
    """Checks, writes the result, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", action="store_true", help="also install further extras, and without torch")
    parser.add_argument("--short", action="store_true", help="install the wheel alone")
    named = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = check_short(Path(folder)) if named.short else check(Path(folder), extras=named.extras)
        except Failure as failure:
            print(f"make package: {failure}", file=sys.stderr)
            return 1
        except subprocess.CalledProcessError as error:
            print(f"make package: {error}\n{error.stdout}\n{error.stderr}", file=sys.stderr)
            return 1
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(result, indent=2) + "\n")
    print(OUTPUT.relative_to(distributions.ROOT))
    return 0


def _say(begun: float, text: str) -> None:
    print(f"{time.monotonic() - begun:5.0f} s  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
