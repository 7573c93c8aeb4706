// The lock of bsm/redislock.
package main

import (
	"context"
	"time"

	"peers/peer"

	"github.com/bsm/redislock"
)

type client struct {
	peer.GoRedis
	settings peer.Settings
	locks    *redislock.Client
	options  *redislock.Options
}

func main() {
	peer.Main(peer.Program{
		Name:   "bsm-redislock",
		Module: "github.com/bsm/redislock",
		Notes:  "on go-redis; polls every 100 ms, as in its example: it does not retry by default",
		Connect: func(settings peer.Settings) (peer.Client, error) {
			connection, err := peer.ConnectGoRedis(settings)
			if err != nil {
				return nil, err
			}
			// The interval of the library's example of a retry.
			retry := redislock.LinearBackoff(100 * time.Millisecond)
			locks := redislock.New(connection.Client)
			return &client{connection, settings, locks, &redislock.Options{RetryStrategy: retry}}, nil
		},
	})
}

// Without a deadline in the context, the library's wait ends after one ttl.
func (c *client) Acquire(ctx context.Context) (peer.Release, error) {
	lock, err := c.locks.Obtain(ctx, c.settings.Key, c.settings.TTL, c.options)
	if err != nil {
		return nil, err
	}
	return func() error { return lock.Release(context.Background()) }, nil
}
