package interop;

import java.util.UUID;
import redis.clients.jedis.params.SetParams;

/** SET NX PX, and a script that deletes the key if this client still owns it. */
final class SetNxPx implements Scheme {
    private final Place at;
    private final String owner = UUID.randomUUID().toString();

    SetNxPx(Place at) {
        this.at = at;
    }

    @Override
    public boolean tryLock() {
        SetParams ifFree = SetParams.setParams().nx().px(at.ttlMillis());
        return "OK".equals(at.jedis().set(at.key(), owner, ifFree));
    }

    @Override
    public boolean unlock() {
        return CompareAndDelete.unlock(at, owner);
    }
}
