"""`penstock push`: a folder that a model hub understands, and that Penstock loads."""

import base64
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from penstock.acting.policies.trained import load_policy
from penstock.cli.commands.push import card, command
from penstock.errors import ConfigurationError
from penstock.machine import extras
from penstock.runs.folder import RunFolder
from penstock.runs.summary import EvaluationOutcome, Summary
from tests.support.services.ports import free_ports
from tests.support.services.processes import run

OF_A_RELEASE = Path(__file__).parents[3] / "compatibility" / "0.3.0" / "run"
without_hub = pytest.mark.skipif(extras.missing("huggingface_hub"), reason="the extra hub is not installed")


@pytest.fixture
def ended(tmp_path: Path) -> RunFolder:
    folder = tmp_path / "ended"
    shutil.copytree(OF_A_RELEASE, folder)
    return RunFolder(folder)


def metadata_of(text: str) -> dict[str, Any]:
    metadata: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return metadata


def test_a_pushed_folder_is_loaded_and_evaluated(
    ended: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (ended.root / "videos").mkdir()
    for name in ("version-20-episode-0.mp4", "version-9-episode-0.mp4"):
        (ended.root / "videos" / name).write_text(name)
    pushed = tmp_path / "new" / "pushed"
    pushed.parent.mkdir()
    assert command([str(ended.root), "--to", str(pushed)]) == 0
    assert capsys.readouterr() == (f"{pushed}\n", "")
    assert {str(path.relative_to(pushed)) for path in pushed.rglob("*") if path.is_file()} == {
        *("README.md", "config.toml", "summary.json", "replay.mp4", "checkpoints/best.safetensors"),
    }
    assert (pushed / "replay.mp4").read_text() == "version-20-episode-0.mp4"
    assert list(pushed.parent.iterdir()) == [pushed]
    assert Summary.read(pushed / "summary.json").run_dir == "ended"
    observations = np.random.default_rng(0).normal(size=(50, 4))
    same = load_policy(ended.root).act(observations) == load_policy(pushed).act(observations)
    assert same.all()
    evaluated = run("evaluate", str(pushed), "--episodes=2")
    assert evaluated.code == 0, evaluated.stderr


def test_a_run_without_a_film_is_pushed_with_a_note(
    ended: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pushed").mkdir()
    assert command([str(ended.root), "--to", str(tmp_path / "pushed")]) == 0
    assert "--record-video` makes one of this policy" in capsys.readouterr().err
    assert not (tmp_path / "pushed" / "replay.mp4").exists()


def test_the_card_has_the_metadata_of_a_result(ended: RunFolder) -> None:
    found = metadata_of(card(Summary.read(ended.summary), EvaluationOutcome(20, 1234.5, 6.789), ""))
    assert found["library_name"] == "penstock"
    assert {"CartPole-v1", "reinforcement-learning"} <= set(found["tags"])
    (index,) = found["model-index"]
    (result,) = index["results"]
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"] == {"name": "CartPole-v1", "type": "CartPole-v1"}
    assert result["metrics"][0]["type"] == "mean_reward"
    assert result["metrics"][0]["value"] == "1234.50 +/- 6.79"


@without_hub
def test_the_hub_reads_the_metadata_of_the_card(ended: RunFolder) -> None:
    from huggingface_hub import ModelCard

    text = card(Summary.read(ended.summary), EvaluationOutcome(20, -3.25, 0.5), "me/mine")
    data: Any = ModelCard(text).data
    assert (data.library_name, data.pipeline_tag, data.model_name) == ("penstock", "reinforcement-learning", "PPO")
    (result,) = data.eval_results
    assert (result.task_type, result.dataset_type, result.dataset_name, result.metric_type, result.metric_value) == (
        *("reinforcement-learning", "CartPole-v1", "CartPole-v1", "mean_reward", "-3.25 +/- 0.50"),
    )
    again: Any = ModelCard(str(ModelCard(text))).data
    assert again.to_dict() == data.to_dict()


def test_what_cannot_be_pushed_is_refused_in_one_line(ended: RunFolder, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "README.md").write_text("mine")
    for arguments, message in (
        ([str(ended.root), "--to", str(full)], "full has files already; name a new folder"),
        ([str(tmp_path / "none"), "--to", "new"], "none is not a run folder"),
        ([str(ended.best_checkpoint), "--to", "new"], "is not a run folder; name the folder of a run"),
        ([str(ended.root), "--to", str(tmp_path / "no" / "folder")], "can't write .*; .*name another folder"),
        ([str(ended.root), "--to", "hf://mine"], "needs huggingface_hub|write it as hf://USER/NAME"),
    ):
        with pytest.raises(ConfigurationError, match=f"^[^\n]*({message})[^\n]*$"):
            command(arguments)
    assert (full / "README.md").read_text() == "mine"


@pytest.mark.parametrize("change", [{"policy_version": 19}, {"evaluation": None}])
def test_a_result_of_another_policy_is_refused(ended: RunFolder, tmp_path: Path, change: dict[str, Any]) -> None:
    ended.summary.write_text(json.dumps(json.loads(ended.summary.read_text()) | change))
    with pytest.raises(ConfigurationError, match=r"has no evaluation of .*best\.safetensors \(version 20\); resume"):
        command([str(ended.root), "--to", str(tmp_path / "pushed")])
    assert not (tmp_path / "pushed").exists()


class _Hub(BaseHTTPRequestHandler):
    """The part of the hub's HTTP interface that a push of small files uses. It keeps them in `server.files`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server: Any = self.server
        if self.path.endswith("/repos/create"):
            server.created.append(json.loads(body)["name"])
            self._answer({"url": f"{self._address}/me/{server.created[-1]}", "id": "me/mine"})
        elif "/preupload/" in self.path:
            given = [each["path"] for each in json.loads(body)["files"]]
            self._answer({"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in given]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._answer({"success": True, "commitUrl": f"{self._address}/me/mine/commit/0", "commitOid": "0"})
        else:
            self._answer({})

    @property
    def _address(self) -> str:
        # The client takes the names of repositories from addresses of its hub alone.
        return f"http://{self.headers['Host']}"

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    server.created, server.files = [], {}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()


@without_hub
def test_the_files_reach_the_hub(ended: RunFolder, tmp_path: Path, hub: Any) -> None:
    login = {"HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_secret", "HF_HUB_DISABLE_XET": "1"}
    address = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}"}
    pushed = run("push", str(ended.root), "--to", "hf://me/mine", environment=login | address)
    assert pushed.code == 0, pushed.stderr
    assert pushed.stdout.strip().endswith("mine")
    assert hub.created == ["mine"]
    assert set(hub.files) == {"README.md", "config.toml", "summary.json", "checkpoints/best.safetensors"}
    assert hub.files["checkpoints/best.safetensors"] == ended.best_checkpoint.read_bytes()
    assert 'snapshot_download("me/mine")' in hub.files["README.md"].decode()


@without_hub
@pytest.mark.parametrize(
    ("token", "message"),
    [("", "there is no login of the Hugging Face Hub; run `hf auth login`"), ("hf_x", "can't push to hf://me/mine: ")],
)
def test_without_a_login_or_a_network_the_reason_is_one_line(
    ended: RunFolder, tmp_path: Path, token: str, message: str
) -> None:
    environment = {
        "HF_HOME": str(tmp_path / "hf"),
        "HF_TOKEN": token,
        "HF_ENDPOINT": f"http://127.0.0.1:{free_ports(1)[0]}",
    }
    pushed = run("push", str(ended.root), "--to", "hf://me/mine", environment=environment)
    assert pushed.code == 2
    assert [line for line in pushed.stderr.splitlines() if not line.startswith("without a film")] == [
        pushed.stderr.splitlines()[-1]
    ]
    assert message in pushed.stderr
