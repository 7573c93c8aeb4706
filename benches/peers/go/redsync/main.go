// The lock of redsync, on one server.
package main

import (
	"context"
	"errors"

	"peers/peer"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
)

type client struct {
	peer.GoRedis
	settings peer.Settings
	locks    *redsync.Redsync
}

func main() {
	peer.Main(peer.Program{
		Name:   "redsync",
		Module: "github.com/go-redsync/redsync/v4",
		Notes:  "on go-redis; polls every 50 to 250 ms",
		Connect: func(settings peer.Settings) (peer.Client, error) {
			connection, err := peer.ConnectGoRedis(settings)
			if err != nil {
				return nil, err
			}
			locks := redsync.New(goredis.NewPool(connection.Client))
			return &client{connection, settings, locks}, nil
		},
	})
}

// The library's delay stays as it is. Its limit of 32 tries would end a wait after some 5 s; the
// context ends it here.
func (c *client) Acquire(ctx context.Context) (peer.Release, error) {
	mutex := c.locks.NewMutex(c.settings.Key,
		redsync.WithExpiry(c.settings.TTL),
		redsync.WithTries(int(c.settings.Wait.Milliseconds())+1))
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	return func() error {
		released, err := mutex.UnlockContext(context.Background())
		if err == nil && !released {
			err = errors.New("the lock was lost")
		}
		return err
	}, nil
}
