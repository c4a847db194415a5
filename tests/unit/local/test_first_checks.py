"""What takes no time to check is checked before anything is started, imported or written."""

from pathlib import Path

import pytest

from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.local.first_checks import check_at_once


@pytest.mark.parametrize(
    ("section", "setting", "name"),
    [
        ("policy", "module", "nets.py:Net"),
        ("learner", "loss", "losses.py:loss"),
        ("learner", "optimizer", "optimizers.py:make"),
        ("ppo", "advantage", "advantages.py:advantage"),
        ("sampling", "priority", "priorities.py:priority"),
    ],
)
def test_a_file_of_code_that_is_not_there_is_refused_before_the_run(
    section: str, setting: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = Config(**{section: {setting: name}}, run_dir=str(tmp_path / "run"))
    file = tmp_path / name.partition(":")[0]
    with pytest.raises(ConfigurationError) as refused:
        check_at_once(config, resume=False)
    assert str(refused.value) == (
        f"{section}.{setting} '{file}:{name.partition(':')[2]}': there is no file {file}; correct its path, which is"
        f" absolute or relative to {tmp_path}"
    )
    file.write_text("raise ValueError")
    check_at_once(config, resume=False)
    assert not (tmp_path / "run").exists()
