import logging
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from penstock.apps.earlier_session import changed_settings, log_resumed
from penstock.config import Config, build
from penstock.learning.durable.checkpoints import Recovered, RunProgress
from penstock.runs.folder import RunFolder

RECORDED: dict[str, object] = {"ppo": {"epochs": 8}, "run": {"total_steps": 1_000}}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.config.write_text(build(RECORDED).repeatable().to_toml())
    return folder


def logged(folder: RunFolder, recovered: Recovered, config: Config) -> list[dict[str, object]]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with capture_logs() as events:
        log_resumed(folder, recovered, config, structlog.get_logger())
    structlog.reset_defaults()
    return [dict(event) for event in events]


def recovered_at(folder: RunFolder, env_steps: int) -> Recovered:
    return Recovered(folder.checkpoint(env_steps), RunProgress(env_steps=env_steps))


def test_a_resumed_run_is_logged_with_its_step_and_how_to_begin_another(folder: RunFolder) -> None:
    config = build({**RECORDED, "run": {"total_steps": 1_000, "dir": str(folder.root)}})
    (event,) = logged(folder, recovered_at(folder, 72_821), config)
    assert (event["event"], event["log_level"], event["env_steps"]) == ("run resumed", "info", 72_821)
    assert event["checkpoint"] == "000000072821.safetensors" and event["changed_settings"] == []
    assert "PENSTOCK_RUN=NAME" in str(event["hint"])


def test_changed_settings_of_a_resumed_run_are_a_warning(folder: RunFolder) -> None:
    config = build({"ppo": {"epochs": 4}, "run": {"total_steps": 2_000}})
    (event,) = logged(folder, recovered_at(folder, 500), config)
    assert event["log_level"] == "warning"
    assert event["changed_settings"] == ["run.total_steps: 2000, was 1000", "ppo.epochs: 4, was 8"]


def test_a_new_run_is_not_logged_as_resumed(folder: RunFolder) -> None:
    assert logged(folder, Recovered(), build(RECORDED)) == []


def test_a_record_that_is_missing_or_of_another_release_shows_no_changes(folder: RunFolder) -> None:
    folder.config.write_text("[ppo]\nno_such_setting = 1\n")
    assert changed_settings(folder.config, build({})) == []
    folder.config.unlink()
    assert changed_settings(folder.config, build({})) == []
