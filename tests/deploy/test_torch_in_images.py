"""Whether the image of actors gets torch, and from where: the build's own shell commands, without an engine."""

import functools
import http.server
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.algo.network import Network
from penstock.algo.published import Description
from penstock.algo.spaces import encoders_of_new
from penstock.apps.environments import variants_of
from penstock.machine.extras import missing
from penstock.presets import preset
from penstock.small.policy import obstacle
from tests.support.machine.timing import PATIENCE_S

ROOT = Path(__file__).parents[2]
TORCH = (ROOT / "requirements-torch.lock").read_text().strip().removeprefix("torch==")
PRESETS = sorted(path.stem for path in (ROOT / "services/penstock/presets").glob("*.toml"))
IMPORTS = {module for name in PRESETS for module in preset(name).environment.imports}
"""Modules of the environments of presets that no package has."""

OTHERS = {
    "half_cheetah": "mujoco",
    "lunar_lander": "Box2D",
    "pong": "ale_py",
    "atari": "ale_py",
    "breakout": "ale_py",
    "retro": "stable_retro",
    "catch": "stable_retro",
    "connect_four": "pyspiel",
}
"""Packages that environments of presets need."""


def commands(place: Path, pypi: str) -> str:
    """Returns the shell commands that check the index of torch. Their pip only resolves."""
    text = (ROOT / "Dockerfile.actor").read_text().replace("\\\n", " ")
    (run,) = [line for line in text.splitlines() if line.startswith("RUN ") and "$TORCH_INDEX" in line]
    shell = re.sub(r"^RUN (--mount=\S+ )*", "", run)
    pip = f"{sys.executable} -m pip --isolated --no-cache-dir"
    (place / "requirements-torch.lock").write_text(f"torch=={TORCH}\n")
    assert "if ! pip install --dry-run " in shell
    return shell.replace("pip install", f"{pip} install --index-url {pypi}")


def installed(
    place: Path, *, index: str = "http://127.0.0.1:9/cpu", **arguments: str
) -> "subprocess.CompletedProcess[str]":
    variables = {"TORCH": "yes", "PRESET": "", "TORCH_INDEX": index, "PATH": "/usr/bin:/bin"}
    shell = ["sh", "-c", commands(place, f"{index.rpartition('/')[0]}/pypi")]
    return subprocess.run(
        shell, cwd=place, env=variables | arguments, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def put_torch(index: Path, version: str, *requires: str) -> None:
    """Puts a wheel of torch into an index that serves its metadata alone too, as PyPI and PyTorch do."""
    folder, name = index / "torch", f"torch-{version}-py3-none-any.whl"
    folder.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
    metadata = head + "".join(f"Requires-Dist: {each}\n" for each in requires)
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr(f"torch-{version}.dist-info/METADATA", metadata)
        wheel.writestr(
            f"torch-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"torch-{version}.dist-info/RECORD", "")
    (folder / f"{name}.metadata").write_text(metadata)
    (folder / "index.html").write_text(f'<a href="{name}" data-dist-info-metadata="true">{name}</a>')


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields the address of a server with the indexes pypi, cpu, cuda and none, and the paths that were requested."""
    put_torch(tmp_path / "indexes/pypi", TORCH, "nvidia-cudnn-cu13==9.1", "triton==3.1")
    put_torch(tmp_path / "indexes/cpu", f"{TORCH}+cpu")
    put_torch(tmp_path / "indexes/cuda", TORCH, "nvidia-cudnn-cu13==9.1", "triton==3.1")
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(tmp_path / "indexes"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_torch_for_cpus_comes_from_the_index(tmp_path: Path, indexes: tuple[str, list[str]]) -> None:
    address, _ = indexes
    end = installed(tmp_path, index=f"{address}/cpu")
    assert end.returncode == 0, end.stderr
    assert f"Would install torch-{TORCH}+cpu" in end.stdout
    assert (tmp_path / "torch.txt").read_text().startswith(f"--extra-index-url {address}/cpu\n")


@pytest.mark.parametrize("index", ["cuda", "none", "pypi"])
def test_an_index_with_cuda_or_without_torch_is_refused_before_torch_is_downloaded(
    tmp_path: Path, indexes: tuple[str, list[str]], index: str
) -> None:
    address, asked = indexes
    end = installed(tmp_path, index=f"{address}/{index}")
    assert end.returncode == 1
    assert end.stderr.splitlines()[-1] == (
        f"no torch for CPUs from {address}/{index}; set an index that has it, and none with CUDA:"
        " TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu docker compose build"
    )
    assert any(path.endswith(".whl.metadata") for path in asked)
    assert not any(path.endswith(".whl") for path in asked)


def test_nothing_is_asked_of_an_index_without_torch(tmp_path: Path) -> None:
    end = installed(tmp_path, TORCH="no")
    assert (end.returncode, end.stdout, (tmp_path / "torch.txt").read_text()) == (0, "", ""), end.stderr


def test_another_choice_is_refused(tmp_path: Path) -> None:
    end = installed(tmp_path, TORCH="true")
    assert (end.returncode, end.stderr) == (
        1,
        "PENSTOCK_TORCH (the build argument TORCH) is yes, no or auto; got 'true'\n",
    )


@pytest.mark.parametrize("name", [*PRESETS, "", "none", "mine"])
def test_by_default_torch_is_installed_if_the_actors_of_the_preset_need_it(
    tmp_path: Path, indexes: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    end = installed(tmp_path, index=f"{indexes[0]}/cpu", TORCH="auto", PRESET=name)
    assert end.returncode == 0, end.stderr
    if name not in PRESETS:
        # The environment is the user's own.
        assert "Would install torch" in end.stdout
        return
    if missing(OTHERS.get(name, "gymnasium")):
        pytest.skip(f"{OTHERS[name]} is not installed")
    config = preset(name)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(ROOT / "examples")
    environments = variants_of(config.environment, config.environment.variant_kwargs).make(0, 1)
    encoders = {**encoders_of_new(environments.spec, config.policy.moves), **config.policy.encoders}
    network = Network(**{**dict(config.policy), "encoders": encoders})
    assert ("Would install torch" in end.stdout) == bool(obstacle(Description(environments.spec, network)))


def test_the_image_has_the_environments_of_presets_in_the_working_directory() -> None:
    text = (ROOT / "Dockerfile.actor").read_text()
    lines = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY examples/")]
    copied = [path for line in lines for path in line]
    assert {Path(path).stem for path in copied} == {module.partition(".")[0] for module in IMPORTS}
    assert text.index("WORKDIR /var/lib/penstock") < text.index("COPY examples/")
    assert all((ROOT / path).exists() for path in copied)
