import asyncio
import time

from serving.clock import ManualClock, SystemClock


def test_the_system_clock_agrees_with_the_machine() -> None:
    assert abs(SystemClock().wall_us() - time.time() * 1e6) < 1e6


def test_a_step_of_the_machines_clock_does_not_move_wall_time(monkeypatch) -> None:
    clock = SystemClock()
    before = clock.wall_us()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert before <= clock.wall_us() < before + 10_000_000


def test_a_manual_clock_wakes_sleepers_when_it_is_moved() -> None:
    async def run() -> bool:
        clock = ManualClock()
        sleeper = asyncio.create_task(clock.sleep(5.0))
        await asyncio.sleep(0)  # let it begin to wait
        clock.advance(4.9)
        await asyncio.sleep(0.01)
        early = sleeper.done()
        clock.advance(0.1)
        await asyncio.wait_for(sleeper, 5)
        return early

    assert asyncio.run(run()) is False
