/*
 * A network between cluster nodes that loses everything on request. Preloaded into a node, it drops what
 * the node reads and writes on connections from or to the port of a node for other nodes. Connections of
 * clients and replicas have other ports.
 *
 * The page holds three 64-bit words: whether the network is cut, and the first and the last port that
 * nodes use between each other.
 */
#include <netinet/in.h>
#include <sys/socket.h>

/* Runs before main. */
__attribute__((constructor)) static void map_page(void)
{
	map_page_of("LOCK_TEST_BUS");
}

static int has_bus_port(const struct sockaddr_in *address)
{
	uint64_t port = ntohs(address->sin_port);
	return address->sin_family == AF_INET && port >= page[1] && port <= page[2];
}

static int is_lost(int file)
{
	struct sockaddr_in local, peer;
	socklen_t local_size = sizeof local, peer_size = sizeof peer;

	/* The constructor of another library may write before this library's constructor has run. */
	if (!page || !page[0])
		return 0;
	if (getsockname(file, (struct sockaddr *)&local, &local_size) ||
	    getpeername(file, (struct sockaddr *)&peer, &peer_size))
		return 0;
	return has_bus_port(&local) || has_bus_port(&peer);
}

ssize_t read(int file, void *buffer, size_t size)
{
	ssize_t got = syscall(SYS_read, file, buffer, size);
	/* Without taking the bytes, the event loop would not wait. The end of a connection is no byte. */
	if (got > 0 && is_lost(file)) {
		errno = EAGAIN;
		return -1;
	}
	return got;
}

ssize_t write(int file, const void *buffer, size_t size)
{
	if (is_lost(file))
		return (ssize_t)size;
	return syscall(SYS_write, file, buffer, size);
}
