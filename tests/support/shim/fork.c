/*
 * A fork for a program without unsafe code. Preloaded into the program, `getppid` forks: it returns
 * the id of the child in the parent, and zero in the child.
 */
#include <unistd.h>

pid_t getppid(void)
{
	return fork();
}
