/*
 * A suspended machine, as one process sees it when it wakes up. Preloaded into the process, the
 * clocks that go on during a suspend (CLOCK_BOOTTIME and the time of day) are ahead by as many
 * seconds as the test says; CLOCK_MONOTONIC, which stands still meanwhile, is left alone.
 *
 * The page holds two 64-bit words: the seconds, and their complement. A reader that sees them
 * disagree looks again.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile uint64_t *page;

static void fail(const char *why)
{
	/* A process that was never suspended would make the test lie. */
	ssize_t written = write(STDERR_FILENO, why, strlen(why));
	(void)written;
	_exit(70);
}

__attribute__((constructor)) static void map_page(void)
{
	const char *path = getenv("LOCK_TEST_SUSPENDED");
	if (!path)
		fail("suspend shim: LOCK_TEST_SUSPENDED is not set\n");
	int file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		fail("suspend shim: LOCK_TEST_SUSPENDED cannot be opened\n");
	void *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (mapped == MAP_FAILED)
		fail("suspend shim: LOCK_TEST_SUSPENDED cannot be mapped\n");
	page = mapped;
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
