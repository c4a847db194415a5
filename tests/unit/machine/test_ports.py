import socket

import pytest

from penstock.machine.addresses import port_refusal


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_is_free_until_a_process_listens_on_it(host: str) -> None:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        port = server.getsockname()[1]
        assert port_refusal(host, port) == "in use"
    assert port_refusal(host, port) is None


def test_a_host_that_is_not_this_one_is_refused_with_the_reason() -> None:
    assert port_refusal("192.0.2.1", 7431) == "cannot assign requested address"
    assert port_refusal("no such host", 7431) == "unknown host"
