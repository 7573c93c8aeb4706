package interop;

import java.util.List;
import java.util.UUID;

/** SETNX and EXPIRE in one script, so that no client can die in between. */
final class LuaSetnxExpire implements Scheme {
    private static final String LOCK =
            """
            if redis.call('setnx', KEYS[1], ARGV[1]) == 1 then
              redis.call('expire', KEYS[1], ARGV[2])
              return 1
            else
              return 0
            end
            """;

    private final Place at;
    private final String owner = UUID.randomUUID().toString();

    LuaSetnxExpire(Place at) {
        this.at = at;
    }

    @Override
    public boolean tryLock() {
        String seconds = String.valueOf(Math.max(1, at.ttlMillis() / 1000));
        Object taken = at.jedis().eval(LOCK, List.of(at.key()), List.of(owner, seconds));
        return Long.valueOf(1).equals(taken);
    }

    @Override
    public boolean unlock() {
        return CompareAndDelete.unlock(at, owner);
    }
}
