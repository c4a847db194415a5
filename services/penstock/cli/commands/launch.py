"""`penstock launch slurm`: starts a run on a Slurm cluster and follows it."""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from penstock.cli import slurm_actors
from penstock.cli.following import Follower
from penstock.cli.named import add_node_options, add_sbatch_option
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.options import Options, parse
from penstock.cli.screen.batch_line import batch_line, steps_line
from penstock.cli.screen.lines import show
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.launch import slurm, slurm_jobs
from penstock.launch.slurm_scripts import JobOptions, SlurmRun, actors_script, services_script
from penstock.local import variables
from penstock.local.environment_check import check_environment
from penstock.local.first_checks import with_run_dir
from penstock.local.store_size import with_store
from penstock.local.template import PENSTOCK
from penstock.machine.installation import program
from penstock.runs.folder import RunFolder
from penstock.runs.summary import nothing_left

_SPARE_SHARE = 4
"""Actors for each spare one by default."""

_DESCRIPTION = "Start a run on a Slurm cluster: one job with the services, and an array of actors."


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    engine, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    match engine:
        case "slurm":
            return _launch(rest)
        case "slurm-actors":
            return slurm_actors.command(rest)
        case "" | "-h" | "--help":
            print(
                "usage: penstock launch slurm [ENV] [options]\n       penstock launch slurm-actors RUN N\n\n"
                "`penstock launch slurm --help` lists the options."
            )
            return 0
        case _:
            raise ConfigurationError(f"unknown engine {engine!r}; choose from: slurm, slurm-actors")


def _launch(arguments: Sequence[str]) -> int:
    options = parse(
        "penstock launch slurm",
        _DESCRIPTION,
        arguments,
        trains=True,
        more=_own_options(),
        settings_of=slurm_jobs.settings_to_resume,
    )
    console = Console(highlight=False)
    config = _checked_config(options, console)
    run, resumes = _run_of(config, options.more), options.resume is not None
    if options.more.print:
        print(f"{services_script(run)}\n\n{actors_script(run)}", end="")
        return 0
    slurm_jobs.check_folder(run.folder, resume=resumes)
    if resumes and (reason := nothing_left(run.folder.summary, config.run)):
        raise ConfigurationError(f"{reason}; its result is in {run.folder.summary}")
    slurm_jobs.prepare(run, now=time.time())
    show(console, *filter(None, [batch_line(config, resumed=resumes), steps_line(config)]))
    follower = Follower(run.folder, config)
    inherited = variables.without_settings(os.environ)
    jobs = slurm_jobs.submit_actors(run.folder, slurm_jobs.submit_services(run.folder, inherited), inherited)
    spare = f", and {run.all_tasks - run.tasks} more in their place" if run.all_tasks > run.tasks else ""
    show(
        console,
        f"job {jobs.services}: the services; job {jobs.actors}: an array with {run.tasks} tasks at a time{spare};"
        f" scripts in {run.folder.launch}",
    )
    try:
        if not options.more.detach:
            follower.follow(console, lambda: _state(jobs.services), verbose=options.verbose)
            return 0
    except KeyboardInterrupt:
        console.print("the run goes on")
    watch = f"watch it with {program()} status {shlex.quote(os.path.relpath(run.folder.root))} --watch"
    show(console, f"{watch}, end it with scancel {jobs}")
    return 0


def _own_options() -> argparse.ArgumentParser:
    parser = OneLineParser(add_help=False)
    group = parser.add_argument_group("Slurm")
    group.add_argument(
        "--partition", metavar="NAME", help="partition of the services, from which nothing is taken away"
    )
    group.add_argument(
        "--actor-partition", metavar="NAME", help="partition of the actors, which may be preemptible [--partition]"
    )
    group.add_argument("--gpus", metavar="N", help="GPUs for the learner, such as 1 or a100:1 [none]")
    group.add_argument("--time", metavar="T", help="time limit of a turn of the services, as for sbatch")
    group.add_argument("--actor-time", metavar="T", help="time limit of a turn of the actors [--time]")
    group.add_argument("--account", metavar="NAME", help="account of both jobs")
    group.add_argument(
        "--spare", metavar="N", type=_count, help="actors in the queue that replace preempted ones [a quarter of them]"
    )
    group.add_argument("--actors-per-task", metavar="N", type=_count, default=1, help="actors of each task [1]")
    for name, jobs in (("sbatch", "both jobs"), ("services-sbatch", "the services"), ("actor-sbatch", "the actors")):
        add_sbatch_option(group, name, jobs, "--qos=high")
    add_node_options(group)
    group.add_argument("--no-check", action="store_true", help="do not create the environment on this machine first")
    group.add_argument("--print", action="store_true", help="print both scripts and start nothing")
    group.add_argument(
        "--detach", "--no-follow", dest="detach", action="store_true", help="return once the jobs are submitted"
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number; got {text!r}")
    return int(text)


def _checked_config(options: Options, console: Console) -> Config:
    """Returns the configuration with the run's absolute folder, and a store that fits the environment."""
    options.config.refuse_foreign_code()
    config = with_run_dir(options.config)
    config = config.changed({"run": {"dir": str(Path(config.run.dir or ".").absolute())}})
    more = options.more
    show(console, *options.notes)
    # With another Python, or after lines that load modules, the nodes have other packages than this machine.
    if more.no_check or more.print or more.setup or more.penstock:
        return config
    config, store_bytes = check_environment(config, lambda line: show(console, line))
    return with_store(config, store_bytes, sys.maxsize)


def _run_of(config: Config, more: argparse.Namespace) -> SlurmRun:
    if config.train.replay_shards > 1:
        raise ConfigurationError(
            f"a launched run has one replay service, and train.replay_shards is {config.train.replay_shards}; set it to"
            " 1, or write scripts of your own after the ones of --print"
        )
    slurm_jobs.refuse_other_protection(config.security)
    folder, (actors, spare) = RunFolder(Path(config.run.dir or ".")), _numbers(config, more)
    listen = config.replay.listen
    return SlurmRun(
        folder=folder,
        settings=slurm_jobs.shared_settings(config).to_toml(),
        store=config.replay.folder,
        snapshots=config.replay.snapshot_folder,
        listen=None if listen == Config().replay.listen else listen,
        actors=actors,
        spare=spare,
        actors_per_task=max(1, more.actors_per_task),
        scales=config.train.actors == "auto",
        services=JobOptions(
            partition=more.partition,
            time=more.time,
            account=more.account,
            gpus=more.gpus,
            more=(*more.sbatch, *more.services_sbatch),
        ),
        array=JobOptions(
            partition=more.actor_partition or more.partition,
            time=more.actor_time or more.time,
            account=more.account,
            more=(*more.sbatch, *more.actor_sbatch),
        ),
        setup=tuple(more.setup),
        penstock=tuple(shlex.split(more.penstock)) if more.penstock else tuple(PENSTOCK),
    )


def _numbers(config: Config, more: argparse.Namespace) -> tuple[int, int]:
    """Returns the number of actors at the start and of spare ones."""
    if config.train.actors != "auto":
        return config.train.actors, -(-config.train.actors // _SPARE_SHARE) if more.spare is None else more.spare
    if config.learner.most_wanted_actors is None:
        raise ConfigurationError(
            "with --actors auto, an array for all actors that the learner may ask for is submitted; set"
            " --learner.most-wanted-actors to their largest number"
        )
    least = config.least_wanted_actors
    return least, config.learner.most_wanted_actors - least + (more.spare or 0)


def _state(services: int) -> tuple[str, bool]:
    """Returns the reason why the run waits, as far as Slurm knows, and whether its services have ended."""
    state = slurm.state_of(services)
    if state.ended:
        return f"job {services} is {state.state}", True
    if state.state == "RUNNING":
        return "", False
    reason = f" ({state.reason})" if state.reason else ""
    return f"job {services}, which is {state.state}{reason}", False
