// The mutex of redis-semaphore.

import { Redis } from "ioredis";
import { Mutex } from "redis-semaphore";

import { main } from "./peer.js";

await main({
  name: "redis-semaphore",
  module: "redis-semaphore",
  notes: "on ioredis; polls every 10 ms; renews by itself",
  connect({ url, key, ttlMs, waitMs }) {
    const redis = new Redis(url);
    return {
      redis,
      async acquire() {
        // The library's interval stays as it is. It ends a wait after 10 s by default.
        const mutex = new Mutex(redis, key, { lockTimeout: ttlMs, acquireTimeout: waitMs });
        await mutex.acquire();
        return () => mutex.release();
      },
    };
  },
});
