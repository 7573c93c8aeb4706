"""The lock of python-redis-lock: SET NX EX, and waiters that block on a list of signals."""

import logging
import random
import time

import redis
import redis_lock

import worker

client = redis.StrictRedis(host="127.0.0.1", port=worker.redis_port())
client.ping()

# The library puts `lock:` before the name by itself.
NAME = worker.lock_key().removeprefix("lock:")

# It warns of each try that found the lock taken.
logging.getLogger("redis_lock").setLevel(logging.ERROR)


def acquire():
    lock = redis_lock.Lock(client, NAME, expire=worker.ttl_seconds())
    # Not its own way to wait: that hears only of releases by its own kind, sleeps through all
    # others for a second at least, and gets 1 % beside a client that polls.
    if lock.acquire(blocking=False):
        return lock
    time.sleep(random.uniform(0.01, 0.05))
    return None


worker.run(acquire, redis_lock.NotAcquired)
