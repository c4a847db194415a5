"""Where actors find the run's replay services, and which incarnations these accept, as they have said themselves."""

import asyncio
import time
from collections.abc import Callable, Sequence

from penstock.machine.addresses import ADDRESS_FILE, Address
from penstock.types.location import Place
from penstock.types.run import largest_incarnation

_CLOCKS_APART_S = 60.0
"""Largest difference allowed between the clocks of the learner and of a service that did not state its limit."""


class ReplayPlaces:
    """Places of the replay services. The learner's event loop writes; any thread may read.

    Actors are spread over the services by their slots, round-robin.
    """

    def __init__(
        self, configured: Sequence[str], *, on_one_host: bool = False, unix_s: Callable[[], float] = time.time
    ) -> None:
        """Creates unknown places of the services with these configured addresses.

        On one host, actors reach the services by these addresses as well, before the services have answered.
        """
        # The content of a file is known once the service has answered.
        self._configured = [() if each.startswith(ADDRESS_FILE) else (each,) for each in configured]
        self._unix_s = unix_s
        self._largest: list[tuple[int, float] | None] = [None] * len(self._configured)
        self._places = [Place(each) if on_one_host else Place() for each in self._configured]
        self._changed = asyncio.Event()

    @property
    def addresses(self) -> Sequence[Sequence[str]]:
        """Addresses of each service; the configured one, if there is one, until it has answered."""
        pairs = zip(self._places, self._configured, strict=True)
        return [place.addresses or configured for place, configured in pairs]

    @property
    def isolated(self) -> str:
        """Address of a service that clients on other hosts can't reach; empty if none is known."""
        known = (place.addresses for place in self._places if place.addresses)
        return next((each[0] for each in known if all(Address.parse(name).is_local for name in each)), "")

    def of_slot(self, slot: int) -> Place:
        """Returns the place of the service to which an actor in this slot sends its segments."""
        return self._places[slot % len(self._places)]

    def address(self, slot: int) -> str:
        """Returns the first address of a slot's service; empty if there is none yet."""
        return next(iter(self.addresses[slot % len(self._places)]), "")

    def note_incarnations(self, service: int, largest: int, now: float) -> None:
        """Records the largest incarnation that a service accepts at monotonic time `now`; 0 if it did not say."""
        self._largest[service] = (largest, now) if largest else None

    def largest_incarnation(self, slot: int, now: float) -> int:
        """Returns the largest incarnation that a slot's service accepts, by its own clock and not by the learner's.

        It grows by one per second. Without the service's word, it is a little below the number that the learner's clock
        implies.
        """
        known = self._largest[slot % len(self._largest)]
        if known is None:
            return largest_incarnation(self._unix_s() - _CLOCKS_APART_S)
        largest, heard_at = known
        return largest + int(now - heard_at)

    def note(self, service: int, place: Place) -> bool:
        """Records where a service is. Returns whether that is new."""
        if self._places[service] == place:
            return False
        self._places[service] = place
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    async def other_than(self, slot: int, place: Place) -> Place:
        """Waits until the service of a slot is at another place, and returns it."""
        while self.of_slot(slot) == place:
            await self._changed.wait()
        return self.of_slot(slot)
