package peers;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** The programs of the comparison in Java. The first argument names one; then come its own. */
public final class Main {
    private Main() {}

    public static void main(String[] args) {
        try {
            if (args.length < 2) {
                throw new IllegalArgumentException("name a scenario: pair, contend, hold, wait, about");
            }
            run(args[0], args[1], Flags.parse(args[1], args, 2));
        } catch (Exception e) {
            fail(e);
        }
        // Ends the connections and the threads of the libraries.
        System.exit(0);
    }

    private static void run(String program, String scenario, Flags flags) throws Exception {
        switch (scenario) {
            case "pair" -> Pair.run(connect(program, flags), flags);
            case "contend" -> {
                int tasks = flags.number("--tasks");
                List<Peer> peers = new ArrayList<>();
                if (flags.isSet("--separate-clients")) {
                    for (int i = 0; i < tasks; i++) {
                        peers.add(connect(program, flags));
                    }
                } else {
                    peers.addAll(Collections.nCopies(tasks, connect(program, flags)));
                }
                Contend.run(peers, flags);
            }
            case "hold" -> hold(warm(connect(program, flags)), flags);
            case "wait" -> {
                Peer peer = warm(connect(program, flags));
                event("waiting");
                Peer.Step release = peer.acquire(flags.text("--key"));
                event("acquired");
                release.run();
            }
            default -> about(program);
        }
    }

    private static Peer connect(String program, Flags flags) {
        return switch (program) {
            case "redisson" -> new RedissonPeer(flags, false);
            case "redisson-fair" -> new RedissonPeer(flags, true);
            case "jedis" -> new JedisPeer(flags);
            default -> throw new IllegalArgumentException("no program " + program);
        };
    }

    /** Two threads suffice to make one wait. */
    private static Peer warm(Peer peer) throws Exception {
        Contend.warmUp(List.of(peer, peer), 500);
        return peer;
    }

    private static void hold(Peer peer, Flags flags) throws Exception {
        Peer.Step release = peer.acquire(flags.text("--key"));
        event("acquired");
        var line = new CountDownLatch(1);
        Thread input = new Thread(() -> {
            try {
                int read;
                do {
                    read = System.in.read();
                } while (read != -1 && read != '\n');
                line.countDown();
            } catch (Exception e) {
                fail(e);
            }
        });
        input.setDaemon(true);
        input.start();
        long millis = flags.number("--hold-ms");
        line.await(millis > 0 ? millis : Long.MAX_VALUE, TimeUnit.MILLISECONDS);
        event("releasing");
        release.run();
        event("released");
    }

    private static void about(String program) throws Exception {
        boolean jedis = program.equals("jedis");
        String kind = program.equals("redisson-fair") ? "fair lock" : "lock";
        String notes = jedis
                ? "by hand: SET NX PX and a script that compares and deletes; polls every 50 ms"
                : "waits for a message of the release; renews by itself";
        String version = version(jedis ? "redis.clients/jedis" : "org.redisson/redisson");
        say("{\"name\":\"" + program + "\",\"version\":\"" + version
                + "\",\"language\":\"Java\",\"kind\":\"" + kind + "\",\"notes\":\"" + notes + "\"}");
    }

    /** Reads the version that Maven put into the library's archive. */
    private static String version(String artifact) throws Exception {
        var properties = new Properties();
        try (var in = Main.class.getResourceAsStream("/META-INF/maven/" + artifact + "/pom.properties")) {
            properties.load(in);
        }
        return properties.getProperty("version");
    }

    /** Starts a thread whose error ends the program. */
    static Thread start(Peer.Step body) {
        var thread = new Thread(() -> {
            try {
                body.run();
            } catch (Throwable e) {
                fail(e);
            }
        });
        thread.start();
        return thread;
    }

    private static void event(String name) {
        Instant now = Instant.now();
        say("{\"event\":\"" + name + "\",\"unix_us\":" + ChronoUnit.MICROS.between(Instant.EPOCH, now) + "}");
    }

    static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static void fail(Throwable error) {
        error.printStackTrace();
        // The runner shows the last line.
        System.err.println(error);
        // The threads of the libraries would keep the program alive.
        Runtime.getRuntime().halt(1);
    }
}
