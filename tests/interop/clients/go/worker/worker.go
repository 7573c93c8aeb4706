// Package worker is the part around the lock that all programs share; ../../README.md has the
// protocol.
package worker

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Errors that a program's own functions return for expected outcomes.
var (
	// ErrBusy reports an acquisition that must be retried.
	ErrBusy = errors.New("another client has the lock")
	// ErrNotOwned reports the release of a lock that another client owned.
	ErrNotOwned = errors.New("this client no longer owned the lock")
)

// Release releases a lock.
type Release func() error

// Address is the address of the only server.
func Address() string { return "127.0.0.1:" + os.Getenv("REDIS_PORT") }

// Addresses are the addresses of the server, or of the servers of a quorum.
func Addresses() []string {
	ports := strings.Split(os.Getenv("REDIS_PORT"), ",")
	for at, port := range ports {
		ports[at] = "127.0.0.1:" + port
	}
	return ports
}

// Key is the key of the lock.
func Key() string { return os.Getenv("LOCK_KEY") }

// TTL is the ttl of the key.
func TTL() time.Duration { return millis("TTL_MS") }

// Delay is the time to the next attempt of a waiter.
func Delay() time.Duration {
	return 10*time.Millisecond + rand.N(40*time.Millisecond)
}

// Run increments the counter under the lock that acquire returns.
func Run(acquire func() (Release, error)) {
	orders := bufio.NewScanner(os.Stdin)
	pause := millis("PAUSE_MS")
	fmt.Println("ready")
	var stopped atomic.Bool
	stopped.Store(!orders.Scan())
	go func() {
		// A line after `go` can only be `stop`, and the end of the input has the same meaning.
		orders.Scan()
		stopped.Store(true)
	}()

	sections := 0
	for !stopped.Load() {
		release, err := acquire()
		if errors.Is(err, ErrBusy) {
			continue
		}
		check(err)
		increment(os.Getenv("COUNTER"))
		check(release())
		sections++
		fmt.Println("section")
		time.Sleep(rand.N(pause))
	}
	fmt.Printf("done %d 0\n", sections)
}

func increment(path string) {
	text, err := os.ReadFile(path)
	check(err)
	value, err := strconv.Atoi(string(text))
	if err != nil {
		leave(3, fmt.Errorf("the counter holds `%s`: another process is writing it", text))
	}
	time.Sleep(time.Millisecond)
	check(os.WriteFile(path, []byte(strconv.Itoa(value+1)), 0o644))
}

func millis(name string) time.Duration {
	number, err := strconv.Atoi(os.Getenv(name))
	check(err)
	return time.Duration(number) * time.Millisecond
}

func check(err error) {
	switch {
	case errors.Is(err, ErrNotOwned):
		leave(4, err)
	case err != nil:
		leave(1, err)
	}
}

func leave(code int, err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(code)
}
