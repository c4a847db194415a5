"""Membership of the run: slots, environment numbers, incarnations and tokens.

Actor replicas share one configuration, so the learner numbers them. The roster is used from one thread; only
`connected`, `identity` and `largest_window` may be read from others, and `record` runs on another. An assignment is
given out after `join`, `record` and `confirm`: it is then in the run's folder. Incarnations, and hence random streams,
therefore never repeat, and a restarted learner recognises its actors by their tokens. One `record` writes all joins
before it, so that a thousand joins need a few writes. The roster also has the run's identity, which its replay services
keep too.

If the folder can't be written, or not soon, actors are still admitted, up to `_SPARE` incarnations above all those on
disk. A learner that finds no mark of a clean end therefore begins above these. Two copies of the file are kept, each
with a digest. If both are lost, incarnations continue from the clock, in seconds, because actors join less than once
per second. The identity is also in a file that is written once, because the replay services refuse another one.
"""

import heapq
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError, DamagedFile, Overloaded, SchemaMismatch
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.machine.files import decode_record, encode_record, write_atomically
from penstock.runs.folder import copy_of, describe_identity, identity_file, identity_of, kept_identity
from penstock.types.block import Schema
from penstock.types.differences import contrast
from penstock.types.run import Assignment, RunIdentity
from penstock.types.spaces import EnvironmentSpec

_SPARE = 1000
"""Incarnations that may be given out without being on disk: more than the actors replaced while a disk is full."""


@dataclass(slots=True)
class _Member:
    assignment: Assignment
    streams: int
    """Open streams: usually 1, and 2 when an actor returns before the learner notices that its old stream broke."""
    left_at: float
    number: int
    """Number of its join in this process; 0: it is of an earlier process, and on disk."""


def spread_temperatures(lowest: float, highest: float, actors: int) -> tuple[float, ...]:
    """Returns the temperatures of N actors by slot: lowest * (highest / lowest)^(i / (N - 1)) for actor i.

    The spread is geometric because the effect of a temperature depends on its ratio to 1. Ape-X spreads the epsilons of
    its actors in the same way (Horgan et al. 2018, section 4.1: epsilon^(1 + i / (N - 1) alpha), also geometric in i).
    Some actors can stay close to the policy, where data is most useful to it, while others explore actions that it
    would not try.
    """
    if actors == 1:
        return (lowest,)
    return tuple(lowest * (highest / lowest) ** (actor / (actors - 1)) for actor in range(actors))


def decode_roster(data: bytes) -> dict[str, Any]:
    """Decodes a roster file: slots, environments and members. Earlier releases wrote it without a digest.

    Raises `DamagedFile` if the data is cut short or differs from the written data.
    """
    try:
        value = json.loads(data)
    except ValueError:
        raise DamagedFile("it is incomplete or not JSON") from None
    stored = value if isinstance(value, dict) and "slots" in value else decode_record(data)
    if not isinstance(stored, dict):
        raise DamagedFile("it contains no roster")
    return stored


def write_successor(former: Path, path: Path, stores: Iterable[Mapping[int, int]], identity: RunIdentity) -> None:
    """Writes the roster of a run that continues from another run's store: no members, and later incarnations.

    `identity` identifies the new run. `former` is the other run's roster, which may be missing. `stores` have the last
    incarnation of each slot. Raises `ConfigurationError` if `former` can't be read, `OSError` if `path` can't be
    written.
    """
    slots: dict[int, int] = {}
    environments: list[list[int]] = []
    floor = 0
    if former.exists():
        try:
            stored = decode_roster(former.read_bytes())
            slots = {int(slot): int(last) for slot, last in stored["slots"]}
            environments = [[int(number), int(last)] for number, last in stored["environments"]]
            floor = int(stored.get("floor", 0))
            if not stored.get("ended", True):
                floor = max([floor, *slots.values(), *(last for _, last in environments)]) + _SPARE
        except (OSError, DamagedFile, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"can't read the roster {former}: {error}") from None
    for incarnations in stores:
        slots |= {slot: max(last, slots.get(slot, 0)) for slot, last in incarnations.items()}
    content = {"slots": list(slots.items()), "environments": environments, "members": [], "floor": floor}
    write_atomically(path, encode_record({**content, "ended": True, **describe_identity(identity)}))


class Roster:
    """Places of the actors in the run. An actor that returns in time keeps its place.

    Attributes:
        identity: Identity of the run, drawn once in its life.
        schema, spec: Those of the actors; None before the first.
    """

    def __init__(
        self,
        path: Path,
        *,
        seed: int,
        max_actors: int,
        rejoin_timeout_s: float,
        now: float,
        writes: RetriedWrites,
        notice: Callable[[str], None],
        expected: bool = False,
        variants: int = 1,
        temperatures: tuple[float, ...] = (1.0,),
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        """Reads the roster of an earlier process of the run. Its members may return from `now` on.

        A damaged file is reported to `notice`, and so is a missing one if the run has a checkpoint (`expected`).

        The slot determines an actor's environment variant and temperature, each by a separate round-robin. An actor
        that returns, or that takes over a slot, therefore has the same ones.
        """
        self._path, self._writes, self._notice, self._unix_s = path, writes, notice, unix_s
        self._seed, self._variants, self._temperatures = seed, variants, temperatures
        self._max_actors, self._rejoin_timeout_s = max_actors, rejoin_timeout_s
        self._members: dict[bytes, _Member] = {}
        # Tokens of the members without a stream, in the order in which they left.
        self._gone: dict[bytes, None] = {}
        self._connected = 0
        self._slots, self._environments = _Numbers(), _Numbers()
        self._slot_incarnations: dict[int, int] = {}
        self._environment_incarnations: dict[int, int] = {}
        # Incarnations begin above `_floor`. The file on disk permits unrecorded ones up to `_unrecorded_until`.
        self._floor = self._unrecorded_until = 0
        # Numbers of the last join, and of the last one that is on disk.
        self._joined = self._recorded = 0
        self._ended = False
        self.identity = RunIdentity.draw()
        self.schema: Schema | None = None
        self.spec: EnvironmentSpec | None = None
        self._recover(now, expected)
        self._keep_identity()

    @property
    def connected(self) -> int:
        """Number of actors with an open stream."""
        return self._connected

    @property
    def largest_window(self) -> int:
        """Number of environments of the actor with the most; 0 if there are no actors."""
        members = list(self._members.values())
        return max((len(member.assignment.environments) for member in members), default=0)

    def check_run(self, run: int, who: str) -> None:
        """Raises `SchemaMismatch` if a peer, named by `who`, belongs to another run; 0: it belongs to none yet."""
        if run not in (0, self.identity.number):
            raise SchemaMismatch(
                f"this learner is of run {self.identity.number:016x}, and the {who} belongs to run {run:016x}; start"
                f" the {who} again to join this run, or with the address of its own run's learner"
            )

    def join(self, schema: Schema, spec: EnvironmentSpec, environments: int, token: bytes, now: float) -> Assignment:
        """Admits an actor. A valid token restores its place; otherwise it gets a new one.

        The caller gives the assignment out after `confirm`. Takes 0.1 ms, however many members there are.

        Raises `SchemaMismatch` if the schema or the spaces differ from the run's, `Overloaded` if all slots are taken.
        """
        self._check(schema, spec)
        self._forget_the_gone(now)
        member = self._members.get(token)
        if member is None or len(member.assignment.environments) != environments:
            member = self._admit(environments, now)
        member.streams += 1
        self._connected += member.streams == 1
        self._gone.pop(member.assignment.token, None)
        self.schema, self.spec = schema, spec
        return member.assignment

    def is_recorded(self, assignment: Assignment) -> bool:
        """Returns whether the place of a member is on disk."""
        member = self._members.get(assignment.token)
        return member is not None and member.number <= self._recorded

    def permits(self, assignment: Assignment) -> bool:
        """Returns whether the incarnation of a place can never be given out again, even if the place is not on disk."""
        return assignment.incarnation <= self._unrecorded_until

    def record(self) -> None:
        """Writes all joins so far. Returns when they are on disk or the write has failed. Any thread may call it."""
        self._write()

    def confirm(self, assignment: Assignment) -> None:
        """Checks that a place is on disk or permitted without.

        Raises `Overloaded`, and withdraws the place, if neither is the case.
        """
        if not self.is_recorded(assignment) and not self.permits(assignment):
            self._remove(assignment.token)
            raise Overloaded(
                f"a new actor's place can't be recorded in {self._path}:"
                f" {self._writes.reason(self._path.name) or 'its disk does not answer; see why'}"
            )

    def taken(self, slot: int, incarnation: int, largest: int) -> None:
        """Records that an incarnation has a slot at a replay service, so that the slot's next one is above it.

        An incarnation above `largest`, the largest that the service accepts, is ignored, because an actor may claim
        anything. So is the largest itself, because the next one would not be accepted yet.
        """
        if 0 <= slot < self._max_actors and incarnation < largest:
            self._slot_incarnations[slot] = max(self._slot_incarnations.get(slot, 0), incarnation)

    def leave(self, assignment: Assignment, now: float) -> None:
        """Records that an actor's stream has ended. Its place is kept for `rejoin_timeout_s`."""
        member = self._members.get(assignment.token)
        if member is not None:
            member.streams -= 1
            member.left_at = now
            if not member.streams:
                self._connected -= 1
                self._gone[assignment.token] = None

    def dismiss(self) -> None:
        """Records a clean end: no actor will return, and the file holds all incarnations that were given out."""
        self._members = {}
        self._ended = True
        self._write()

    def _assignment(self, slot: int, incarnation: int, environments: tuple[int, ...], token: bytes) -> Assignment:
        return Assignment(
            slot=slot,
            incarnation=incarnation,
            environments=environments,
            token=token,
            seed=self._seed,
            variant=slot % self._variants,
            temperature=self._temperatures[slot % len(self._temperatures)],
            run=self.identity.number,
            replay_token=self.identity.token(slot, incarnation),
        )

    def _admit(self, environments: int, now: float) -> _Member:
        (slot,) = self._slots.take(1)
        if slot >= self._max_actors:
            self._slots.release((slot,))
            raise Overloaded(f"all {self._max_actors} slots are taken; raise learner.max_actors for more actors")
        numbers = self._environments.take(environments)
        assignment = self._assignment(slot, self._next_incarnation(slot, numbers), numbers, secrets.token_bytes(16))
        self._joined += 1
        member = self._members[assignment.token] = _Member(assignment, 0, now, self._joined)
        return member

    def _remove(self, token: bytes) -> None:
        member = self._members.pop(token)
        self._connected -= member.streams > 0
        self._gone.pop(token, None)
        self._slots.release((member.assignment.slot,))
        self._environments.release(member.assignment.environments)

    def _next_incarnation(self, slot: int, environments: tuple[int, ...]) -> int:
        """Returns the incarnation after all earlier ones of the slot and the environments.

        Incarnations are counted per slot and environment instead of per run, so that the first random streams of an
        environment do not depend on how the environments are spread over actors.
        """
        earlier = [self._environment_incarnations.get(number, 0) for number in environments]
        incarnation = 1 + max(self._floor, self._slot_incarnations.get(slot, 0), *earlier)
        self._slot_incarnations[slot] = incarnation
        self._environment_incarnations |= dict.fromkeys(environments, incarnation)
        return incarnation

    def _check(self, schema: Schema, spec: EnvironmentSpec) -> None:
        if self.spec is not None and spec != self.spec:
            ours, theirs = contrast(self.spec, spec)
            raise SchemaMismatch(
                f"this run trains {ours}, and the actor offered {theirs}; start actors with the run's configuration"
            )
        if self.schema is not None and schema != self.schema:
            raise SchemaMismatch(
                f"this run's segments have {self.schema.unroll_length} steps and schema {self.schema.hash:016x}, the"
                f" actor's {schema.unroll_length} steps and {schema.hash:016x}; start actors with the run's"
                " configuration"
            )

    def _forget_the_gone(self, now: float) -> None:
        while self._gone:
            token = next(iter(self._gone))
            if now - self._members[token].left_at <= self._rejoin_timeout_s:
                return
            self._remove(token)

    def _recover(self, now: float, expected: bool) -> None:
        copy = copy_of(self._path)
        findings: list[str] = []
        for path in (self._path, copy):
            try:
                if path.exists():
                    self._take_in(decode_roster(path.read_bytes()), now)
                    if findings:
                        # The copy may lack the last write, which may have been the first after an unclean end.
                        self._floor = self._highest() + 2 * _SPARE
                    self._report(findings, f"its copy {copy.name} is used")
                    return
                findings.append(f"{path} is missing")
            except (OSError, ValueError, KeyError, TypeError, ConfigurationError) as error:
                findings.append(f"{path} is damaged: {error}")
        if expected or any("damaged" in finding for finding in findings):
            self._floor = int(self._unix_s())
            self.identity = kept_identity(identity_file(self._path)) or self.identity
            self._report(findings, "incarnations continue from the clock, and all actors join as new actors")

    def _keep_identity(self) -> None:
        path = identity_file(self._path)
        if kept_identity(path) != self.identity:
            content = encode_record(describe_identity(self.identity))
            self._writes.write(path.name, partial(write_atomically, path, content))

    def _report(self, findings: list[str], consequence: str) -> None:
        if findings:
            self._notice(f"{'; '.join(findings)}; {consequence}")

    def _take_in(self, stored: dict[str, Any], now: float) -> None:
        slots = {int(slot): int(last) for slot, last in stored["slots"]}
        environments = {int(number): int(last) for number, last in stored["environments"]}
        if "run" in stored:
            self.identity = identity_of(stored)
        members: dict[bytes, _Member] = {}
        for entry in stored["members"]:
            assignment = self._assignment(
                entry["slot"], entry["incarnation"], tuple(entry["environments"]), bytes.fromhex(entry["token"])
            )
            exploration = (assignment.variant, assignment.temperature)
            # With another variant or temperature an actor starts over. In its old place it would repeat sequence
            # numbers, so it gets a new place.
            if (entry.get("variant", 0), entry.get("temperature", 1.0)) == exploration:
                members[assignment.token] = _Member(assignment, 0, now, 0)
        self._floor = int(stored.get("floor", 0))
        self._slot_incarnations, self._environment_incarnations, self._members = slots, environments, members
        self._gone = dict.fromkeys(members)
        places = [member.assignment for member in members.values()]
        self._slots = _Numbers(place.slot for place in places)
        self._environments = _Numbers(number for place in places for number in place.environments)
        if not stored.get("ended", True):
            self._floor = self._highest() + _SPARE
        if "run" not in stored:
            # A store keeps the identity that it is told, and no later write may be due before then.
            self._write()

    def _highest(self) -> int:
        return max(self._floor, *self._slot_incarnations.values(), *self._environment_incarnations.values(), 0)

    def _write(self) -> bool:
        """Writes the roster and a copy of it. Returns whether the file is up to date."""
        return self._writes.write(self._path.name, self._replace)

    def _replace(self) -> None:
        """Writes the state at the begin of the write, on any thread, while the roster's own thread may change it."""
        # A join counts up the incarnations first, then enters the member, so that copies in the opposite order never
        # have a member with an incarnation that is not counted. Each copy is made without a break.
        joined, members = self._joined, list(self._members.values())
        slots, environments = list(self._slot_incarnations.items()), list(self._environment_incarnations.items())
        content = {
            "slots": slots,
            "environments": environments,
            "members": [_described(member.assignment) for member in members],
            "floor": self._floor,
            "ended": self._ended,
            **describe_identity(self.identity),
        }
        highest = max(self._floor, *(last for _, last in slots), *(last for _, last in environments), 0)
        data = encode_record(content)
        write_atomically(self._path, data)
        self._unrecorded_until, self._recorded = highest + _SPARE, joined
        write_atomically(copy_of(self._path), data)


class _Numbers:
    """Numbers from 0, of which the lowest free ones are taken. Both methods take logarithmic time per number."""

    def __init__(self, taken: Iterable[int] = ()) -> None:
        known = set(taken)
        self._next = max(known, default=-1) + 1
        self._free = [number for number in range(self._next) if number not in known]

    def take(self, count: int) -> tuple[int, ...]:
        """Returns the lowest free numbers, which are taken now."""
        taken = [heapq.heappop(self._free) for _ in range(min(count, len(self._free)))]
        more = count - len(taken)
        self._next += more
        return (*taken, *range(self._next - more, self._next))

    def release(self, numbers: Iterable[int]) -> None:
        """Makes taken numbers free."""
        for number in numbers:
            heapq.heappush(self._free, number)


def _described(place: Assignment) -> dict[str, object]:
    return {
        "slot": place.slot,
        "incarnation": place.incarnation,
        "environments": place.environments,
        "token": place.token.hex(),
        "variant": place.variant,
        "temperature": place.temperature,
    }
