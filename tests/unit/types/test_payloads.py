from penstock.types.payloads import PayloadPool, allocate, layout
from tests.support.segments.segments import SCHEMA


def test_memory_is_reused_once_all_views_are_released() -> None:
    pool = PayloadPool()
    columns = allocate(SCHEMA, 4, pool)
    view, place = columns.arrays[1][1:], columns.arrays[0].__array_interface__["data"][0]
    del columns
    other = pool.take(layout(SCHEMA, 4)[1])
    assert other.__array_interface__["data"][0] != place
    del view
    assert pool.take(layout(SCHEMA, 4)[1]).__array_interface__["data"][0] == place


def test_memory_of_another_size_is_not_reused() -> None:
    pool = PayloadPool()
    for size in (16, 8, 24):
        assert pool.take(size).size == size


def test_a_pool_allocates_by_its_function_and_reuses_what_it_gave() -> None:
    given: list[memoryview] = []

    def memory(size: int) -> memoryview:
        given.append(memoryview(bytearray(size)))
        return given[-1]

    pool = PayloadPool(memory=memory)
    assert pool.holds_all and not PayloadPool().holds_all
    first = pool.take(8)
    first[:] = 7
    assert given[0].tolist() == [7] * 8
    second = pool.take(8)
    del first, second
    pool.take(8)
    assert [len(each) for each in given] == [8, 8]
    pool.take(16)
    assert [len(each) for each in given] == [8, 8, 16]
