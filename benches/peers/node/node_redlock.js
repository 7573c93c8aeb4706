// The lock of node-redlock, on one server. Version 4.2.0 is the newest that is no beta.

import { Redis } from "ioredis";
import Redlock from "redlock";

import { leave, main } from "./peer.js";

await main({
  name: "node-redlock",
  module: "redlock",
  notes: "on ioredis; polls every 100 to 300 ms",
  connect({ url, key, ttlMs }) {
    const redis = new Redis(url);
    // The library's delay stays as it is. Its limit of 10 retries would end a wait after some 2 s.
    const redlock = new Redlock([redis], { retryCount: -1 });
    // The library collects the server's errors, but reports only that there was no quorum.
    redlock.on("clientError", leave);
    return {
      redis,
      async acquire() {
        const lock = await redlock.lock(key, ttlMs);
        return () => lock.unlock();
      },
    };
  },
});
