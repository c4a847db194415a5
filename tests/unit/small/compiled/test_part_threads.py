"""Threads that work on the parts of a task."""

import threading

import pytest

from penstock.small.compiled.part_threads import PartThreads

WAIT_S = 60.0


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("parts", [1, 2, 9])
def test_every_part_is_done_once(threads: int, parts: int) -> None:
    helpers = PartThreads(threads)
    done: list[int] = []
    for _ in range(20):
        helpers.run(lambda thread, part: done.append(part), parts)
    assert sorted(done) == sorted(20 * list(range(parts)))


def test_parts_are_done_at_once_by_threads_with_numbers_of_their_own() -> None:
    both, numbers = threading.Barrier(2), set()

    def do(thread: int, part: int) -> None:
        both.wait(WAIT_S)
        numbers.add(thread)

    PartThreads(2).run(do, 2)
    assert numbers == {0, 1}


def test_a_helper_that_is_late_delays_no_task() -> None:
    helpers, begun, end = PartThreads(2), threading.Event(), threading.Event()

    def block(thread: int, part: int) -> None:
        if thread == 1:
            begun.set()
        end.wait(WAIT_S)

    other = threading.Thread(target=helpers.run, args=(block, 2))
    other.start()
    assert begun.wait(WAIT_S)
    done: list[int] = []
    helpers.run(lambda thread, part: done.append(part), 5)
    assert done == [0, 1, 2, 3, 4]
    end.set()
    other.join(WAIT_S)
    assert not other.is_alive()


def test_an_error_of_a_helper_is_raised_and_the_helper_remains() -> None:
    helpers, both = PartThreads(2), threading.Barrier(2)

    def fail(thread: int, part: int) -> None:
        both.wait(WAIT_S)
        if thread == 1:
            raise ValueError("no gradient")

    for _ in range(2):
        with pytest.raises(ValueError, match="no gradient"):
            helpers.run(fail, 2)
