"""One BLAS thread, and afterwards as many as before."""

from threading import Thread

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from streaming_gp.numerics.threads import one_blas_thread


def numbers():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads():
    with threadpool_limits(limits=2, user_api="blas"):
        yield


def test_one_thread_within_and_all_afterwards():
    with one_blas_thread():
        assert numbers() == {1}
        with one_blas_thread():
            assert numbers() == {1}
        assert numbers() == {1}
    assert numbers() == {2}
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        raise ZeroDivisionError
    assert numbers() == {2}


def test_other_threads_leave_the_number_alone():
    seen = []

    def other():
        with one_blas_thread():
            seen.append(numbers())

    thread = Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [numbers()] == [{2}]
