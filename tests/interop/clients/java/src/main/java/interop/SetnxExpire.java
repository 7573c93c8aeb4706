package interop;

import java.util.UUID;

/**
 * SETNX, then EXPIRE. A client that dies in between leaves a key without an expiry, so a contender
 * that finds such a key sets one.
 */
final class SetnxExpire implements Scheme {
    private final Place at;
    private final String owner = UUID.randomUUID().toString();

    SetnxExpire(Place at) {
        this.at = at;
    }

    @Override
    public boolean tryLock() {
        long seconds = Math.max(1, at.ttlMillis() / 1000);
        if (at.jedis().setnx(at.key(), owner) == 1) {
            at.jedis().expire(at.key(), seconds);
            return true;
        }
        if (at.jedis().ttl(at.key()) == -1) {
            at.jedis().expire(at.key(), seconds);
        }
        return false;
    }

    @Override
    public boolean unlock() {
        // Not atomic: the lease may end in between. The textbooks accept that.
        return owner.equals(at.jedis().get(at.key())) && at.jedis().del(at.key()) == 1;
    }
}
