from pathlib import Path

import pytest

from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.local.launcher import train
from penstock.security.certificate import Files
from penstock.security.configured import credentials_of
from penstock.security.roles import Identity
from tests.support.services.certificates import RUN, Foreign, authority, certificates_of, write


def test_without_a_certificate_there_are_no_credentials() -> None:
    assert credentials_of(Config().security, "actor") is None


def test_key_and_authority_are_beside_the_certificate(tmp_path: Path) -> None:
    files = certificates_of(tmp_path)["actor"]
    found = credentials_of(Config(security={"certificate": str(files.certificate)}).security, "actor")
    assert found is not None
    assert found.identity == Identity(RUN, "actor")
    assert found.files == files
    assert not found.by_address


def test_every_file_and_the_names_of_servers_can_be_set(tmp_path: Path) -> None:
    root = authority()
    files = write(tmp_path, [Foreign().signed_by(root)], root)
    moved = Files(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt")
    for name in ("certificate", "key", "authority"):
        getattr(files, name).rename(getattr(moved, name))
    settings = {name: str(getattr(moved, name)) for name in ("certificate", "key", "authority")}
    found = credentials_of(Config(security={**settings, "server_names": "address"}).security, "replay")
    assert found is not None
    assert found.files == moved
    assert found.by_address


def test_the_certificate_of_another_role_is_refused(tmp_path: Path) -> None:
    path = str(certificates_of(tmp_path)["actor"].certificate)
    with pytest.raises(ConfigurationError, match="the role learner was started with it"):
        credentials_of(Config(security={"certificate": path}).security, "learner")


@pytest.mark.parametrize("name", ["key", "authority"])
def test_a_key_or_an_authority_without_a_certificate_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"security\.{name} is x\.pem, but security\.certificate is unset"):
        Config(security={name: "x.pem"})


def test_a_repetition_does_not_have_the_certificate_of_one_service() -> None:
    config = Config(security={"certificate": "a.pem", "key": "b.pem", "authority": "c.pem", "insecure": True})
    assert config.repeatable().security == Config(security={"insecure": True}).security


def test_a_launcher_refuses_a_certificate_before_it_makes_anything(tmp_path: Path) -> None:
    config = Config(run_dir=str(tmp_path / "run"), security={"certificate": "a.pem"})
    with pytest.raises(ConfigurationError, match=r"^security\.certificate is a\.pem, but penstock train connects its"):
        train(config)
    assert not (tmp_path / "run").exists()
