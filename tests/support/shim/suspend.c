/*
 * A suspended machine, as one process sees it after the resume. CLOCK_BOOTTIME and the time of day
 * continue during a suspend, so this library moves them ahead by the number of seconds that the
 * test sets. CLOCK_MONOTONIC stands still during a suspend, so it is not changed.
 *
 * The page holds two 64-bit words: the seconds, and their complement. A reader that sees
 * inconsistent words reads again.
 */
__attribute__((constructor)) static void map_page(void)
{
	map_page_of("LOCK_TEST_SUSPENDED");
}

int clock_gettime(clockid_t which, struct timespec *out)
{
	int result = (int)syscall(SYS_clock_gettime, which, out);

	/* The constructor of another library may call this before this library's constructor has run. */
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
