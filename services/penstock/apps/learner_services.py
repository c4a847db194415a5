"""What serves a run at its learner, from the start to the stop: the server, and the lists that lead others to it."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from penstock.config.added_variants import check_added
from penstock.learning.durable.progress_log import ProgressLog
from penstock.learning.members.population import Population
from penstock.learning.members.replay_places import ReplayPlaces
from penstock.learning.members.roster import Roster, spread_temperatures
from penstock.learning.members.targets import Targets
from penstock.learning.run.run_snapshots import RunSnapshots
from penstock.learning.run.session import Session
from penstock.machine.addresses import Address, advertised
from penstock.machine.files import READABLE_FILE, write_json
from penstock.process.disk_watch import DiskWatch
from penstock.process.service import Service
from penstock.rpc.clients.replay_watch import ReplayWatch
from penstock.rpc.clients.snapshots import StoreSnapshots
from penstock.rpc.loop import LoopThread
from penstock.rpc.proofs import public_half
from penstock.rpc.servicers.run import RunServicer
from penstock.rpc.servicers.run_snapshots import RunSnapshotServicer
from penstock.rpc.servicers.variants import VariantServicer
from penstock.runs.services_file import ServicesFile, replay_peers
from penstock.types.location import Place


@dataclass(frozen=True, slots=True)
class RunServices:
    """What serves a run: the thread of its connections, its actors and its answers, and two clients of its stores."""

    thread: LoopThread
    roster: Roster
    servicer: RunServicer
    snapshots: RunSnapshots
    watch: ReplayWatch
    population: Population | None


@contextlib.contextmanager
def serving(session: Session, service: Service) -> Iterator[RunServices]:
    """Serves actors, evaluators and status requests inside the context. What is started last is stopped first.

    Raises `ConfigurationError` if an address is not available, or the certificate does not cover one.
    """
    config, settings, roster = session.config, session.config.learner, _roster_of(session)
    with contextlib.ExitStack() as stack:
        targets = stack.enter_context(_listed_for_prometheus(session, service))
        thread = LoopThread(service.credentials)
        stack.callback(thread.close)
        desk = StoreSnapshots(thread, replay_peers(settings), roster.identity.key)
        stack.callback(desk.close)
        snapshots = RunSnapshots(desk, session.statistics, interval_s=config.checkpoint.snapshot_interval_s)
        places = ReplayPlaces(settings.replay_addresses, on_one_host=service.supervised)
        public_key = b"" if service.credentials else public_half(roster.identity.key)
        population = _population_of(session) if config.varies_episodes else None
        servicer = RunServicer(
            thread,
            roster,
            session.statistics,
            targets,
            places,
            max_actors=settings.max_actors,
            population=population,
            more_methods={
                **RunSnapshotServicer(snapshots, public_key).behaviours,
                **VariantServicer(population, session.statistics, public_key).behaviours,
            },
        )
        server = servicer.server
        ready_file = config.telemetry.ready_file
        thread.run(server.start(settings.listen, ready_file, settings.health_listen, settings.stream_port))
        stack.callback(lambda: thread.run(server.stop()))
        disk_watch = DiskWatch(session.folder.root, lambda sound: thread.run(server.report_storage(sound)))
        stack.callback(disk_watch.close)
        own = Place(advertised(server.address, settings.advertise), servicer.identity)
        service.check_names(own.addresses)
        file = None
        # A launcher lists the services itself, and shows the progress.
        if not service.supervised:
            file = ServicesFile(session.folder, own, places, certified=service.credentials is not None)
            stack.callback(file.remove)
            progress = ProgressLog(session.statistics.status, service.logger)
            stack.callback(progress.close)
        note_places = partial(_note_places, session, server.address, places, file)
        note_places()
        watch = ReplayWatch(thread, replay_peers(settings), places, note_places, partial(targets.put, "replay"))
        stack.callback(watch.close)
        yield RunServices(thread, roster, servicer, snapshots, watch, population)


def _roster_of(session: Session) -> Roster:
    config, settings = session.config, session.config.learner
    roster = Roster(
        session.folder.roster,
        seed=config.run.seed,
        max_actors=settings.max_actors,
        rejoin_timeout_s=settings.rejoin_timeout_s,
        now=time.monotonic(),
        writes=session.writes,
        notice=session.statistics.notice,
        expected=session.recovered.path is not None,
        variants=1 if config.varies_episodes else max(1, len(config.environment.variants)),
        temperatures=spread_temperatures(
            config.actor.lowest_temperature, config.actor.highest_temperature, config.train.least_actors
        ),
    )
    roster.spec = session.recovered.spec
    return roster


def _population_of(session: Session) -> Population:
    config, statistics = session.config, session.statistics
    population = Population(
        session.folder.variants,
        config.environment.variants,
        check=partial(check_added, config.environment),
        least_share=config.sampling.least_share,
        writes=session.writes,
        notice=statistics.notice,
    )
    statistics.notice(
        f"{len(population.active)} variants in turn: each episode is of the one with the fewest steps for its share"
        " (environment.vary)"
    )
    statistics.play_in_turn(lambda: [(each.number, each.name, each.share) for each in population.active])
    return population


@contextlib.contextmanager
def _listed_for_prometheus(session: Session, service: Service) -> Iterator[Targets]:
    """Lists the metrics addresses of the run's services in its folder inside the context."""
    file = session.folder.targets
    targets = Targets(
        # Prometheus may be another user's.
        lambda content: session.writes.write(file.name, partial(write_json, file, content, READABLE_FILE)),
        service.location,
    )
    try:
        yield targets
    finally:
        targets.close()
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def _note_places(session: Session, own: Address, places: ReplayPlaces, file: ServicesFile | None) -> None:
    """Lists the replay services in the file, and tells the user of one that actors elsewhere can't reach."""
    if file is not None:
        session.writes.write(session.folder.services.name, file.write)
    if places.isolated and not own.is_local:
        session.statistics.notice(
            f"the replay service at {places.isolated} can be reached from its own host only, so actors on other"
            " hosts can't send to it; set its replay.listen to 0.0.0.0:7431, or replay.advertise"
        )
