package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.redisson.api.RedissonClient;

/** Executes commands for locks, and prints when each began and ended; ../README.md has the protocol. */
final class Agent {
    private final RedissonClient client;
    private final Map<String, ExecutorService> threads = new HashMap<>();

    private Agent(RedissonClient client) {
        this.client = client;
    }

    static void run() throws IOException {
        Agent agent = new Agent(Settings.connect(Settings.number("TTL_MS")));
        // Loads the classes that an acquire needs, so that the first command is not slow.
        new Locked(agent.client, "warm-up").lock.isLocked();
        Main.say("ready");
        var in = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = in.readLine()) != null) {
            agent.dispatch(line.split(" "));
        }
    }

    /** A lock belongs to a thread, so each key has one. The other commands need no particular thread. */
    private void dispatch(String[] words) {
        String key = words[2];
        Locked lock = new Locked(client, key);
        switch (words[1]) {
            case "lock", "tryLock", "unlock", "holdCount" -> threads
                    .computeIfAbsent(key, it -> Executors.newSingleThreadExecutor())
                    .execute(() -> execute(lock, words));
            default -> execute(lock, words);
        }
    }

    private void execute(Locked lock, String[] words) {
        long began = Main.micros();
        String result;
        try {
            result = call(lock, words);
        } catch (Exception e) {
            result = "failed " + e.getClass().getSimpleName();
        }
        Main.say(words[0] + " " + began + " " + Main.micros() + " " + result);
    }

    private static String call(Locked lock, String[] words) throws InterruptedException {
        return switch (words[1]) {
            case "lock" -> held(lock.lock(Long.parseLong(words[3])));
            case "tryLock" -> held(
                    lock.tryLock(Long.parseLong(words[3]), Long.parseLong(words[4])));
            case "unlock" -> lock.unlock() ? "done" : "gone";
            case "forceUnlock" -> lock.lock.forceUnlock() ? "done" : "gone";
            case "isLocked" -> "number " + (lock.lock.isLocked() ? 1 : 0);
            case "remain" -> "number " + lock.lock.remainTimeToLive();
            case "holdCount" -> "number " + lock.lock.getHoldCount();
            default -> throw new IllegalArgumentException(words[1]);
        };
    }

    private static String held(Long token) {
        return token == null ? "busy" : "held " + token;
    }
}
