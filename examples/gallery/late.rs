//! A holder that is paused, and writes when it wakes up.

use lock_core::FencingToken;
use tokio::try_join;

use crate::by_hand::{self, POLL};
use crate::children::{Actor, Role, TTL, WRITES};
use crate::stage::{Fault, LONG, Server, Shown};

/// What the lock protects: it remembers the newest token that it was shown, and refuses older ones.
///
/// Locks that are written by hand have none to show, and to none it cannot say no.
#[derive(Default)]
struct Resource {
    newest: Option<FencingToken>,
}

impl Resource {
    fn takes(&mut self, token: Option<FencingToken>) -> bool {
        let in_time = token >= self.newest;
        self.newest = self.newest.max(token);
        in_time
    }
}

/// A process is paused longer than its lease lasts.
pub async fn paused(server: &Server) -> Result<Shown, Fault> {
    const KEY: &str = "paused";
    let by_hand = async {
        let mut redis = server.connect().await?;
        let (mut writer, mut resource) = pause(Role::WriterByHand, server, KEY).await?;
        by_hand::poll_set_nx_px(&mut redis, KEY, "next", LONG, POLL).await?;
        resource.takes(None);
        late_writes(&mut writer, &mut resource).await
    };
    let library = async {
        let locks = server.locks().await?;
        let (mut writer, mut resource) = pause(Role::WriterWithToken, server, KEY).await?;
        let guard = locks.lock(KEY).ttl(TTL).wait(LONG).acquire().await?;
        resource.takes(guard.fencing_token());
        let late = late_writes(&mut writer, &mut resource).await;
        guard.release().await?;
        late
    };
    let (by_hand, library) = try_join!(by_hand, library)?;
    Ok(Shown {
        mistake: "a paused holder writes late",
        by_hand: format!("{by_hand} of {WRITES} late writes accepted"),
        library: format!("{library} of {WRITES} late writes accepted: their token is old"),
    })
}

/// A writer that has read, and does not get to write.
async fn pause(role: Role, server: &Server, key: &str) -> Result<(Actor, Resource), Fault> {
    let mut resource = Resource::default();
    let mut writer = Actor::start(role, server, key)?;
    // The token is shown on the read too.
    resource.takes(writer.says().await?.1);
    writer.pause(server)?;
    Ok((writer, resource))
}

/// Lets the writer go on; how many of its writes are accepted.
async fn late_writes(writer: &mut Actor, resource: &mut Resource) -> Result<usize, Fault> {
    writer.go_on()?;
    let mut accepted = 0;
    while let (word, token) = writer.says().await?
        && word == "write"
    {
        accepted += usize::from(resource.takes(token));
    }
    Ok(accepted)
}
