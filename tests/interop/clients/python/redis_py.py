"""The lock of redis-py: SET NX PX, and a script that compares and deletes."""

import random

import redis
from redis.exceptions import LockNotOwnedError
from redis.lock import Lock

import worker

client = redis.Redis(host="127.0.0.1", port=worker.redis_port())
client.ping()


def acquire():
    lock = Lock(client, worker.lock_key(), timeout=worker.ttl_seconds(), blocking_timeout=5)
    return lock if lock.acquire(sleep=random.uniform(0.01, 0.05)) else None


worker.run(acquire, LockNotOwnedError)
