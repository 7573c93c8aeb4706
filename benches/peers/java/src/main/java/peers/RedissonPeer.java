package peers;

import io.netty.channel.EventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.nio.NioIoHandler;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RScript;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** The lock and the fair lock of Redisson, whose waiters subscribe to a channel. */
final class RedissonPeer implements Peer {
    private final Flags flags;
    private final boolean fair;
    private final Duration ttl;
    private final RedissonClient client;
    private final RScript scripts;

    RedissonPeer(Flags flags, boolean fair) {
        this.flags = flags;
        this.fair = fair;
        ttl = Duration.ofMillis(flags.number("--ttl-ms"));
        var config = new Config();
        // A lock without a lease of its own is renewed. This is the ttl that the renewal sets.
        config.setLockWatchdogTimeout(ttl.toMillis());
        var server = config.useSingleServer().setAddress(flags.text("--url"));
        if (flags.isSet("--separate-clients")) {
            // Each client would start 48 threads and open 24 connections.
            config.setEventLoopGroup(Shared.LOOPS).setExecutor(Shared.THREADS);
            server.setConnectionMinimumIdleSize(1);
        }
        client = Redisson.create(config);
        scripts = client.getScript(StringCodec.INSTANCE);
    }

    /** The threads of all clients, as many as one client starts by default. */
    private static final class Shared {
        static final EventLoopGroup LOOPS =
                new MultiThreadIoEventLoopGroup(32, NioIoHandler.newFactory());
        static final ExecutorService THREADS = Executors.newFixedThreadPool(16);
    }

    @Override
    public Step acquire(String key) throws Exception {
        RLock lock = fair ? client.getFairLock(key) : client.getLock(key);
        if (!lock.tryLock(flags.number("--wait-ms"), TimeUnit.MILLISECONDS)) {
            throw new TimeoutException("no lock within " + flags.text("--wait-ms") + " ms");
        }
        return lock::unlock;
    }

    @Override
    public boolean setIfFree(String key, String value) {
        return client.<String>getBucket(key, StringCodec.INSTANCE).setIfAbsent(value, ttl);
    }

    @Override
    public String loadScript(String script) {
        return scripts.scriptLoad(script);
    }

    @Override
    public long evalSha(String digest, String key, String value) {
        return scripts.<Long>evalSha(
                RScript.Mode.READ_WRITE, digest, RScript.ReturnType.LONG, List.of(key), value);
    }
}
