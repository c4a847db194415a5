"""Who takes part in the run: slots, environment numbers, incarnations and tokens.

Replicas share one configuration, so somebody must number them. Bookkeeping with the clock passed in, called from one
thread. It is written to the run's folder before an assignment is given out: incarnations, and so random streams, never
repeat, and a learner that starts again knows its actors by their tokens.
"""

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigurationError, Overloaded, SchemaMismatch
from penstock.files import write_json
from penstock.types import Assignment, EnvironmentSpec, Schema


@dataclass(slots=True)
class _Member:
    assignment: Assignment
    streams: int
    """Usually one; two when a stream broke and its actor is back before this side has noticed."""
    left_at: float


def spread_temperatures(lowest: float, highest: float, actors: int) -> tuple[float, ...]:
    """The temperatures of a run's actors, by slot: lowest * (highest / lowest)^(i / (N - 1)) for the i-th of N.

    Geometric, as Ape-X spreads the epsilon of its actors (Horgan et al. 2018, section 4.1: epsilon^(1 + i / (N - 1)
    alpha), which is geometric in i too): what counts of a temperature is its ratio to 1. Some actors can stay close to
    the policy, whose data is worth most to it, while others see what it would not try.
    """
    if actors == 1:
        return (lowest,)
    return tuple(lowest * (highest / lowest) ** (actor / (actors - 1)) for actor in range(actors))


class Roster:
    """Gives every actor its place, and keeps it for one that comes back in time."""

    def __init__(
        self,
        path: Path,
        *,
        seed: int,
        replay_addresses: tuple[str, ...],
        max_actors: int,
        rejoin_timeout_s: float,
        now: float,
        variants: int = 1,
        temperatures: tuple[float, ...] = (1.0,),
    ) -> None:
        """Reads what an earlier process of the run left; its members may come back from `now` on.

        Actors are spread over replay services, environment variants and temperatures by slot, each going round by
        itself, so that one that comes back, and whoever takes the place of one that is gone, finds its own again.

        Raises:
            ConfigurationError: The file can't be read.
        """
        self._path = path
        self._seed, self._replay_addresses = seed, replay_addresses
        self._variants, self._temperatures = variants, temperatures
        self._max_actors, self._rejoin_timeout_s = max_actors, rejoin_timeout_s
        self._members: dict[bytes, _Member] = {}
        self._slot_incarnations: dict[int, int] = {}
        self._environment_incarnations: dict[int, int] = {}
        self.schema: Schema | None = None
        self.spec: EnvironmentSpec | None = None
        if path.exists():
            self._read(now)

    @property
    def connected(self) -> int:
        """Actors with an open stream."""
        # The training thread asks this too: a copy, since an actor may join meanwhile.
        return sum(member.streams > 0 for member in list(self._members.values()))

    @property
    def largest_window(self) -> int:
        """Environments of the actor that has most; 0 while there is none."""
        members = list(self._members.values())
        return max((len(member.assignment.environments) for member in members), default=0)

    def join(self, schema: Schema, spec: EnvironmentSpec, environments: int, token: bytes, now: float) -> Assignment:
        """Takes an actor in: as whom it was, if its token is still good, else as somebody new.

        Raises:
            SchemaMismatch: The schema or the spaces differ from the run's.
            Overloaded: All slots are taken.
        """
        self._check(schema, spec)
        self._forget_the_gone(now)
        member = self._members.get(token)
        if member is None or len(member.assignment.environments) != environments:
            member = self._admit(environments, now)
        member.streams += 1
        self.schema, self.spec = schema, spec
        return member.assignment

    def leave(self, assignment: Assignment, now: float) -> None:
        """Notes that an actor's stream has ended; its place is kept for `rejoin_timeout_s`."""
        member = self._members.get(assignment.token)
        if member is not None:
            member.streams -= 1
            member.left_at = now

    def dismiss(self) -> None:
        """At a clean end: nobody is expected back."""
        self._members.clear()
        self._write()

    def _assignment(self, slot: int, incarnation: int, environments: tuple[int, ...], token: bytes) -> Assignment:
        return Assignment(
            slot=slot,
            incarnation=incarnation,
            environments=environments,
            token=token,
            seed=self._seed,
            replay_address=self._replay_addresses[slot % len(self._replay_addresses)],
            variant=slot % self._variants,
            temperature=self._temperatures[slot % len(self._temperatures)],
        )

    def _admit(self, environments: int, now: float) -> _Member:
        slot = _lowest_free({member.assignment.slot for member in self._members.values()}, 1)[0]
        if slot >= self._max_actors:
            raise Overloaded(f"all {self._max_actors} slots are taken; raise learner.max_actors for more actors")
        taken = {number for member in self._members.values() for number in member.assignment.environments}
        numbers = _lowest_free(taken, environments)
        assignment = self._assignment(slot, self._next_incarnation(slot, numbers), numbers, secrets.token_bytes(16))
        member = self._members[assignment.token] = _Member(assignment, 0, now)
        self._write()
        return member

    def _next_incarnation(self, slot: int, environments: tuple[int, ...]) -> int:
        """One above all that the slot and the environments have had.

        Counted for each, rather than for the run, so that the first streams of an environment are the same however the
        environments are spread over actors.
        """
        earlier = [self._environment_incarnations.get(number, 0) for number in environments]
        incarnation = 1 + max(self._slot_incarnations.get(slot, 0), *earlier)
        self._slot_incarnations[slot] = incarnation
        self._environment_incarnations |= dict.fromkeys(environments, incarnation)
        return incarnation

    def _check(self, schema: Schema, spec: EnvironmentSpec) -> None:
        if self.spec is not None and spec != self.spec:
            raise SchemaMismatch(
                f"this run trains {self.spec.id} with its spaces, and the actor brought {spec.id}; start actors with"
                " the run's configuration"
            )
        if self.schema is not None and schema != self.schema:
            raise SchemaMismatch(
                f"this run's segments have {self.schema.unroll_length} steps and schema {self.schema.hash:016x}, the"
                f" actor's {schema.unroll_length} steps and {schema.hash:016x}; start actors with the run's"
                " configuration"
            )

    def _forget_the_gone(self, now: float) -> None:
        self._members = {
            token: member
            for token, member in self._members.items()
            if member.streams or now - member.left_at <= self._rejoin_timeout_s
        }

    def _read(self, now: float) -> None:
        try:
            stored = json.loads(self._path.read_text())
            self._slot_incarnations = {int(slot): int(last) for slot, last in stored["slots"]}
            self._environment_incarnations = {int(number): int(last) for number, last in stored["environments"]}
            for entry in stored["members"]:
                assignment = self._assignment(
                    entry["slot"], entry["incarnation"], tuple(entry["environments"]), bytes.fromhex(entry["token"])
                )
                exploration = (assignment.variant, assignment.temperature)
                # Under another variant or temperature it would begin again as whom it was, and repeat its sequence
                # numbers: as somebody new it does not.
                if (entry.get("variant", 0), entry.get("temperature", 1.0)) == exploration:
                    self._members[assignment.token] = _Member(assignment, 0, now)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"can't read the roster {self._path}: {error}") from None

    def _write(self) -> None:
        members = [
            {
                "slot": member.assignment.slot,
                "incarnation": member.assignment.incarnation,
                "environments": member.assignment.environments,
                "token": member.assignment.token.hex(),
                "variant": member.assignment.variant,
                "temperature": member.assignment.temperature,
            }
            for member in self._members.values()
        ]
        slots, environments = list(self._slot_incarnations.items()), list(self._environment_incarnations.items())
        write_json(self._path, {"slots": slots, "environments": environments, "members": members})


def _lowest_free(taken: set[int], count: int) -> tuple[int, ...]:
    free: list[int] = []
    candidate = 0
    while len(free) < count:
        if candidate not in taken:
            free.append(candidate)
        candidate += 1
    return tuple(free)
