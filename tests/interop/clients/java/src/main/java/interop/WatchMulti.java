package interop;

import java.util.UUID;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.params.SetParams;

/** SET NX PX, and a release by WATCH for servers that run no scripts. */
final class WatchMulti implements Scheme {
    private final Place at;
    private final String owner = UUID.randomUUID().toString();

    WatchMulti(Place at) {
        this.at = at;
    }

    @Override
    public boolean tryLock() {
        SetParams ifFree = SetParams.setParams().nx().px(at.ttlMillis());
        return "OK".equals(at.jedis().set(at.key(), owner, ifFree));
    }

    @Override
    public boolean unlock() {
        while (true) {
            at.jedis().watch(at.key());
            if (!owner.equals(at.jedis().get(at.key()))) {
                at.jedis().unwatch();
                return false;
            }
            try (Transaction transaction = at.jedis().multi()) {
                transaction.del(at.key());
                // No result: another client touched the key meanwhile. GET shows the current owner.
                if (transaction.exec() != null) {
                    return true;
                }
            }
        }
    }
}
