"""The part around the lock that all programs share; ../README.md has the protocol."""

import os
import random
import select
import sys
import time


def redis_port():
    return int(os.environ["REDIS_PORT"])


def lock_key():
    return os.environ["LOCK_KEY"]


def ttl_seconds():
    return int(os.environ["TTL_MS"]) / 1000


def run(acquire, not_owned):
    """Increments the counter under the lock that `acquire` returns; None requests another attempt.

    `not_owned` is what a release raises when another client owned the lock.
    """
    # Without a buffer, because `select` does not see buffered input.
    orders = open(0, "rb", buffering=0)
    pause = int(os.environ["PAUSE_MS"]) / 1000
    say("ready")
    stopped = orders.readline().strip() != b"go"

    sections = 0
    while not stopped:
        lock = acquire()
        if lock is not None:
            increment(os.environ["COUNTER"])
            try:
                lock.release()
            except not_owned as error:
                leave(4, f"this client no longer owned the lock: {error!r}")
            sections += 1
            say("section")
        # A line after `go` can only be `stop`, and the end of the input has the same meaning.
        stopped = bool(select.select([orders], [], [], random.uniform(0, pause))[0])
    say(f"done {sections} 0")


def increment(path):
    with open(path) as file:
        text = file.read()
    try:
        value = int(text)
    except ValueError:
        leave(3, f"the counter holds `{text}`: another process is writing it")
    time.sleep(0.001)
    with open(path, "w") as file:
        file.write(str(value + 1))


def say(line):
    print(line, flush=True)


def leave(code, message):
    print(message, file=sys.stderr)
    sys.exit(code)
