package interop;

import java.time.Instant;
import java.time.temporal.ChronoUnit;

/** Starts the client of a race, or with the argument `agent` the agent of the experiments. */
public final class Main {
    private Main() {}

    public static void main(String[] args) {
        int code = 0;
        try {
            if (args.length == 1 && args[0].equals("agent")) {
                Agent.run();
            } else {
                Race.run();
            }
        } catch (Exception e) {
            e.printStackTrace();
            code = 1;
        }
        // The threads of Redisson would keep the process alive.
        System.exit(code);
    }

    static void say(String line) {
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }

    /** The wall clock in microseconds since the epoch, which all processes of the machine share. */
    static long micros() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }
}
