//! A holder that is paused, and writes when it continues.

use lock_core::FencingToken;
use tokio::try_join;

use crate::by_hand::{self, POLL};
use crate::children::{ChildProcess, Role, TTL, WRITES};
use crate::stage::{ActResult, BoxError, LONG, Server};

/// The resource that the lock protects. It stores the newest token, and rejects older ones.
///
/// Locks that are written by hand have no token, so their writes cannot be rejected.
#[derive(Default)]
struct Resource {
    newest: Option<FencingToken>,
}

impl Resource {
    fn accepts(&mut self, token: Option<FencingToken>) -> bool {
        let in_time = token >= self.newest;
        self.newest = self.newest.max(token);
        in_time
    }
}

/// Pauses a process for longer than its lease.
pub async fn paused(server: &Server) -> Result<ActResult, BoxError> {
    const KEY: &str = "paused";
    let by_hand = async {
        let mut redis = server.connect().await?;
        let (mut writer, mut resource) = pause(Role::WriterByHand, server, KEY).await?;
        by_hand::poll_set_nx_px(&mut redis, KEY, "next", LONG, POLL).await?;
        resource.accepts(None);
        late_writes(&mut writer, &mut resource).await
    };
    let library = async {
        let locks = server.locks().await?;
        let (mut writer, mut resource) = pause(Role::WriterWithToken, server, KEY).await?;
        let guard = locks.lock(KEY).ttl(TTL).wait(LONG).acquire().await?;
        resource.accepts(guard.fencing_token());
        let late = late_writes(&mut writer, &mut resource).await;
        guard.release().await?;
        late
    };
    let (by_hand, library) = try_join!(by_hand, library)?;
    Ok(ActResult {
        mistake: "a paused holder writes late",
        by_hand: format!("{by_hand} of {WRITES} late writes accepted"),
        library: format!("{library} of {WRITES} late writes accepted: their token is old"),
    })
}

/// Starts a writer, and pauses it between its read and its writes.
async fn pause(
    role: Role,
    server: &Server,
    key: &str,
) -> Result<(ChildProcess, Resource), BoxError> {
    let mut resource = Resource::default();
    let mut writer = ChildProcess::start(role, server, key)?;
    // The read shows the token too.
    resource.accepts(writer.read().await?.1);
    writer.pause(server)?;
    Ok((writer, resource))
}

/// Resumes the writer, and counts its accepted writes.
async fn late_writes(
    writer: &mut ChildProcess,
    resource: &mut Resource,
) -> Result<usize, BoxError> {
    writer.resume()?;
    let mut accepted = 0;
    while let (word, token) = writer.read().await?
        && word == "write"
    {
        accepted += usize::from(resource.accepts(token));
    }
    Ok(accepted)
}
