"""`penstock.train` of the Python API: accepts environments as users have them, and runs `local.launcher`.

The services of a run are other processes. They import the file that called `penstock.train` if it defines or registers
the environment. Such a file needs the guard `if __name__ == "__main__":`, as with multiprocessing.
"""

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.api.run import TrainedRun
from penstock.cli.named import with_known_environment
from penstock.cli.screen.notebook_display import display_for_python
from penstock.config import Config
from penstock.config.answers import instead_of_callback
from penstock.config.names import setting_of, spelled
from penstock.errors import ConfigurationError, UnknownEnvironment
from penstock.local import launcher
from penstock.local.first_checks import with_run_dir
from penstock.local.launcher import Observer
from penstock.local.stopping import StopTraining
from penstock.machine import environment_names
from penstock.machine.environment_names import Environment
from penstock.presets import configure
from penstock.process.service import SUPERVISED_VARIABLE
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import RecordReader
from penstock.runs.summary import Summary
from penstock.types.status import RunStatus

Record = dict[str, Any]
"""Record of a run's metrics: numbers by name, with its `kind` and its `env_steps` (docs/reading-a-run.md)."""

Callback = Callable[[Record], bool | None]
"""Function that receives a record of metrics, and returns False to end the run."""

Follower = Callable[[Sequence[Record]], bool]
"""Function that receives the new records, maybe none, a few times per second, and returns whether to end the run."""

_POLICIES = "penstock.acting.policies.trained"
_START_FROM = "run.start_from"


def train(
    what: Environment | Config | None = None,
    /,
    *,
    preset: str | None = None,
    resume: bool = False,
    progress: bool | None = None,
    verbose: int | None = None,
    callback: Callback | None = None,
    trust_code: bool = False,
    **settings: object,
) -> TrainedRun:
    """Trains an agent, with all services as processes on this machine, and returns the run with its summary.

    For example::

        run = penstock.train("CartPole-v1", seed=1, total_steps=50_000)
        print(run)                                   # the result, as `penstock train` shows it
        run.evaluate(episodes=20), run.film()        # more about the run in its folder
        action, state = run.policy.predict(observation)

    Args:
        what: The environment: its id, its class, a function that returns it, or an environment of `gymnasium.make`. Or
            the configuration of the run. An environment uses its preset, as with `penstock.configure`.
        preset: Name of another preset; "none": the defaults.
        resume: Whether to resume the run in `run.dir`.
        progress: Whether to show the progress of the run; None: in a notebook and in a terminal, and as `verbose` and
            `progress_bar` say, which other libraries have.
        verbose: Whether the progress also shows the ages and priorities of the data (docs/replay.md); 0 hides all.
        callback: Function that is called with each record of the run's metrics, a dict: losses, returns and speeds
            about once per second, and evaluations (docs/reading-a-run.md). If it returns False, the run ends with its
            summary, and can be resumed. If it raises, the run ends in the same way, and the exception passes.
        trust_code: Whether to import the code that the file of a configuration of `Config.load` names.
        settings: Settings, as for `penstock.configure`: `seed=1`, `lr=3e-4`, `environment={"kwargs": {"size": 5}}`.
            `start_from` may also be a `TrainedPolicy` or a `Run`. A policy is saved in the new run's folder.

    Raises:
        ForeignCode: The configuration comes from a file that names code, and you do not name it. Nothing was imported.
        ConfigurationError: The environment, the folder or a setting can't be used. The run's folder is unchanged.
        PenstockError: A service gave up or died too often, or the run's summary or curve could not be written.
        Interrupted: Ctrl-C after training began. Before training, a plain `KeyboardInterrupt` is raised.
    """
    refuse_in_a_service("penstock.train")
    if callback is not None and not callable(callback):
        raise ConfigurationError(instead_of_callback(callback))

    return train_followed(
        None if callback is None else functools.partial(_called_back, callback),
        what,
        preset=preset,
        resume=resume,
        progress=progress,
        verbose=verbose,
        trust_code=trust_code,
        settings=settings,
    )


def train_followed(
    follow: Follower | None,
    what: Environment | Config | None,
    *,
    preset: str | None,
    resume: bool,
    progress: bool | None,
    verbose: int | None,
    trust_code: bool,
    settings: Mapping[str, object],
) -> TrainedRun:
    """Trains as `train` does, and passes the records of the run's metrics to a function, if any. Raises as `train`."""
    # gRPC's core reads it at its first channel, and would write errors in its own format to the user's terminal.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    policy, others = _starting_policy(settings)
    config = _configuration(what, preset, others)
    if trust_code:
        config = config.trusted()
    config.refuse_foreign_code()
    notes: list[str] = []
    if not resume:
        config, note = with_known_environment(config)
        notes += [note] if note else []
    config = with_run_dir(config)
    if policy is not None:
        config = config.changed(start_from=str(RunFolder(Path(config.run.dir or ".")).start))
    records = None if follow is None else RecordReader(str(config.run.dir))

    def is_to_end() -> bool:
        return records is not None and follow is not None and follow(records.read())

    with display_for_python(is_shown(progress, verbose, settings), verbose=bool(verbose)) as display:

        def observe(status: RunStatus, news: list[str]) -> None:
            display(status, [*notes, *news])
            notes.clear()
            if is_to_end():
                raise StopTraining

        summary = _train(config, resume, observe, policy)
    # Records of the end, such as the evaluation of the best checkpoint.
    is_to_end()
    return TrainedRun.of(summary)


def is_shown(progress: bool | None, verbose: int | None, settings: Mapping[str, object]) -> bool | None:
    """Returns the argument `progress`, or the value of other libraries' words for it; None without any."""
    words = [bool(each) for each in (verbose, settings.get("progress_bar")) if each is not None]
    return any(words) if progress is None and words else progress


def _called_back(callback: Callback, records: Sequence[Record]) -> bool:
    """Passes records to a callback; returns whether it has ended the run."""
    answers = [callback(record) for record in records]
    return any(answer is False for answer in answers)


def _train(config: Config, resume: bool, observer: Observer, policy: bytes | None) -> Summary:
    """Trains an environment that may be registered in this process alone."""
    launch = functools.partial(launcher.train, resume=resume, observer=observer, policy=policy)
    registered = None if config.environment.python else _registered_entry(config.environment.id)
    if registered == "__main__":
        return launch(_with_import(config, "__main__"))
    try:
        return launch(config)
    except UnknownEnvironment:
        if registered is None:
            raise
    # The services do not know the id, and this process does: its file registers it, or imports a package that does.
    if environment_names.script_file() is not None:
        return launch(_with_import(config, "__main__"))
    try:
        return launch(_with_import(config, registered.partition(".")[0]))
    except UnknownEnvironment as error:
        raise ConfigurationError(
            f"the services can't make the environment {config.environment.id!r}, which is registered in this session;"
            " write its registration to a file, and name that file in environment.imports"
        ) from error


def _starting_policy(settings: Mapping[str, object]) -> tuple[bytes | None, dict[str, object]]:
    """Returns the file of the trained policy among the settings, to start from, and the other settings."""
    # Before a policy was loaded, there is none, and its module imports torch.
    trained: Any = sys.modules.get(_POLICIES)
    given = {} if trained is None else {name: v for name, v in settings.items() if isinstance(v, trained.TrainedPolicy)}
    file = None
    for name, policy in given.items():
        if setting_of(name) != _START_FROM:
            raise ConfigurationError(f"{name} can't be a policy; a new run starts from it with start_from=policy")
        file = policy.to_file()
    return file, {name: value for name, value in settings.items() if name not in given}


def _configuration(what: Environment | Config | None, preset: str | None, settings: Mapping[str, object]) -> Config:
    """Returns the configuration for the arguments of `train`."""
    if isinstance(what, Config):
        if preset is not None:
            raise ConfigurationError(f"preset={preset!r} can't change a configuration; use penstock.preset to make one")
        return what.changed(settings)
    named = {setting_of(name) or spelled(name) for name in settings}
    if what is None and preset is None and not named & {"environment", "environment.id"}:
        raise ConfigurationError(
            'penstock.train needs an environment or a preset, such as penstock.train("CartPole-v1", total_steps=50_000)'
            ' or penstock.train(preset="cartpole")'
        )
    return configure(what, preset=preset, **settings)


def refuse_in_a_service(function: str) -> None:
    """Raises `ConfigurationError` if a service has called this function of the API, by importing the caller's file."""
    if os.environ.get(SUPERVISED_VARIABLE):
        caller = sys._getframe(2)
        raise ConfigurationError(
            f"{caller.f_code.co_filename}, line {caller.f_lineno}, calls {function} when a service imports the"
            ' file; put the call below `if __name__ == "__main__":`'
        )


def _registered_entry(env_id: str) -> str | None:
    """Returns the module of an environment that is registered in this process; None if it is not registered."""
    # Without Gymnasium, this process has registered nothing.
    gymnasium: Any = sys.modules.get("gymnasium")
    spec = gymnasium.registry.get(environment_names.split(env_id)[1]) if gymnasium is not None else None
    if spec is None:
        return None
    entry = spec.entry_point or spec.vector_entry_point
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    return str(module)


def _with_import(config: Config, module: str) -> Config:
    imports = [*config.environment.imports, environment_names.importable(module)]
    return config.changed({"environment": {"imports": imports}})
