"""`penstock export`: one file, with which the program of the documentation acts."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.commands.export import command
from penstock.errors import ConfigurationError
from penstock.machine import extras
from tests.docs.pages import ROOT, blocks
from tests.support.machine.hidden_packages import hiding
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.processes import run

OF_A_RELEASE = ROOT / "tests" / "compatibility" / "0.3.0" / "run"
with_onnx = pytest.mark.skipif(
    any(map(extras.missing, ("onnx", "onnxruntime", "onnxscript"))), reason="the extra onnx is not installed"
)


@with_onnx
def test_a_run_is_exported_to_one_file_for_the_program_of_the_documentation(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(OF_A_RELEASE, folder)
    before = set(folder.rglob("*"))
    exported = run("export", str(folder), "--onnx")
    assert (exported.code, exported.stderr) == (0, "")
    assert exported.stdout.splitlines()[:3] == [
        f"CartPole-v1, version 20 of {folder / 'checkpoints' / 'best.safetensors'}",
        "inputs: observation (float)[batch, 4]",
        "outputs: action (int64)[batch], log_probs (float)[batch, 2]",
    ]
    assert exported.stdout.splitlines()[-1] == str(folder / "policy.onnx")
    assert set(folder.rglob("*")) - before == {folder / "policy.onnx"}
    (program,) = [
        block.text
        for block in blocks(ROOT / "docs" / "shipping.md")
        if block.language == "python" and "onnxruntime" in block.text
    ]
    (tmp_path / "hidden").mkdir()
    played = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=hiding(tmp_path / "hidden", "penstock", "torch"),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert float(played.stdout) >= 8.0


@with_onnx
def test_what_cannot_be_exported_is_refused_in_one_line(tmp_path: Path) -> None:
    for arguments, message in (
        ([str(OF_A_RELEASE)], "--onnx"),
        ([str(tmp_path), "--onnx"], "holds no checkpoint"),
        ([str(OF_A_RELEASE), "--onnx", "-o", str(tmp_path / "no" / "file")], "can't write .*file: "),
    ):
        with pytest.raises(ConfigurationError, match=f"^[^\n]*{message}[^\n]*$"):
            command(arguments)


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path) -> None:
    exported = run("export", str(OF_A_RELEASE), "--onnx", environment=hiding(tmp_path, "onnxruntime"))
    assert exported.code == 2
    assert "pip install 'penstock[onnx]'" in exported.stderr and len(exported.stderr.splitlines()) == 1
