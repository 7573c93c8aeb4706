package peers;

import java.util.List;
import java.util.UUID;
import java.util.concurrent.TimeoutException;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.params.SetParams;

/** A lock by hand on Jedis, which has no lock: SET NX PX, and a script that compares and deletes. */
final class JedisPeer implements Peer {
    private static final long POLL_MS = 50;

    private final Flags flags;
    private final RedisClient client;
    private final SetParams ifFree;
    private final String digest;

    JedisPeer(Flags flags) {
        this.flags = flags;
        client = RedisClient.create(flags.text("--url"));
        ifFree = SetParams.setParams().nx().px(flags.number("--ttl-ms"));
        digest = loadScript(Pair.COMPARE_AND_DELETE);
    }

    @Override
    public Step acquire(String key) throws Exception {
        String owner = UUID.randomUUID().toString();
        long deadline = System.nanoTime() + flags.number("--wait-ms") * 1_000_000L;
        while (!setIfFree(key, owner)) {
            if (System.nanoTime() > deadline) {
                throw new TimeoutException("no lock within " + flags.text("--wait-ms") + " ms");
            }
            Thread.sleep(POLL_MS);
        }
        return () -> {
            if (evalSha(digest, key, owner) != 1) {
                throw new IllegalStateException("the lock was lost");
            }
        };
    }

    @Override
    public boolean setIfFree(String key, String value) {
        return "OK".equals(client.set(key, value, ifFree));
    }

    @Override
    public String loadScript(String script) {
        return client.scriptLoad(script);
    }

    @Override
    public long evalSha(String digest, String key, String value) {
        return (Long) client.evalsha(digest, List.of(key), List.of(value));
    }
}
