//! An object store refuses the write of a holder that comes too late.
//!
//! ```sh
//! AWS_ACCESS_KEY_ID=.. AWS_SECRET_ACCESS_KEY=.. cargo run -p examples --features s3 --example fenced_s3 -- \
//!     --endpoint http://localhost:9000 --bucket test --redis redis://127.0.0.1:6379
//! ```
//!
//! Works with S3 and with each store that knows `If-Match` for PUT. Here without TLS: for `https`,
//! enable a TLS feature of `reqwest`.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use lock_core::{FencingToken, Renew};
use reqwest::{Client, Response, StatusCode};
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};

const OBJECT: &str = "account-1";
const TOKEN: &str = "x-amz-meta-fencing-token";
/// For how long a signed request is valid.
const VALID: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let locks = examples::locks().await?;
    let endpoint = examples::option("--endpoint")?.ok_or("pass `--endpoint URL`")?;
    let bucket = examples::option("--bucket")?.unwrap_or_else(|| "test".to_owned());
    let store = Store {
        client: Client::new(),
        bucket: Bucket::new(endpoint, UrlStyle::Path, bucket, "us-east-1")?,
        credentials: Credentials::from_env().ok_or("set the keys in the environment")?,
    };
    store.create(100).await?;

    // This holder reads, and is paused before it writes. `Renew::Never` stands for the pause: the lease
    // ends as it does when the process does not run.
    let lock = locks.lock("account:1").ttl(Duration::from_secs(1));
    let paused = lock.renew(Renew::Never).acquire().await?;
    let old = examples::token(&paused)?;
    let read = store.read(old).await?;
    paused.lost().await;
    drop(paused);

    let held = locks.lock("account:1").acquire().await?;
    let new = examples::token(&held)?;
    let current = store.read(new).await?;
    let written = store.write(new, &current, current.cents - 30).await?;
    println!("in time: {}", verdict(written));
    held.release().await?;

    let written = store.write(old, &read, read.cents - 50).await?;
    println!("late: {}", verdict(written));
    // A holder that reads late learns it from the metadata.
    if let Err(error) = store.read(old).await {
        println!("late read: {error}");
    }
    println!("=> {} left", store.read(new).await?.cents);
    locks.shutdown().await?;
    Ok(())
}

fn verdict(accepted: bool) -> &'static str {
    if accepted { "accepted" } else { "refused" }
}

struct Store {
    client: Client,
    bucket: Bucket,
    credentials: Credentials,
}

struct Account {
    cents: i64,
    etag: String,
}

impl Store {
    /// Creates the object if it is missing. Its token is lower than each token of a lock.
    async fn create(&self, cents: i64) -> Result<(), Box<dyn Error>> {
        let mut put = self.bucket.put_object(Some(&self.credentials), OBJECT);
        put.headers_mut().insert("if-none-match", "*");
        put.headers_mut().insert(TOKEN, "0");
        let request = self.client.put(put.sign(VALID)).body(format!("{cents} 0"));
        let request = request.header("if-none-match", "*").header(TOKEN, "0");
        let reply = request.send().await?;
        if reply.status() != StatusCode::PRECONDITION_FAILED {
            reply.error_for_status()?;
        }
        Ok(())
    }

    // region: store
    /// Reads the object under the lock, and keeps its ETag. The metadata has the token of its writer.
    async fn read(&self, token: FencingToken) -> Result<Account, Box<dyn Error>> {
        let get = self.bucket.get_object(Some(&self.credentials), OBJECT);
        let reply = self.client.get(get.sign(VALID)).send().await?;
        let reply = reply.error_for_status()?;
        if header(&reply, TOKEN)?.parse::<FencingToken>()? > token {
            return Err("a later holder has written".into());
        }
        let etag = header(&reply, "etag")?;
        let text = reply.text().await?;
        let cents = text.split(' ').next().unwrap_or_default().parse()?;
        Ok(Account { cents, etag })
    }

    /// Writes the object if it is still the one that was read. Returns whether it was.
    async fn write(
        &self,
        token: FencingToken,
        read: &Account,
        cents: i64,
    ) -> Result<bool, Box<dyn Error>> {
        let token = token.to_string();
        // An ETag is often a hash of the body. With the token in the body, no two writes have the same.
        let body = format!("{cents} {token}");
        let mut put = self.bucket.put_object(Some(&self.credentials), OBJECT);
        put.headers_mut().insert("if-match", read.etag.as_str());
        put.headers_mut().insert(TOKEN, token.as_str());
        let request = self.client.put(put.sign(VALID)).body(body);
        let request = request.header("if-match", &read.etag).header(TOKEN, &token);
        let reply = request.send().await?;
        if reply.status() == StatusCode::PRECONDITION_FAILED {
            return Ok(false);
        }
        reply.error_for_status()?;
        Ok(true)
    }
    // endregion
}

fn header(reply: &Response, name: &str) -> Result<String, Box<dyn Error>> {
    let value = reply.headers().get(name);
    let value = value.ok_or_else(|| format!("the object has no `{name}`"))?;
    Ok(value.to_str()?.to_owned())
}
