"""Names of settings without a section, and the names of other libraries: each is accepted or answered in one line."""

import re

import pytest

from penstock.cli.options import parse
from penstock.config import Config
from penstock.config.answers import ANSWERS
from penstock.config.names import ALIASES, in_sections, setting_of, short_names, suggestions
from penstock.config.sections import fields, setting_names
from penstock.errors import ConfigurationError
from penstock.presets import configured


def config_of(*arguments: str) -> Config:
    return parse("penstock train", "", arguments, trains=True).config


ACCEPTED: dict[str, tuple[str, str, object]] = {
    "--use-wandb": ("true", "tracking.tracker", "wandb"),
    "--use_wandb": ("true", "tracking.tracker", "wandb"),
    "--track": ("false", "tracking.tracker", None),
    "--mlflow": ("true", "tracking.tracker", "mlflow"),
    "--tracker": ("trackio", "tracking.tracker", "trackio"),
    "--wandb-project-name": ("mine", "tracking.project", "mine"),
    "--env": ("Nothing-v0", "environment.id", "Nothing-v0"),
    "--env-name": ("Nothing-v0", "environment.id", "Nothing-v0"),
    "--env_id": ("Nothing-v0", "environment.id", "Nothing-v0"),
    "--env-id": ("Nothing-v0", "environment.id", "Nothing-v0"),
    "--num-workers": ("3", "train.actors", 3),
    "--actors": ("3", "train.actors", 3),
    "--num-envs": ("12", "actor.environments", 6),
    "--n-envs": ("12", "actor.environments", 6),
    "--rollout": ("16", "actor.unroll_length", 16),
    "--envs-per-actor": ("6", "actor.environments", 6),
    "--timesteps": ("1e6", "run.total_steps", 1_000_000),
    "--total-timesteps": ("1M", "run.total_steps", 1_000_000),
    "--n-timesteps": ("250k", "run.total_steps", 250_000),
    "--train_for_env_steps": ("1_000", "run.total_steps", 1_000),
    "--total-steps": ("2000.0", "run.total_steps", 2_000),
    "--lr": ("2e-4", "ppo.learning_rate", 2e-4),
    "--learning-rate": ("2e-4", "ppo.learning_rate", 2e-4),
    "--gamma": ("0.9", "ppo.discount", 0.9),
    "--gae-lambda": ("0.8", "ppo.trace_decay", 0.8),
    "--clip-param": ("0.1", "ppo.clip_range", 0.1),
    "--clip-coef": ("0.1", "ppo.clip_range", 0.1),
    "--clip-range": ("0.1", "ppo.clip_range", 0.1),
    "--target-kl": ("0.02", "ppo.target_kl", 0.02),
    "--value-coef": ("0.3", "ppo.value_coefficient", 0.3),
    "--vf-coef": ("0.3", "ppo.value_coefficient", 0.3),
    "--entropy-coef": ("0.02", "ppo.entropy_coefficient", 0.02),
    "--ent-coef": ("0.02", "ppo.entropy_coefficient", 0.02),
    "--max-grad-norm": ("0.7", "ppo.max_gradient_norm", 0.7),
    "--norm-adv": ("False", "ppo.normalise_advantages", False),
    "--anneal-lr": ("false", "ppo.learning_rate_schedule", "constant"),
    "--num-epochs": ("3", "ppo.epochs", 3),
    "--n-epochs": ("3", "ppo.epochs", 3),
    "--update-epochs": ("3", "ppo.epochs", 3),
    "--epochs": ("3", "ppo.epochs", 3),
    "--num-minibatches": ("4", "ppo.minibatches", 4),
    "--per-alpha": ("0.7", "sampling.alpha", 0.7),
    "--per-beta-start": ("0.5", "sampling.beta", 0.5),
    "--weight-sync-interval": ("2", "sampling.publish_interval", 2),
    "--off-policy-degree": ("2", "sampling.off_policy_degree", 2),
    "--sync-mode": ("blocking", "sampling.off_policy_degree", 0),
    "--enable-async-eval": ("true", "evaluation.mode", "asynchronous"),
    "--device": ("cpu", "learner.device", "cpu"),
    "--cuda": ("false", "learner.device", "cpu"),
    "--log-dir": ("somewhere/else", "run.dir", "somewhere/else"),
    "--exp-name": ("mine", "run.dir", "runs/mine"),
    "--run-name": ("mine", "run.dir", "runs/mine"),
    "--experiment": ("mine", "run.dir", "runs/mine"),
    "--name": ("mine", "run.dir", "runs/mine"),
    "--run-dir": ("mine", "run.dir", "mine"),
    "--save-interval": ("7000", "checkpoint.save_interval", 7_000),
    "--save-freq": ("7000", "checkpoint.save_interval", 7_000),
    "--max-checkpoints": ("5", "checkpoint.max_checkpoints", 5),
    "--eval-interval": ("3000", "evaluation.interval_steps", 3_000),
    "--eval-freq": ("3000", "evaluation.interval_steps", 3_000),
    "--eval-episodes": ("6", "evaluation.episodes", 6),
    "--seed": ("5", "run.seed", 5),
    "--stop-at-return": ("100", "run.stop_at_return", 100.0),
    "--ppo.learning_rate": ("2e-4", "ppo.learning_rate", 2e-4),
    "--sampling.off_policy_degree": ("2", "sampling.off_policy_degree", 2),
}
"""Options with a value, the setting, and its value afterwards."""

ANSWERED = {
    "--train-shared": "all actors share one policy",
    "--distributed": "all actors share one policy",
    "--num-iterations=100": "100 of them are --total-steps 51200",
    "--num-steps=128": "actor.unroll_length 32 steps",
    "--n-steps=128": "actor.unroll_length 32 steps",
    "--steps-per-worker=128": "actor.unroll_length 32 steps",
    "--batch-size=64": "set --ppo.minibatches 32",
    "--mini-batch-size=128": "set --ppo.minibatches 16",
    "--buffer-size=1e5": "--replay.capacity-steps 100000",
    "--buffer-capacity=5000": "--replay.capacity-segments 5000",
    "--lr-schedule=kl_adaptive_epoch": "set --ppo.learning-rate to",
    "--num-steps": "add the preset textbook",
    "--min-buffer-size=1000": "--sampling.min-replay-segments 32",
    "--min-batch-size=64": "--sampling.min-replay-segments 2",
    "--log-interval=10": "metrics.jsonl has a record about every second",
    "--neptune": "--tracker wandb, mlflow or trackio",
    "--wandb-entity=me": "WANDB_ENTITY",
    "--tensorboard-log=x": "`tensorboard --logdir runs`",
    "--render": "--record-video",
    "--capture-video": "--record-video",
    "--algo=ppo": "one algorithm",
    "--policy=MyPolicy": "--policy.module",
    "--hidden-dim=64": "--policy.hidden-sizes 64,64",
    "--train-batch-size=4000": "--sampling.batch-segments 128",
    "--quick-test": "--total-steps 10000",
    "--warmup-seconds=3": "remove the option",
    "--num-envs=7": "multiple of the 2 actors",
    "--episodes=3": "run.total_episodes",
}
"""Options with what the line says."""


@pytest.mark.parametrize("option", ACCEPTED)
@pytest.mark.parametrize("joined", [False, True])
def test_a_name_of_another_library_is_accepted(option: str, joined: bool) -> None:
    text, setting, expected = ACCEPTED[option]
    section, _, key = setting.partition(".")
    config = config_of(f"{option}={text}") if joined else config_of(option, text)
    assert getattr(getattr(config, section), key) == expected


CONVERTED: dict[str, tuple[str, object]] = {
    "--policy=MlpLstmPolicy": ("policy.memory", "lstm"),
    "--policy-kwargs=dict(net_arch=[32, 16], activation_fn=nn.ReLU)": ("policy.hidden_sizes", (32, 16)),
    "--policy-kwargs={'activation_fn': 'nn.ReLU'}": ("policy.activation", "relu"),
    "--net-arch={'pi': [8], 'vf': [8]}": ("policy.hidden_sizes", (8,)),
    "--encoder_mlp_layers 32 16": ("policy.hidden_sizes", (32, 16)),
    "--model={'use_lstm': True, 'lstm_cell_size': 8}": ("policy.memory_size", 8),
    "--normalize": ("policy.normalise_returns", True),
    "--normalize=dict(norm_obs=True, norm_reward=False)": ("policy.normalise_returns", False),
    "--observation-filter=NoFilter": ("policy.normalise_observations", False),
    "--use_rnn=False": ("policy.memory", None),
    "--use_rnn=True": ("policy.memory", "gru"),
    "--use_rnn=True --rnn_type=lstm": ("policy.memory", "lstm"),
    "--no-clip-vloss": ("ppo.value_clip_range", None),
    "--clip-vloss --clip-coef 0.1": ("ppo.value_clip_range", 0.1),
    "--clip-range-vf 0.3": ("ppo.value_clip_range", 0.3),
    "--entropy-bonus=false": ("ppo.entropy_coefficient", 0.0),
    "--lr-schedule=linear_decay": ("ppo.learning_rate_schedule", "linear"),
    "--actor-critic-share-weights=True": ("policy.trunk", "shared"),
    "--free-log-std=False": ("policy.state_dependent_std", True),
    "--initial-stddev=1": ("policy.initial_log_std", 0.0),
    "--train-for-seconds=90": ("run.total_minutes", 1.5),
    "--async-rl=False": ("sampling.off_policy_degree", 0),
    "--num-gpus-per-learner=0": ("learner.device", "cpu"),
    "--env-kwargs gravity=9.0": ("environment.kwargs", {"gravity": 9.0}),
}
"""Arguments whose value is not that of the setting, the setting, and its value afterwards."""


@pytest.mark.parametrize("given", CONVERTED)
def test_a_value_of_another_library_is_converted(given: str) -> None:
    setting, expected = CONVERTED[given]
    section, _, key = setting.partition(".")
    # A table has blanks.
    arguments = [given] if "{" in given or "(" in given else given.split()
    assert getattr(getattr(config_of(*arguments), section), key) == expected


@pytest.mark.parametrize(
    ("given", "length", "minibatches"),
    [
        ("--n-envs 8 --n-steps 2048 --batch-size 64", 2048, 256),
        ("--batch-size 64 --n-steps 2048 --n-envs 1", 2048, 32),
        ("--num-envs 4 --num-steps 128 --num-minibatches 4", 128, 4),
        ("--n-envs 2 --n-steps 100 --batch-size 64", 100, 4),
        ("--n-envs 4 --train-batch-size 4000 --minibatch-size 128", 1000, 32),
    ],
)
def test_the_preset_textbook_takes_the_sizes_of_synchronous_libraries(
    given: str, length: int, minibatches: int
) -> None:
    config = config_of("CartPole-v1", "--preset=textbook", *given.split())
    names = {name.replace("-", "_"): int(value) for name, value in re.findall(r"--([a-z-]+) (\d+)", given)}
    environments = names.get("n_envs") or names["num_envs"]
    assert config.train.least_actors * config.actor.environments == config.sampling.batch_segments == environments
    assert (config.actor.unroll_length, config.ppo.minibatches) == (length, minibatches)
    assert configured({"env": "CartPole-v1", **names}, preset="textbook").config == config


@pytest.mark.parametrize("option", ANSWERED)
def test_other_names_are_answered_in_one_line(option: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config_of(option)
    line = str(caught.value)
    assert line.startswith(f"{option.partition('=')[0]}: ") and "\n" not in line
    assert ANSWERED[option] in line


def test_options_that_an_answer_suggests_are_accepted() -> None:
    for option, line in ANSWERED.items():
        with pytest.raises(ConfigurationError) as caught:
            config_of(option)
        for name, value in re.findall(r"(--[a-z.-]+) (\d[\d,]*)", str(caught.value)):
            config_of(name, value)
        assert line in str(caught.value)


@pytest.mark.parametrize(
    ("option", "note"),
    [
        ("--save-freq=7000", ["--save-freq is checkpoint.save_interval, which counts environment steps of all actors"]),
        ("--eval-freq=7000", ["--eval-freq is evaluation.interval_steps, which counts environment steps"]),
        ("--weight-sync-interval=2", ["--weight-sync-interval is sampling.publish_interval, which counts batches"]),
        ("--evaluation.interval-steps=7000", []),
        ("--lr=1e-3", []),
    ],
)
def test_a_unit_that_differs_from_other_libraries_is_noted(option: str, note: list[str]) -> None:
    notes = parse("penstock train", "", [option], trains=True).notes
    assert len(notes) == len(note) and all(each.startswith(begin) for each, begin in zip(notes, note, strict=True))


def test_an_environment_may_be_given_without_an_option() -> None:
    assert config_of("Pendulum-v1", "--seed", "3").environment.id == "Pendulum-v1"
    with pytest.raises(ConfigurationError, match=r"environment\.id is given as"):
        configured({"env": "Pendulum-v1", "env_id": "CartPole-v1"})


def test_a_flag_of_another_library_is_true_or_false() -> None:
    with pytest.raises(ConfigurationError, match=r"^--use-rnn must be true or false; got 'perhaps'$"):
        config_of("--use-rnn=perhaps")


@pytest.mark.parametrize(
    ("given", "verbose"),
    [("", False), ("--verbose", True), ("--verbose=1", True), ("--verbose 2", True), ("--verbose 0", False)],
)
def test_verbose_is_an_option_of_training_with_or_without_a_number(given: str, verbose: bool) -> None:
    options = parse("penstock train", "", [*given.split(), "Pendulum-v1"], trains=True)
    assert (options.verbose, options.config.environment.id) == (verbose, "Pendulum-v1")
    # A configuration has no display.
    with pytest.raises(ConfigurationError, match="verbose: the terminal shows progress"):
        configured({"verbose": "much"})


def test_all_names_stand_for_settings() -> None:
    assert {alias.setting for alias in ALIASES.values()} <= set(setting_names())
    assert not ALIASES.keys() & ANSWERS.keys()
    for setting in setting_names():
        assert all(setting_of(name) == setting for name in short_names(setting))


def test_options_files_and_python_have_the_same_names() -> None:
    option = config_of("Pendulum-v1", "--lr", "3e-4", "--total-steps", "1e5", "--anneal-lr", "false")
    values = {"env_id": "Pendulum-v1", "lr": 3e-4, "total_steps": 1e5, "anneal-lr": False}
    nested = {
        "environment": {"id": "Pendulum-v1"},
        "ppo": {"learning-rate": 3e-4, "learning_rate_schedule": "constant"},
    }
    assert option == configured(values).config == configured({**nested, "run": {"total_steps": "100k"}}).config


def test_a_setting_under_two_names_is_given_once() -> None:
    assert in_sections({"lr": 1.0, "ppo": {"learning_rate": 1.0}}).sections == {"ppo": {"learning_rate": 1.0}}
    with pytest.raises(ConfigurationError, match=r"ppo\.learning_rate is given as .* and as .*; give it once"):
        in_sections({"lr": 1.0, "ppo": {"learning_rate": 2.0}})


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("ppo.lr", "did you mean ppo.learning_rate?"),
        ("ppo.learning_rat", "did you mean ppo.learning_rate?"),
        ("learnin-rate", "did you mean ppo.learning_rate?"),
        ("Run", "did you mean run?"),
        ("total_step", "did you mean run.total_steps?"),
        ("frobnicate", ""),
    ],
)
def test_suggestions(name: str, question: str) -> None:
    assert suggestions(name) == question


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--ppo.v-trace"], True),
        (["--no-ppo.v-trace"], False),
        (["--v-trace", "no"], False),
        (["--no-v-trace", "Pendulum-v1"], False),
    ],
)
def test_flags_need_no_value(arguments: list[str], value: bool) -> None:
    assert config_of(*arguments).ppo.v_trace is value


def test_several_values_may_follow_an_option() -> None:
    config = config_of("Pendulum-v1", "--policy.hidden-sizes", "32", "16", "--environment.kwargs", "g=9", "name=x")
    assert (config.policy.hidden_sizes, config.environment.kwargs) == ((32, 16), {"g": 9, "name": "x"})
    config = config_of("--environment.kwargs", 'desc=["SF","FG"],size={"a": 1}')
    assert config.environment.kwargs == {"desc": ["SF", "FG"], "size": {"a": 1}}


@pytest.mark.parametrize("setting", setting_names())
def test_what_a_setting_accepts_is_described(setting: str) -> None:
    from penstock.config.wanted import wanted

    assert re.fullmatch(r"[a-z0-9][^\n]{2,120}", wanted(fields()[setting]))


@pytest.mark.parametrize(
    "given", ["--n-envs=1", "--num-envs=1 --env-id=Pendulum-v1 --preset=none", "--n-envs=1 --ppo.epochs=2"]
)
def test_fewer_environments_than_the_default_actors_are_as_many_actors(given: str) -> None:
    config = config_of(*given.split())
    assert (config.train.actors, config.actor.environments) == (1, 1)
    assert Config(n_envs=1).train.actors == 1


@pytest.mark.parametrize("given", ["--n-envs=1 --actors=2", "--n-envs=2 --train.actors=4", "--num-envs=3"])
def test_a_number_of_environments_that_does_not_fit_the_given_actors_is_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"must be a multiple of the \d actors; got \d\. Set it to \d, or set"):
        config_of(*given.split())
