package interop;

import java.util.List;

/** Releases the lock of the two schemes that use a script. */
final class CompareAndDelete {
    private static final String SCRIPT =
            """
            if redis.call('get', KEYS[1]) == ARGV[1] then
              return redis.call('del', KEYS[1])
            else
              return 0
            end
            """;

    private CompareAndDelete() {}

    static boolean unlock(Scheme.Place at, String owner) {
        Object deleted = at.jedis().eval(SCRIPT, List.of(at.key()), List.of(owner));
        return Long.valueOf(1).equals(deleted);
    }
}
