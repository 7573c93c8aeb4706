// The part around the lock that the programs in JavaScript share: the flags, the scenarios and the
// output of a program of the comparison.

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

const COMPARE_AND_DELETE = `
if redis.call("get", KEYS[1]) == ARGV[1] then
  return redis.call("del", KEYS[1])
end
return 0
`;

const COMMON = { url: "redis://127.0.0.1:6379", key: "peers", "ttl-ms": "10000", "wait-ms": "60000" };
const SCENARIOS = {
  pair: { run: pair, flags: { blocks: "50", block: "100" } },
  contend: {
    run: contend,
    flags: { tasks: "8", sections: "25", "hold-us": "1000", "separate-clients": false },
  },
  hold: { run: hold, flags: { "hold-ms": "0" } },
  wait: { run: wait, flags: {} },
  about: { run: about, flags: {} },
};

/**
 * Runs the scenario that the command line names. `program.connect` takes the settings and returns
 * a client: `redis` is its ioredis, and `acquire` returns a function that releases the lock.
 */
export async function main(program) {
  const [name, ...args] = process.argv.slice(2);
  try {
    const scenario = Object.hasOwn(SCENARIOS, name ?? "") ? SCENARIOS[name] : undefined;
    if (!scenario) throw new Error(`name a scenario: ${Object.keys(SCENARIOS).join(", ")}`);
    await scenario.run(program, parse(args, { ...COMMON, ...scenario.flags }));
  } catch (error) {
    leave(error);
  }
  // Ends the connections, and the input of `hold`.
  process.exit(0);
}

/** Returns the settings: numbers where the defaults are digits. Refuses unknown flags. */
function parse(args, defaults) {
  const options = {};
  for (const [flag, value] of Object.entries(defaults)) {
    options[flag] = { type: typeof value, default: value };
  }
  const settings = {};
  for (const [flag, value] of Object.entries(parseArgs({ args, options, strict: true }).values)) {
    const numeric = /^\d+$/.test(defaults[flag]);
    if (numeric && !/^\d+$/.test(value)) throw new Error(`--${flag} is no number: ${value}`);
    const camel = flag.replace(/-(.)/g, (_, letter) => letter.toUpperCase());
    settings[camel] = numeric ? Number(value) : value;
  }
  return settings;
}

async function connect(program, settings) {
  const client = program.connect(settings);
  client.redis.on("error", leave);
  await client.redis.ping();
  return client;
}

/** Bounds each wait: a library whose wait does not end is an error, not a hang. */
async function acquire(client, settings) {
  const late = () => leave(new Error(`no lock within ${settings.waitMs} ms`));
  const timer = setTimeout(late, settings.waitMs);
  try {
    return await client.acquire();
  } finally {
    clearTimeout(timer);
  }
}

/** Alternates blocks of raw pairs with blocks of pairs of the library. */
async function pair(program, settings) {
  const client = await connect(program, settings);
  const { redis } = client;
  const digest = await redis.script("LOAD", COMPARE_AND_DELETE);
  const rawKey = `${settings.key}:raw`;

  async function raw() {
    const value = randomUUID();
    if ((await redis.set(rawKey, value, "PX", settings.ttlMs, "NX")) !== "OK") {
      throw new Error("another process uses the key of the raw pair");
    }
    if ((await redis.evalsha(digest, 1, rawKey, value)) !== 1) {
      throw new Error("the key of the raw pair is lost");
    }
  }
  async function lock() {
    const release = await acquire(client, settings);
    await release();
  }

  // The first blocks are a warm-up.
  const skipped = Math.ceil(settings.blocks / 10);
  const rawTimes = [];
  const lockTimes = [];
  for (let block = 0; block < settings.blocks; block++) {
    rawTimes.push(await timed(settings.block, raw));
    lockTimes.push(await timed(settings.block, lock));
  }
  say({ raw_us: rawTimes.slice(skipped), lock_us: lockTimes.slice(skipped) });
}

/** Returns the mean time of a run in microseconds. */
async function timed(runs, run) {
  const start = performance.now();
  for (let i = 0; i < runs; i++) await run();
  return ((performance.now() - start) * 1000) / runs;
}

/** Has several tasks take turns. */
async function contend(program, settings) {
  const clients = [await connect(program, settings)];
  for (let task = 1; task < settings.tasks; task++) {
    clients.push(settings.separateClients ? await connect(program, settings) : clients[0]);
  }
  // The sections in the order in which they ran. One thread runs all tasks, so no mutex is needed.
  const sections = [];
  let holders = 0;

  async function task(client) {
    for (let i = 0; i < settings.sections; i++) {
      const waited = performance.now();
      const release = await acquire(client, settings);
      const section = { waited, acquired: performance.now() };
      sections.push(section);
      holders += 1;
      if (holders !== 1) throw new Error("two tasks hold the lock at the same time");
      if (settings.holdUs > 0) await sleep(settings.holdUs / 1000);
      holders -= 1;
      section.released = performance.now();
      await release();
    }
  }

  const began = performance.now();
  await Promise.all(clients.map(task));
  const total = performance.now() - began;

  say({
    total_us: total * 1000,
    wait_us: sections.map((s) => (s.acquired - s.waited) * 1000),
    handoff_us: sections.slice(1).map((s, i) => (s.acquired - sections[i].released) * 1000),
  });
}

async function hold(program, settings) {
  const release = await acquire(await connect(program, settings), settings);
  event("acquired");
  await new Promise((resolve) => {
    // The end of the input has the same meaning as a line.
    createInterface({ input: process.stdin }).once("line", resolve).once("close", resolve);
    if (settings.holdMs > 0) setTimeout(resolve, settings.holdMs);
  });
  event("releasing");
  await release();
  event("released");
}

async function wait(program, settings) {
  const client = await connect(program, settings);
  event("waiting");
  const release = await acquire(client, settings);
  event("acquired");
  await release();
}

function about({ name, notes, module }) {
  const { version } = JSON.parse(
    readFileSync(new URL(`node_modules/${module}/package.json`, import.meta.url), "utf8"),
  );
  say({ name, version, language: "JavaScript", kind: "lock", notes });
}

function event(name) {
  say({ event: name, unix_us: (performance.timeOrigin + performance.now()) * 1000 });
}

function say(value) {
  process.stdout.write(`${JSON.stringify(value)}\n`);
}

export function leave(error) {
  console.error(error);
  // The runner shows the last line.
  console.error(String(error));
  process.exit(1);
}
