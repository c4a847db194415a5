import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.acting.policies.trained import load_policy
from penstock.algo.network import Network
from penstock.config import Config
from penstock.errors import ConfigurationError, DamagedFile
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import RunProgress
from penstock.learning.run.assembly import learner_of
from penstock.learning.step.learner import Learner
from penstock.runs import checkpoint_file
from penstock.runs.folder import RunFolder
from penstock.types.evaluation import EvaluationSummary, InfoMetric
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Tree
from tests.support.environments.tiny import spec_of
from tests.support.training.policy_outputs import distribution_of, value_of
from tests.support.training.training import SMALL, make_batch, make_learner, parameters_of, same_parameters

PROGRESS = RunProgress(version=4, env_steps=1_234, updates=16, training_s=2.5, best_return=-0.1)


def trained_learner(env_id: str = "CartPole-v1", network: Network = SMALL) -> Learner:
    learner = make_learner(env_id, network=network)
    learner.train(make_batch(env_id), 0.0)
    return learner


def save(folder: RunFolder, learner: Learner, env_steps: int = 1_234, keep: int = 3) -> Path:
    snapshot = checkpoints.take(learner, dataclasses.replace(PROGRESS, env_steps=env_steps))
    return checkpoints.save(folder, snapshot, keep)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_restored_learner_continues_bit_for_bit(folder: RunFolder, env_id: str) -> None:
    learner, restored = trained_learner(env_id), make_learner(env_id, seed=77)
    assert checkpoints.restore(restored, save(folder, learner)) == PROGRESS
    assert same_parameters(learner, restored)
    batch = make_batch(env_id, fresh=4)
    outcome, resumed = learner.train(batch, 0.5), restored.train(batch, 0.5)
    assert same_parameters(learner, restored)
    assert np.array_equal(outcome.priorities, resumed.priorities)
    assert outcome.statistics == resumed.statistics


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_captured_state_becomes_the_same_checkpoint_after_further_training(env_id: str) -> None:
    learner = trained_learner(env_id)
    expected, captured = checkpoints.take(learner, PROGRESS), checkpoints.capture(learner, PROGRESS)
    learner.train(make_batch(env_id), 0.0)
    assert captured.encoded() == expected != checkpoints.take(learner, PROGRESS)


def test_a_run_starts_from_the_policy_of_another_and_from_nothing_else(folder: RunFolder) -> None:
    learner, started = trained_learner(), make_learner(seed=77)
    state = {name: value.clone() for name, value in started.optimizer.state.items()}
    checkpoints.start_from(started, save(folder, learner))
    assert same_parameters(learner, started)
    assert all(torch.equal(value, started.optimizer.state[name]) for name, value in state.items())
    assert torch.equal(started.generator.get_state(), make_learner(seed=77).generator.get_state())


def test_a_run_starts_from_a_saved_policy_but_does_not_resume_from_it(folder: RunFolder) -> None:
    learner, started = trained_learner(), make_learner(seed=77)
    file = load_policy(save(folder, learner)).save(folder.start)
    checkpoints.start_from(started, file)
    assert same_parameters(learner, started)
    assert checkpoints.read_network(file) == learner.policy.network
    with pytest.raises(DamagedFile, match="it contains no progress of a run"):
        checkpoints.restore(started, file)


def test_a_run_does_not_start_from_a_policy_of_another_architecture(folder: RunFolder) -> None:
    path = save(folder, trained_learner())
    for other in (make_learner("Pendulum-v1"), make_learner(network=Network(hidden_sizes=(8,)))):
        before = parameters_of(other)
        with pytest.raises(ConfigurationError, match=r"does not fit this run.*give this run the settings"):
            checkpoints.start_from(other, path)
        assert all(torch.equal(value, before[name]) for name, value in parameters_of(other).items())


def test_a_learner_that_never_trained_can_be_restored(folder: RunFolder) -> None:
    learner, restored = make_learner(seed=1), make_learner(seed=2)
    checkpoints.restore(restored, save(folder, learner))
    for each in (learner, restored):
        each.train(make_batch(), 0.0)
    assert same_parameters(learner, restored)


def test_further_training_does_not_change_a_snapshot(folder: RunFolder) -> None:
    learner, restored = trained_learner(), make_learner()
    snapshot = checkpoints.take(learner, PROGRESS)
    value = value_of(learner.policy, torch.ones(4)).item()
    learner.train(make_batch(), 0.0)
    checkpoints.restore(restored, checkpoints.save(folder, snapshot, keep=3))
    assert value_of(restored.policy, torch.ones(4)).item() == value != value_of(learner.policy, torch.ones(4)).item()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.999])
def test_a_truncated_checkpoint_is_refused(folder: RunFolder, share: float) -> None:
    path = save(folder, trained_learner())
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    learner = make_learner()
    for attempt in (
        lambda: checkpoints.restore(learner, path),
        lambda: checkpoints.read_progress(path),
        lambda: load_policy(path),
    ):
        with pytest.raises(ConfigurationError, match=path.name):
            attempt()


def test_a_missing_checkpoint_is_refused(folder: RunFolder) -> None:
    with pytest.raises(ConfigurationError, match="gone"):
        checkpoints.read_progress(folder.checkpoints / "gone.safetensors")


@pytest.mark.parametrize(
    "other",
    [make_learner("Acrobot-v1"), make_learner(network=Network(hidden_sizes=(16,))), make_learner("Pendulum-v1")],
    ids=["spaces", "layers", "kind of action"],
)
def test_a_checkpoint_of_another_architecture_is_refused_and_nothing_changes(folder: RunFolder, other: Learner) -> None:
    path, before = save(folder, trained_learner()), parameters_of(other)
    with pytest.raises(ConfigurationError, match="does not fit this run"):
        checkpoints.restore(other, path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.policy.state_dict().items())


def test_a_checkpoint_with_unknown_fields_is_refused(folder: RunFolder) -> None:
    snapshot = checkpoints.take(trained_learner(), PROGRESS)
    newer = snapshot.data.replace(b'\\"updates\\"', b'\\"changes\\"')
    assert newer != snapshot.data
    newer = checkpoint_file.sealed(newer)
    path = checkpoints.save(folder, dataclasses.replace(snapshot, data=newer), keep=1)
    with pytest.raises(ConfigurationError, match=f"{path.name} was written by another version"):
        checkpoints.read_progress(path)


def test_only_the_newest_checkpoints_and_the_best_are_kept(folder: RunFolder) -> None:
    learner = trained_learner()
    checkpoints.save_best(folder, checkpoints.take(learner, PROGRESS))
    for env_steps in (900, 1_000, 20_000, 100_000):
        save(folder, learner, env_steps, keep=2)
    kept = [checkpoints.read_progress(path).env_steps for path in folder.numbered_checkpoints()]
    assert kept == [20_000, 100_000]
    kinds = {folder.best_checkpoint, folder.best_measured, *folder.numbered_checkpoints()}
    assert set(folder.checkpoints.iterdir()) == kinds
    assert checkpoints.read_progress(folder.best_checkpoint) == PROGRESS


def test_the_best_checkpoints_of_equal_runs_are_equal_whatever_their_clocks_show(tmp_path: Path) -> None:
    learner, info = trained_learner(), (InfoMetric("success", 19, 0.5, 1),)
    evaluation = EvaluationSummary(PROGRESS.version, PROGRESS.env_steps, 20, 480.0, 9.0, info_metrics=info)
    slower = dataclasses.replace(
        PROGRESS, training_s=91.0, wall_s=99.0, clock_s=95.0, env_steps_taken=20_400, learn_wall_s_to_threshold=90.0
    )
    folders = [RunFolder(tmp_path / name) for name in ("fast", "slow")]
    for folder, progress in zip(folders, (PROGRESS, slower), strict=True):
        folder.create()
        checkpoints.save_best(folder, checkpoints.judged(checkpoints.take(learner, progress), progress, evaluation))
    fast, slow = (folder.best_checkpoint.read_bytes() for folder in folders)
    assert fast == slow
    # Without a numbered checkpoint, the run resumes from the best one with its own times.
    assert [checkpoints.recover(folder).progress for folder in folders] == [PROGRESS, slower]


def best_at(version: int, **times: float) -> checkpoints.Snapshot:
    """Returns a best checkpoint of a version, whose file does not have its times."""
    progress = dataclasses.replace(PROGRESS, version=version, **times)  # type: ignore[arg-type]
    evaluation = EvaluationSummary(version, PROGRESS.env_steps, 20, 480.0, 9.0)
    return checkpoints.judged(checkpoints.take(trained_learner(), progress), progress, evaluation)


def kill_between_writes(folder: RunFolder, snapshot: checkpoints.Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves a best checkpoint with a process that ends after its first write."""

    class Killed(Exception):
        pass

    def end(path: Path, data: bytes) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_atomically", end)
        with pytest.raises(Killed):
            checkpoints.save_best(folder, snapshot)


def test_times_remain_if_a_learner_is_killed_between_the_two_writes_however_often(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = best_at(10, clock_s=300.0, training_s=290.0, wall_s=310.0)
    checkpoints.save_best(folder, first)
    for version in (20, 30, 40):
        kill_between_writes(folder, best_at(version, clock_s=1e6, training_s=1e6, wall_s=1e6), monkeypatch)
        recovered = checkpoints.recover(folder)
        assert recovered.progress == first.progress
        assert recovered.complaints == ()
    last = best_at(50, clock_s=700.0, training_s=690.0, wall_s=710.0)
    checkpoints.save_best(folder, last)
    assert checkpoints.recover(folder).progress == last.progress


def test_times_that_an_earlier_release_wrote_are_read(folder: RunFolder) -> None:
    best = best_at(10, clock_s=300.0, training_s=290.0)
    checkpoints.save_best(folder, best)
    values = json.loads(folder.best_measured.read_text())
    times = {"version", "training_s", "learn_wall_s_to_threshold", "env_steps_taken", "wall_s", "clock_s"}
    assert set(values) == times | {"untimed_episode_steps"}
    # Earlier releases did not keep the bound of evaluations.
    folder.best_measured.write_text(json.dumps({name: values[name] for name in times}))
    assert checkpoints.recover(folder).progress == best.progress
    checkpoints.save_best(folder, best_at(20, clock_s=400.0, training_s=390.0))
    folder.best_checkpoint.write_bytes(best.data)
    assert checkpoints.recover(folder).progress == best.progress


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"version": 99}', b'{"version": 10, "replaced": 3}'])
def test_times_of_another_best_checkpoint_are_not_used_and_the_run_says_so(
    folder: RunFolder, content: bytes | None
) -> None:
    checkpoints.save_best(folder, best_at(10))
    folder.best_measured.unlink()
    if content is not None:
        folder.best_measured.write_bytes(content)
    recovered = checkpoints.recover(folder)
    assert (recovered.progress.wall_s, recovered.progress.clock_s) == (0.0, 0.0)
    (complaint,) = recovered.complaints
    assert "best.safetensors are unknown" in complaint
    # The next best checkpoint has its own.
    best = best_at(20, training_s=5.0)
    checkpoints.save_best(folder, best)
    assert checkpoints.recover(folder).progress == best.progress


def test_the_newest_checkpoint_has_the_most_steps(folder: RunFolder) -> None:
    assert checkpoints.newest(folder) is None
    learner = trained_learner()
    for env_steps in (5_000, 70_000, 6_000):
        save(folder, learner, env_steps)
    newest = checkpoints.newest(folder)
    assert newest is not None
    assert checkpoints.read_progress(newest).env_steps == 70_000


def test_a_checkpoint_contains_the_id_of_its_environment(folder: RunFolder) -> None:
    assert load_policy(save(folder, trained_learner("Pendulum-v1"))).policy.spec == spec_of("Pendulum-v1")


def test_a_checkpoint_loads_as_a_policy(folder: RunFolder) -> None:
    learner = trained_learner()
    path = save(folder, learner)
    observation = torch.linspace(-1.0, 1.0, 4)
    for found in (load_policy(path), load_policy(folder.root)):
        assert found.version == PROGRESS.version
        assert torch.equal(value_of(found.policy, observation), value_of(learner.policy, observation))
        assert found.act(observation.numpy()) == distribution_of(learner.policy, observation).mode().item()


def test_a_continued_policy_keeps_its_encoders_and_a_new_one_has_those_of_this_release(folder: RunFolder) -> None:
    spec = EnvironmentSpec("Parts-v0", Tree.of(BoxSpace("float32", (2, 3), (-1.0,), (1.0,))), Tree.of(DiscreteSpace(2)))
    config, cpu = Config(), torch.device("cpu")
    # Earlier releases record no encoder, and convolve every matrix.
    earlier = learner_of(config, spec, cpu, continued=Network())
    assert earlier.policy.observer.encoders == ("board",)
    path = save(folder, earlier)
    continued = learner_of(config, spec, cpu, continued=checkpoints.read_network(path))
    checkpoints.restore(continued, path)
    assert same_parameters(earlier, continued)
    assert load_policy(path).policy.observer.encoders == ("board",)
    new = learner_of(config, spec, cpu)
    assert new.policy.observer.encoders == ("flat",)
    path = save(folder, new, env_steps=2_000)
    assert checkpoints.read_network(path).encoders == {"observation": "flat"}
    assert load_policy(path).policy.observer.encoders == ("flat",)
    with pytest.raises(ConfigurationError, match=r"does not fit this run.*policy\.encoders"):
        checkpoints.restore(learner_of(config.changed(policy={"encoders": {"observation": "board"}}), spec, cpu), path)
