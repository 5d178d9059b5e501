"""Shares of the event loop: who waits, for how long, and in which order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from agent_tts.serve.access.fair_queue import CREDIT_S, SLICE_S, FairQueue, Flow
from tests.support import ended, passes


class Bench:
    """Flows whose work moves a clock; `log` has the name of each piece of work and the pass of the loop it was in."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queue = FairQueue(lambda: self.now)
        self.log: list[tuple[str, int]] = []
        self.passes = 0

    def piece(self, name: str, cost_s: float) -> None:
        self.now += cost_s
        self.log.append((name, self.passes))

    async def work(self, name: str, pieces: int, cost_s: float, flow: Flow | None = None) -> None:
        flow = flow or Flow(self.queue.share(None))
        for _ in range(pieces):
            async with flow:
                self.piece(name, cost_s)

    async def run(self, *works: Callable[[], object]) -> list[Any]:
        """Start each of `works`, one a pass of the event loop, and wait for all; their results."""
        tasks: list[asyncio.Task[Any]] = []
        waiting = list(works)
        while waiting or not all(task.done() for task in tasks):
            if waiting:
                tasks.append(asyncio.ensure_future(waiting.pop(0)()))  # pyrefly: ignore[no-matching-overload]
            await asyncio.sleep(0)
            self.passes += 1
        return [task.result() for task in tasks]

    async def pings(self, flow: Flow, every: int, cost_s: float) -> int:
        """The most passes that a light piece of work waits for, of 20 that come so many passes after one another."""
        waits: list[int] = []
        for _ in range(20):
            await passes(every)
            before = self.passes
            await self.work("p", 1, cost_s, flow)
            waits.append(self.passes - before)
        return max(waits)

    def names(self) -> str:
        return "".join(name for name, _ in self.log)


async def count_passes(bench: Bench, passes: int) -> None:
    for _ in range(passes):
        await asyncio.sleep(0)
        bench.passes += 1


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_light_work_waits_for_nobody(bench: Bench) -> None:
    bench.now = 1.0
    await bench.run(lambda: bench.work("a", 10, SLICE_S / 20))
    assert {at for _, at in bench.log} == {0}
    await asyncio.sleep(60)  # the loop is idle: its clock jumps


@pytest.mark.parametrize(("share", "first"), [(1.0, 1), (0.6, 2)])
async def test_work_of_which_two_are_more_than_a_slice_is_alone_in_its_pass(
    share: float, first: int, bench: Bench
) -> None:
    """Once there is a line: before, a slice may begin while another is not used up."""
    works = [lambda name=name: bench.work(name, 20, share * SLICE_S) for name in "abc"]
    await bench.run(*works)
    passes = [at for _, at in bench.log]
    counts = [passes.count(at) for at in sorted(set(passes))]
    assert (max(counts[:2]), max(counts[2:])) == (first, 1)


async def test_flows_with_equal_work_alternate(bench: Bench) -> None:
    works = [lambda name=name: bench.work(name, 50, SLICE_S) for name in "abcd"]
    await bench.run(*works)
    first = bench.names()[:100]
    assert max(first.count(name) for name in "abcd") - min(first.count(name) for name in "abcd") <= CREDIT_S / SLICE_S


async def test_one_with_little_to_do_goes_before_those_with_much(bench: Bench) -> None:
    """However many they are: it waits for the slice that is under way, and for those that came with as little."""
    light = Flow(bench.queue.share(None))
    heavy = [lambda: bench.work("h", 100, SLICE_S) for _ in range(50)]
    # So much that it is not new any more.
    *_, waited = await bench.run(*heavy, lambda: bench.pings(light, 40, SLICE_S / 5))
    assert waited <= 3


@pytest.mark.parametrize("light", [[SLICE_S] * 5, [1.5 * SLICE_S]])
async def test_of_the_flows_of_a_client_one_that_has_used_less_goes_first(light: list[float], bench: Bench) -> None:
    """Whether it has used more than what new ones have before others, or less; with calls, and with tasks that wait."""
    calls, waits = ({name: Flow(bench.queue.share(key)) for name in "hl"} for key in ("calls", "waits"))
    for name, costs in (("h", [SLICE_S / 10] * 300), ("l", light)):
        for cost in costs:
            calls[name].call(partial(bench.piece, name, cost))
            await asyncio.sleep(0)
            await waits[name].wait(cost)
            await asyncio.sleep(0)

    async def wait(name: str) -> None:
        await waits[name].wait(SLICE_S)
        bench.piece(name, SLICE_S)

    for name, flow in calls.items():
        flow.call(partial(bench.piece, name, SLICE_S))
    bench.log.clear()
    await count_passes(bench, 10)
    await asyncio.gather(bench.work("x", 1, SLICE_S), wait("h"), wait("l"))
    assert bench.names() == "lhxlh"


async def test_many_flows_have_one_share(bench: Bench) -> None:
    strangers = bench.queue.share("strangers")
    assert bench.queue.share("strangers") is strangers is not bench.queue.share(None) is not bench.queue.share(None)

    async def request() -> None:
        await Flow(strangers).wait(SLICE_S)
        bench.piece("s", SLICE_S)

    await bench.run(lambda: bench.work("a", 200, SLICE_S), lambda: asyncio.gather(*(request() for _ in range(200))))
    half = bench.names()[:200]
    assert 70 <= half.count("s") <= 130


async def test_new_connections_do_not_go_before_another_client(bench: Bench) -> None:
    """Each has the head start of a new flow, among those of its own client alone."""
    light = Flow(bench.queue.share("polite"))
    storm = bench.queue.share("storm")

    async def come() -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(40):
                for _ in range(20):
                    tasks.create_task(bench.work("s", 3, SLICE_S, Flow(storm)))
                await passes(10)

    _, waited = await bench.run(come, lambda: bench.pings(light, 15, SLICE_S / 50))
    assert waited <= 3


async def test_calls_share_a_pass_until_its_slice_is_used(bench: Bench) -> None:
    flows = [Flow(bench.queue.share(None)) for _ in range(40)]
    for number, flow in enumerate(flows):
        flow.call(partial(bench.piece, str(number), SLICE_S / 10))
    assert not bench.log  # soon, not now
    await bench.run()
    for bench.passes in range(1, 10):
        await asyncio.sleep(0)
    passes = [at for _, at in bench.log]
    assert sorted(name for name, _ in bench.log) == sorted(map(str, range(40)))
    assert all(passes.count(at) in (10, 11) for at in set(passes) - {max(passes)})


async def test_calls_that_leave_work_for_later_count_it(bench: Bench) -> None:
    """A connection that is told to close costs more after its slice than in it."""
    strangers, client = bench.queue.share("strangers"), Flow(bench.queue.share(None))
    for _ in range(20):
        client.call(partial(bench.piece, "c", SLICE_S))
        await passes(2)
    bench.log.clear()
    for _ in range(400):
        Flow(strangers).call(partial(bench.piece, "s", 0.0), SLICE_S / 8)
    client.call(partial(bench.piece, "c", SLICE_S))
    for bench.passes in range(1, 60):
        await asyncio.sleep(0)
    at = [each for name, each in bench.log if name == "s"]
    assert len(at) == 400
    assert max(at.count(each) for each in at) == 8
    assert bench.names().index("c") <= 8 * (CREDIT_S / SLICE_S + 1)


async def test_tasks_share_a_pass_once_their_slices_are_known(bench: Bench) -> None:
    """A pass has other work, too: a line of which each pass served one task grew while the loop was not full."""
    flows = [Flow(bench.queue.share(None)) for _ in range(40)]
    works = [partial(bench.work, str(number), 20, SLICE_S / 10, flow) for number, flow in enumerate(flows)]
    await asyncio.gather(bench.run(), *(work() for work in works), count_passes(bench, 200))
    passes = [at for _, at in bench.log]
    assert len(passes) == 800
    assert max(passes.count(at) for at in passes) <= 11
    assert max(passes) < 150  # 40 first slices alone, then 10 a pass


async def test_the_first_work_of_a_client_goes_before_that_of_older_ones(bench: Bench) -> None:
    """Also where another share uses more of the loop than any of them, so that all have the same head start."""
    strangers = bench.queue.share("strangers")
    flows = [Flow(bench.queue.share(None)) for _ in range(64)]
    for _ in range(100):
        for flow in flows:
            flow.call(partial(bench.piece, "o", SLICE_S / 16))
        await Flow(strangers).wait(5 * CREDIT_S)
        await passes(5)
    bench.log.clear()
    for flow in flows:
        flow.call(partial(bench.piece, "o", SLICE_S / 16))
    new = Flow(bench.queue.share(None))
    for _ in range(4):
        new.call(partial(bench.piece, "n", SLICE_S / 16))
        await asyncio.sleep(0)
    await passes(20)
    assert bench.names().rindex("n") <= 3 * 16 + 3
    assert bench.names().count("n") == 4


async def test_a_flow_that_stands_in_line_keeps_one_place_and_its_last_call(bench: Bench) -> None:
    flow = Flow(bench.queue.share(None))
    flow.call(partial(bench.piece, "a", 0.0))
    flow.call(partial(bench.piece, "b", 0.0))
    await asyncio.sleep(0)
    flow.call(partial(bench.piece, "c", 0.0))
    await asyncio.sleep(0)
    assert bench.names() == "bc"


async def test_a_newcomer_goes_before_those_that_have_used_the_loop() -> None:
    """The first frame of a new stream, in a step of 256: whether all have one key, or each its own share."""
    for name in ("key", None):
        bench = Bench()
        flows = [Flow(bench.queue.share(name)) for _ in range(256)]
        for _ in range(60):  # 0.3 s of work each, in all
            for flow in flows:
                flow.call(partial(bench.piece, "o", SLICE_S * 5 / 256))
            await passes(7)
        bench.log.clear()
        for flow in (*flows, Flow(bench.queue.share(name))):
            is_new = flow not in flows
            flow.call(partial(bench.piece, "n" if is_new else "o", SLICE_S / 20))
        await passes(30)
        assert len(bench.log) == 257
        assert bench.names().index("n") < 2, name


async def test_a_step_of_many_frames_lets_others_pass_in_between(bench: Bench) -> None:
    """A task's light work waits for a slice of the writers' frames, not for all of them."""
    writers = bench.queue.share("many")
    for _ in range(256):
        Flow(writers).call(partial(bench.piece, "w", SLICE_S / 20))
    await asyncio.sleep(0)
    await bench.work("p", 1, SLICE_S / 50)
    assert bench.names().count("w") <= 3 * 20


async def test_an_abandoned_place_in_line_is_skipped(bench: Bench) -> None:
    gone = asyncio.create_task(bench.work("gone", 1_000, SLICE_S))
    await passes(10)
    await ended(gone)
    await asyncio.wait_for(bench.work("a", 3, SLICE_S), 10)
    assert bench.names().endswith("aaa")


async def test_slices_use_the_machines_clock() -> None:
    queue = FairQueue()
    assert queue.clock is time.monotonic
    flow = Flow(queue.share(None))
    async with flow:
        assert flow.has_time()
