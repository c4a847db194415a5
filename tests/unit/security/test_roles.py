import pytest

from penstock.errors import ConfigurationError
from penstock.security.roles import ROLES, Identity, Role, check_run_name, is_ambiguous, run_name_of


@pytest.mark.parametrize("role", ROLES)
def test_an_identity_is_read_as_it_was_written(role: Role) -> None:
    identity = Identity("cartpole-1", role)
    assert identity.uri == f"penstock://cartpole-1/{role}"
    assert Identity.parse(identity.uri) == identity
    assert identity.server_name == f"{role}.cartpole-1.penstock"
    assert str(identity) == f"{role} of run cartpole-1"


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "penstock://",
        "penstock://run",
        "penstock://run/",
        "penstock:///actor",
        "penstock://run/Actor",
        "penstock://run/actor/",
        "penstock://run/actor?x",
        "penstock://Run/actor",
        "penstock://a.b/actor",
        "penstock://run /actor",
        "spiffe://run/actor",
        "run/actor",
    ],
)
def test_another_uri_is_no_identity(uri: str) -> None:
    with pytest.raises(ValueError, match=r"^must be penstock://RUN/ROLE with a role of actor, learner, "):
        Identity.parse(uri)


@pytest.mark.parametrize("name", ["a", "1", "cartpole-1", "a" * 40, "xn--bcher-kva"])
def test_a_dns_label_is_a_name_of_a_run(name: str) -> None:
    check_run_name(name)
    assert Identity.parse(f"penstock://{name}/actor").run == name


@pytest.mark.parametrize("name", ["", "A", "a_b", "a.b", "-a", "a-", "a" * 41, "ä", "a b", "a\n", "a/actor"])
def test_other_text_is_no_name_of_a_run(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"at most 40 lower-case letters, digits and inner hyphens$"):
        check_run_name(name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cartpole-v1-20261126-101500", "cartpole-v1-20261126-101500"),
        ("x" * 40, "x" * 40),
        ("CartPole-v1-20261126-101500", "cartpole-v1-20261126-101500-6a03dd7a"),
        ("_My run (2)", "my-run-2-1cc3d70c"),
        ("x" * 30 + "-" + "y" * 10, "x" * 30 + "-9f564f18"),
        ("è1", "1-3b4ee833"),
        ("\udcff1", "1-e70abb6f"),
    ],
)
def test_a_name_of_a_run_is_made_of_any_text(text: str, name: str) -> None:
    assert run_name_of(text) == name
    check_run_name(name)


def test_different_texts_give_different_names() -> None:
    sweep = [f"cartpole-sweep-lr-0.001-batch-512-seed-{seed:04d}" for seed in range(1000)]
    alike = ["run-1", "Run-1", "run_1", "run.1", "run 1", "-run-1", "run--1", "è1", "é1"]
    long = ["x" * length for length in range(38, 60)]
    texts = [*sweep, *alike, *long]
    names = {run_name_of(text) for text in texts}
    assert len(names) == len(texts)
    for name in names:
        check_run_name(name)
    assert run_name_of("run-1") == "run-1"


def test_a_name_that_an_earlier_release_cut_is_ambiguous() -> None:
    text = "cartpole-sweep-lr-0.001-batch-512-seed-0001"
    assert is_ambiguous("cartpole-sweep-lr-0-001-batch-512-seed-0", text)
    assert not is_ambiguous(run_name_of(text), text)
    assert not is_ambiguous("blue", text)
    assert not is_ambiguous("run-1", "Run 1")


@pytest.mark.parametrize("text", ["", "..", "é", "---"])
def test_text_without_letters_and_digits_gives_no_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match="has no letters or digits"):
        run_name_of(text)
