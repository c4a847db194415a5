"""The virtual environments of peers."""

from pathlib import Path

import pytest

from benchmarks.peers import environment
from benchmarks.peers.peer_programs import PEERS
from benchmarks.peers.pufferlib_environment import completed

PEER_FOLDER = Path(environment.__file__).parent


def test_an_environment_is_current_until_its_requirements_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "built" / "library").mkdir(parents=True)
    (tmp_path / "library.txt").write_text("numpy\n")
    monkeypatch.setattr(environment, "_HERE", tmp_path)
    monkeypatch.setattr(environment, "ENVIRONMENTS", tmp_path / "built")
    assert not environment.is_current("library")
    environment.mark_current("library")
    assert environment.is_current("library")
    (tmp_path / "library_alone.txt").write_text("gymnasium\n")
    assert not environment.is_current("library")
    environment.mark_current("library")
    (tmp_path / "library.txt").write_text("numpy<2\n")
    assert not environment.is_current("library")


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_has_its_programs(name: str) -> None:
    for module in (PEERS[name].pace, PEERS[name].goal):
        assert (PEER_FOLDER / f"{module}.py").is_file()


def test_pufferlibs_program_gets_the_missing_name_and_no_cuda() -> None:
    program = (
        "import glob, os, shutil\n"
        'NO_OCEAN = os.getenv("NO_OCEAN", "1") == "1"\n'
        "if not NO_OCEAN:\n    raise SystemExit\n"
        'if shutil.which("nvcc"):\n    raise SystemExit\n'
        "if not NO_OCEAN:\n    c_extension_paths = glob.glob('*.c')\n"
        "found = ['pufferlib'] + c_extension_paths\n"
    )
    names: dict[str, object] = {}
    exec(completed(program), names)
    assert names["found"] == ["pufferlib"]
