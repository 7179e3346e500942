"""Threads for ordinary functions."""

import asyncio
import threading

import pytest

from broker.nfp.threads import Threads

pytestmark = pytest.mark.interpreter


def test_results_and_exceptions_come_back_and_threads_are_used_again():
    async def main():
        threads = Threads("t", 2, asyncio.get_running_loop())
        names = {await threads.run(lambda: threading.current_thread().name) for _ in range(5)}
        assert names == {"t-1"}
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 / 0)
        with pytest.raises(RuntimeError, match="SystemExit: 3"):
            await threads.run(lambda: (_ for _ in ()).throw(SystemExit(3)))
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.run(lambda: next(iter(())))
        threads.close()

    asyncio.run(main())


def test_no_more_threads_than_allowed_and_all_of_them_when_needed():
    async def main():
        threads = Threads("t", 2, asyncio.get_running_loop())
        meet = threading.Barrier(2)
        assert (
            len(
                {
                    *await asyncio.gather(
                        *(threads.run(lambda: (meet.wait(5), threading.get_ident())[1]) for _ in range(4))
                    )
                }
            )
            == 2
        )
        threads.close()

    asyncio.run(main())


def test_a_cancelled_future_does_not_disturb_its_thread():
    async def main():
        threads = Threads("t", 1, asyncio.get_running_loop())
        go = threading.Event()
        future = threads.run(lambda: go.wait(5))
        future.cancel()
        go.set()
        assert await threads.run(lambda: 7) == 7
        threads.close()

    asyncio.run(main())


def test_a_function_that_outlives_the_loop_harms_nobody():
    go, running = threading.Event(), threading.Event()
    seen = []

    def wait():
        seen.append(threading.current_thread())
        running.set()
        go.wait(5)

    async def main():
        threads = Threads("t", 1, asyncio.get_running_loop())
        threads.run(wait)
        threads.close()

    asyncio.run(main())
    assert running.wait(5)
    go.set()
    [thread] = seen
    thread.join(5)
    assert not thread.is_alive()
