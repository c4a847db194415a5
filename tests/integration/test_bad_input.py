"""Mistakes of a user: one line that names the mistake, exit code 2, no traceback, and no process left behind."""

import re
import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.runs.folder import RunFolder
from tests.support.services.processes import WITH_HELPERS, Ended, EndedRun, run

GRPC_ERROR = re.compile(r"E\d{4} [\d:.]+ +\d+ \w+\.cc:\d+\] ")
ODD_SPACES = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Graph, Sequence, Tuple


class Odd(gymnasium.Env):
    action_space = Discrete(2)

    def __init__(self, kind):
        vector = Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = {
            "graph": Dict({"one": vector, "map": Graph(vector, None)}),
            "sequence": Tuple((vector, Sequence(vector))),
            "lacking": Dict({"one": vector, "two": vector}),
            "wide_mask": vector,
            "empty_mask": vector,
        }[kind]
        self.kind = kind

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), self.info()

    def step(self, action):
        return self.observe(), 0.0, False, False, self.info()

    def observe(self):
        observation = self.observation_space.sample()
        return {"one": observation["one"]} if self.kind == "lacking" else observation

    def info(self):
        masks = {"wide_mask": np.ones(3), "empty_mask": np.zeros(2)}
        return {"action_mask": masks[self.kind]} if self.kind in masks else {}


for kind in ("graph", "sequence", "lacking", "wide_mask", "empty_mask"):
    gymnasium.register(f"Odd-{kind}-v0", Odd, kwargs={"kind": kind})
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Objects to which commands may refer: folders, and a port in use."""

    root: Path
    ended: Path
    port: int

    def copy(self, name: str) -> Path:
        """Returns a copy of an ended run."""
        shutil.copytree(self.ended, self.root / name)
        return self.root / name


@dataclass(frozen=True, slots=True)
class Mistake:
    """A command with a mistake.

    Attributes:
        arguments: Arguments of the command.
        text: Parts of the line.
        variables: Environment variables.
    """

    arguments: list[str]
    text: list[str]
    variables: dict[str, str] = field(default_factory=dict)


def train(*options: str) -> list[str]:
    return ["train", "--total-steps=500", "--actors=1", *options]


def truncated(place: Place) -> Mistake:
    folder = place.copy("nothing_but_truncated_checkpoints")
    checkpoints = sorted(RunFolder(folder).checkpoints.glob("*.safetensors"))
    for path in checkpoints:
        path.write_bytes(path.read_bytes()[:-1000])
    return Mistake(
        ["learner", f"--run-dir={folder}", "--learner.metrics-port=0"],
        [*map(str, checkpoints), "SHA-256 mismatch", "all checkpoints of the run are damaged", "remove them"],
    )


def other_architecture(place: Place) -> Mistake:
    folder = place.copy("a_checkpoint_of_another_architecture")
    newest = RunFolder(folder).numbered_checkpoints()[-1]
    options = [f"--resume={folder}", "--total-steps=20000", "--policy.hidden-sizes=32,32"]
    return Mistake(["train", *options], [str(newest), "policy.hidden_sizes [64, 64]", "policy.hidden_sizes [32, 32]"])


def file_for_store(place: Place) -> Mistake:
    folder = place.root / "file_for_store"
    folder.mkdir()
    (folder / "replay").touch()
    return Mistake(train(f"--run-dir={folder}"), ["the replay store at", "choose another replay.folder"])


def odd_space(kind: str, shown: str) -> Callable[[Place], Mistake]:
    def make(place: Place) -> Mistake:
        options = [f"--env-id=Odd-{kind}-v0", "--env-import=odd_spaces", f"--run-dir={place.root / kind}"]
        # Commands run in that folder, so that its modules are found.
        return Mistake(train(*options), [f"Odd-{kind}-v0", shown])

    return make


MISTAKES: dict[str, Callable[[Place], Mistake]] = {
    "nothing_but_truncated_checkpoints": truncated,
    "a_checkpoint_of_another_architecture": other_architecture,
    "a_file_where_the_store_should_be": file_for_store,
    "an_unknown_command": lambda place: Mistake(["trian"], ["'trian'", "did you mean train?"]),
    "an_unknown_environment": lambda place: Mistake(
        train("--env-id=Nothing-v0", f"--run-dir={place.root / 'unknown'}"),
        ["'Nothing-v0'", "--env-id", "--env-import"],
    ),
    "a_package_that_is_not_there": lambda place: Mistake(
        train("--env-import=no_such_package", f"--run-dir={place.root / 'package'}"), ["'no_such_package'"]
    ),
    "an_unknown_option": lambda place: Mistake(train("--ppo.epoch=3"), ["--ppo.epoch", "did you mean --ppo.epochs?"]),
    "a_value_of_the_wrong_type": lambda place: Mistake(train("--seed=one"), ["run.seed", "'one'"]),
    "settings_that_would_deadlock": lambda place: Mistake(
        train("--preset=cartpole_no_replay", "--envs-per-actor=256"),
        ["actor.environments 256", "raise sampling.batch_segments"],
    ),
    "stores_too_small_for_their_parts_of_a_batch": lambda place: Mistake(
        [
            "train",
            "--preset=cartpole_no_replay",
            "--actors=2",
            "--train.replay-shards=2",
            "--replay.capacity-bytes=65536",
        ],
        ["replay.capacity_bytes 65536", "set it to", "or leave it unset"],
    ),
    "a_store_in_which_replay_could_never_begin": lambda place: Mistake(
        train("--preset=none", "--replay.capacity-bytes=1MiB", "--sampling.min-replay-segments=100000"),
        ["replay.capacity_bytes 1048576", "sampling.min_replay_segments 100000", "set it to", "or leave it unset"],
    ),
    "segments_larger_than_the_disk": lambda place: Mistake(
        train("--preset=none", "--actor.unroll-length=1000000000000", f"--run-dir={place.root / 'long'}"),
        ["bytes for these settings", "are free; set actor.unroll_length to"],
    ),
    "an_alpha_that_leaves_no_mass": lambda place: Mistake(train("--sampling.alpha=1e6"), ["sampling.alpha", "10"]),
    "too_few_actors_for_the_variants": lambda place: Mistake(
        train('--environment.variants=[{"length": 1}, {"length": 2}]'),
        ["1 actors", "2 environment.variants", "train.actors"],
    ),
    "a_plan_whose_shares_exclude_a_slot": lambda place: Mistake(
        train("--sampling.least-share=0"), ["sampling.least_share 0 would exclude slots", "such as 0.2"]
    ),
    "a_rule_of_collection_without_variants": lambda place: Mistake(
        train("--sampling.collection=error"),
        ["sampling.collection error", "environment.variants", "set sampling.collection to equal"],
    ),
    "variants_of_different_spaces": lambda place: Mistake(
        [
            *("train", "--env-id=tests.support.environments.tiny:Echo-v0", f"--run-dir={place.root / 'spaces'}"),
            '--environment.variants=[{"length": 2}, {"bounded": false}]',
        ],
        [
            "the actions Box(-inf, inf, (2,), float32) and Box(-1, 3,",
            "variant 1 (bounded=False)",
            "variant 0 (length=2)",
        ],
        WITH_HELPERS,
    ),
    "an_unknown_preset": lambda place: Mistake(train("--preset=nothing"), ["'nothing'", "cartpole"]),
    "a_variable_of_an_unknown_section": lambda place: Mistake(
        train(), ["PENSTOCK__POP__EPOCHS", "choose from: run, "], {"PENSTOCK__POP__EPOCHS": "3"}
    ),
    "a_variable_of_an_unknown_setting": lambda place: Mistake(
        train(), ["unknown setting ppo.epoch;"], {"PENSTOCK__PPO__EPOCH": "3"}
    ),
    "a_configuration_that_is_not_there": lambda place: Mistake(
        train(f"--config={place.root / 'nothing.toml'}"), ["nothing.toml", "No such file"]
    ),
    "a_graph_in_a_dict": odd_space("graph", "has Graph at map of its observation space;"),
    "a_sequence_in_a_tuple": odd_space("sequence", "has Sequence at 1 of its observation space;"),
    "an_observation_that_lacks_a_part": odd_space("lacking", "space keys: ['one', 'two']"),
    "a_mask_of_the_wrong_size": odd_space("wide_mask", "of 3 elements, where Discrete(2, start=0) has 2"),
    "a_mask_without_a_legal_action": odd_space("empty_mask", "without a legal action"),
    "an_encoder_of_no_part": lambda place: Mistake(
        train("--policy.encoders=camera=flat"), ["policy.encoders names 'camera'", "its parts are: observation"]
    ),
    "an_encoder_that_does_not_fit": lambda place: Mistake(
        train("--policy.encoders=observation=image"), ["chooses image for observation of CartPole-v1"]
    ),
    "a_burn_in_without_memory": lambda place: Mistake(
        train("--ppo.burn-in-steps=4"), ["ppo.burn_in_steps 4 needs policy.memory"]
    ),
    "training_arguments_that_there_are_not": lambda place: Mistake(
        train("--environment.training-kwargs=lengthh=2"), ["can't make", "lengthh"]
    ),
    "a_port_in_use": lambda place: Mistake(
        ["replay", f"--replay.listen=127.0.0.1:{place.port}", "--replay.metrics-port=0"],
        [f"can't listen on 127.0.0.1:{place.port}", "in use", "choose another"],
    ),
    "a_port_in_use_for_metrics": lambda place: Mistake(
        ["replay", f"--replay.metrics-port={place.port}"], [f"metrics on 127.0.0.1:{place.port}", "in use"]
    ),
    "a_run_folder_below_a_file": lambda place: Mistake(
        train(f"--run-dir={place.root / 'odd_spaces.py' / 'run'}"), ["odd_spaces.py/run", "--run-dir"]
    ),
    "a_folder_that_holds_a_run": lambda place: Mistake(
        train(f"--run-dir={place.ended}"), [str(place.ended), "already contains a run", f"--resume {place.ended}"]
    ),
    "a_resume_of_what_is_no_run": lambda place: Mistake(
        ["train", f"--resume={place.root}"], [f"{place.root} is not a run folder"]
    ),
    "a_resume_with_a_preset": lambda place: Mistake(
        ["train", f"--resume={place.ended}", "--preset=acrobot"], ["uses the settings of the run", "--preset"]
    ),
    "an_evaluation_in_other_spaces": lambda place: Mistake(
        ["evaluate", str(place.ended), "--env-id=Pendulum-v1"], ["CartPole-v1", "Pendulum-v1"]
    ),
    "a_status_of_nothing": lambda place: Mistake(["status", str(place.root)], [f"{place.root} is neither"]),
    "a_plot_of_nothing": lambda place: Mistake(["plot", str(place.root)], [f"{place.root} contains no run"]),
}


GATE = {
    "a_checkpoint_of_another_architecture",
    "a_file_where_the_store_should_be",
    "an_unknown_command",
    "an_unknown_environment",
    "an_unknown_option",
    "a_value_of_the_wrong_type",
    "a_store_in_which_replay_could_never_begin",
    "variants_of_different_spaces",
    "a_variable_of_an_unknown_setting",
    "a_graph_in_a_dict",
    "a_port_in_use",
    "a_folder_that_holds_a_run",
    "a_plot_of_nothing",
}
"""Mistakes of each kind that `make test` makes. Unit tests find the same mistakes in one process."""

LOOKED_AT = ("a_checkpoint_of_another_architecture", "a_file_where_the_store_should_be", "an_unknown_environment")
"""Mistakes after which the last tests look at files."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a mistake."""

    mistake: Mistake
    end: Ended


@pytest.fixture(scope="module")
def place(ended_run: EndedRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("mistakes")
    (root / "odd_spaces.py").write_text(ODD_SPACES)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield Place(root, ended_run.folder, taken.getsockname()[1])


@pytest.fixture(scope="module")
def results(place: Place, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Result]]]:
    """Runs the commands of this session, a few at a time, because starting takes most of their time."""
    items = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    asked = [str(item.callspec.params["name"]) for item in items if hasattr(item, "callspec")]

    def run_command(name: str) -> Result:
        mistake = MISTAKES[name](place)
        return Result(mistake, run(*mistake.arguments, environment=mistake.variables, directory=place.root))

    with ThreadPoolExecutor(max_workers=3) as pool:
        yield {name: pool.submit(run_command, name) for name in dict.fromkeys([*asked, *LOOKED_AT])}


@pytest.mark.parametrize(
    "name", [name if name in GATE else pytest.param(name, marks=pytest.mark.nightly) for name in MISTAKES]
)
def test_a_mistake_is_reported_in_one_line(results: dict[str, Future[Result]], name: str) -> None:
    mistake, end = results[name].result().mistake, results[name].result().end
    assert end.code == 2, end.stderr
    # The log of a service also contains gRPC's own errors.
    (line,) = [line for line in end.stderr.splitlines() if not GRPC_ERROR.match(line)]
    assert line.startswith("penstock: ")
    for text in mistake.text:
        assert text in end.stderr
    assert "Traceback" not in end.stdout
    assert end.left_behind == []


def test_a_refused_resume_leaves_the_run_unchanged(results: dict[str, Future[Result]], place: Place) -> None:
    name = "a_checkpoint_of_another_architecture"
    results[name].result()
    for file in ("config.toml", "summary.json", "metrics.jsonl"):
        assert (place.root / name / file).read_bytes() == (place.ended / file).read_bytes(), file
    assert not RunFolder(place.root / name).services.exists()


def test_a_refusal_by_a_service_leaves_no_run_in_a_new_folder(results: dict[str, Future[Result]], place: Place) -> None:
    results["a_file_where_the_store_should_be"].result()
    # The folder and its file existed before.
    assert {path.name for path in (place.root / "file_for_store").iterdir()} == {"replay"}


def test_a_refused_environment_leaves_no_folder(results: dict[str, Future[Result]], place: Place) -> None:
    results["an_unknown_environment"].result()
    assert not (place.root / "unknown").exists()
