package interop;

import redis.clients.jedis.Jedis;

/** One of the ways in which the books write a lock on Redis. A value serves one acquisition. */
interface Scheme {
    /** Asks once. */
    boolean tryLock();

    /** Says false when the lock was not, or no longer, this one's. */
    boolean unlock();

    /** Where the scheme finds its lock. */
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
