// The lock of bsm/redislock.
package main

import (
	"context"
	"errors"
	"time"

	"interop/worker"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

type jitter struct{}

func (jitter) NextBackoff() time.Duration { return worker.Delay() }

func main() {
	client := redis.NewClient(&redis.Options{Addr: worker.Address()})
	defer client.Close()
	locker := redislock.New(client)

	worker.Run(func() (worker.Release, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		options := &redislock.Options{RetryStrategy: jitter{}}
		lock, err := locker.Obtain(ctx, worker.Key(), worker.TTL(), options)
		if errors.Is(err, redislock.ErrNotObtained) || errors.Is(err, context.DeadlineExceeded) {
			return nil, worker.ErrBusy
		}
		if err != nil {
			return nil, err
		}
		return func() error {
			err := lock.Release(context.Background())
			if errors.Is(err, redislock.ErrLockNotHeld) {
				return errors.Join(worker.ErrNotOwned, err)
			}
			return err
		}, nil
	})
}
