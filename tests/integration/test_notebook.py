"""The notebook of the examples runs in a kernel, and its outputs are what a reader expects to see."""

import math
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.machine.timing import start_patience_s

pytestmark = pytest.mark.nightly

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_run.ipynb"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The outputs of each cell of code, by their MIME types; text that was printed is `text/plain`."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=math.ceil(start_patience_s()), resources={"metadata": {"path": folder}}).execute()
    return [merged(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]


def merged(outputs: list[Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for output in outputs:
        assert output.output_type != "error" and output.get("name") != "stderr", output
        for kind, text in output.get("data", {"text/plain": output.get("text", "")}).items():
            found[kind] = found.get(kind, "") + text
    return found


def test_training_shows_its_progress_and_its_result(outputs: list[dict[str, str]]) -> None:
    shown = re.sub(r"<[^>]+>", "", outputs[0]["text/html"])
    assert "penstock CartPole-v1" in shown and "finished" in shown
    assert "environmentCartPole-v1, seed 1" in shown and "over 20 new episodes: best checkpoint" in shown
    assert 'src="data:image/png;base64,' in outputs[0]["text/html"]


def test_a_callback_receives_losses_and_stops_the_run(outputs: list[dict[str, str]]) -> None:
    found = re.fullmatch(r"callback after ([\d,]+) steps; (\d+) records of losses\n", outputs[1]["text/plain"])
    assert found is not None and 0 < int(found[1].replace(",", "")) < 100_000 and int(found[2]) > 0


def test_the_policy_acts_and_tells_values_and_probabilities(outputs: list[dict[str, str]]) -> None:
    found = re.fullmatch(r"return (\d+)\n", outputs[2]["text/plain"])
    assert found is not None and int(found[1]) > 100
    assert re.match(r"value -?\d+\.\d probabilities \[0\.\d+ +0\.\d+", outputs[3]["text/plain"])


def test_the_metrics_are_plotted(outputs: list[dict[str, str]]) -> None:
    assert len(outputs[4]["image/png"]) > 10_000
