/*
 * A suspended machine, as one process sees it after the resume. CLOCK_BOOTTIME and the time of day
 * continue during a suspend, so this library moves them ahead by the number of seconds that the
 * test sets. CLOCK_MONOTONIC stands still during a suspend, so it is not changed.
 *
 * A timer of CLOCK_BOOTTIME whose expiry passes during a suspend fires at the resume. A thread looks at
 * the page every millisecond, and sets the timers again when the time has moved.
 *
 * The page holds two 64-bit words: the seconds, and their complement. A reader that sees
 * inconsistent words reads again.
 */
#include <pthread.h>
#include <sys/timerfd.h>

__attribute__((constructor)) static void map_page(void)
{
	map_page_of("LOCK_TEST_SUSPENDED");
}

static uint64_t suspended_seconds(void)
{
	uint64_t seconds, check;

	do {
		seconds = __atomic_load_n(&page[0], __ATOMIC_SEQ_CST);
		check = __atomic_load_n(&page[1], __ATOMIC_SEQ_CST);
	} while (check != ~seconds);
	return seconds;
}

int clock_gettime(clockid_t which, struct timespec *out)
{
	int result = (int)syscall(SYS_clock_gettime, which, out);

	/* The constructor of another library may call this before this library's constructor has run. */
	if (!page || result != 0 || (which != CLOCK_BOOTTIME && which != CLOCK_REALTIME))
		return result;
	out->tv_sec += (time_t)suspended_seconds();
	return 0;
}

/* The timers of the process, by file descriptor. Those of other clocks do not see the suspend. */
enum { TIMERS = 1024 };
static volatile char counts_suspend[TIMERS];
static struct itimerspec timers[TIMERS];
static pthread_mutex_t timers_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;
/* The seconds that all timers are set for. Known before the first timer is set: the thread may start late. */
static uint64_t seen;

/* Sets a timer that the process sees as set to `expiry`. An expiry in the past fires at once. */
static int set_real_timer(int fd, int flags, const struct itimerspec *expiry, struct itimerspec *old)
{
	struct itimerspec real = *expiry;
	time_t moved = (time_t)suspended_seconds();

	if (real.it_value.tv_sec > moved) {
		real.it_value.tv_sec -= moved;
	} else if (real.it_value.tv_sec || real.it_value.tv_nsec) {
		real.it_value.tv_sec = 0;
		real.it_value.tv_nsec = 1;
	}
	return (int)syscall(SYS_timerfd_settime, fd, flags, &real, old);
}

static void *watch(void *unused)
{
	(void)unused;
	for (;;) {
		struct timespec pause = {0, 1000000};

		nanosleep(&pause, NULL);
		if (suspended_seconds() == seen)
			continue;
		pthread_mutex_lock(&timers_mutex);
		seen = suspended_seconds();
		for (int fd = 0; fd < TIMERS; fd++)
			if (timers[fd].it_value.tv_sec)
				set_real_timer(fd, TFD_TIMER_ABSTIME, &timers[fd], NULL);
		pthread_mutex_unlock(&timers_mutex);
	}
	return NULL;
}

static void start_watch(void)
{
	pthread_t thread;

	seen = suspended_seconds();
	if (pthread_create(&thread, NULL, watch, NULL) != 0)
		abort();
}

int timerfd_create(int clock, int flags)
{
	int fd = (int)syscall(SYS_timerfd_create, clock, flags);

	if (fd >= 0 && fd < TIMERS)
		counts_suspend[fd] = clock == CLOCK_BOOTTIME;
	return fd;
}

int timerfd_settime(int fd, int flags, const struct itimerspec *expiry, struct itimerspec *old)
{
	int result;

	/* Only what the library uses. */
	if (!page || flags != TFD_TIMER_ABSTIME || fd >= TIMERS || !counts_suspend[fd])
		return (int)syscall(SYS_timerfd_settime, fd, flags, expiry, old);
	pthread_once(&watch_once, start_watch);
	pthread_mutex_lock(&timers_mutex);
	timers[fd] = *expiry;
	result = set_real_timer(fd, flags, expiry, old);
	pthread_mutex_unlock(&timers_mutex);
	return result;
}
