/*
 * A page of memory that a test shares with a process. The test builds this together with the shim
 * that reads the page.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile uint64_t *page;

/* A process without the page would make the test pass for the wrong reason. */
static void fail(const char *variable, const char *why)
{
	ssize_t written = write(STDERR_FILENO, variable, strlen(variable));
	written = write(STDERR_FILENO, why, strlen(why));
	(void)written;
	_exit(70);
}

/* Maps the file that the variable names. */
static void map_page_of(const char *variable)
{
	const char *path = getenv(variable);
	if (!path)
		fail(variable, " is not set\n");
	int file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		fail(variable, " cannot be opened\n");
	void *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (mapped == MAP_FAILED)
		fail(variable, " cannot be mapped\n");
	page = mapped;
}
