import asyncio
import time

from serving.admission.stalls import BEAT_S, LATE_S, Stalls, gone


def test_a_loop_that_was_held_up_is_noticed_at_once_and_for_a_while() -> None:
    async def run() -> list[bool]:
        stalls = Stalls()
        seen = [stalls.lately()]  # nothing beats yet
        beating = asyncio.create_task(stalls.run())
        await asyncio.sleep(0)
        seen.append(stalls.lately())
        time.sleep(BEAT_S + LATE_S + 0.05)
        seen.append(stalls.lately())
        await asyncio.sleep(2 * BEAT_S)
        seen.append(stalls.lately())
        beating.cancel()
        return seen

    assert asyncio.run(run()) == [False, False, True, True]


def test_a_client_is_gone_when_its_leaving_was_told() -> None:
    async def left() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    async def stays() -> None:
        await asyncio.Event().wait()

    assert asyncio.run(gone(left))
    assert not asyncio.run(gone(stays))
