/*
 * A wall clock that a test controls. Preloaded into a server, it answers every call for the time of
 * day from a page that the test shares. The monotonic clocks stay real, so that the event loop
 * continues.
 *
 * The page holds three 64-bit words: mode, value, and a check word equal to mode ^ ~value. The test
 * writes all three in one call, but the kernel may copy them byte by byte. A reader that sees
 * inconsistent words reads again.
 */
enum { MODE_FROZEN = 1, MODE_RUNNING = 2 };

#define MICROS 1000000

/* Runs before main, and so before any thread that could race to map the page. */
__attribute__((constructor)) static void map_page(void)
{
	map_page_of("LOCK_TEST_CLOCK");
}

static int64_t micros_since_epoch(void)
{
	uint64_t mode, value, check, again;

	/* The constructor of another library may call this before this library's constructor has run. */
	if (!page)
		map_page();
	do {
		mode = __atomic_load_n(&page[0], __ATOMIC_SEQ_CST);
		value = __atomic_load_n(&page[1], __ATOMIC_SEQ_CST);
		check = __atomic_load_n(&page[2], __ATOMIC_SEQ_CST);
		again = __atomic_load_n(&page[1], __ATOMIC_SEQ_CST);
	} while (check != (mode ^ ~value) || again != value);

	if (mode == MODE_FROZEN)
		return (int64_t)value;

	struct timespec real;
	syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
	return (int64_t)real.tv_sec * MICROS + real.tv_nsec / 1000 + (int64_t)value;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
	(void)zone;
	int64_t now = micros_since_epoch();
	out->tv_sec = now / MICROS;
	out->tv_usec = now % MICROS;
	return 0;
}

time_t time(time_t *out)
{
	time_t now = micros_since_epoch() / MICROS;
	if (out)
		*out = now;
	return now;
}

int clock_gettime(clockid_t which, struct timespec *out)
{
	if (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE) {
		int64_t now = micros_since_epoch();
		out->tv_sec = now / MICROS;
		out->tv_nsec = now % MICROS * 1000;
		return 0;
	}
	/* The system call and not the next definition: the lookup of that definition may itself read the time. */
	return (int)syscall(SYS_clock_gettime, which, out);
}
