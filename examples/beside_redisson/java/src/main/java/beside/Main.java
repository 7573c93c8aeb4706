package beside;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RFencedLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * The service in Java; ../../../../../service.rs is the same service in Rust. The arguments are the URL of the server
 * and a number of seconds.
 */
public final class Main {
    /** This service, in the record. */
    private static final String SIDE = "java";

    private Main() {}

    public static void main(String[] args) throws Exception {
        try {
            run(args[0], Duration.ofSeconds(Long.parseLong(args[1])));
        } catch (Exception e) {
            e.printStackTrace();
            // The threads of Redisson would keep the process alive.
            System.exit(1);
        }
    }

    private static void run(String url, Duration time) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(url);
        RedissonClient client = Redisson.create(config);
        RFencedLock lock = client.getFencedLock("stock:17");
        RBucket<String> stock = client.getBucket("stock:17:sold", StringCodec.INSTANCE);
        System.out.println("ready");
        new BufferedReader(new InputStreamReader(System.in)).readLine();

        long until = System.nanoTime() + time.toNanos();
        long sections = 0;
        long changes = 0;
        long first = 0;
        long last = 0;
        while (System.nanoTime() - until < 0) {
            long token = lock.lockAndGetToken();
            try {
                // How many pieces were sold, the token of the last sale, and the service.
                String text = stock.get();
                String[] record = (text == null ? "0 0 " + SIDE : text).split(" ");
                long sold = Long.parseLong(record[0]);
                if (token <= Long.parseLong(record[1])) {
                    throw new IllegalStateException(
                            "token " + token + " came after token " + record[1]);
                }
                // Without the lock, updates would be lost between the read and the write.
                Thread.sleep(1);
                stock.set(sold + 1 + " " + token + " " + SIDE);
                changes += record[2].equals(SIDE) ? 0 : 1;
            } finally {
                lock.unlock();
            }
            sections++;
            first = first == 0 ? token : first;
            last = token;
        }
        System.out.println("done " + sections + " " + changes + " " + first + " " + last);
        client.shutdown();
    }
}
