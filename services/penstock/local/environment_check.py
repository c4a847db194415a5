"""Checks a run's environments before any service starts, in a child process that runs `apps.environment_check`."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from penstock.config import Config
from penstock.errors import ConfigurationError, UnknownEnvironment
from penstock.local.process_group import CommandProcess, Guard, ProcessGroup, describe_exit, signals_held_back
from penstock.local.store_size import sized_segments
from penstock.local.variables import of_services
from penstock.machine.environment_arguments import written_table
from penstock.process.service import SUPERVISED_VARIABLE

_COMPARED = 2
"""Most environments that are made of each variant; two are enough to compare them."""

_SLOW_S = 5.0
"""Seconds before the first message about a slow stage, and between further ones."""

_POLL_S = 0.1
_CHUNK_BYTES = 65_536
_KEPT_OUTPUT_BYTES = 16_384

_DOING = {
    "import": "importing the modules of",
    "make": "creating",
    "reset": "resetting",
    "step": "stepping",
    "close": "closing",
}


def check_environment(
    config: Config, report: Callable[[str], None], look: Callable[[], None] = lambda: None
) -> tuple[Config, int]:
    """Makes, resets and steps the configured environments in a child process, and ends its whole process group.

    Returns the configuration with the environment's registered id, the offsets that observations need, worker processes
    if these are needed, and numbers of environments that its agents fill; and the size in bytes of a store for
    `store_size.sized_segments`. `report` receives one line at a time: a warning, or a message that a stage takes long.
    `look` is called a few times per second meanwhile. Raises `ConfigurationError`, with the stage, the reason and a
    remedy, if the environment can't be used, `UnknownEnvironment` if it is not registered, and `ForeignCode` if a file
    alone names code.
    """
    config.refuse_foreign_code()
    reading, writing = os.pipe()
    try:
        with contextlib.closing(Guard(0.0)) as guard, contextlib.ExitStack() as stack:
            command = [sys.executable, "-Pm", "penstock.apps.environment_check", str(writing)]
            variables = of_services(os.environ) | {SUPERVISED_VARIABLE: "environment check"}
            with signals_held_back():
                process = CommandProcess(command, stdout=subprocess.PIPE, environment=variables, pass_fds=(writing,))
                child = ProcessGroup(process, guard)
                stack.callback(child.end, 0.0)
            answer = _Conversation(process, child, reading, config, report=report).run(look)
    finally:
        os.close(reading)
        os.close(writing)
    if "refused" in answer:
        kind = UnknownEnvironment if answer.get("unknown") else ConfigurationError
        raise kind(str(answer["refused"]))
    environment = config.environment
    for notice in answer["notices"]:
        report(notice)
    for warning in answer["warnings"]:
        report(f"warning: {warning}")
    if answer["env_id"] != config.environment.id:
        report(f"{config.environment.id} is registered as {answer['env_id']}, which is used")
        config = config.changed({"environment": {"id": answer["env_id"]}})
    if answer["alone"] and not config.has_lone_environments:
        report(
            f"a process can make {config.environment.short_name} only once, so each environment has a process of its"
            " own (environment.vectorization process)"
        )
        config = config.changed({"environment": {"vectorization": "process", "workers": config.most_environments}})
    if answer["sizes"] is not None:
        observation, action = answer["sizes"]
        report(
            f"{environment.short_name}: the spaces of all variants are padded to the same sizes, 0 for one that is the"
            f" same (environment.pad_spaces {observation},{action})"
        )
        config = config.changed({"environment": {"pad_spaces": answer["sizes"]}})
    config = _with_whole_games(config, answer["agents"], report)
    offsets, policy = answer["offsets"], config.policy
    if any(offsets) and policy.normalise_observations and not policy.observation_offsets:
        numbers = [number for number in offsets if number]
        report(
            f"{config.environment.short_name}: {len(numbers)} of {len(offsets)} numbers of an observation are stored as"
            f" differences, the first to {numbers[0]:g}, because they change little beside their size"
            " (policy.observation_offsets)"
        )
        config = config.changed({"policy": {"observation_offsets": offsets}})
    return config, int(answer["store_bytes"])


def _with_whole_games(config: Config, agents: int, report: Callable[[str], None]) -> Config:
    """Returns the configuration with numbers of environments that are multiples of an environment's agents."""
    trained, played = config.actor.environments, config.evaluation.episodes
    variants = len(config.environment.variant_kwargs)
    rows = -(-trained // agents) * agents, -(-played // (agents * variants)) * agents * variants
    if agents == 1 or rows == (trained, played):
        return config
    report(
        f"{config.environment.short_name} has {agents} agents, each of which counts as an environment and plays an"
        f" episode: actor.environments is {rows[0]} in place of {trained}, and evaluation.episodes {rows[1]} in place"
        f" of {played}"
    )
    return config.changed({"actor": {"environments": rows[0]}, "evaluation": {"episodes": rows[1]}})


def _request(config: Config) -> dict[str, Any]:
    environment = config.environment
    evaluated = min(_COMPARED, -(-config.evaluation.episodes // len(environment.variant_kwargs)))
    trained = min(_COMPARED, config.actor.environments)
    training, evaluation = (
        [written_table(variant) for variant in variants]
        for variants in (environment.training_variants, environment.variant_kwargs)
    )
    trained_on, played = (
        [environment.shown(variant) for variant in variants]
        for variants in (environment.training_variants, environment.variant_kwargs)
    )
    tasks: list[dict[str, object]] = [
        {"variants": evaluation, "instances": max(evaluated, trained), "shown": played},
    ]
    if training != evaluation:
        tasks = [
            {"variants": training, "instances": trained, "use": "training", "shown": trained_on},
            {"variants": evaluation, "instances": evaluated, "use": "evaluation", "shown": played},
        ]
    return {
        "tasks": tasks,
        "making": {
            "env_id": environment.id,
            "imports": environment.imports,
            "wrappers": [written_table(each) for each in environment.wrappers],
            "vectorization": environment.vectorization,
            "python": environment.python,
            "use_masks": environment.action_masks,
            "info_metrics": environment.info_metrics,
        },
        "alone": config.has_lone_environments,
        "frames": environment.frame_stack,
        "padding": environment.pad_spaces,
        "segments": sized_segments(config),
        "encoders": config.policy.encoders,
        "moves": config.policy.moves,
        "critic_only": config.policy.critic_only,
        "widest_range": config.policy.widest_range,
        "offsets": config.policy.observation_offsets,
        "largest_magnitude": environment.largest_magnitude,
        "recorded": config.recorded,
    }


class _Conversation:
    """Sends the request and reads the child's messages until it answers, dies or exceeds the time for a stage."""

    def __init__(
        self,
        process: CommandProcess,
        child: ProcessGroup,
        reading: int,
        config: Config,
        *,
        report: Callable[[str], None],
    ) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._request_to, self._output_of = process.stdin, process.stdout
        self._child, self._reading, self._report = child, reading, report
        self._request = _request(config)
        self._limit_s = config.environment.check_timeout_s
        self._stage, self._name = "import", config.environment.id
        self._since, self._report_at = time.monotonic(), time.monotonic() + _SLOW_S
        self._received, self._output = b"", b""

    def run(self, look: Callable[[], None]) -> dict[str, Any]:
        """Returns the answer, with the keys of `apps.environment_check`, and calls `look` until it is there."""
        os.set_blocking(self._reading, False)
        os.set_blocking(self._output_of.fileno(), False)
        # A child that died immediately is reported below.
        with contextlib.suppress(OSError):
            self._request_to.write(json.dumps(self._request).encode() + b"\n")
            self._request_to.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._reading, selectors.EVENT_READ)
            selector.register(self._output_of, selectors.EVENT_READ)
            while True:
                ended = self._child.exit_code is not None
                selector.select(0.0 if ended else _POLL_S)
                look()
                # A full pipe would block the environment.
                self._output = (self._output + _read(self._output_of.fileno()))[-_KEPT_OUTPUT_BYTES:]
                answer = self._read_answer()
                if answer is not None:
                    return self._with_output(answer)
                if ended:
                    return {"refused": self._describe_death()}
                if refusal := self._check_time():
                    return {"refused": refusal}

    def _read_answer(self) -> dict[str, Any] | None:
        self._received += _read(self._reading)
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            message: dict[str, Any] = json.loads(line)
            if "stage" not in message:
                return message
            self._stage, self._name = message["stage"], message["name"]
            self._since, self._report_at = time.monotonic(), time.monotonic() + _SLOW_S
        return None

    def _with_output(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Adds the output of a module before it ended its process, such as argparse's error, to a refusal."""
        self._output = (self._output + _read(self._output_of.fileno()))[-_KEPT_OUTPUT_BYTES:]
        printed = [line for line in self._output.decode(errors="replace").splitlines() if line.strip()]
        if "SystemExit" in answer.get("refused", "") and printed:
            answer["refused"] += f" (it printed: {printed[-1].strip()})"
        return answer

    def _check_time(self) -> str:
        now = time.monotonic()
        if now - self._since > self._limit_s:
            return (
                f"{_DOING[self._stage]} the environment {self._name!r} did not end within {self._limit_s:g} s; fix"
                " it, or raise environment.check_timeout_s if it needs longer"
            )
        if now >= self._report_at:
            self._report_at = now + _SLOW_S
            self._report(
                f"still {_DOING[self._stage]} the environment {self._name}: {now - self._since:.0f} s of at most"
                f" {self._limit_s:g} s"
            )
        return ""

    def _describe_death(self) -> str:
        lines = self._output.decode(errors="replace").splitlines()
        fatal = [line for line in lines if line.startswith("Fatal Python error")]
        last = (fatal or [line for line in lines if line.strip()] or ["no output"])[-1].strip()
        return (
            f"{_DOING[self._stage]} the environment {self._name!r} ended its process with"
            f" {describe_exit(self._child.exit_code or 0)} ({last}); fix the environment, or choose another with"
            " --env-id"
        )


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except BlockingIOError:
        return b""
