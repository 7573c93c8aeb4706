// The lock of node-redlock, on one server or at a quorum; ../README.md has the protocol.

import { readFile, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

import { Redis } from "ioredis";
import Redlock from "redlock";

const { REDIS_PORT, LOCK_KEY, TTL_MS, COUNTER, PAUSE_MS } = process.env;

const clients = REDIS_PORT.split(",").map((port) => new Redis({ host: "127.0.0.1", port: Number(port) }));
const redlock = new Redlock(clients, { retryCount: 100, retryDelay: 30, retryJitter: 20 });
// The library collects the server's replies, but reports only that there was no quorum.
redlock.on("clientError", (error) => leave(1, error.stack));
await Promise.all(clients.map((client) => client.ping()));

const orders = createInterface({ input: process.stdin });
let stopped = false;
const go = new Promise((resolve) => {
  orders.on("line", (line) => {
    if (line === "stop") orders.close();
    else resolve();
  });
  orders.on("close", () => {
    stopped = true;
    resolve();
  });
});
console.log("ready");
await go;

let sections = 0;
while (!stopped) {
  const lock = await acquire();
  if (!lock) continue;
  await increment();
  try {
    await lock.unlock();
  } catch (error) {
    leave(4, `the lock was not ours any more: ${error.stack}`);
  }
  sections += 1;
  console.log("section");
  await sleep(Math.random() * Number(PAUSE_MS));
}
console.log(`done ${sections} 0`);
process.stdin.destroy();
await Promise.all(clients.map((client) => client.quit()));

async function acquire() {
  try {
    return await redlock.lock(LOCK_KEY, Number(TTL_MS));
  } catch (error) {
    // Every attempt found the lock held.
    if (error.name === "LockError") return undefined;
    throw error;
  }
}

async function increment() {
  const text = await readFile(COUNTER, "utf8");
  if (!/^\d+$/.test(text)) {
    leave(3, `the counter holds \`${text}\`: another process is writing it`);
  }
  await sleep(1);
  await writeFile(COUNTER, String(Number(text) + 1));
}

function leave(code, message) {
  console.error(message);
  process.exit(code);
}
