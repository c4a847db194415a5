import socket
from pathlib import Path

import pytest

from penstock.machine.addresses import (
    Address,
    advertised,
    client_host,
    is_loopback,
    is_of_this_host,
    parse_name,
    preferred,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("node1:7431", Address("node1", 7431)),
        ("10.0.0.1:0", Address("10.0.0.1", 0)),
        ("[::1]:7431", Address("::1", 7431)),
        ("[fe80::1%eth0]:1", Address("fe80::1%eth0", 1)),
        ("unix:/run/replay.sock", Address(path="/run/replay.sock")),
        ("unix:replay.sock", Address(path="replay.sock")),
    ],
)
def test_an_address_is_read_and_written_back(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


def test_three_slashes_begin_an_absolute_path() -> None:
    assert str(Address.parse("unix:///run/replay.sock")) == "unix:/run/replay.sock"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("node1", "must be host:port"),
        ("node1:http", "must be host:port"),
        ("node1:65536", "must be host:port"),
        ("node1:\u00b2", "must be host:port"),
        (":7431", "must begin with a host"),
        ("http://node1:7431", "in brackets"),
        ("a b:1", "must begin with a host"),
        ("a,b:1", "must begin with a host"),
        ("::1:7431", "in brackets"),
        ("[::1:7431", "in brackets"),
        ("[node1]:7431", "in brackets"),
        ("[::g]:7431", "in brackets"),
        ("unix:", "path"),
        ("unix:/" + "x" * 107, "path"),
        ("unix:/a,b", "without commas"),
    ],
)
def test_what_is_no_address_is_refused_with_the_text(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        Address.parse(text)
    assert str(refused.value).endswith(f"got {text!r}")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1", "localhost", "LocalHost."])
def test_loopback_hosts_are_local(host: str) -> None:
    assert is_loopback(host)
    assert Address(host, 1).is_local


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "node1", "localhost.example.org", ""])
def test_other_hosts_are_not_local(host: str) -> None:
    assert not is_loopback(host)
    assert not Address(host, 1).is_local


def test_a_socket_file_is_local() -> None:
    assert Address(path="/run/replay.sock").is_local


def test_any_host_is_recognised_in_both_families() -> None:
    assert Address.parse("0.0.0.0:1").is_any
    assert Address.parse("[::]:1").is_any
    assert not Address.parse("[::1]:1").is_any


@pytest.mark.parametrize("text", ["[fd00::1]", "fd00::1"])
def test_a_name_may_be_an_ipv6_host_without_a_port(text: str) -> None:
    assert parse_name(text) == Address("fd00::1")


def test_the_advertised_address_is_the_listening_one_by_default() -> None:
    assert advertised(Address("10.0.0.1", 7431), ()) == ("10.0.0.1:7431",)
    assert advertised(Address("::1", 7431), ()) == ("[::1]:7431",)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_on_all_networks_is_advertised_by_the_name_of_its_host(host: str) -> None:
    assert advertised(Address(host, 7431), ()) == (f"{socket.gethostname()}:7431",)


def test_configured_names_get_the_bound_port_unless_they_have_one() -> None:
    names = ("ib0.node1", "fd00::1", "gateway:9000", "ib0.node1")
    assert advertised(Address("0.0.0.0", 7431), names) == ("ib0.node1:7431", "[fd00::1]:7431", "gateway:9000")


def test_a_socket_file_is_advertised_by_its_absolute_path() -> None:
    assert advertised(Address(path="here.sock"), ("node1",)) == (f"unix:{Path.cwd() / 'here.sock'}",)


@pytest.mark.parametrize(
    ("stated", "dialled", "given"),
    [
        # The name by which the learner reached it is one more to try.
        (("node1:1", "10.0.0.1:1"), "replay:1", ("node1:1", "10.0.0.1:1", "replay:1")),
        (("node1:1",), "node1:1", ("node1:1",)),
        # The learner is on the host of the service, and its clients need not be.
        (("node1:1",), "127.0.0.1:1", ("node1:1",)),
        # A tunnel, or a proxy, leads to a service that only knows its own host.
        (("127.0.0.1:1",), "gateway:9", ("gateway:9",)),
        (("127.0.0.1:1",), "127.0.0.1:1", ("127.0.0.1:1",)),
        (("127.0.0.1:1",), "127.0.0.1:9", ("127.0.0.1:1", "127.0.0.1:9")),
        (("unix:/a",), "unix:/a", ("unix:/a",)),
    ],
)
def test_clients_get_the_addresses_that_may_work_for_them(
    stated: tuple[str, ...], dialled: str, given: tuple[str, ...]
) -> None:
    assert preferred(stated, dialled) == given


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.2:50051", "10.0.0.2"),
        ("ipv6:%5B::1%5D:50051", "::1"),
        ("ipv6:[fd77::2]:50051", "fd77::2"),
        ("ipv6:%5B::ffff:10.0.0.2%5D:50051", "10.0.0.2"),
        ("unix:", ""),
        ("unix:/run/socket", ""),
    ],
)
def test_the_host_of_a_client_is_read_from_grpcs_name_of_it(peer: str, host: str) -> None:
    assert client_host(peer) == host


def test_this_host_has_its_name_and_its_addresses() -> None:
    for host in ("localhost", "127.0.0.1", "127.1.2.3", socket.gethostname(), socket.gethostname().upper()):
        assert is_of_this_host(host)
    for host in ("169.254.169.254", "203.0.113.1", "2001:db8::1", "0.0.0.0", "::", "224.0.0.1", "example.org"):
        assert not is_of_this_host(host)
