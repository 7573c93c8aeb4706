// The lock of redsync, on one server.
package main

import (
	"errors"
	"time"

	"interop/worker"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	client := redis.NewClient(&redis.Options{Addr: worker.Address()})
	defer client.Close()
	locks := redsync.New(goredis.NewPool(client))

	worker.Run(func() (worker.Release, error) {
		mutex := locks.NewMutex(worker.Key(),
			redsync.WithExpiry(worker.TTL()),
			redsync.WithTries(100),
			redsync.WithRetryDelayFunc(func(int) time.Duration { return worker.Delay() }))
		var taken *redsync.ErrTaken
		if err := mutex.Lock(); errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
			return nil, worker.ErrBusy
		} else if err != nil {
			return nil, err
		}
		return func() error {
			released, err := mutex.Unlock()
			if !released || errors.Is(err, redsync.ErrLockAlreadyExpired) {
				return errors.Join(worker.ErrNotOwned, err)
			}
			return err
		}, nil
	})
}
