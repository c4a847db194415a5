"""Makes a new run from a snapshot: its policy, its whole store and the run's settings, in new folders.

The new run continues at the snapshot's version, so that its segments are drawn as before. The old run is only read. The
folders get their names when they are complete.
"""

import contextlib
import fcntl
import functools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.learning.durable.journal import Journal
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.durable.run_progress import RunProgress, read_progress
from penstock.learning.durable.versions import VersionMark
from penstock.learning.members.roster import write_successor
from penstock.machine.file_systems import is_own_folder
from penstock.machine.files import make_folder, sync_folder, write_atomically
from penstock.machine.system_errors import in_words
from penstock.replay.snapshots.folder import Manifest, SnapshotFolder
from penstock.replay.snapshots.restoring import Restored, restore_store
from penstock.replay.store.description import Owner
from penstock.replay.store.layout import bytes_of
from penstock.runs.folder import RunFolder, of_service, replay_services
from penstock.runs.store_place import StorePlace, choose_place, record_place
from penstock.security.run_key import public_key
from penstock.types.run import RunIdentity
from penstock.types.snapshots import SnapshotProgress

Show = Callable[[str, SnapshotProgress], None]
"""Callback that receives the name of a replay service and the progress of its store."""


class RestoredRun(NamedTuple):
    """A run made from a snapshot: the policy version and the steps at which it continues, and its restored stores.

    `notes` are lines for the user about the place of the stores.
    """

    version: int
    env_steps: int
    stores: tuple[Restored, ...]
    notes: tuple[str, ...]


def restore_run(
    config: Config, name: str, *, into: Path, stores: Path | None = None, show: Show = lambda service, progress: None
) -> RestoredRun:
    """Makes a new run from the snapshot `name` in the new folder `into`, and its store in `stores`.

    Without `stores`, the store is where `penstock train` has it: in `into`, unless that is on a network file system.

    `config` has the settings of the new run, except `run.dir` and `replay.snapshot_folder`, which belong to the old
    run. `show` receives the progress of each store. Raises `ConfigurationError` if a folder exists or can't be written,
    or the snapshot is missing, damaged, or not of one moment. No new folder remains then.
    """
    run = RunFolder(Path(config.run.dir or "."))
    services = replay_services(config.train.replay_shards)
    root = Path(config.replay.snapshot_folder or run.snapshots)
    sources = [SnapshotFolder(of_service(root, service, len(services))) for service in services]
    manifests = [source.read(name) for source in sources]
    _check_belong_together(name, services, manifests)
    if stores is not None and into.resolve() in stores.resolve().parents:
        raise ConfigurationError(f"{stores} is in the new run's folder {into}; omit it, or name a folder elsewhere")
    place = StorePlace(stores) if stores is not None else choose_place(RunFolder(into), None)
    elsewhere = place.root != RunFolder(into).replay
    restored, identity = list[Restored](), RunIdentity.draw()
    # Recorded now, so that no other learner can be the first at the new stores.
    owner = Owner(identity.number, public_key(identity.key))
    try:
        with _built(into, *([place.root] if elsewhere else [])) as places:
            folder = RunFolder(places[0])
            new_root = places[1] if elsewhere else folder.replay
            for service, source, manifest in zip(services, sources, manifests, strict=True):
                store = of_service(new_root, service, len(services))
                size = bytes_of(config.replay.store_size, manifest.schema)
                shown = functools.partial(show, service)
                restored.append(restore_store(source, manifest, store, size, shown, owner=owner))
            progress = _write_run(folder, run, config, sources[0].policy(manifests[0]))
            write_successor(run.roster, folder.roster, [store.incarnations for store in restored], identity)
            if elsewhere and stores is None:
                record_place(folder, place)
            _check_still_there(name, sources, manifests)
    except OSError as error:
        reason = in_words(error, into, "choose another folder")
        raise ConfigurationError(f"can't restore snapshot {name!r} into {into}: {reason}") from None
    return RestoredRun(progress.version, progress.env_steps, tuple(restored), place.notes)


def _check_belong_together(name: str, services: list[str], manifests: list[Manifest]) -> None:
    """Checks that all services' snapshots were taken with the same policy, and at its version."""
    versions = {manifest.snapshot.version for manifest in manifests}
    policies = {(manifest.policy_version, manifest.policy_sha256) for manifest in manifests}
    if len(policies) > 1 or versions != {manifests[0].policy_version}:
        parts = ", ".join(
            f"{service}: policy {manifest.policy_version}, store {manifest.snapshot.version}"
            for service, manifest in zip(services, manifests, strict=True)
        )
        raise ConfigurationError(
            f"the parts of snapshot {name!r} were taken at different moments of the run (versions of {parts});"
            " choose another"
        )


def _check_still_there(name: str, sources: list[SnapshotFolder], manifests: list[Manifest]) -> None:
    """Checks that the snapshot was neither removed nor replaced while it was read, as periodic snapshots may do."""
    for source, manifest in zip(sources, manifests, strict=True):
        if source.read(name) != manifest:
            raise ConfigurationError(f"snapshot {name!r} in {source.root} was replaced while it was read; try again")


def _write_run(folder: RunFolder, run: RunFolder, config: Config, policy: bytes) -> RunProgress:
    """Writes all files of the run except the store and the roster; returns its progress."""
    folder.create()
    path = folder.checkpoints / "policy.safetensors"
    write_atomically(path, policy)
    progress = read_progress(path)
    path.rename(folder.checkpoint(progress.env_steps))
    if _is_of_before(run.best_checkpoint, progress):
        for source, copy in (run.best_measured, folder.best_measured), (run.best_checkpoint, folder.best_checkpoint):
            if source.exists():
                write_atomically(copy, source.read_bytes())
    # The new run keeps its snapshots in its own folder.
    own = config.repeatable().changed({"replay": {"snapshot_folder": None}})
    write_atomically(folder.config, own.to_toml().encode())
    if run.metrics.exists():
        shutil.copyfile(run.metrics, folder.metrics)
        # Drops the records after the snapshot.
        writes = RetriedWrites(lambda reason: None, folder=folder.root)
        Journal(folder.metrics, writes=writes, notice=lambda text: None).resume(progress.env_steps)
        writes.finish("restore the snapshot again")
    # Policy and store have this version, so the learner continues at it.
    mark = VersionMark(folder.versions)
    mark.use(progress.version)
    mark.settle()
    mark.close()
    return progress


def _is_of_before(best: Path, progress: RunProgress) -> bool:
    """Returns whether the old run's best checkpoint is not newer than the snapshot, and so belongs to both runs."""
    try:
        return read_progress(best).version <= progress.version
    except ConfigurationError:
        return False


@contextlib.contextmanager
def _built(*folders: Path) -> Iterator[list[Path]]:
    """Yields folders to fill, which get their names at the end, or are all removed if anything fails.

    Raises `ConfigurationError` if a folder exists or another process is filling it, `OSError` if it can't be made.
    """
    for folder in folders:
        if os.path.lexists(folder):
            raise ConfigurationError(f"{folder} exists already; name a folder that does not")
    places = [folder.with_name(f".{folder.name}.unfinished") for folder in folders]
    named: list[Path] = []
    with contextlib.ExitStack() as held:
        for place, folder in zip(places, folders, strict=True):
            held.enter_context(_held(place, folder))
        try:
            yield places
            for place, folder in zip(places, folders, strict=True):
                sync_folder(place)
                place.rename(folder)
                named.append(folder)
                sync_folder(folder.parent)
        except BaseException:
            for path in (*places, *named):
                shutil.rmtree(path, ignore_errors=True)
            raise


@contextlib.contextmanager
def _held(place: Path, folder: Path) -> Iterator[None]:
    """Makes an empty folder, and locks it against other processes inside the context."""
    make_folder(place)
    if not is_own_folder(place):
        raise ConfigurationError(f"{place} is a link or belongs to another user; remove it, or name another folder")
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another process is restoring a snapshot into {folder}; wait until it ends"
            ) from None
        # A process that was killed may have left files.
        for path in place.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        yield
    finally:
        os.close(descriptor)
