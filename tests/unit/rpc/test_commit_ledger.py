from concurrent.futures import Future

import pytest

from penstock.errors import InvalidSegment
from penstock.rpc.clients.commit_ledger import CommitLedger
from penstock.types.replay import CommitOutcome
from penstock.wire.batches import CommitRequest


def add(ledger: CommitLedger, number: int, *, passes_over: bool = False) -> "Future[CommitOutcome]":
    return ledger.add(number, CommitRequest(batch=number), passes_over=passes_over)


def sent(ledger: CommitLedger) -> list[int]:
    """Returns the numbers of all commits that may be sent now."""
    numbers = []
    while (request := ledger.next_to_send()) is not None:
        numbers.append(request.batch)
    return numbers


# These are functions because mypy assumes that a property keeps its asserted value.


def blocks_requests(ledger: CommitLedger) -> bool:
    return ledger.blocks_requests


def is_full(ledger: CommitLedger) -> bool:
    return ledger.is_full


def test_commits_are_sent_once_and_in_order() -> None:
    ledger = CommitLedger()
    for number in (3, 4, 5):
        add(ledger, number)
    assert sent(ledger) == [3, 4, 5]
    assert sent(ledger) == []
    assert (ledger.unanswered, ledger.newest) == (3, 5)


def test_an_answer_settles_the_oldest_commit() -> None:
    ledger = CommitLedger()
    outcomes = [add(ledger, number) for number in (3, 4)]
    assert [ledger.answer(3).outcome, ledger.answer(None).outcome] == outcomes
    assert ledger.unanswered == 0


def test_an_answer_to_another_commit_is_refused_and_settles_none() -> None:
    ledger = CommitLedger()
    add(ledger, 3)
    with pytest.raises(InvalidSegment, match="batch 4 was answered, but the answer for batch 3 was due"):
        ledger.answer(4)
    assert ledger.unanswered == 1


def test_an_answer_without_a_commit_is_refused() -> None:
    with pytest.raises(InvalidSegment, match="batch 4 was answered, but no answer was due"):
        CommitLedger().answer(4)


def test_after_a_break_all_unanswered_commits_are_sent_again_before_any_request() -> None:
    ledger = CommitLedger()
    for number in (3, 4, 5):
        add(ledger, number)
    sent(ledger)
    ledger.answer(3)
    assert not blocks_requests(ledger)
    ledger.resend()
    assert blocks_requests(ledger)
    assert sent(ledger) == [4, 5]
    assert not blocks_requests(ledger)


def test_a_commit_that_passes_over_is_sent_once_all_earlier_ones_are_answered() -> None:
    ledger = CommitLedger()
    add(ledger, 3)
    add(ledger, 4, passes_over=True)
    assert sent(ledger) == [3]
    ledger.answer(3)
    assert sent(ledger) == [4]


def test_a_later_commit_that_passes_over_replaces_an_unsent_one_and_shares_its_answer() -> None:
    ledger = CommitLedger()
    add(ledger, 3)
    first, second = (add(ledger, number, passes_over=True) for number in (4, 5))
    assert first is second
    assert (ledger.unanswered, ledger.newest) == (2, 5)
    assert sent(ledger) == [3]
    ledger.answer(3)
    assert sent(ledger) == [5]
    assert ledger.answer(5).outcome is first


def test_a_sent_commit_that_passes_over_is_not_replaced() -> None:
    ledger = CommitLedger()
    add(ledger, 4, passes_over=True)
    assert sent(ledger) == [4]
    add(ledger, 5, passes_over=True)
    assert ledger.unanswered == 2


def test_a_skip_blocks_requests_until_a_commit_that_passes_over_is_sent() -> None:
    ledger = CommitLedger()
    ledger.skip()
    add(ledger, 3)
    assert sent(ledger) == [3]
    assert blocks_requests(ledger)
    add(ledger, 4, passes_over=True)
    assert blocks_requests(ledger)
    ledger.answer(3)
    assert sent(ledger) == [4]
    assert not blocks_requests(ledger)


def test_a_ledger_is_full_at_64_unanswered_commits() -> None:
    ledger = CommitLedger()
    for number in range(63):
        add(ledger, number)
    assert not is_full(ledger)
    add(ledger, 63)
    assert is_full(ledger)
    ledger.answer(0)
    assert not is_full(ledger)


def test_abandoned_commits_are_returned_in_order_and_forgotten() -> None:
    ledger = CommitLedger()
    outcomes = [add(ledger, number) for number in (3, 4)]
    assert [commit.outcome for commit in ledger.abandon()] == outcomes
    assert (ledger.unanswered, sent(ledger)) == (0, [])
