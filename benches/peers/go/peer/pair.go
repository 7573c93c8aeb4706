package peer

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
)

const compareAndDelete = `if redis.call("get", KEYS[1]) == ARGV[1] then
	return redis.call("del", KEYS[1])
end
return 0`

// pair alternates blocks of raw pairs with blocks of pairs of the library.
func pair(client Client, o options) {
	ctx := context.Background()
	digest, err := client.LoadScript(ctx, compareAndDelete)
	check(err)
	rawKey := o.Key + ":raw"
	raw := func() {
		value := uuid.NewString()
		free, err := client.SetIfFree(ctx, rawKey, value)
		check(err)
		if !free {
			fail(errors.New("another process uses the key of the raw pair"))
		}
		deleted, err := client.EvalSha(ctx, digest, rawKey, value)
		check(err)
		if deleted != 1 {
			fail(errors.New("the key of the raw pair is lost"))
		}
	}
	lock := func() { check(acquire(client, o.Settings)()) }

	// The first blocks are a warm-up.
	skipped := (o.blocks + 9) / 10
	rawTimes, lockTimes := []float64{}, []float64{}
	for block := range o.blocks {
		rawTime, lockTime := timed(o.block, raw), timed(o.block, lock)
		if block >= skipped {
			rawTimes, lockTimes = append(rawTimes, rawTime), append(lockTimes, lockTime)
		}
	}
	say(map[string][]float64{"raw_us": rawTimes, "lock_us": lockTimes})
}

// timed returns the mean time of a run in microseconds.
func timed(runs int, run func()) float64 {
	start := time.Now()
	for range runs {
		run()
	}
	return micros(time.Since(start)) / float64(runs)
}
