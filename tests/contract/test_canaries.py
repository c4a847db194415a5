"""No file and no message makes a reader import code: canaries are offered to every reader, in every form of a name.

A canary is a file that leaves a mark when it is run. It also works, so that a reader that is allowed to import it gets
on with its work.
"""

import dataclasses
import json
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tomli_w

import penstock
from penstock.acting.values.spaces import segment_schema
from penstock.algo import published
from penstock.algo.network import Network
from penstock.cli.main import main
from penstock.config import Config
from penstock.config.foreign_code import code_settings
from penstock.errors import ForeignCode, RankLost
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import RunProgress
from penstock.learning.ranks.link import Opening
from penstock.runs import checkpoint_file
from penstock.runs.folder import RunFolder
from penstock.types.evaluation import EvaluationTask
from penstock.types.location import Place
from penstock.types.run import Weights
from tests.support.environments.tiny import spec_of
from tests.support.segments.segments import PLAN
from tests.support.services.other_ranks import led
from tests.support.services.processes import WITH_HELPERS, Command, end_of
from tests.support.services.servers import Loopback
from tests.support.training.policies import fresh_policy, weights_of
from tests.support.training.training import make_learner

ENV_ID = "CartPole-v1"
NETWORK = Network(hidden_sizes=(8,), module="examples.residual_network:Residual")
"""A policy whose module is replaced by a canary's, which has the same layers."""

MARK = "canary-sang"
CANARY = f"""
from pathlib import Path
(Path(__file__).resolve().parent / "{MARK}").touch()
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from examples.residual_network import Residual
class Net(Residual):
    pass
class Env(CartPoleEnv):
    pass
gymnasium.register("Canary-v0", entry_point=Env, max_episode_steps=20)
"""

MODULES = ("an absolute path", "a relative path", "a module", "a link")
IN_PROCESSES = (MODULES[0], *(pytest.param(form, marks=pytest.mark.nightly) for form in MODULES[1:]))
"""Forms that are offered to processes of services, whose readers are among those that get all forms in this process."""

IMPORTS = ("an import of a file", "an import of a module")
ENVIRONMENTS = (*MODULES, "an id with a module", *IMPORTS, "another Python", "an argument")


@dataclasses.dataclass(frozen=True)
class Canary:
    """A canary in its folder, which is on Python's search path and has a run that names the canary."""

    folder: Path
    module: str

    def sang(self) -> bool:
        return (self.folder / MARK).exists()

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def place(self, form: str) -> str:
        """Returns the canary's file or module as a name has it."""
        link = self.folder / f"{self.module}_link.py"
        link.unlink(missing_ok=True)
        link.symlink_to(f"{self.module}.py")
        return {
            "an absolute path": str(self.folder / f"{self.module}.py"),
            "a relative path": f"{self.module}.py",
            "a link": str(link),
        }.get(form, self.module)

    def interpreter(self) -> Path:
        """Returns a program that leaves the mark, and then is this Python."""
        program = self.folder / f"{self.module}_python"
        program.write_text(f'#!/bin/sh\ntouch "{self.folder / MARK}"\nexec "{sys.executable}" "$@"\n')
        program.chmod(0o755)
        return program

    def environment(self, form: str) -> dict[str, object]:
        """Returns a section [environment] that names the canary."""
        file = self.place("an absolute path")
        by_form: dict[str, dict[str, object]] = {
            "an id with a module": {"id": f"{self.module}:Canary-v0"},
            "an import of a file": {"id": "Canary-v0", "imports": [file]},
            "an import of a module": {"id": "Canary-v0", "imports": [self.module]},
            "another Python": {"id": ENV_ID, "python": str(self.interpreter()), "vectorization": "sync"},
            "an argument": {"id": ENV_ID, "kwargs": {"vehicle": f"{self.module}.Env"}},
        }
        return by_form.get(form) or {"id": f"{self.place(form)}:Env"}

    def write_run(self, *, module: str | None = None, **sections: dict[str, object]) -> Path:
        """Writes a run with these settings and a checkpoint whose policy names a module; returns the checkpoint."""
        folder = RunFolder(self.run)
        folder.create()
        settings = {"run": {"total_steps": 2_000}, "policy": {"hidden_sizes": [8]}, **sections}
        folder.config.write_text(tomli_w.dumps(settings))
        folder.best_checkpoint.write_bytes(checkpoint(module))
        return folder.best_checkpoint


def checkpoint(module: str | None) -> bytes:
    """Returns a checkpoint whose policy names a module, which is not imported."""
    learner = make_learner(ENV_ID, network=NETWORK if module else dataclasses.replace(NETWORK, module=None))
    return naming(checkpoints.take(learner, RunProgress(env_steps=1_000)).data, module)


def naming(data: bytes, module: str | None) -> bytes:
    """Returns a policy or a checkpoint with another module in its metadata."""
    described = json.loads(published.read_metadata(data))
    described["network"]["module"] = module
    return checkpoint_file.sealed(data, {published.METADATA_KEY: json.dumps(described)})


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Canary]:
    # A name of its own, because Python imports a module once.
    module = f"canary_{tmp_path.name.replace('-', '_')}_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{module}.py").write_text(CANARY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.path)
    yield Canary(tmp_path, module)
    sys.path[:] = before


def command(*arguments: str) -> int:
    """Runs a command in this process; returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def refusal(captured: str) -> str:
    """Returns the one line of a refusal."""
    (line,) = [line for line in captured.splitlines() if line.startswith("penstock: ")]
    return line


# Policies: files that are read in this process.

POLICY_READERS: dict[
    str, tuple[Callable[[Path, str], object], Callable[[Path, str], object], Callable[..., object]]
] = {
    "load_policy of a file": (
        lambda file, name: penstock.load_policy(file),
        lambda file, name: penstock.load_policy(file, trust_code=True),
        lambda file, name: penstock.load_policy(file, module=name),
    ),
    "load_policy of a run": (
        lambda file, name: penstock.load_policy(file.parent.parent),
        lambda file, name: penstock.load_policy(file.parent.parent, trust_code=True),
        lambda file, name: penstock.load_policy(file.parent.parent, module=name),
    ),
    "recovery of a run": (
        lambda file, name: checkpoints.recover(RunFolder(file.parent.parent)),
        lambda file, name: checkpoints.recover(RunFolder(file.parent.parent), name),
        lambda file, name: checkpoints.recover(RunFolder(file.parent.parent), name),
    ),
    "start from another run": (
        lambda file, name: checkpoints.start_from(make_learner(ENV_ID), file),
        lambda file, name: checkpoints.start_from(
            make_learner(ENV_ID, network=dataclasses.replace(NETWORK, module=name)), file
        ),
        lambda file, name: checkpoints.start_from(
            make_learner(ENV_ID, network=dataclasses.replace(NETWORK, module=name)), file
        ),
    ),
}


@pytest.mark.parametrize("form", MODULES)
@pytest.mark.parametrize("reader", POLICY_READERS)
def test_a_reader_of_a_policy_imports_no_module_but_its_own(reader: str, form: str, canary: Canary) -> None:
    name = f"{canary.place(form)}:Net"
    file = canary.write_run(module=name)
    plain, trusting, naming_it = POLICY_READERS[reader]
    with pytest.raises(ForeignCode) as refused:
        plain(file, name)
    assert not canary.sang()
    assert repr(name) in str(refused.value) and "\n" not in str(refused.value)
    trusting(file, name)
    assert canary.sang()
    naming_it(file, name)


def test_a_class_is_a_name_of_a_module_and_another_class_is_refused(canary: Canary) -> None:
    file = canary.write_run(module=f"{canary.place('an absolute path')}:Net")
    with pytest.raises(ForeignCode, match=r"residual_network:Residual"):
        penstock.load_policy(file, module="examples.residual_network:Residual")
    assert not canary.sang()
    moved = canary.folder / "elsewhere"
    moved.mkdir()
    shutil.copy(canary.place("an absolute path"), moved)
    # The file of the reader, and not that of the same name that the checkpoint names.
    penstock.load_policy(file, module=f"{moved}/{canary.module}.py:Net")
    assert (moved / MARK).exists() and not canary.sang()


@pytest.mark.parametrize("form", MODULES)
@pytest.mark.parametrize("what", ["file", "run"])
def test_evaluate_imports_no_module_of_a_policy_but_a_named_one(
    what: str, form: str, canary: Canary, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{canary.place(form)}:Net"
    file = canary.write_run(module=name, environment={"id": ENV_ID})
    run = str(file if what == "file" else canary.run)
    options = ("evaluate", run, "--episodes=1", f"--env-id={ENV_ID}")
    assert command(*options) == 2
    assert not canary.sang()
    assert repr(name) in refusal(capsys.readouterr().err)
    assert command(*options, f"--policy.module={name}" if what == "file" else "--trust-code") == 0
    assert canary.sang()


# Environments: the settings of a run.


def own_options(environment: dict[str, object]) -> list[str]:
    """Returns the options that name what these settings name."""
    imports = environment.get("imports", [])
    assert isinstance(imports, list)
    return [f"--env-id={environment['id']}", *(f"--env-import={each}" for each in imports)]


@pytest.mark.parametrize("form", ENVIRONMENTS)
@pytest.mark.parametrize("what", ["file", "run"])
def test_evaluate_makes_no_environment_of_a_run_but_a_named_one(
    what: str, form: str, canary: Canary, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = canary.environment(form)
    file = canary.write_run(environment=environment)
    options = ("evaluate", str(file if what == "file" else canary.run), "--episodes=1")
    assert command(*options) == 2
    assert not canary.sang()
    assert canary.module in refusal(capsys.readouterr().err)
    if form == "an argument":
        return
    named = what == "file" and form != "another Python"
    more = own_options(environment) if named else ["--trust-code"]
    assert command(*options, *more) == 0, capsys.readouterr().err
    assert canary.sang()


@pytest.mark.parametrize(
    "setting", [name for name in code_settings() if name.startswith(("learner.", "ppo.", "sampling.p"))]
)
def test_a_function_of_the_algorithm_of_a_run_is_not_imported_to_act(
    setting: str, canary: Canary, capsys: pytest.CaptureFixture[str]
) -> None:
    section, _, key = setting.partition(".")
    named: dict[str, object] = {key: f"{canary.place('an absolute path')}:loss"}
    canary.write_run(module=None, environment={"id": ENV_ID}, **{section: named})
    assert command("evaluate", "run", "--episodes=1") == 0, capsys.readouterr().err
    penstock.load_policy(canary.run)
    penstock.make(canary.run).close()
    with pytest.raises(ForeignCode, match=rf"config\.toml names code that would run: {setting}"):
        penstock.train(Config.load(canary.run), run_dir=str(canary.folder / "new"))
    assert not canary.sang()


@pytest.mark.parametrize("form", ENVIRONMENTS)
def test_python_makes_no_environment_of_a_run_but_a_named_one(form: str, canary: Canary) -> None:
    environment = canary.environment(form)
    canary.write_run(environment=environment)
    config = Config.load(canary.run)
    readers: list[Callable[[], object]] = [
        lambda: penstock.make(canary.run),
        lambda: penstock.make(config),
        lambda: penstock.evaluate(canary.run, 1),
        lambda: penstock.Run(canary.run).film(),
        lambda: penstock.train(config, run_dir=str(canary.folder / "new")),
        lambda: penstock.train(config.changed(seed=3), run_dir=str(canary.run), resume=True),
    ]
    for reader in readers:
        with pytest.raises(ForeignCode, match=r"config\.toml names code that would run: environment\.") as refused:
            reader()
        assert "\n" not in str(refused.value)
    assert not canary.sang() and not (canary.folder / "new").exists()
    if form == "an argument":
        return
    named = config.changed({"environment": tomllib.loads(RunFolder(canary.run).config.read_text())["environment"]})
    penstock.make(named).close()
    assert canary.sang()
    penstock.make(canary.run, trust_code=True).close()
    penstock.make(Config.load(canary.run, trust_code=True)).close()


@pytest.mark.parametrize("form", [*ENVIRONMENTS, "a network", "a loss"])
def test_a_run_that_names_code_is_neither_resumed_nor_launched_nor_checked(
    form: str, canary: Canary, capsys: pytest.CaptureFixture[str]
) -> None:
    if form == "a network":
        canary.write_run(policy={"module": f"{canary.place('an absolute path')}:Net"}, environment={"id": ENV_ID})
    elif form == "a loss":
        canary.write_run(learner={"loss": f"{canary.place('an absolute path')}:Net"}, environment={"id": ENV_ID})
    else:
        canary.write_run(environment=canary.environment(form))
    config = str(RunFolder(canary.run).config)
    for resumed in (("train",), ("launch", "slurm", "--print")):
        assert command(*resumed, "--resume", "run") == 2
        assert canary.module in refusal(capsys.readouterr().err)
    for option in (f"--config={config}", "--resume=run"):
        assert command("doctor", option) == 1
        (line,) = [line for line in capsys.readouterr().out.splitlines() if "names code that would run" in line]
        assert line.startswith("no  environment") and "--trust-code" in line
    assert not canary.sang()


def test_doctor_imports_what_it_is_told_to(canary: Canary) -> None:
    environment = canary.environment("an import of a file")
    canary.write_run(environment=environment)
    config = str(RunFolder(canary.run).config)
    for more in (["--trust-code"], own_options(environment)):
        (canary.folder / MARK).unlink(missing_ok=True)
        # Other checks, such as that of the memory, may fail here.
        command("doctor", f"--config={config}", *more)
        assert canary.sang()


def test_commands_that_show_runs_import_nothing(canary: Canary, capsys: pytest.CaptureFixture[str]) -> None:
    canary.write_run(
        module=f"{canary.place('an absolute path')}:Net",
        environment={**canary.environment("an import of a file"), **canary.environment("an absolute path")},
    )
    (canary.folder / "runs").mkdir()
    canary.run.rename(canary.folder / "runs" / "run")
    for options in (("runs",), ("status", "runs/run"), ("plot", "runs/run"), ("runs", "--help")):
        command(*options)
    assert "run" in capsys.readouterr().out
    assert not canary.sang()


@pytest.mark.nightly
@pytest.mark.parametrize("named", ["trust", "name"])
def test_a_run_of_an_own_environment_is_resumed_when_its_code_is_trusted_or_named(named: str, canary: Canary) -> None:
    environment = canary.environment("an absolute path")
    place = f"{canary.place('an absolute path')}:Net"
    options = [*own_options(environment), f"--policy.module={place}", "--run-dir=run", "--actors=1", "--preset=none"]
    options += ["--envs-per-actor=4", "--evaluation.episodes=1", "--actor.unroll-length=8", "--policy.hidden-sizes=8"]
    variables = {**WITH_HELPERS}
    with Command("train", *options, "--total-steps=300", environment=variables, directory=canary.folder) as train:
        ended = end_of(train)
    assert ended.code == 0, ended.stderr
    assert f"evaluate {canary.run.name} --record-video --trust-code" in ended.stdout
    (canary.folder / MARK).unlink()
    more = ["--trust-code"] if named == "trust" else [*own_options(environment), f"--policy.module={place}"]
    with Command(
        "train", "--resume=run", "--total-steps=600", *more, environment=variables, directory=canary.folder
    ) as train:
        ended = end_of(train)
    assert ended.code == 0, ended.stderr
    assert canary.sang()


# Messages: a stranger in the place of another service.


def search_path(canary: Canary) -> dict[str, str]:
    return {"PYTHONPATH": f"{canary.folder}:{WITH_HELPERS['PYTHONPATH']}"}


@pytest.mark.nightly
@pytest.mark.parametrize("form", IN_PROCESSES)
def test_the_learner_of_a_resumed_run_imports_no_module_but_its_own(form: str, canary: Canary) -> None:
    name = f"{canary.place(form)}:Net"
    canary.write_run(module=name)
    options = ["--run-dir=run", "--learner.listen=127.0.0.1:0", "--learner.metrics-port=0"]
    with Command("learner", *options, environment=search_path(canary), directory=canary.folder) as learner:
        ended = end_of(learner)
    assert ended.code == 2 and "Traceback" not in ended.stderr
    assert repr(name) in refusal(ended.stderr)
    assert not canary.sang()


@pytest.mark.nightly
@pytest.mark.parametrize("form", IN_PROCESSES)
def test_an_actor_imports_no_module_of_a_learner_but_its_own(form: str, canary: Canary) -> None:
    name = f"{canary.place(form)}:Net"
    spec = spec_of(ENV_ID)
    schema = segment_schema(spec, **Config().recorded)
    weights = naming(weights_of(fresh_policy(spec, network=NETWORK), 0).data, name)
    with Loopback() as loopback:
        run, replay = loopback.run(canary.folder / "roster.json"), loopback.replay(schema=schema, rows=200)
        run.thread.call(run.places.note, 0, Place((replay.address,)))
        run.servicer.publish(Weights.of(0, weights))
        loopback.source(replay, PLAN, schema=schema)
        options = [f"--env-id={ENV_ID}", "--envs-per-actor=2", f"--actor.learner-address={run.address}"]
        options += ["--actor.listen=127.0.0.1:0", "--actor.metrics-port=0"]
        with Command("actor", *options, environment=search_path(canary), directory=canary.folder) as actor:
            ended = end_of(actor)
        assert ended.code == 2 and "Traceback" not in ended.stderr, ended.stderr
        assert repr(name) in refusal(ended.stderr)
        assert not canary.sang()
        if form == MODULES[0]:
            own = f"--policy.module={name}"
            with Command("actor", *options, own, environment=search_path(canary), directory=canary.folder) as actor:
                actor.until(canary.sang, "the import of its own module")


def test_an_evaluator_fails_tasks_that_name_code_and_goes_on(canary: Canary) -> None:
    spec = spec_of(ENV_ID)
    with Loopback() as loopback:
        run = loopback.run(canary.folder / "roster.json")
        options = [f"--env-id={ENV_ID}", "--evaluation.episodes=1", f"--evaluation.learner-address={run.address}"]
        options += ["--evaluation.listen=127.0.0.1:0", "--evaluation.metrics-port=0"]
        with Command("evaluator", *options, environment=search_path(canary), directory=canary.folder) as evaluator:

            def failure(number: int, module: str | None) -> str:
                network = NETWORK if module else dataclasses.replace(NETWORK, module=None)
                data = naming(weights_of(fresh_policy(spec, network=network), 0).data, module)
                run.servicer.ask(EvaluationTask(number, Weights.of(0, data), 1, deterministic=True, seed=1))
                result = evaluator.until(lambda: run.servicer.result(0.1), "a result")
                assert result.id == number
                return result.failure

            for number, form in enumerate(MODULES, 1):
                name = f"{canary.place(form)}:Net"
                assert repr(name) in failure(number, name)
            assert not canary.sang()
            assert failure(len(MODULES) + 1, None) == ""


@pytest.mark.nightly
@pytest.mark.parametrize("form", IN_PROCESSES)
def test_a_rank_imports_no_module_of_rank_0_but_its_own(
    form: str, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{canary.place(form)}:Net"
    monkeypatch.setenv("PYTHONPATH", search_path(canary)["PYTHONPATH"])
    config = Config(policy={"hidden_sizes": [8], "module": name})
    state = naming(checkpoints.take(make_learner(ENV_ID, network=NETWORK), RunProgress()).data, name)
    schema = segment_schema(spec_of(ENV_ID), **config.recorded)
    # Rank 0 is the stranger: its settings and its state name the canary.
    with pytest.raises(RankLost), led(config) as ranks:
        ranks.link.open(Opening(config.to_toml(), schema, state))
        (other,) = ranks.others
        ended = end_of(other)
        assert ended.code == 2 and repr(name) in refusal(ended.stderr)
        assert not canary.sang()
        ranks.link.check()


# The current folder.


def test_files_of_the_current_folder_are_not_imported_in_place_of_packages(canary: Canary) -> None:
    file = canary.write_run(environment={"id": "FlappyBird-v0"})
    hostile = canary.folder / "hostile"
    (hostile / "plugin-1.0.dist-info").mkdir(parents=True)
    (hostile / "plugin-1.0.dist-info" / "entry_points.txt").write_text("[gymnasium.envs]\nplugin = plugin\n")
    (hostile / "plugin-1.0.dist-info" / "METADATA").write_text("Name: plugin\nVersion: 1.0\n")
    for module in ("plugin", "flappy_bird_gymnasium", "moviepy"):
        (hostile / f"{module}.py").write_text(CANARY)
    for options in ((str(file),), (str(file), "--env-id=Unknown-v0")):
        with Command("evaluate", *options, environment=WITH_HELPERS, directory=hostile) as evaluate:
            ended = end_of(evaluate)
        assert ended.code == 2
        assert not (hostile / MARK).exists(), ended.stderr
