package peers;

import java.util.ArrayList;
import java.util.List;
import java.util.UUID;

/** Alternates blocks of raw pairs with blocks of pairs of the library. */
final class Pair {
    static final String COMPARE_AND_DELETE =
            """
            if redis.call("get", KEYS[1]) == ARGV[1] then
                return redis.call("del", KEYS[1])
            end
            return 0
            """;

    private final Peer peer;
    private final String key;
    private final String digest;

    private Pair(Peer peer, String key) {
        this.peer = peer;
        this.key = key;
        digest = peer.loadScript(COMPARE_AND_DELETE);
    }

    static void run(Peer peer, Flags flags) throws Exception {
        var pair = new Pair(peer, flags.text("--key"));
        int block = flags.number("--block");
        // The JVM compiles what ran some ten thousand times. On one core with the server, it then needs
        // seconds.
        long latest = System.nanoTime() + 15_000_000_000L;
        for (int pairs = 0; pairs < 25_000 && System.nanoTime() < latest; pairs += block) {
            pair.timed(block, pair::raw);
            pair.timed(block, pair::lock);
        }

        int blocks = flags.number("--blocks");
        int skipped = (blocks + 9) / 10;
        List<Double> raw = new ArrayList<>();
        List<Double> lock = new ArrayList<>();
        for (int i = 0; i < blocks; i++) {
            double rawTime = pair.timed(block, pair::raw);
            double lockTime = pair.timed(block, pair::lock);
            if (i >= skipped) {
                raw.add(rawTime);
                lock.add(lockTime);
            }
        }
        Main.say("{\"raw_us\":" + raw + ",\"lock_us\":" + lock + "}");
    }

    private void raw() {
        String value = UUID.randomUUID().toString();
        if (!peer.setIfFree(key + ":raw", value)) {
            throw new IllegalStateException("another process uses the key of the raw pair");
        }
        if (peer.evalSha(digest, key + ":raw", value) != 1) {
            throw new IllegalStateException("the key of the raw pair is lost");
        }
    }

    private void lock() throws Exception {
        peer.acquire(key).run();
    }

    /** Returns the mean time of a run in microseconds. */
    private double timed(int runs, Peer.Step run) throws Exception {
        long start = System.nanoTime();
        for (int i = 0; i < runs; i++) {
            run.run();
        }
        return (System.nanoTime() - start) / 1000.0 / runs;
    }
}
