// The lock of rueidislock, which waits for invalidations of client-side caching.
package main

import (
	"context"

	"peers/peer"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

type client struct {
	settings peer.Settings
	locks    rueidislock.Locker
}

func main() {
	peer.Main(peer.Program{
		Name:   "rueidislock",
		Module: "github.com/redis/rueidis",
		Notes: "on rueidis; waits for invalidations of client-side caching; renews by itself; " +
			"KeyMajority 1 and NoLoopTracking, as in its README",
		Connect: connect,
	})
}

func connect(settings peer.Settings) (peer.Client, error) {
	option, err := rueidis.ParseURL(settings.URL)
	if err != nil {
		return nil, err
	}
	// The README's settings for one server, version 7.0.5 or newer.
	locks, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   option,
		KeyValidity:    settings.TTL,
		KeyMajority:    1,
		NoLoopTracking: true,
	})
	if err != nil {
		return nil, err
	}
	return &client{settings, locks}, nil
}

// The library bounds the whole section by the context of the acquisition. So the deadline is a
// timer, which stops when the lock is acquired.
//
// Version 1.0.79 loses wake-ups on a busy machine. A waiter sleeps for good if its attempt took longer
// than TryNextAfter (20 ms), or if the goroutine that ends a failed attempt ran before the failure was
// counted. Then the run ends with an error.
func (c *client) Acquire(ctx context.Context) (peer.Release, error) {
	section, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, cancel)
	held, release, err := c.locks.WithContext(section, c.settings.Key)
	stop()
	if err != nil {
		cancel()
		return nil, err
	}
	return func() error {
		defer cancel()
		// The library cancels this context when the lock is lost. `release` reports nothing.
		err := held.Err()
		release()
		return err
	}, nil
}

// The raw commands use the lock's own client.
func (c *client) SetIfFree(ctx context.Context, key, value string) (bool, error) {
	raw := c.locks.Client()
	command := raw.B().Set().Key(key).Value(value).Nx().Px(c.settings.TTL).Build()
	err := raw.Do(ctx, command).Error()
	if rueidis.IsRedisNil(err) {
		return false, nil
	}
	return err == nil, err
}

func (c *client) LoadScript(ctx context.Context, script string) (string, error) {
	raw := c.locks.Client()
	return raw.Do(ctx, raw.B().ScriptLoad().Script(script).Build()).ToString()
}

func (c *client) EvalSha(ctx context.Context, digest, key, value string) (int64, error) {
	raw := c.locks.Client()
	command := raw.B().Evalsha().Sha1(digest).Numkeys(1).Key(key).Arg(value).Build()
	return raw.Do(ctx, command).AsInt64()
}
