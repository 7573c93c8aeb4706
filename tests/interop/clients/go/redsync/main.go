// The lock of redsync, on one server or at a quorum.
package main

import (
	"errors"
	"time"

	"interop/worker"

	"github.com/go-redsync/redsync/v4"
	rs "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	var pools []rs.Pool
	for _, address := range worker.Addresses() {
		client := redis.NewClient(&redis.Options{Addr: address})
		defer client.Close()
		pools = append(pools, goredis.NewPool(client))
	}
	locks := redsync.New(pools...)

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
