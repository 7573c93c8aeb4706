package peer

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// GoRedis is a client of go-redis, with the raw commands of Client.
type GoRedis struct {
	*redis.Client
	ttl time.Duration
}

// ConnectGoRedis connects with the client's own settings.
func ConnectGoRedis(settings Settings) (GoRedis, error) {
	options, err := redis.ParseURL(settings.URL)
	if err != nil {
		return GoRedis{}, err
	}
	client := GoRedis{redis.NewClient(options), settings.TTL}
	return client, client.Ping(context.Background()).Err()
}

// SetIfFree implements Client.
func (c GoRedis) SetIfFree(ctx context.Context, key, value string) (bool, error) {
	return c.SetNX(ctx, key, value, c.ttl).Result()
}

// LoadScript implements Client.
func (c GoRedis) LoadScript(ctx context.Context, script string) (string, error) {
	return c.ScriptLoad(ctx, script).Result()
}

// EvalSha implements Client.
func (c GoRedis) EvalSha(ctx context.Context, digest, key, value string) (int64, error) {
	return c.Client.EvalSha(ctx, digest, []string{key}, value).Int64()
}
