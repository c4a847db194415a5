"""Commits of a learner to one replay service, from their creation until they are answered (docs/concurrency.md).

It does no I/O and has no lock: callers hold the batch source's condition.
"""

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

from penstock.errors import InvalidSegment
from penstock.types.replay import CommitOutcome
from penstock.wire.batches import CommitRequest

_MAX_UNANSWERED = 64
"""Limit on unanswered commits. The gate waits for them too, so a learner with fresh segments in its batches is at most
d + 1 ahead of them. Without, batches of 2 ms over a round trip of 100 ms need 50."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit without an answer.

    Attributes:
        number: Number of the batch.
        passes_over: Whether it has no keys and passes over all batches up to `number`.
        request: Encoded commit.
        outcome: Future of the answer.
    """

    number: int
    passes_over: bool
    request: CommitRequest
    outcome: Future[CommitOutcome]


class CommitLedger:
    """Commits that are not sent or not answered, in the order of their creation, in which they are also answered.

    A commit without keys leaves only once all earlier ones are answered, and until then a later one replaces it, so
    that no queue grows while the service is away. `newest` is the number of the newest commit; None before the first.
    """

    def __init__(self) -> None:
        self._unanswered: deque[Commit] = deque()
        self._unsent: deque[Commit] = deque()
        self._skipped = False
        self.newest: int | None = None

    @property
    def unanswered(self) -> int:
        """Number of commits without an answer."""
        return len(self._unanswered)

    @property
    def is_full(self) -> bool:
        """Whether a commit with keys must wait."""
        return len(self._unanswered) >= _MAX_UNANSWERED

    @property
    def blocks_requests(self) -> bool:
        """Whether a commit must leave before the next batch is requested.

        It must after a break, and after a skip, because the service expects a skipped batch until it is passed over.
        """
        return self._skipped or bool(self._unsent)

    def skip(self) -> None:
        """Blocks requests until a commit without keys is added."""
        self._skipped = True

    def add(self, number: int, request: CommitRequest, *, passes_over: bool) -> Future[CommitOutcome]:
        """Adds a commit and returns the future of its answer."""
        outcome: Future[CommitOutcome] = Future()
        if passes_over and self._unsent and self._unsent[-1].passes_over:
            outcome = self._unsent.pop().outcome
            self._unanswered.pop()
        commit = Commit(number, passes_over, request, outcome)
        self._unanswered.append(commit)
        self._unsent.append(commit)
        self._skipped = self._skipped and not passes_over
        self.newest = number
        return outcome

    def next_to_send(self) -> CommitRequest | None:
        """Removes and returns the next commit to send, if one may leave now."""
        if not self._unsent or (self._unsent[0].passes_over and self._unsent[0] is not self._unanswered[0]):
            return None
        return self._unsent.popleft().request

    def resend(self) -> None:
        """Queues all unanswered commits again, after a break. Commits are idempotent."""
        self._unsent = deque(self._unanswered)

    def answer(self, number: int | None) -> Commit:
        """Removes and returns the oldest unanswered commit. Raises `InvalidSegment` if another is answered.

        `number` is the batch that the answer names; None if it names none.
        """
        oldest = self._unanswered[0].number if self._unanswered else None
        if oldest is None or number not in (None, oldest):
            due = "no answer" if oldest is None else f"the answer for batch {oldest}"
            raise InvalidSegment(f"the commit of batch {number} was answered, but {due} was due")
        return self._unanswered.popleft()

    def abandon(self) -> list[Commit]:
        """Removes and returns all commits, because no answer can arrive any more."""
        lost, self._unanswered, self._unsent = list(self._unanswered), deque(), deque()
        return lost
