//! Attributes of frameworks, above and below the lock attribute.
#![deny(warnings)]

use bon::{bon, builder};
use lock_core::LockError;

use crate::support::Tracked;

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "frameworks:builder_below")
)]
#[builder]
async fn builder_below(a: Tracked, b: Option<u8>) -> Result<usize, LockError> {
    Ok(a.length() + usize::from(b.unwrap_or(7)))
}

#[builder]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "frameworks:builder_above:{b}")
)]
async fn builder_above(a: Tracked, #[builder(default = 3)] b: u8) -> Result<usize, LockError> {
    Ok(a.length() + usize::from(b))
}

struct Desk {
    id: u8,
}

#[bon]
impl Desk {
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "frameworks:desk_below")
    )]
    #[builder]
    async fn desk_below(&self, a: Tracked) -> Result<usize, LockError> {
        Ok(a.length() + usize::from(self.id))
    }

    #[builder]
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "frameworks:desk_above:{self.id}")
    )]
    async fn desk_above(&self, a: Tracked, b: Option<u8>) -> Result<usize, LockError> {
        Ok(a.length() + usize::from(self.id) + usize::from(b.unwrap_or(1)))
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "frameworks:path_below:{id}")
)]
#[utoipa::path(get, path = "/below/{id}", responses((status = 200, body = String)))]
async fn path_below(id: u8, a: Tracked) -> Result<String, LockError> {
    Ok(format!("{} {}", id, a))
}

#[utoipa::path(get, path = "/above/{id}", responses((status = 200, body = String)))]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "frameworks:path_above:{id}")
)]
async fn path_above(id: u8, a: Tracked) -> Result<String, LockError> {
    Ok(format!("{} {}", id, a))
}

type Context<'a> = poise::Context<'a, (), Box<dyn std::error::Error + Send + Sync>>;

/// poise uses this documentation as the description.
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "frameworks:command_below")
)]
#[poise::command(slash_command, prefix_command)]
async fn command_below(
    context: Context<'_>,
    #[description = "How many"] count: u32,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    context.say(count.to_string()).await?;
    Ok(())
}

/// poise uses this documentation as the description.
#[poise::command(slash_command, prefix_command)]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "frameworks:command_above:{count}")
)]
async fn command_above(
    context: Context<'_>,
    #[description = "How many"] count: u32,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    context.say(count.to_string()).await?;
    Ok(())
}

pub(crate) async fn run() {
    let a = || Tracked("a");
    show!(builder_below => builder_below().a(a()).call());
    show!(builder_above => builder_above().a(a()).b(1).call());
    let desk = Desk { id: 1 };
    show!(desk_below => desk.desk_below().a(a()).call());
    show!(desk_above => desk.desk_above().a(a()).call());
    show!(path_below(1, a()));
    show!(path_above(1, a()));
    show!(paths => async {
        use utoipa::Path;
        (__path_path_below::path(), __path_path_above::path())
    });
    // Without a chat server only the generated command can be checked.
    show!(command_below => async { command(command_below()) });
    show!(command_above => async { command(command_above()) });
}

fn command<U, E>(command: poise::Command<U, E>) -> (String, Option<String>, usize) {
    (
        command.name.into(),
        command.description.map(Into::into),
        command.parameters.len(),
    )
}
