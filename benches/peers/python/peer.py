"""The part around the lock that the programs in Python share: the flags, the scenarios and the
output of a program of the comparison."""

import argparse
import importlib.metadata
import json
import os
import select
import sys
import threading
import time
import traceback
import uuid
from concurrent.futures import ThreadPoolExecutor, as_completed

COMPARE_AND_DELETE = """
if redis.call("get", KEYS[1]) == ARGV[1] then
    return redis.call("del", KEYS[1])
end
return 0
"""


def main(about, connect, contend):
    """Runs the scenario that the command line names.

    `connect` takes the options and returns a client. Its attribute `redis` is the connection, and
    its method `acquire` returns a held lock, which has a method `release`. `contend` takes the
    options, and runs that scenario.
    """
    options = parse()
    if options.scenario == "pair":
        pair(connect(options), options)
    elif options.scenario == "contend":
        contend(options)
    elif options.scenario == "hold":
        hold(connect(options), options)
    elif options.scenario == "wait":
        wait(connect(options))
    else:
        version = importlib.metadata.version(about.pop("package"))
        say({**about, "version": version, "language": "Python", "kind": "lock"})


def parse():
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    common.add_argument("--url", default="redis://127.0.0.1:6379")
    common.add_argument("--key", default="peers")
    common.add_argument("--ttl-ms", type=int, default=10_000)
    common.add_argument("--wait-ms", type=int, default=60_000)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    scenarios = parser.add_subparsers(dest="scenario", required=True)

    def scenario(name):
        return scenarios.add_parser(name, parents=[common], allow_abbrev=False)

    pair = scenario("pair")
    pair.add_argument("--blocks", type=int, default=50)
    pair.add_argument("--block", type=int, default=100)
    contend = scenario("contend")
    contend.add_argument("--tasks", type=int, default=8)
    contend.add_argument("--sections", type=int, default=25)
    contend.add_argument("--hold-us", type=int, default=1000)
    contend.add_argument("--separate-clients", action="store_true")
    scenario("hold").add_argument("--hold-ms", type=int, default=0)
    scenario("wait")
    scenario("about")
    return parser.parse_args()


def pair(client, options):
    """Alternates blocks of raw pairs with blocks of pairs of the library."""
    redis = client.redis
    digest = redis.script_load(COMPARE_AND_DELETE)
    raw_key = options.key + ":raw"

    def raw():
        value = str(uuid.uuid4())
        if not redis.set(raw_key, value, nx=True, px=options.ttl_ms):
            sys.exit("another process uses the key of the raw pair")
        if redis.evalsha(digest, 1, raw_key, value) != 1:
            sys.exit("the key of the raw pair is lost")

    def lock():
        client.acquire().release()

    # The first blocks are a warm-up.
    skipped = (options.blocks + 9) // 10
    raw_us, lock_us = [], []
    for _ in range(options.blocks):
        raw_us.append(timed(options.block, raw))
        lock_us.append(timed(options.block, lock))
    say({"raw_us": raw_us[skipped:], "lock_us": lock_us[skipped:]})


def timed(runs, run):
    """Returns the mean time of a run in microseconds."""
    start = time.perf_counter_ns()
    for _ in range(runs):
        run()
    return (time.perf_counter_ns() - start) / 1000 / runs


class Record:
    """The moments of all sections, in the order in which they ran.

    It also checks that two sections never run at the same time.
    """

    def __init__(self):
        self.mutex = threading.Lock()
        self.holders = 0
        self.sections = []

    def begin(self):
        """Records the moment at which all tasks begin."""
        self.began = time.perf_counter_ns()

    def acquired(self, waited):
        """Records the moment after an acquisition, which began at `waited`."""
        now = time.perf_counter_ns()
        with self.mutex:
            self.holders += 1
            if self.holders != 1:
                raise RuntimeError("two tasks hold the lock at the same time")
            section = {"waited": waited, "acquired": now}
            self.sections.append(section)
            return section

    def releasing(self, section):
        """Records the moment before the call that releases the lock."""
        with self.mutex:
            self.holders -= 1
            section["released"] = time.perf_counter_ns()

    def say(self):
        """Prints the figures of a run that ends now."""
        total = time.perf_counter_ns() - self.began
        waits = [(s["acquired"] - s["waited"]) / 1000 for s in self.sections]
        handoffs = [
            (after["acquired"] - before["released"]) / 1000
            for before, after in zip(self.sections, self.sections[1:])
        ]
        say({"total_us": total / 1000, "wait_us": waits, "handoff_us": handoffs})


def contend_in_threads(connect, options):
    """Has several threads take turns."""
    clients = [connect(options)]
    for _ in range(1, options.tasks):
        clients.append(connect(options) if options.separate_clients else clients[0])
    record = Record()
    start = threading.Barrier(options.tasks, action=record.begin)

    def task(client):
        start.wait()
        for _ in range(options.sections):
            waited = time.perf_counter_ns()
            lock = client.acquire()
            section = record.acquired(waited)
            time.sleep(options.hold_us / 1e6)
            record.releasing(section)
            lock.release()

    with ThreadPoolExecutor(options.tasks) as pool:
        for done in as_completed([pool.submit(task, client) for client in clients]):
            if error := done.exception():
                traceback.print_exception(error)
                # The other threads may wait for a long time.
                os._exit(1)
    record.say()


def hold(client, options):
    lock = client.acquire()
    event("acquired")
    # The end of the input has the same meaning as a line.
    select.select([sys.stdin], [], [], options.hold_ms / 1000 or None)
    event("releasing")
    lock.release()
    event("released")


def wait(client):
    event("waiting")
    lock = client.acquire()
    event("acquired")
    lock.release()


def event(name):
    say({"event": name, "unix_us": time.time_ns() / 1000})


def say(value):
    print(json.dumps(value), flush=True)
