/*
 * A fork for a program without unsafe code. Preloaded into it, the question for the id of the
 * parent forks: the parent is told the id of its child, and the child is told zero.
 */
#include <unistd.h>

pid_t getppid(void)
{
	return fork();
}
