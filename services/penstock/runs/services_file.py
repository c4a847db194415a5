"""Files by which services find each other: services.json in a run's folder, and the file of a replay service.

The learner writes services.json while it is active, or the launcher of `penstock train`. Clients read these files
before each attempt to connect, because a service that is started again may be on another host.
"""

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.config import ActorConfig, EvaluationConfig, LearnerConfig, read_settings
from penstock.config.recorded import LIMITS
from penstock.errors import ConfigurationError, NotReady, RunFinished
from penstock.learning.members.replay_places import ReplayPlaces
from penstock.machine.addresses import ADDRESS_FILE
from penstock.machine.files import make_folder, write_json
from penstock.machine.system_errors import in_words
from penstock.runs.folder import CERTIFIED, IDENTITY, LEARNER, RunFolder, replay_services
from penstock.runs.summary import nothing_left
from penstock.types.location import Place

_RESUMED_WITHIN_S = 60.0
"""Seconds within which the learner that resumes a finished run is expected, by processes that are started with it."""


class ServicesFile:
    """services.json, written by the learner of a run. Any thread may call it."""

    def __init__(self, folder: RunFolder, learner: Place, places: ReplayPlaces, *, certified: bool = False) -> None:
        """Prepares the file. `certified` is whether the services have certificates."""
        self._folder, self._learner, self._places = folder, learner, places
        self._certified = {CERTIFIED: "yes"} if certified else {}
        # A worker thread may still write when the learner ends.
        self._lock, self._removed = threading.Lock(), False

    def write(self) -> None:
        """Writes the addresses of the learner and the replay services. Raises `OSError`."""
        replays = self._places.addresses
        services = {
            **dict(zip(replay_services(len(replays)), replays, strict=True)),
            LEARNER: self._learner.addresses,
        }
        content = {name: ",".join(each) for name, each in services.items() if each}
        with self._lock:
            if not self._removed:
                identity = {IDENTITY: f"{self._learner.identity:x}"}
                write_json(self._folder.services, {**content, **identity, **self._certified})

    def remove(self) -> None:
        """Removes the file at the end of the learner. It is not written again."""
        with self._lock, contextlib.suppress(OSError):
            self._removed = True
            self._folder.services.unlink(missing_ok=True)


class LearnerOfRun:
    """Place of a run's learner, as its folder has it now. It is one of `rpc.clients.connection.Names`."""

    def __init__(
        self, run: str, resumed_within_s: float = _RESUMED_WITHIN_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._clock = RunFolder(Path(run)), clock
        self._resumed_by, self._seen = clock() + resumed_within_s, False

    def __call__(self) -> Place:
        """Returns the place. Raises `RunFinished` if the run is over, or `NotReady` if its learner has not begun.

        A run that is over when this process starts may be about to be resumed, so it is over only after a minute.
        """
        try:
            place = self._folder.places()[LEARNER]
        except (OSError, ValueError):
            if (self._seen or self._clock() > self._resumed_by) and (reason := self._finished()):
                raise RunFinished(reason) from None
            raise NotReady(
                f"the learner of {self._folder.root} can't be reached: there is no {self._folder.services.name}, which"
                " it writes once it serves; it has not been started yet, or is to be started again"
            ) from None
        self._seen = True
        return place

    def _finished(self) -> str:
        """Returns why the run is over; empty if its learner may still be started again."""
        try:
            limits = read_settings(self._folder.config, *LIMITS).run
        except ConfigurationError:
            return ""
        return nothing_left(self._folder.summary, limits)


class AddressFile:
    """File with the place of one service. Implements `rpc.clients.connection.Names`."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def write(self, place: Place) -> None:
        """Writes the place, in a new folder if need be. Raises `ConfigurationError` if the file can't be written."""
        try:
            make_folder(self._path.parent)
            write_json(self._path, {"addresses": ",".join(place.addresses), IDENTITY: f"{place.identity:x}"})
        except OSError as error:
            raise ConfigurationError(
                f"can't write {self._path}: {in_words(error, self._path, 'choose another replay.address_file')}"
            ) from None

    def remove(self) -> None:
        """Removes the file."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def __call__(self) -> Place:
        """Returns the place. Raises `NotReady` if the service has not written it."""
        try:
            content = json.loads(self._path.read_text())
            return Place(tuple(content["addresses"].split(",")), int(content[IDENTITY], 16))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise NotReady(
                f"the replay service can't be reached: there is no {self._path}, which it writes once it serves"
            ) from None


def replay_peers(settings: LearnerConfig) -> list[str | AddressFile]:
    """Returns how a learner finds each of its replay services: by a configured address, or by a file."""
    return [
        AddressFile(address.removeprefix(ADDRESS_FILE)) if address.startswith(ADDRESS_FILE) else address
        for address in settings.replay_addresses
    ]


def patience_s(settings: ActorConfig | EvaluationConfig, *, supervised: bool) -> float:
    """Returns the seconds without a learner after which the process gives up. A launcher ends its processes itself."""
    return math.inf if supervised else settings.give_up_after_s


def learner_of(settings: ActorConfig | EvaluationConfig) -> Sequence[str] | LearnerOfRun:
    """Returns how an actor or an evaluator finds its learner: by a run's folder, or else by configured addresses."""
    return settings.learner_address if settings.run is None else LearnerOfRun(settings.run)
