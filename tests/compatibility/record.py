"""Writes the files of a release into its folder here: `python -m tests.compatibility.record NAME`.

It trains a small run, and then a second one with individually started services, whose messages pass through a proxy
that keeps the first ones. With `--code FOLDER` these are the services of another commit, checked out in that folder.
The folder of a release has:

run/            folder of a finished run, without logs and with few records
services.tar.xz `store/` of a replay service, with a snapshot, and `services/`, the folder of its run (*)
messages.jsonl  first messages of one call of each method, one per line (`messages.Recorded`)
contract.binpb  descriptors of `proto/`
decoded.json    values of the messages as the release reads them, and in `accepted.json` the fields that they may lack
                (`decoding`); `openings.json`: the fields that the openings of actors may lack (`openings`) (*)
settings.txt    names of all settings (*)

Those with (*) are not written for another commit.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from penstock.config import setting_names
from penstock.runs.folder import RunFolder
from tests.compatibility import decoding, openings
from tests.compatibility.messages import HERE, Recorded, earlier, read_messages, write_messages
from tests.compatibility.services import ROOT, Release, options_of
from tests.support.machine.timing import wait_for_run
from tests.support.services.ports import free_ports

SNAPSHOT = "recorded"
_DESCRIPTORS = """
import sys
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from penstock.v1 import evaluation_pb2, replay_pb2, run_pb2
files, waiting = {}, [evaluation_pb2.DESCRIPTOR, replay_pb2.DESCRIPTOR, run_pb2.DESCRIPTOR]
while waiting:
    file = waiting.pop()
    if file.name not in files:
        files[file.name] = file
        waiting.extend(file.dependencies)
found = FileDescriptorSet()
for name in sorted(files):
    files[name].CopyToProto(found.file.add())
sys.stdout.buffer.write(found.SerializeToString())
"""
_ADVERTISES = "import penstock.config; print('advertise' in penstock.config.ReplayConfig.model_fields, end='')"

_KEPT = 3
"""Messages of a call in one direction that are kept."""

_LARGEST_BYTES = 6_000


Streams = dict[tuple[str, int], list[Recorded]]
"""First messages of each call, by the path of its method and its number among all calls."""


class Proxy(grpc.GenericRpcHandler):
    """A proxy of one service, which keeps the first messages of each call in each direction."""

    def __init__(self, port: int, service: int, kept: Streams) -> None:
        self._kept, self._lock = kept, threading.Lock()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{service}")
        self._server = grpc.server(ThreadPoolExecutor(64))
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait()
        self._channel.close()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        return grpc.stream_stream_rpc_method_handler(lambda requests, context: self._forward(method, requests, context))

    def _forward(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._lock:
            noted = self._kept.setdefault((method, len(self._kept)), [])
        stub: Any = self._channel.stream_stream(method)
        # With these a service recognises a proxy, and does not move the stream to a direct socket, past the proxy.
        own = [(key, value) for key, value in context.invocation_metadata() if key.startswith("penstock-")]
        call = stub(self._noted(noted, method, "request", requests), metadata=own)
        context.add_callback(call.cancel)
        try:
            context.send_initial_metadata(call.initial_metadata())
            yield from self._noted(noted, method, "response", call)
        except grpc.RpcError as failed:
            error: Any = failed
            context.set_trailing_metadata(error.trailing_metadata() or ())
            context.abort(error.code(), error.details() or "")

    def _noted(self, noted: list[Recorded], method: str, direction: str, messages: Iterator[bytes]) -> Iterator[bytes]:
        for message in messages:
            with self._lock:
                if sum(each.direction == direction for each in noted) < _KEPT and len(message) <= _LARGEST_BYTES:
                    noted.append(Recorded(method, direction, message))
            yield message


def record(name: str, code: Path, python: str, *, is_this: bool) -> None:
    """Writes all files of a release into the folder `name` here."""
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    with tempfile.TemporaryDirectory(prefix="penstock-") as temporary:
        release = Release(Path(temporary), code, python)
        _record_run(release, target)
        messages = _record_services(release, target, is_this=is_this)
        (target / "contract.binpb").write_bytes(release.output(_DESCRIPTORS))
    write_messages(target, messages)
    if is_this:
        _record_meaning(target)


def _record_run(release: Release, target: Path) -> None:
    release.penstock("train", "--run.dir", "run")
    run = release.folder / "run"
    for name in ("logs", "learning_curve.png", "report.html", "videos"):
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    few = [line for line in lines if '"training"' not in line]
    training = [line for line in lines if '"training"' in line]
    metrics.write_text("".join([*training[:2], *few, *training[-1:]]))
    shutil.copytree(run, target / "run")


def _record_services(release: Release, target: Path, *, is_this: bool) -> list[Recorded]:
    """Runs the services behind proxies; keeps their messages, and the store with a snapshot."""
    kept: Streams = {}
    replay, learner, to_replay, to_learner = free_ports(4)
    options = options_of(replay, learner, seen_replay=to_replay, seen_learner=to_learner)
    # Without the run's folder, which has the learner's own address.
    of_snapshots = options[2:]
    if release.output(_ADVERTISES) == b"True":
        # Actors get the address from the service itself, and the run's folder has the one that the learner advertises.
        ends = {"replay": to_replay, "learner": to_learner}
        options += [each for name, port in ends.items() for each in (f"--{name}.advertise", f"127.0.0.1:{port}")]
        of_snapshots = options
    with contextlib.ExitStack() as stack:
        for proxy in (Proxy(to_replay, replay, kept), Proxy(to_learner, learner, kept)):
            stack.callback(proxy.close)
        alive = stack.enter_context(release.services(("replay", "learner", "actor", "evaluator"), options))
        wait_for_run(lambda: alive() and _has(kept, "RunEvaluations", "request", 2), "an evaluation")
        wait_for_run(lambda: alive() and _has(kept, "SampleBatches", "response", _KEPT), "batches")
        release.penstock("replay", "snapshot", SNAPSHOT, *of_snapshots)
        release.penstock("replay", "snapshots", *of_snapshots)
    services = RunFolder(release.folder / "services")
    shutil.rmtree(services.logs, ignore_errors=True)
    services.metrics.unlink()
    with tarfile.open(target / "services.tar.xz", "w:xz") as archive:
        for name in ("services", "store") if is_this else ("store",):
            archive.add(release.folder / name, name)
    return _longest(kept)


def _longest(kept: Streams) -> list[Recorded]:
    """Returns the messages of one call of each method: of the longest, as others may be failures."""
    chosen: dict[str, list[Recorded]] = {}
    for (method, _), messages in sorted(kept.items(), key=lambda item: item[0][1]):
        if not method.startswith("/grpc.") and len(messages) > len(chosen.get(method, [])):
            chosen[method] = messages
    return [message for method in sorted(chosen) for message in chosen[method]]


def _has(kept: Streams, method: str, direction: str, count: int) -> bool:
    return any(
        name.endswith(method) and sum(each.direction == direction for each in tuple(messages)) >= count
        for (name, _), messages in tuple(kept.items())
    )


def _record_meaning(target: Path) -> None:
    """Writes what this checkout makes of the messages that it has sent."""
    messages = read_messages(target)
    decoded, lenient = [], []
    for index, message in enumerate(messages):
        before = earlier(messages, index)
        decoded.append(decoding.values(message, before))
        lenient.append(decoding.accepted(message, before))
    (target / "decoded.json").write_text(json.dumps(decoded, indent=1) + "\n")
    (target / "accepted.json").write_text(json.dumps(lenient, indent=1) + "\n")
    (target / "openings.json").write_text(json.dumps(openings.accepted(target), indent=1) + "\n")
    (target / "settings.txt").write_text("".join(f"{name}\n" for name in sorted(setting_names())))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the files of a release into its folder here.")
    parser.add_argument("name", help="folder of the release: its version, or a commit")
    parser.add_argument("--code", type=Path, help="checkout of another commit to record (default: this one)")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the dependencies of that commit")
    named = parser.parse_args()
    record(named.name, (named.code or ROOT).resolve(), named.python, is_this=named.code is None)


if __name__ == "__main__":
    main()
