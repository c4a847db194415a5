"""Whether pip finds versions with which Penstock and another package fit into one environment.

    python -m tests.package.neighbours [NAME ...]

pip resolves from the packages' metadata, and installs nothing. The result is build/neighbours.json, with the versions
that pip chose, or its reason.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.utils import canonicalize_name

from tests.package import distributions
from tests.support.results import provenance

OUTPUT = distributions.ROOT / "build" / "neighbours.json"
NEIGHBOURS = {
    "Stable-Baselines3": ("stable-baselines3", "sb3-contrib"),
    "RLlib": ("ray[rllib]",),
    "TorchRL": ("torchrl", "tensordict"),
    "Tianshou": ("tianshou",),
    "skrl": ("skrl[torch]",),
    "Sample Factory": ("sample-factory",),
    "Isaac Lab 2.3": ("numpy<2", "packaging<24", "torch>=2.7", "gymnasium==1.2.0", "protobuf>=4.25.8,!=5.26.0"),
    "TensorFlow": ("tensorflow>=2.21",),
    "JAX, Brax": ("jax", "brax"),
    "vLLM": ("vllm",),
    "Transformers": ("transformers", "accelerate"),
    "W&B": ("wandb",),
    "MLflow": ("mlflow",),
    "TensorBoard": ("tensorboard",),
    "Optuna": ("optuna",),
    "PettingZoo": ("pettingzoo",),
    "EnvPool": ("envpool",),
    "ManiSkill": ("mani-skill",),
    "dm_control": ("dm-control", "mujoco"),
    "the newest torch": ("torch>=2.14",),
}
SHOWN = ("torch", "numpy", "protobuf", "grpcio", "gymnasium", "numba", "packaging", "pydantic")


def resolve(python: Path, wheel: Path, packages: tuple[str, ...]) -> dict[str, object]:
    """Returns the versions of `SHOWN` and of the first package, or the end of pip's reason."""
    pip = [str(python), "-m", "pip", "install", "--dry-run", "--ignore-installed", "--only-binary=:all:"]
    command = [*pip, "--quiet", "--disable-pip-version-check", "--report=-", str(wheel), *packages]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        lines = [line.strip() for line in ended.stderr.splitlines() if re.match(r"\s+\S.* depends on |ERROR", line)]
        return {"fits": False, "reason": lines}
    chosen: dict[str, str] = {
        canonicalize_name(each["metadata"]["name"]): each["metadata"]["version"]
        for each in json.loads(ended.stdout)["install"]
    }
    first = re.split(r"[\[<>=!]", packages[0])[0]
    return {"fits": True, "versions": {name: chosen[name] for name in (first, *SHOWN) if name in chosen}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    names = parser.parse_args().names or list(NEIGHBOURS)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "sources").mkdir()
        built = distributions.build(distributions.copy_sources(folder / "sources"), folder / "dist")
        subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
        python = folder / "environment" / "bin" / "python"
        # The newest pip reads the metadata of a wheel without the wheel.
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "pip"], check=True)
        found = {}
        for name in names:
            found[name] = resolve(python, built.wheel, NEIGHBOURS[name])
            print(name, found[name], flush=True)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps({**provenance.of_this_run(), "neighbours": found}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
