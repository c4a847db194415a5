"""Services of another contract are refused by the first message of each stream, in one line with the right reason."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.errors import ConfigurationError
from penstock.rpc import methods
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.contract import CONTRACT, contract_of
from penstock.telemetry import logs
from tests.compatibility.messages import HERE, Recorded, read_messages
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.segments import SCHEMA
from tests.support.services.servers import Loopback, assignment, until

OTHERS = {
    name: number
    for name in sorted(folder.parent.name for folder in HERE.glob("*/messages.jsonl"))
    if (
        number := next(
            contract_of(each.parsed) for each in read_messages(HERE / name) if each.method.endswith("/AppendSegments")
        )
    )
    != CONTRACT
}
"""Contract numbers of releases with another one than the present; 0: none."""

STREAMS = [
    methods.APPEND_SEGMENTS,
    methods.SAMPLE_BATCHES,
    methods.TAKE_SNAPSHOT,
    methods.JOIN,
    methods.RUN_EVALUATIONS,
]
_HAS = {0: "no contract number (0)"}


def first(name: str, path: str, direction: str) -> Recorded | None:
    found = (each for each in read_messages(HERE / name) if (each.method, each.direction) == (path, direction))
    return next(found, None)


@pytest.fixture
def loopback() -> Any:
    with Loopback() as loopback:
        yield loopback


def refusal(name: str) -> str:
    number = OTHERS[name]
    return f"has {_HAS.get(number, f'contract {number}')}, and its peer has contract {CONTRACT}; update the older"


def test_a_release_of_each_earlier_number_is_kept() -> None:
    assert set(OTHERS.values()) >= set(range(CONTRACT))


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, method) for name in OTHERS for method in STREAMS if first(name, method.path, "request") is not None],
    ids=lambda each: getattr(each, "name", each),
)
def test_a_client_of_another_contract_is_refused_in_one_line_with_both_numbers(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, method: Any
) -> None:
    opening = first(name, method.path, "request")
    assert opening is not None
    noted: list[str] = []
    monkeypatch.setattr(logs, "note", lambda event, **more: noted.append(str(more.get("reason", ""))))
    of_learner = method.service in (methods.RUN, methods.EVALUATION)
    server = loopback.run(tmp_path / "roster.json") if of_learner else loopback.replay()
    client = loopback.plain(server, method, contract=0)
    client.send(opening.data)
    code, details = client.status()
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert refusal(name) in details
    assert "\n" not in details
    assert details in noted


@pytest.mark.parametrize("name", OTHERS)
def test_a_server_of_another_contract_is_refused_in_one_line_with_both_numbers(loopback: Loopback, name: str) -> None:
    response = first(name, methods.APPEND_SEGMENTS.path, "response")
    assert response is not None

    async def answer(requests: AsyncIterator[Any], context: Any) -> None:
        await anext(requests)
        await context.call.write(response.data)
        async for _ in requests:
            pass

    server = loopback.methods({methods.APPEND_SEGMENTS: answer})
    sink = ReplaySegmentSink(loopback.thread, assignment(0, server.address), SCHEMA)
    with pytest.raises(ConfigurationError, match=re.escape(refusal(name))) as refused:
        until(lambda: sink.next_grant(PATIENCE_S), "the server to be refused")
    assert "\n" not in str(refused.value)
    sink.close()
