//! Locks that are written by hand, in the way that many texts teach. Do not copy them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, cmd};
use tokio::time::sleep;

/// The interval between two attempts of a waiting client, unless an act sets another.
pub const POLL: Duration = Duration::from_millis(10);

/// Locks with SETNX. Nothing ever removes the key.
pub async fn setnx(redis: &mut MultiplexedConnection, key: &str) -> RedisResult<bool> {
    cmd("SETNX").arg(key).arg("locked").query_async(redis).await
}

/// Locks with SETNX, and then sets an expiry with EXPIRE.
pub async fn setnx_then_expire(
    redis: &mut MultiplexedConnection,
    key: &str,
    seconds: u64,
) -> RedisResult<bool> {
    let mine = setnx(redis, key).await?;
    if mine {
        // Until this command arrives, the lock never expires.
        let expire = cmd("EXPIRE").arg(key).arg(seconds).to_owned();
        expire.exec_async(redis).await?;
    }
    Ok(mine)
}

/// Locks with SET NX PX, which sets the value and the expiry in one command.
pub async fn set_nx_px(
    redis: &mut MultiplexedConnection,
    key: &str,
    owner: &str,
    ttl: Duration,
) -> RedisResult<bool> {
    let mut set = cmd("SET");
    set.arg(key).arg(owner).arg("NX");
    let answer: Option<String> = set.arg("PX").arg(millis(ttl)).query_async(redis).await?;
    Ok(answer.is_some())
}

/// Repeats SET NX PX until it acquires the lock.
pub async fn poll_set_nx_px(
    redis: &mut MultiplexedConnection,
    key: &str,
    owner: &str,
    ttl: Duration,
    every: Duration,
) -> RedisResult<()> {
    while !set_nx_px(redis, key, owner, ttl).await? {
        sleep(every).await;
    }
    Ok(())
}

/// Releases with DEL, even if another client holds the lock by now.
pub async fn del(redis: &mut MultiplexedConnection, key: &str) -> RedisResult<()> {
    cmd("DEL").arg(key).exec_async(redis).await
}

/// Releases with a script that compares the owner first. This is the correct way.
pub async fn delete_if_mine(
    redis: &mut MultiplexedConnection,
    key: &str,
    owner: &str,
) -> RedisResult<()> {
    let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end";
    let mut eval = cmd("EVAL");
    eval.arg(script).arg(1).arg(key).arg(owner);
    eval.exec_async(redis).await
}

/// A read-write lock in two keys: the number of readers, and the writer.
pub struct Readers {
    pub redis: MultiplexedConnection,
}

impl Readers {
    /// Counts a reader, unless a writer holds the lock.
    pub async fn try_read(&mut self, key: &str) -> RedisResult<bool> {
        let script = "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
            redis.call('INCR', KEYS[2]) return 1";
        self.eval(script, key).await
    }

    /// Ends a reader.
    pub async fn end_read(&mut self, key: &str) -> RedisResult<()> {
        let script = "redis.call('DECR', KEYS[2]) return 1";
        self.eval(script, key).await.map(drop)
    }

    /// Locks for writing, unless there are readers. A writer that waits does not keep new readers out.
    pub async fn try_write(&mut self, key: &str) -> RedisResult<bool> {
        let script = "if tonumber(redis.call('GET', KEYS[2]) or 0) > 0 then return 0 end
            return redis.call('SETNX', KEYS[1], 'writer')";
        self.eval(script, key).await
    }

    /// Ends the writer.
    pub async fn end_write(&mut self, key: &str) -> RedisResult<()> {
        let script = "return redis.call('DEL', KEYS[1])";
        self.eval(script, key).await.map(drop)
    }

    async fn eval(&mut self, script: &str, key: &str) -> RedisResult<bool> {
        let mut eval = cmd("EVAL");
        eval.arg(script)
            .arg(2)
            .arg(key)
            .arg(format!("{key}:readers"));
        eval.query_async(&mut self.redis).await
    }
}

/// Returns the remaining time of the key in seconds; -1 means that it never expires.
pub async fn ttl(redis: &mut MultiplexedConnection, key: &str) -> RedisResult<i64> {
    cmd("TTL").arg(key).query_async(redis).await
}

/// A lock whose value is its deadline, in milliseconds since 1970 on the clock of its holder.
pub struct Deadlines {
    pub redis: MultiplexedConnection,
    pub ttl: Duration,
    /// The time by which this client's clock is ahead.
    pub clock_ahead: Duration,
}

impl Deadlines {
    /// Tries once, and returns the deadline if it acquired the lock.
    pub async fn try_lock(&mut self, key: &str) -> RedisResult<Option<u64>> {
        let mine = self.deadline();
        let mut setnx = cmd("SETNX");
        setnx.arg(key).arg(mine);
        if setnx.query_async(&mut self.redis).await? {
            return Ok(Some(mine));
        }
        match self.find_expired(key).await? {
            Some(deadline) => self.take_over(key, deadline).await,
            None => Ok(None),
        }
    }

    /// Returns the deadline of a lock that has expired by this client's clock.
    pub async fn find_expired(&mut self, key: &str) -> RedisResult<Option<u64>> {
        let read = self.read(key).await?;
        Ok(read.filter(|&deadline| deadline <= self.now()))
    }

    /// Takes over the lock with this expired deadline, and returns its new one.
    pub async fn take_over(&mut self, key: &str, expired: u64) -> RedisResult<Option<u64>> {
        let mine = self.deadline();
        let mut getset = cmd("GETSET");
        getset.arg(key).arg(mine);
        let before: Option<u64> = getset.query_async(&mut self.redis).await?;
        // If another client was faster, it holds the lock, but the key has the deadline of this client.
        Ok((before == Some(expired)).then_some(mine))
    }

    /// Repeats the attempt until it acquires the lock.
    pub async fn lock(&mut self, key: &str) -> RedisResult<u64> {
        loop {
            if let Some(mine) = self.try_lock(key).await? {
                return Ok(mine);
            }
            sleep(POLL).await;
        }
    }

    /// Deletes the key if it has the deadline that this client wrote.
    pub async fn unlock(&mut self, key: &str, mine: u64) -> RedisResult<()> {
        if self.read(key).await? == Some(mine) {
            del(&mut self.redis, key).await?;
        }
        Ok(())
    }

    /// Writes the lock of a holder that died long ago.
    pub async fn leave_dead_lock(&mut self, key: &str) -> RedisResult<()> {
        let past = self.now() - 1;
        cmd("SET")
            .arg(key)
            .arg(past)
            .exec_async(&mut self.redis)
            .await
    }

    async fn read(&mut self, key: &str) -> RedisResult<Option<u64>> {
        cmd("GET").arg(key).query_async(&mut self.redis).await
    }

    fn deadline(&self) -> u64 {
        self.now() + millis(self.ttl) + 1
    }

    fn now(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        millis(now.unwrap_or_default() + self.clock_ahead)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
