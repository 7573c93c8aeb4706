package peers;

/** A client of one library, with its connections. */
interface Peer {
    /**
     * Waits for the lock. Throws an exception when the wait takes too long. The step that it returns
     * releases the lock, in the same thread, and throws an exception if the lock was lost.
     */
    Step acquire(String key) throws Exception;

    /** Sends SET key value NX PX ttl. Returns whether the key was free. */
    boolean setIfFree(String key, String value);

    /** Sends SCRIPT LOAD and returns the digest. */
    String loadScript(String script);

    /** Sends EVALSHA with one key and one argument. */
    long evalSha(String digest, String key, String value);

    /** A step that can fail. */
    interface Step {
        void run() throws Exception;
    }
}
