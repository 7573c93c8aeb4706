package peers;

import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;

/** Several threads that take turns. */
final class Contend {
    private final List<Section> sections = new ArrayList<>();
    private int holders;

    /** The moments of one section. */
    private static final class Section {
        final long waited;
        final long acquired;
        long released;

        Section(long waited, long acquired) {
            this.waited = waited;
            this.acquired = acquired;
        }
    }

    private Contend() {}

    static void run(List<Peer> peers, Flags flags) throws Exception {
        warmUp(peers, 3000);
        var contend = new Contend();
        var start = new CountDownLatch(1);
        List<Thread> threads = new ArrayList<>();
        for (Peer peer : peers) {
            threads.add(Main.start(() -> {
                start.await();
                for (int i = 0; i < flags.number("--sections"); i++) {
                    contend.section(peer, flags);
                }
            }));
        }
        long began = System.nanoTime();
        start.countDown();
        for (Thread thread : threads) {
            thread.join();
        }
        contend.print(System.nanoTime() - began);
    }

    /**
     * Has the threads take turns on another key, of which they print nothing. A JVM loads the classes
     * of a wait when the first thread waits, and compiles them later.
     */
    static void warmUp(List<Peer> peers, long millis) throws Exception {
        String key = "warm-up-" + UUID.randomUUID();
        long end = System.nanoTime() + millis * 1_000_000;
        List<Thread> threads = new ArrayList<>();
        for (Peer peer : peers) {
            threads.add(Main.start(() -> {
                while (System.nanoTime() < end) {
                    peer.acquire(key).run();
                }
            }));
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private void section(Peer peer, Flags flags) throws Exception {
        long waited = System.nanoTime();
        Peer.Step release = peer.acquire(flags.text("--key"));
        Section section = acquired(new Section(waited, System.nanoTime()));
        long hold = flags.number("--hold-us");
        Thread.sleep(hold / 1000, (int) (hold % 1000) * 1000);
        releasing(section);
        release.run();
    }

    /** Adds a section, in the order in which they ran, and checks that no other section runs. */
    private synchronized Section acquired(Section section) {
        holders++;
        if (holders != 1) {
            throw new IllegalStateException("two threads hold the lock at the same time");
        }
        sections.add(section);
        return section;
    }

    /** Records the moment before the call that releases the lock. */
    private synchronized void releasing(Section section) {
        holders--;
        section.released = System.nanoTime();
    }

    private void print(long total) {
        List<Double> waits = new ArrayList<>();
        List<Double> handoffs = new ArrayList<>();
        Section before = null;
        for (Section section : sections) {
            waits.add((section.acquired - section.waited) / 1000.0);
            if (before != null) {
                handoffs.add((section.acquired - before.released) / 1000.0);
            }
            before = section;
        }
        Main.say("{\"total_us\":" + total / 1000.0 + ",\"wait_us\":" + waits
                + ",\"handoff_us\":" + handoffs + "}");
    }
}
