package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;

/** Increments a counter under the lock; ../README.md has the protocol. */
final class Race {
    private static final CountDownLatch GO = new CountDownLatch(1);

    /** As long as a client of another library waits. */
    private static final long WAIT_MILLIS = 10_000;

    /** The pause after a failure. */
    private static final long REFUSED_MILLIS = 20;

    private static volatile boolean stopped;

    private Race() {}

    static void run() throws Exception {
        Path counter = Path.of(Settings.text("COUNTER"));
        long pause = Settings.number("PAUSE_MS");
        long ttl = Settings.number("TTL_MS");
        RedissonClient client = Settings.connect(ttl);
        Locked lock = new Locked(client, Settings.text("LOCK_KEY"));
        Thread orders = new Thread(Race::listen);
        orders.setDaemon(true);
        orders.start();
        Main.say("ready");
        GO.await();

        long sections = 0;
        long refused = 0;
        while (!stopped) {
            Long token;
            try {
                token = acquire(lock, sections, ttl);
            } catch (RedisException e) {
                // A connection was cut while it subscribed.
                refused++;
                Thread.sleep(REFUSED_MILLIS);
                continue;
            }
            if (token == null) {
                continue;
            }
            long count = increment(counter, token);
            if (!lock.unlock()) {
                System.err.println("this client no longer owned the lock");
                System.exit(4);
            }
            sections++;
            Main.say("section " + count + " " + Main.micros());
            Thread.sleep(ThreadLocalRandom.current().nextLong(pause + 1));
        }
        client.shutdown();
        Main.say("done " + sections + " " + refused);
    }

    /** Acquires in each of the three usual ways in turn. */
    private static Long acquire(Locked lock, long section, long ttl) throws InterruptedException {
        return switch ((int) (section % 3)) {
            case 0 -> lock.lock(ttl);
            case 1 -> lock.lock(-1);
            default -> lock.tryLock(WAIT_MILLIS, ttl);
        };
    }

    /** Replaces the number, and the token of the last holder behind it. Returns the new number. */
    private static long increment(Path counter, long token) throws Exception {
        String text = Files.readString(counter);
        String[] words = text.split(" ");
        long count = 0;
        long last = 0;
        try {
            count = Long.parseLong(words[0]);
            last = words.length > 1 ? Long.parseLong(words[1]) : 0;
        } catch (NumberFormatException e) {
            System.err.println("the counter holds `" + text + "`: another process is writing it");
            System.exit(3);
        }
        if (token != Locked.NO_TOKEN && token <= last) {
            System.err.println("got the fencing token " + token + " after " + last);
            System.exit(5);
        }
        Thread.sleep(1);
        count++;
        String next = token == Locked.NO_TOKEN ? "" + count : count + " " + token;
        // One write without truncation: a kill leaves the old text or the new one. The text only grows.
        try (var file = FileChannel.open(counter, StandardOpenOption.WRITE)) {
            file.write(ByteBuffer.wrap(next.getBytes(StandardCharsets.UTF_8)));
        }
        return count;
    }

    private static void listen() {
        try (var in = new BufferedReader(new InputStreamReader(System.in))) {
            String line;
            while ((line = in.readLine()) != null && !line.equals("stop")) {
                if (line.equals("go")) {
                    GO.countDown();
                }
            }
        } catch (IOException e) {
            // As good as the end of the input.
        }
        stopped = true;
        GO.countDown();
    }
}
