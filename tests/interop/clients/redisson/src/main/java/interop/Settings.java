package interop;

import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** The environment variables of a program; ../README.md has them. */
final class Settings {
    private Settings() {}

    static String text(String name) {
        String value = System.getenv(name);
        if (value == null) {
            throw new IllegalArgumentException(name + " is not set");
        }
        return value;
    }

    static long number(String name) {
        return Long.parseLong(text(name));
    }

    static int number(String name, int otherwise) {
        String value = System.getenv(name);
        return value == null ? otherwise : Integer.parseInt(value);
    }

    /** Connects a client. Locks without a lease time get the lease of this many milliseconds. */
    static RedissonClient connect(long watchdogMillis) {
        Config config = new Config();
        // Several processes share the machine, and each uses one lock or two.
        config.setThreads(2).setNettyThreads(2);
        // Locks use a codec of their own. The default codec only makes the start slower.
        config.setCodec(StringCodec.INSTANCE);
        config.setLockWatchdogTimeout(watchdogMillis);
        var server =
                config.useSingleServer()
                        .setAddress("redis://127.0.0.1:" + text("REDIS_PORT"))
                        .setClientName(System.getenv("CLIENT_NAME"))
                        .setConnectionPoolSize(4)
                        .setConnectionMinimumIdleSize(1)
                        .setSubscriptionConnectionPoolSize(2)
                        .setSubscriptionConnectionMinimumIdleSize(1);
        int timeout = number("TIMEOUT_MS", 0);
        if (timeout > 0) {
            server.setTimeout(timeout);
        }
        int retries = number("RETRIES", -1);
        if (retries >= 0) {
            server.setRetryAttempts(retries);
        }
        return Redisson.create(config);
    }
}
