package peers;

import java.util.HashMap;
import java.util.Map;

/** The flags of one scenario. A flag of another scenario is an error, like an unknown flag. */
final class Flags {
    private final Map<String, String> values = new HashMap<>();

    private Flags(String scenario) {
        values.put("--url", "redis://127.0.0.1:6379");
        values.put("--key", "peers");
        values.put("--ttl-ms", "10000");
        values.put("--wait-ms", "60000");
        switch (scenario) {
            case "pair" -> {
                values.put("--blocks", "50");
                values.put("--block", "100");
            }
            case "contend" -> {
                values.put("--tasks", "8");
                values.put("--sections", "25");
                values.put("--hold-us", "1000");
                values.put("--separate-clients", "false");
            }
            case "hold" -> values.put("--hold-ms", "0");
            case "wait", "about" -> {}
            default -> throw new IllegalArgumentException("no scenario " + scenario);
        }
    }

    /** Reads the arguments from this index on. */
    static Flags parse(String scenario, String[] args, int first) {
        var flags = new Flags(scenario);
        for (int i = first; i < args.length; i++) {
            String flag = args[i];
            String preset = flags.values.get(flag);
            if (preset == null) {
                throw new IllegalArgumentException("unknown flag " + flag);
            } else if (preset.equals("false")) {
                flags.values.put(flag, "true");
            } else if (++i == args.length) {
                throw new IllegalArgumentException(flag + " needs a value");
            } else {
                flags.values.put(flag, args[i]);
            }
        }
        return flags;
    }

    String text(String flag) {
        return values.get(flag);
    }

    int number(String flag) {
        return Integer.parseInt(text(flag));
    }

    /** Returns false for a flag of another scenario. */
    boolean isSet(String flag) {
        return "true".equals(text(flag));
    }
}
