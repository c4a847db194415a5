"""Settings in a run's folder: commands read those they need, and a resumed run keeps the meaning of all."""

import warnings
from pathlib import Path

import pytest
import tomli_w

from penstock.algo.network import Network
from penstock.cli.options import Options, parse
from penstock.config import Config, load_toml, read_recorded, read_settings
from penstock.config.recorded import ENVIRONMENT, LIMITS, texts
from penstock.config.removed import BEFORE, REMOVED
from penstock.config.sections import fields, setting_names
from penstock.errors import ConfigurationError

NARROWED: dict[str, object] = {
    "replay.grant_timeout_s": 0.5,
    "replay.max_actors": 5000,
    "learner.max_actors": 5000,
    "replay.capacity_bytes": 1024,
    "ppo.learning_rate": 2.0,
    "learner.device": "cuda:first",
    "sampling.alpha": "auto",
    "sampling.epsilon": 1e-12,
    "sampling.max_staleness": 1,
    "sampling.half_life": 0.01,
    "ppo.minibatches": 100_000,
}
"""Values that earlier releases accepted, alone or with other settings, and that this one refuses."""


def run(folder: Path, changes: dict[str, object] | None = None, without: tuple[str, ...] = ()) -> Path:
    """Writes the complete record of a run, with other values by section.key, and returns its file."""
    values = load_toml(written(folder / "config.toml", Config(total_steps=1000).to_toml()))
    for name, value in (changes or {}).items():
        section, _, key = name.partition(".")
        table = values.setdefault(section, {})
        assert isinstance(table, dict)
        table[key] = value
    for name in without:
        section, _, key = name.partition(".")
        table = values[section]
        assert isinstance(table, dict)
        table.pop(key, None)
    return written(folder / "config.toml", tomli_w.dumps(values))


def written(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def resume(file: Path, *arguments: str) -> Options:
    return parse("penstock train", "", ["--resume", str(file.parent), *arguments], trains=True)


@pytest.mark.parametrize("name", [*REMOVED, *NARROWED, "sampling.of_a_later_release", "of_a_later_release.setting"])
def test_a_finished_run_is_read_whatever_became_of_its_other_settings(tmp_path: Path, name: str) -> None:
    file = run(tmp_path, {name: NARROWED.get(name, 1)})
    assert read_settings(file, *ENVIRONMENT).environment == Config().environment
    assert read_settings(file, *LIMITS).run.total_steps == 1000
    assert texts(file)["run.total_steps"] == "1000"


def test_a_setting_that_a_command_needs_is_checked_and_the_file_is_named(tmp_path: Path) -> None:
    file = run(tmp_path, {"environment.frame_stack": 0})
    with pytest.raises(ConfigurationError) as refused:
        read_settings(file, *ENVIRONMENT)
    assert (
        str(refused.value) == f"environment.frame_stack must be a whole number from 1 to 64; got 0; {file} records it"
    )


def test_settings_of_higher_precedence_replace_invalid_ones(tmp_path: Path) -> None:
    file = run(tmp_path, {"environment.frame_stack": 0})
    read = read_settings(file, *ENVIRONMENT, changes={"environment": {"frame_stack": 2}})
    assert read.environment.frame_stack == 2


@pytest.mark.parametrize("name", [name for name, removed in REMOVED.items() if removed.renamed])
def test_a_renamed_setting_keeps_its_value_in_a_resumed_run(tmp_path: Path, name: str) -> None:
    value: object = "10.0.0.1:7431" if "address" in name else 7.0
    renamed = REMOVED[name].renamed
    file = run(tmp_path, {name: value}, without=(renamed,))
    resumed = resume(file)
    section, _, key = renamed.partition(".")
    found = getattr(getattr(resumed.config, section), key)
    assert found == (value if isinstance(value, float) else (value,))
    assert len(resumed.notes) == 1
    assert name in resumed.notes[0] and renamed in resumed.notes[0]


def test_the_new_name_of_a_setting_has_precedence_over_the_old_one(tmp_path: Path) -> None:
    file = run(tmp_path, {"replay.snapshot_interval_s": 7.0, "checkpoint.snapshot_interval_s": 9.0})
    assert resume(file).config.checkpoint.snapshot_interval_s == 9.0


def test_all_removed_settings_of_a_resumed_run_are_reported_in_one_line(tmp_path: Path) -> None:
    file = run(tmp_path, dict.fromkeys(REMOVED, "1"))
    (note,) = resume(file).notes
    assert "\n" not in note
    assert str(file) in note
    assert all(name in note and removed.release in note and removed.since in note for name, removed in REMOVED.items())
    with pytest.warns(UserWarning) as warned:
        loaded = Config.load(tmp_path)
    assert [str(each.message) for each in warned] == [note]
    assert loaded.sampling == Config().sampling


@pytest.mark.parametrize("name", NARROWED)
def test_a_resumed_run_is_refused_for_a_value_that_has_no_meaning_now_until_an_option_replaces_it(
    tmp_path: Path, name: str
) -> None:
    file = run(tmp_path, {name: NARROWED[name]})
    with pytest.raises(ConfigurationError) as refused:
        resume(file)
    message = str(refused.value)
    assert name in message
    assert message.endswith(f"{file} records it: give another value as an option, or correct the file")
    section, _, key = name.partition(".")
    default = getattr(getattr(Config(), section), key)
    usual = "none" if default is None else default
    assert resume(file, f"--{name}={usual}").config.run.dir == str(tmp_path)


def test_a_wrong_option_of_a_resumed_run_is_not_blamed_on_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        resume(run(tmp_path), "--ppo.epochs=0")
    assert "records it" not in str(refused.value)


def test_an_unknown_setting_in_a_resumed_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown setting sampling\.betta; did you mean sampling\.beta\?"):
        resume(run(tmp_path, {"sampling.betta": 1}))


def test_a_run_without_settings_that_did_not_exist_keeps_its_behaviour(tmp_path: Path) -> None:
    file = run(tmp_path, without=(*BEFORE, "security.insecure"))
    resumed = resume(file)
    config = resumed.config
    assert (config.environment.action_masks, config.ppo.clip_anchor, config.ppo.target_kl) == (False, 0.0, None)
    # The defaults of `Network`, which the policies of such a run mean.
    network = Network()
    scales = network.variance_epsilon, network.widest_range
    assert (config.policy.variance_epsilon, config.policy.widest_range) == scales
    (note,) = resumed.notes
    assert "environment.action_masks false, policy.variance_epsilon 1e-08, policy.widest_range 1e+38, ppo." in note
    assert not read_settings(file, *ENVIRONMENT).environment.action_masks


def test_a_file_that_a_user_wrote_means_the_defaults(tmp_path: Path) -> None:
    file = written(tmp_path / "config.toml", 'env_id = "CartPole-v1"\nlr = 0.002\n')
    resumed = resume(file)
    assert resumed.notes == ()
    assert resumed.config.ppo.target_kl == Config().ppo.target_kl
    assert resumed.config.environment.action_masks
    assert texts(file)["ppo.learning_rate"] == "0.002"


def test_a_run_of_this_release_is_read_as_it_is(tmp_path: Path) -> None:
    file = run(tmp_path)
    recorded = read_recorded(file)
    assert (recorded.removed, recorded.unset) == ("", "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Config.load(tmp_path) == Config(total_steps=1000)
    assert resume(file).notes == ()


def test_every_setting_has_a_text(tmp_path: Path) -> None:
    assert set(setting_names()) <= set(texts(run(tmp_path)))
    assert set(NARROWED) <= set(fields())
