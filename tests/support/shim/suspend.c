/*
 * A suspended machine, as one process sees it when it wakes up. Preloaded into the process, the
 * clocks that go on during a suspend (CLOCK_BOOTTIME and the time of day) are ahead by as many
 * seconds as the test says; CLOCK_MONOTONIC, which stands still meanwhile, is left alone.
 *
 * The page holds two 64-bit words: the seconds, and their complement. A reader that sees them
 * disagree looks again.
 */
__attribute__((constructor)) static void map_page(void)
{
	map_page_of("LOCK_TEST_SUSPENDED");
}

int clock_gettime(clockid_t which, struct timespec *out)
{
	int result = (int)syscall(SYS_clock_gettime, which, out);

	/* Another library's constructor may ask before ours has run. */
	if (!page || result != 0 || (which != CLOCK_BOOTTIME && which != CLOCK_REALTIME))
		return result;
	uint64_t seconds, check;
	do {
		seconds = __atomic_load_n(&page[0], __ATOMIC_SEQ_CST);
		check = __atomic_load_n(&page[1], __ATOMIC_SEQ_CST);
	} while (check != ~seconds);
	out->tv_sec += (time_t)seconds;
	return 0;
}
