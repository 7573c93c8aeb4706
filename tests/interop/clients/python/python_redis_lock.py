"""The lock of python-redis-lock: SET NX EX, and waiters that block on a list of signals."""

import logging
import random
import time

import redis
import redis_lock

import worker

client = redis.StrictRedis(host="127.0.0.1", port=worker.redis_port())
client.ping()

# The library itself adds the prefix `lock:` to the name.
NAME = worker.lock_key().removeprefix("lock:")

# The library warns about each attempt that found the lock held.
logging.getLogger("redis_lock").setLevel(logging.ERROR)


def acquire():
    lock = redis_lock.Lock(client, NAME, expire=worker.ttl_seconds())
    # The library's own wait is not used: it notices only releases by the same library. For all
    # others it sleeps for at least one second, and gets 1 % of the sections beside a client that
    # polls.
    if lock.acquire(blocking=False):
        return lock
    time.sleep(random.uniform(0.01, 0.05))
    return None


worker.run(acquire, redis_lock.NotAcquired)
