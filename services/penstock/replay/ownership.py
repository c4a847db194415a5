"""Who may use a store: the learner of its run, which proves the run's key, at a version that follows the store's."""

from penstock.errors import PermissionDenied, SchemaMismatch, Unavailable
from penstock.machine.system_errors import in_words
from penstock.replay.store.description import NO_OWNER, Owner
from penstock.replay.store.ring_store import RingStore
from penstock.types.replay import SamplingPlan
from penstock.types.run import LARGEST_VERSION_JUMP

VERSIONS_AHEAD = LARGEST_VERSION_JUMP + 1_000
"""Maximum number of versions by which a learner may begin above the store's version.

A learner can skip `LARGEST_VERSION_JUMP` numbers and a few hundred more: each power cut costs 100
(`learning.durable.versions`), and its last commits may not have arrived.
"""


class Ownership:
    """The run of a store. Its methods are called under the buffer's lock, except `check_holder`."""

    def __init__(self, store: RingStore) -> None:
        self._store = store

    def check_holder(self, call: str, prover: bytes) -> None:
        """Checks that the caller holds the key of the store's run. A store without a run admits every caller.

        Args:
            call: Name of the call.
            prover: Public half of the key that the caller has proved; empty if none.

        Raises:
            PermissionDenied: The caller has not proved that key.
        """
        owner = self._store.owner
        if owner.run and (not prover or prover != owner.key):
            raise _unproved(call, owner.run, prover)

    def check_run(self, plan: SamplingPlan) -> None:
        """Raises `SchemaMismatch` if the plan belongs to another run than the store's data."""
        run = self._store.owner.run
        if self._is_taken and run and plan.run != run:
            theirs = f"run {plan.run:016x}" if plan.run else "a run without an identity"
            raise SchemaMismatch(
                f"this store belongs to run {run:016x}, and the learner to {theirs}; resume the former, or"
                " give the latter another replay.folder"
            )

    def owner_of(self, plan: SamplingPlan, prover: bytes) -> Owner:
        """Returns the owner that a plan would give the store.

        `prover` is as for `check_holder`. Raises `PermissionDenied` if the plan of a run comes without a proof of the
        run's key.
        """
        owner, known = Owner(plan.run, prover) if plan.run else NO_OWNER, self._store.owner.key
        if owner.run and (not owner.key or (self._is_taken and known and owner.key != known)):
            raise _unproved("SampleBatches", owner.run, owner.key)
        return owner

    def record(self, owner: Owner) -> None:
        """Gives the store this owner. Raises `Unavailable` if it can't be recorded."""
        if owner == self._store.owner:
            return
        try:
            self._store.belong_to(owner)
        except OSError as error:
            raise Unavailable(
                f"the run of the store can't be recorded in {self._store.folder}: {in_words(error, self._store.folder)}"
            ) from None

    def check_version(self, plan: SamplingPlan, version: int) -> None:
        """Raises `SchemaMismatch` if a new session begins below the store's version or too far above it.

        A learner that resumes a run begins above all versions that it may have published. A session may begin a store
        without data at any version.
        """
        if not self._is_taken or version <= plan.next_batch <= version + VERSIONS_AHEAD:
            return
        found = f"this store was trained up to version {version}, and the learner begins at {plan.next_batch}"
        if not self._store.owner.run:
            remedy = "the store may be another run's: resume that run"
        elif plan.next_batch < version:
            remedy = "both are of this run, whose folder lacks its newest files: restore these"
        else:
            remedy = "both are of this run, and the store is an older copy: restore the newer one"
        if plan.next_batch > version:
            found = f"the learner begins at version {plan.next_batch}, and this store was trained up to {version}"
        remedy += ", or give the learner another replay.folder"
        if self._store.folder is not None:
            remedy += (
                "; to keep this store, stop its service and run penstock replay reset-version"
                f" {self._store.folder} --to {plan.next_batch}"
            )
        raise SchemaMismatch(f"{found}; {remedy}")

    @property
    def _is_taken(self) -> bool:
        """Whether the store has had an actor. Until then it holds no data, and may pass to another run."""
        return self._store.schema is not None


def _unproved(call: str, run: int, prover: bytes) -> PermissionDenied:
    came = "with a proof of another key" if prover else "without one"
    return PermissionDenied(
        f"{call} needs a proof of the key of run {run:016x}, and came {came}; only the run's learner has the key, in"
        " identity.json of the run's folder"
    )
