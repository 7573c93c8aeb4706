// Package worker is what each program does around its lock; ../../README.md has the protocol.
package worker

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

// What a program's own functions answer besides errors that are not to be.
var (
	// ErrBusy is an acquisition that is to be asked for again.
	ErrBusy = errors.New("another client has the lock")
	// ErrNotOwned is a release of a lock that another client owned.
	ErrNotOwned = errors.New("the lock was not ours any more")
)

// Release gives a lock back.
type Release func() error

// Address is where the server listens.
func Address() string { return "127.0.0.1:" + os.Getenv("REDIS_PORT") }

// Key is the key to be locked.
func Key() string { return os.Getenv("LOCK_KEY") }

// TTL is how long the key lives.
func TTL() time.Duration { return millis("TTL_MS") }

// Delay is the time to the next try of a waiter.
func Delay() time.Duration {
	return 10*time.Millisecond + rand.N(40*time.Millisecond)
}

// Run increments the counter under what acquire gives.
func Run(acquire func() (Release, error)) {
	orders := bufio.NewScanner(os.Stdin)
	pause := millis("PAUSE_MS")
	fmt.Println("ready")
	var stopped atomic.Bool
	stopped.Store(!orders.Scan())
	go func() {
		// A line after `go` can only be `stop`, and the end of the input means the same.
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
