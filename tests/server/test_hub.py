"""Live messages from threads to the event loop."""

from __future__ import annotations

import asyncio
import threading

from server.hub import QUEUE_LENGTH, Hub, Message


def rows(step: int) -> Message:
    return {"type": "rows", "run_id": "r", "newest_step": step}


def test_a_message_from_a_thread_reaches_every_subscriber() -> None:
    async def main() -> list[Message]:
        hub = Hub()
        async with hub.subscribe() as one, hub.subscribe() as two:
            threading.Thread(target=hub.publish, args=(rows(7),)).start()
            return [await asyncio.wait_for(queue.get(), 5) for queue in (one, two)]

    assert asyncio.run(main()) == [rows(7), rows(7)]


def test_a_page_that_does_not_read_loses_its_oldest_messages() -> None:
    async def main() -> tuple[int, Message]:
        hub = Hub()
        async with hub.subscribe() as queue:
            for step in range(QUEUE_LENGTH + 10):
                hub.publish(rows(step))
            await asyncio.sleep(0)
            return queue.qsize(), queue.get_nowait()

    assert asyncio.run(main()) == (QUEUE_LENGTH, rows(10))


def test_a_page_that_left_is_forgotten() -> None:
    async def main() -> int:
        hub = Hub()
        async with hub.subscribe():
            pass
        hub.publish(rows(1))
        return hub.subscribers

    assert asyncio.run(main()) == 0


def test_a_loop_that_ended_without_a_goodbye_does_no_harm() -> None:
    hub = Hub()

    async def main() -> None:
        await hub.subscribe().__aenter__()

    asyncio.run(main())
    hub.publish(rows(1))
    assert hub.subscribers == 0
