package interop;

import redis.clients.jedis.Jedis;

/** One of the lock schemes on Redis that textbooks describe. An object serves one acquisition. */
interface Scheme {
    /** Makes one attempt. */
    boolean tryLock();

    /** Returns false if this object did not own, or no longer owned, the lock. */
    boolean unlock();

    /** The connection and the key of the lock. */
    record Place(Jedis jedis, String key, long ttlMillis) {}

    static Scheme named(String name, Place place) {
        return switch (name) {
            case "setnx-expire" -> new SetnxExpire(place);
            case "deadline-getset" -> new DeadlineGetset(place);
            case "lua-setnx-expire" -> new LuaSetnxExpire(place);
            case "set-nx-px" -> new SetNxPx(place);
            case "watch-multi" -> new WatchMulti(place);
            default -> throw new IllegalArgumentException("no scheme " + name);
        };
    }
}
