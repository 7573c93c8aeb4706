package interop;

/**
 * The value is the moment at which the lock ends, by the clock of its owner. The key has no expiry.
 * When that moment has passed, a contender takes over by GETSET. It is the owner only if GETSET
 * returned exactly the value that it had read.
 */
final class DeadlineGetset implements Scheme {
    private final Place at;
    private String deadline;

    DeadlineGetset(Place at) {
        this.at = at;
    }

    @Override
    public boolean tryLock() {
        String mine = String.valueOf(System.currentTimeMillis() + at.ttlMillis() + 1);
        if (at.jedis().setnx(at.key(), mine) == 1) {
            deadline = mine;
            return true;
        }
        String current = at.jedis().get(at.key());
        if (current != null && Long.parseLong(current) < System.currentTimeMillis()) {
            String previous = at.jedis().getSet(at.key(), mine);
            if (current.equals(previous)) {
                deadline = mine;
                return true;
            }
        }
        return false;
    }

    @Override
    public boolean unlock() {
        String current = at.jedis().get(at.key());
        boolean isMine = current != null && current.equals(deadline);
        return isMine
                && System.currentTimeMillis() < Long.parseLong(current)
                && at.jedis().del(at.key()) == 1;
    }
}
