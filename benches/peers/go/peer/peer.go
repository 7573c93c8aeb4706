// Package peer is the part around the lock that the programs in Go share: the flags, the scenarios
// and the output of a program of the comparison.
package peer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// Settings holds the flags that concern the lock.
type Settings struct {
	URL string
	// Key is the name that the library gets.
	Key string
	TTL time.Duration
	// Wait is the longest time of an acquisition.
	Wait time.Duration
}

// Release releases a lock. It returns an error if the client no longer owned it.
type Release func() error

// Client is a client of the library, with its connections.
type Client interface {
	// Acquire waits for the lock, at most until the context ends.
	Acquire(ctx context.Context) (Release, error)
	// SetIfFree sends SET key value NX PX ttl. It reports whether the key was free.
	SetIfFree(ctx context.Context, key, value string) (bool, error)
	// LoadScript sends SCRIPT LOAD and returns the digest.
	LoadScript(ctx context.Context, script string) (string, error)
	// EvalSha sends EVALSHA with one key and one argument.
	EvalSha(ctx context.Context, digest, key, value string) (int64, error)
}

// About describes a program.
type About struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Language string `json:"language"`
	Kind     string `json:"kind"`
	Notes    string `json:"notes"`
}

// Program is a library of the comparison.
type Program struct {
	Name string
	// Module is the module whose version `about` prints.
	Module  string
	Notes   string
	Connect func(Settings) (Client, error)
}

type options struct {
	Settings
	blocks, block, tasks, sections int
	hold                           time.Duration
	separateClients                bool
}

// Main runs the scenario that the command line names.
func Main(program Program) {
	if len(os.Args) < 2 {
		fail(errors.New("name a scenario: pair, contend, hold, wait or about"))
	}
	scenario := os.Args[1]
	o, err := parse(scenario, os.Args[2:])
	check(err)
	switch scenario {
	case "pair":
		pair(connect(program, o.Settings), o)
	case "contend":
		contend(program, o)
	case "hold":
		hold(connect(program, o.Settings), o)
	case "wait":
		wait(connect(program, o.Settings), o)
	case "about":
		say(About{program.Name, version(program.Module), "Go", "lock", program.Notes})
	default:
		fail(fmt.Errorf("no scenario %q", scenario))
	}
}

// A flag of another scenario is an error, like an unknown flag.
func parse(scenario string, arguments []string) (options, error) {
	var o options
	var ttl, wait, holdMillis, holdMicros int
	flags := flag.NewFlagSet(scenario, flag.ContinueOnError)
	flags.StringVar(&o.URL, "url", "redis://127.0.0.1:6379", "the server")
	flags.StringVar(&o.Key, "key", "peers", "the name of the lock")
	flags.IntVar(&ttl, "ttl-ms", 10_000, "the lease of the lock")
	flags.IntVar(&wait, "wait-ms", 60_000, "the longest wait of an acquisition")
	switch scenario {
	case "pair":
		flags.IntVar(&o.blocks, "blocks", 50, "blocks of each kind")
		flags.IntVar(&o.block, "block", 100, "pairs in a block")
	case "contend":
		flags.IntVar(&o.tasks, "tasks", 8, "tasks that take turns")
		flags.IntVar(&o.sections, "sections", 25, "sections of each task")
		flags.IntVar(&holdMicros, "hold-us", 1000, "the length of a section")
		flags.BoolVar(&o.separateClients, "separate-clients", false, "one client for each task")
	case "hold":
		flags.IntVar(&holdMillis, "hold-ms", 0, "the longest time to hold; 0 has no limit")
	}
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	o.TTL = time.Duration(ttl) * time.Millisecond
	o.Wait = time.Duration(wait) * time.Millisecond
	o.hold = time.Duration(holdMillis)*time.Millisecond + time.Duration(holdMicros)*time.Microsecond
	return o, nil
}

func connect(program Program, settings Settings) Client {
	client, err := program.Connect(settings)
	check(err)
	return client
}

// acquire bounds each wait: a library whose wait does not end is an error, not a hang.
func acquire(client Client, settings Settings) Release {
	ctx, cancel := context.WithTimeout(context.Background(), settings.Wait)
	defer cancel()
	release, err := client.Acquire(ctx)
	if err != nil {
		fail(fmt.Errorf("acquire %q within %v: %w", settings.Key, settings.Wait, err))
	}
	return release
}

func hold(client Client, o options) {
	release := acquire(client, o.Settings)
	event("acquired")
	line := make(chan struct{})
	go func() {
		// The end of the input has the same meaning as a line.
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		close(line)
	}()
	var expired <-chan time.Time
	if o.hold > 0 {
		expired = time.After(o.hold)
	}
	select {
	case <-line:
	case <-expired:
	}
	event("releasing")
	check(release())
	event("released")
}

func wait(client Client, o options) {
	event("waiting")
	release := acquire(client, o.Settings)
	event("acquired")
	check(release())
}

func event(name string) {
	say(map[string]any{"event": name, "unix_us": time.Now().UnixMicro()})
}

func say(value any) {
	check(json.NewEncoder(os.Stdout).Encode(value))
}

func version(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dependency := range info.Deps {
			if dependency.Path == module {
				return strings.TrimPrefix(dependency.Version, "v")
			}
		}
	}
	return "unknown"
}

func micros(duration time.Duration) float64 { return float64(duration.Nanoseconds()) / 1000 }

func check(err error) {
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
