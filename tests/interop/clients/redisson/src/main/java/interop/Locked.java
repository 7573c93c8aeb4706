package interop;

import java.util.concurrent.TimeUnit;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** A lock of the scheme in SCHEME. A lease of -1 ms is renewed until the release. */
final class Locked {
    /** The token of a lock that has none. */
    static final long NO_TOKEN = 0;

    /** Longer than any race and any experiment. */
    private static final long LONG_MILLIS = 600_000;

    final RLock lock;
    private final RFencedLock fenced;

    Locked(RedissonClient client, String key) {
        String scheme = Settings.text("SCHEME");
        switch (scheme) {
            case "redisson" -> {
                lock = client.getLock(key);
                fenced = null;
            }
            case "redisson-fenced" -> {
                fenced = client.getFencedLock(key);
                lock = fenced;
            }
            default -> throw new IllegalArgumentException("no scheme " + scheme);
        }
    }

    /** Waits until this thread holds the lock, and returns its token. */
    long lock(long leaseMillis) throws InterruptedException {
        if (fenced != null && leaseMillis > 0) {
            // lockAndGetToken(long, TimeUnit) ignores its lease time in all three versions.
            return fenced.tryLockAndGetToken(LONG_MILLIS, leaseMillis, TimeUnit.MILLISECONDS);
        }
        if (fenced != null) {
            return fenced.lockAndGetToken();
        }
        lock.lock(leaseMillis, TimeUnit.MILLISECONDS);
        return NO_TOKEN;
    }

    /** Returns the token, or null if another holder had the lock for the whole wait. */
    Long tryLock(long waitMillis, long leaseMillis) throws InterruptedException {
        if (fenced != null) {
            return fenced.tryLockAndGetToken(waitMillis, leaseMillis, TimeUnit.MILLISECONDS);
        }
        boolean held = lock.tryLock(waitMillis, leaseMillis, TimeUnit.MILLISECONDS);
        return held ? NO_TOKEN : null;
    }

    /** Returns false if this thread did not own, or no longer owned, the lock. */
    boolean unlock() {
        try {
            lock.unlock();
            return true;
        } catch (IllegalMonitorStateException e) {
            return false;
        }
    }
}
