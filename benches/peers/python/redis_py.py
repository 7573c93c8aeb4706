"""The lock of redis-py. `contend` runs in asyncio, as services with many tasks use it; the other
scenarios use the synchronous client."""

import asyncio
import time

import redis
import redis.asyncio

import peer

ABOUT = {
    "name": "redis-py",
    "package": "redis",
    "notes": "polls every 100 ms; `contend` runs in asyncio, the others in one thread",
}


class Client:
    def __init__(self, options):
        self.options = options
        self.redis = redis.Redis.from_url(options.url)
        self.redis.ping()

    def acquire(self):
        lock = new_lock(self.redis, self.options)
        if not lock.acquire():
            raise TimeoutError(f"no lock within {self.options.wait_ms} ms")
        return lock


def new_lock(client, options):
    # The library's own interval, `sleep`, stays at 0.1 s.
    return client.lock(
        options.key, timeout=options.ttl_ms / 1000, blocking_timeout=options.wait_ms / 1000
    )


def contend(options):
    asyncio.run(contend_in_tasks(options))


async def contend_in_tasks(options):
    clients = [redis.asyncio.Redis.from_url(options.url)]
    for _ in range(1, options.tasks):
        own = options.separate_clients
        clients.append(redis.asyncio.Redis.from_url(options.url) if own else clients[0])
    for client in clients:
        await client.ping()
    record = peer.Record()

    async def task(client):
        for _ in range(options.sections):
            waited = time.perf_counter_ns()
            lock = new_lock(client, options)
            if not await lock.acquire():
                raise TimeoutError(f"no lock within {options.wait_ms} ms")
            section = record.acquired(waited)
            await asyncio.sleep(options.hold_us / 1e6)
            record.releasing(section)
            await lock.release()

    record.begin()
    await asyncio.gather(*(task(client) for client in clients))
    record.say()
    for client in clients:
        await client.aclose()


peer.main(ABOUT, Client, contend)
