"""The place of a process among the ranks, and how ranks meet and miss one another."""

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from penstock.errors import ConfigurationError, RankLost
from penstock.learning.ranks.group import RankGroup, RankPlace, lost, place_of, unused_part
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.ports import free_ports
from tests.support.services.ranks import together
from tests.support.training.training import CPU

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29500",
}


@pytest.mark.parametrize("environment", [{}, {"RANK": "0"}, {**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}])
def test_a_process_without_other_ranks_is_alone(environment: dict[str, str]) -> None:
    assert place_of(environment) == RankPlace()
    assert place_of(environment).alone


def test_torchruns_variables_give_a_place() -> None:
    assert place_of(TORCHRUN) == RankPlace(rank=3, count=4, local_rank=1, local_count=2)


def test_other_launchers_need_not_tell_the_place_on_a_host() -> None:
    kept = {name: value for name, value in TORCHRUN.items() if not name.startswith("LOCAL")}
    assert place_of(kept) == RankPlace(rank=3, count=4)


@pytest.mark.parametrize("missing", ["RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_a_missing_variable_is_named(missing: str) -> None:
    kept = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(ConfigurationError, match=f"has 4 ranks, and {missing} is not set; start the ranks with"):
        place_of(kept)


@pytest.mark.parametrize(("name", "value"), [("RANK", "4"), ("RANK", "one"), ("LOCAL_RANK", "2"), ("WORLD_SIZE", "x")])
def test_an_impossible_place_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}={value}.* give this process no place among the ranks"):
        place_of({**TORCHRUN, name: value})


@pytest.fixture
def meeting_point(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sets the address at which ranks meet, in this process."""
    (port,) = free_ports(1)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_rank_0_misses_the_other_ranks(meeting_point: None) -> None:
    with pytest.raises(RankLost, match=r"rank 0 .* did not meet the others, 3 in all \(.*\); start"):
        RankGroup(RankPlace(rank=0, count=3), CPU, timeout_s=1.0)


def test_another_rank_misses_rank_0(meeting_point: None) -> None:
    with pytest.raises(RankLost, match=r"rank 1 .* did not meet the others, 2 in all \(.*\); start"):
        RankGroup(RankPlace(rank=1, count=2), CPU, timeout_s=1.0)


def test_each_meeting_has_a_part_of_the_store_of_its_own() -> None:
    # torchrun keeps its store when it starts the ranks again.
    store, places = HashStore(), [RankPlace(rank, 3) for rank in range(3)]
    for attempt in range(3):
        parts = together([partial(unused_part, store, place, PATIENCE_S) for place in places])
        assert not any(part.check(["address"]) for part in parts)
        parts[attempt].set("address", str(attempt))
        assert [part.get("address") for part in parts] == 3 * [str(attempt).encode()]


def test_rank_0_names_the_ranks_that_are_missing() -> None:
    # torchrun's store knows no ranks, so that nothing else notices.
    with pytest.raises(RuntimeError, match=r"^no sign of ranks 1, 2 within 0.2 s$"):
        unused_part(HashStore(), RankPlace(0, 3), 0.2)


def test_a_rank_waits_for_an_answer_of_this_meeting() -> None:
    store = HashStore()
    together([partial(unused_part, store, RankPlace(rank, 2), PATIENCE_S) for rank in range(2)])
    found: list[object] = []
    waiting = threading.Thread(
        target=lambda: found.append(unused_part(store, RankPlace(1, 2), PATIENCE_S)), daemon=True
    )
    waiting.start()
    before = store.get("answer to 1")
    waiting.join(0.3)
    assert waiting.is_alive() and store.get("answer to 1") == before
    unused_part(store, RankPlace(0, 2), PATIENCE_S)
    waiting.join(PATIENCE_S)
    assert len(found) == 1


def test_the_reason_of_a_loss_is_one_sentence_of_torchs() -> None:
    error = RuntimeError(
        "[/pytorch/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:20404: Connection reset by peer. This is"
        " typically caused by a remote worker hanging.\nException raised from here"
    )
    assert "(Read error [10.0.0.2]:20404: Connection reset by peer)" in str(lost(RankPlace(0, 2), error))
    assert "\n" not in str(lost(RankPlace(0, 2), error))
