"""The lock of python-redis-lock, whose waiters block on a list of signals. It is synchronous, so the
tasks of `contend` are threads."""

import functools
import logging
import math
import time

import redis
import redis_lock

import peer

ABOUT = {
    "name": "python-redis-lock",
    "package": "python-redis-lock",
    "notes": "waits by BLPOP for at most one ttl, which has whole seconds; the tasks are threads",
}


class Client:
    def __init__(self, options):
        # The library counts in whole seconds.
        self.ttl = -(-options.ttl_ms // 1000)
        self.options = options
        # By default redis-py 8 ends each read after 5 s, so that a longer BLPOP fails.
        self.redis = redis.StrictRedis.from_url(options.url, socket_timeout=None)
        self.redis.ping()

    def acquire(self):
        lock = redis_lock.Lock(self.redis, self.options.key, expire=self.ttl)
        # The library refuses a timeout that is longer than the ttl. Without a timeout it waits by the
        # same BLPOP, and without an end.
        deadline = time.monotonic() + self.options.wait_ms / 1000
        while (remaining := deadline - time.monotonic()) > 0:
            if lock.acquire(timeout=min(self.ttl, math.ceil(remaining))):
                return lock
        raise TimeoutError(f"no lock within {self.options.wait_ms} ms")


# The library warns about attempts that found the lock held.
logging.getLogger("redis_lock").setLevel(logging.ERROR)
peer.main(ABOUT, Client, functools.partial(peer.contend_in_threads, Client))
