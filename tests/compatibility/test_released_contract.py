"""The contract keeps what a release with the same number has: fields, their numbers and types, and what may be absent.

A change that breaks this needs the next number in `rpc/contract.py`, with which services of the release are refused.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet

import penstock
from penstock.errors import InvalidSegment
from penstock.rpc.contract import CONTRACT, contract_of
from penstock.v1 import evaluation_pb2, replay_pb2, run_pb2
from penstock.wire import run as wire
from tests.compatibility import decoding, openings
from tests.compatibility.messages import HERE, earlier, read_messages

RELEASES = sorted(folder.parent.name for folder in HERE.glob("*/decoded.json"))
NEXT = "; keep it, or give the contract its next number in rpc/contract.py"


def contract_of_release(name: str) -> int:
    return contract_of(openings.opening_of(HERE / name, "AppendSegments").parsed)


SAME_CONTRACT = [name for name in RELEASES if contract_of_release(name) == CONTRACT]


def described(name: str) -> FileDescriptorSet:
    return FileDescriptorSet.FromString((HERE / name / "contract.binpb").read_bytes())


def present() -> FileDescriptorSet:
    files = FileDescriptorSet()
    seen: set[str] = set()
    waiting: list[Any] = [evaluation_pb2.DESCRIPTOR, replay_pb2.DESCRIPTOR, run_pb2.DESCRIPTOR]
    while waiting:
        file = waiting.pop()
        if file.name not in seen:
            seen.add(file.name)
            file.CopyToProto(files.file.add())
            waiting.extend(file.dependencies)
    return files


def messages_of(files: FileDescriptorSet) -> Iterator[tuple[str, DescriptorProto]]:
    for file in files.file:
        waiting = [(f"{file.package}.{each.name}", each) for each in file.message_type]
        while waiting:
            name, message = waiting.pop()
            yield name, message
            waiting += [(f"{name}.{each.name}", each) for each in message.nested_type]


def enums_of(files: FileDescriptorSet) -> Iterator[tuple[str, EnumDescriptorProto]]:
    for file in files.file:
        yield from ((f"{file.package}.{each.name}", each) for each in file.enum_type)
    for name, message in messages_of(files):
        yield from ((f"{name}.{each.name}", each) for each in message.enum_type)


def facts(files: FileDescriptorSet) -> dict[str, object]:
    """Returns all that two sides must agree on, by name: fields, values of enumerations and methods."""
    found: dict[str, object] = {}
    for name, message in messages_of(files):
        for field in message.field:
            found[f"{name}.{field.name}"] = _meaning(message, field)
    for name, enum in enums_of(files):
        found |= {f"{name}.{value.name}": value.number for value in enum.value}
    for file in files.file:
        for service in file.service:
            for each in service.method:
                path = f"{file.package}.{service.name}/{each.name}"
                found[path] = (each.input_type, each.output_type, each.client_streaming, each.server_streaming)
    return found


def _meaning(message: DescriptorProto, field: FieldDescriptorProto) -> tuple[object, ...]:
    oneof = ""
    if field.HasField("oneof_index") and not field.proto3_optional:
        oneof = message.oneof_decl[field.oneof_index].name
    return field.number, field.type, field.type_name, field.label, field.proto3_optional, oneof


def broken(released: FileDescriptorSet, now: FileDescriptorSet) -> list[str]:
    """Returns what a contract has lost or changed, in one line each."""
    before, after = facts(released), facts(now)
    lines = [f"{name} was {fact} and is {after.get(name, 'gone')}" for name, fact in before.items()]
    lines = [line for line, (name, fact) in zip(lines, before.items(), strict=True) if after.get(name) != fact]
    fields = {name: fact for name, fact in before.items() if isinstance(fact, tuple) and len(fact) == 6}
    taken = {(name.rpartition(".")[0], fact[0]): name for name, fact in fields.items()}
    for name, fact in after.items():
        if isinstance(fact, tuple) and len(fact) == 6:
            other = taken.get((name.rpartition(".")[0], fact[0]))
            if other not in (None, name):
                lines.append(f"{name} has number {fact[0]}, which was that of {other}")
    return lines


def test_the_present_version_has_recorded_its_contract() -> None:
    how = "record it (CONTRIBUTING.md, Releases); another number of the contract needs another version"
    assert penstock.__version__ in SAME_CONTRACT, how


@pytest.mark.parametrize("name", SAME_CONTRACT)
def test_no_field_of_a_release_with_the_same_number_is_changed_or_removed(name: str) -> None:
    lost = broken(described(name), present())
    assert not lost, "\n".join(lost) + NEXT


def _rename(files: FileDescriptorSet) -> None:
    _field(files).name = "renamed"


def _renumber(files: FileDescriptorSet) -> None:
    _field(files).number = 199


def _retype(files: FileDescriptorSet) -> None:
    _field(files).type = FieldDescriptorProto.TYPE_BYTES


def _repeat(files: FileDescriptorSet) -> None:
    _field(files).label = FieldDescriptorProto.LABEL_REPEATED


def _remove(files: FileDescriptorSet) -> None:
    del _hello(files).field[:]


def _remove_method(files: FileDescriptorSet) -> None:
    service = next(service for file in files.file for service in file.service)
    del service.method[0]


def _shift_enumeration(files: FileDescriptorSet) -> None:
    next(enum for _, enum in enums_of(files)).value[0].number = 77


def _hello(files: FileDescriptorSet) -> DescriptorProto:
    return next(message for name, message in messages_of(files) if name == "penstock.v1.Hello")


def _field(files: FileDescriptorSet) -> FieldDescriptorProto:
    return next(field for field in _hello(files).field if field.name == "name")


@pytest.mark.parametrize("change", [_rename, _renumber, _retype, _repeat, _remove, _remove_method, _shift_enumeration])
def test_each_kind_of_change_is_found(change: Callable[[FileDescriptorSet], None]) -> None:
    files = present()
    assert not broken(present(), files)
    change(files)
    assert broken(present(), files)


def test_a_new_field_is_no_change_and_a_reused_number_is_one() -> None:
    files = present()
    _hello(files).field.add(name="added", number=150, type=FieldDescriptorProto.TYPE_BOOL)
    assert not broken(present(), files)
    released, hello = present(), _hello(present())
    number = hello.field[0].number
    del _hello(files).field[0]
    _hello(files).field.add(name="other", number=number, type=hello.field[0].type)
    assert any("which was that of" in line for line in broken(released, files))


@pytest.mark.parametrize("name", SAME_CONTRACT)
def test_messages_of_a_release_with_the_same_number_are_decoded_to_the_same_values(name: str) -> None:
    messages, golden = read_messages(HERE / name), json.loads((HERE / name / "decoded.json").read_text())
    assert len(messages) == len(golden) > 20
    for index, (message, released) in enumerate(zip(messages, golden, strict=True)):
        now = decoding.values(message, earlier(messages, index))
        assert decoding.contains(now, released), f"{message.method} {message.direction} {index}{NEXT}"


def newly_mandatory(folder: Path) -> list[str]:
    """Returns the fields that messages of a release may lack, and without which the present code refuses them."""
    messages, golden = read_messages(folder), json.loads((folder / "accepted.json").read_text())
    found = []
    for index, (message, released) in enumerate(zip(messages, golden, strict=True)):
        now = decoding.accepted(message, earlier(messages, index))
        found += [f"{message.method} {message.direction}: {path}" for path in released if path not in now]
    return found


@pytest.mark.parametrize("name", SAME_CONTRACT)
def test_no_field_that_a_release_with_the_same_number_may_leave_out_has_become_mandatory(name: str) -> None:
    found = newly_mandatory(HERE / name)
    assert not found, "\n".join(found) + NEXT


def test_a_field_that_becomes_mandatory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    decode_hello = wire.decode_hello

    def strict(message: run_pb2.JoinRequest) -> object:
        if not message.hello.name:
            raise InvalidSegment("an actor must have a name")
        return decode_hello(message)

    folder = HERE / penstock.__version__
    before = newly_mandatory(folder)
    monkeypatch.setattr(wire, "decode_hello", strict)
    assert set(newly_mandatory(folder)) - set(before) == {"/penstock.v1.RunService/Join request: hello.name"}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SAME_CONTRACT)
def test_services_that_continue_a_run_of_a_release_admit_its_actor_and_demand_no_more_of_it(name: str) -> None:
    released = json.loads((HERE / name / "openings.json").read_text())
    refusals = openings.refusals(HERE / name)
    for method, paths in released.items():
        refused = {path: refusals[method][path] for path in paths if refusals[method][path]}
        assert not refused, f"{method}: {refused}{NEXT}"
