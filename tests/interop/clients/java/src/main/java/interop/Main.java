package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import redis.clients.jedis.Jedis;

/** Increments a counter under the lock of the scheme in SCHEME; ../README.md has the protocol. */
public final class Main {
    private static final CountDownLatch GO = new CountDownLatch(1);
    private static volatile boolean stopped;

    private Main() {}

    public static void main(String[] args) throws Exception {
        String scheme = env("SCHEME");
        Path counter = Path.of(env("COUNTER"));
        long pause = Long.parseLong(env("PAUSE_MS"));
        try (Jedis jedis = new Jedis("127.0.0.1", Integer.parseInt(env("REDIS_PORT")))) {
            var place = new Scheme.Place(jedis, env("LOCK_KEY"), Long.parseLong(env("TTL_MS")));
            jedis.ping();
            Thread orders = new Thread(Main::listen);
            orders.setDaemon(true);
            orders.start();
            say("ready");
            GO.await();

            long sections = 0;
            long refused = 0;
            while (!stopped) {
                Scheme lock = Scheme.named(scheme, place);
                boolean locked;
                try {
                    locked = lock.tryLock();
                } catch (NumberFormatException e) {
                    // The value is an owner's name and not a deadline.
                    locked = false;
                    refused++;
                }
                if (!locked) {
                    Thread.sleep(ThreadLocalRandom.current().nextLong(10, 50));
                    continue;
                }
                increment(counter);
                if (!lock.unlock()) {
                    System.err.println(scheme + ": this client no longer owned the lock");
                    System.exit(4);
                }
                sections++;
                say("section");
                Thread.sleep(ThreadLocalRandom.current().nextLong(pause + 1));
            }
            say("done " + sections + " " + refused);
        }
    }

    private static void increment(Path counter) throws Exception {
        String text = Files.readString(counter);
        long value = 0;
        try {
            value = Long.parseLong(text);
        } catch (NumberFormatException e) {
            System.err.println("the counter holds `" + text + "`: another process is writing it");
            System.exit(3);
        }
        Thread.sleep(1);
        Files.writeString(counter, String.valueOf(value + 1));
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

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static String env(String name) {
        String value = System.getenv(name);
        if (value == null) {
            throw new IllegalArgumentException(name + " is not set");
        }
        return value;
    }
}
