"""Locations of services, as hostile clients may send them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidSegment
from penstock.types.location import MAX_NAME, UNKNOWN, Location
from penstock.v1 import location_pb2
from penstock.wire.location import decode_location, encode_location

ADDRESSES = ("node1:9433", "10.0.0.1:1", "[fd77::11]:65535", "a-b_c.example.org:40001", f"{'n' * 253}:80")


@pytest.mark.parametrize("address", ["", *ADDRESSES])
def test_a_location_is_unchanged_by_its_message(address: str) -> None:
    location = Location("node-1", "12345_7", address)
    assert decode_location(location_pb2.Location.FromString(encode_location(location).SerializeToString())) == location


def test_a_message_of_an_older_release_is_an_unknown_location() -> None:
    assert decode_location(location_pb2.Location()) == UNKNOWN


@pytest.mark.parametrize("field", ["node", "job"])
@pytest.mark.parametrize(
    "name", ["n" * (MAX_NAME + 1), "node 1", "node\n1", "\x1b[31m", "node\u2028", "\u202enode", "\x00"]
)
def test_a_name_that_is_long_or_has_spaces_or_control_characters_is_refused(field: str, name: str) -> None:
    with pytest.raises(InvalidSegment, match=f"the name of a {field} has at most {MAX_NAME} printable characters"):
        decode_location(location_pb2.Location(**{field: name}))


@pytest.mark.parametrize(
    "address",
    [
        "node1",
        ":9433",
        "node1:",
        "node1:0",
        "node1:65536",
        "node1:9433/admin?x=1",
        "user@node1:9433",
        "http://node1:9433",
        "node1:9433,node2:9433",
        "fd77::11:9433",
        "[node1]:9433",
        "node1:9433\n",
        "node1:\u0661\u0662",
        "nöde:9433",
        f"{'n' * 254}:9433",
        "x" * 10**6,
    ],
)
def test_an_address_of_metrics_that_is_not_a_host_and_a_port_is_refused(address: str) -> None:
    with pytest.raises(InvalidSegment, match="must be host:port or ") as caught:
        decode_location(location_pb2.Location(metrics_address=address))
    assert len(str(caught.value)) < 200


@given(node=st.text(), address=st.one_of(st.text(), st.from_regex(r"\A[\w.:\[\]-]{1,30}:\d{1,6}\Z")))
def test_whatever_is_accepted_is_safe_to_show_and_to_request(node: str, address: str) -> None:
    try:
        location = decode_location(location_pb2.Location(node=node, metrics_address=address))
    except InvalidSegment:
        return
    assert location.node.isprintable() and not re.search(r"\s", location.node)
    assert re.fullmatch(r"[A-Za-z0-9._:\[\]-]*", location.metrics_address)
