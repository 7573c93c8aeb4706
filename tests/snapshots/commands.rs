//! The commands of each operation, in each dialect.

use lock_core::config::Confirm;
use lock_core::dialect::{Capabilities, Dialect, RedissonLock};
use lock_core::{LockManager, LockManagerBuilder, LockRequest, Renew};
use test_support::fixtures::{LONG, SOON, ms};
use test_support::stand_in::{Answer, Quirk, Target};
use test_support::{Direction, RedisServer, StandIn, eventually_async, lone_node};
use tests::{
    SET_NX_PX, SET_NX_PX_AUTO, SET_NX_PX_CONDITIONAL, WATCH_MULTI, one_attempt, poll_once,
    shut_down,
};

use crate::check;
use crate::recorder::{Order, Recorder};

const REDISSON: Dialect = Dialect::Redisson {
    lock: RedissonLock::Plain,
};
const REDISSON_FENCED: Dialect = Dialect::Redisson {
    lock: RedissonLock::Fenced,
};

/// The recorder replaces what is left of it.
const MIN_HOLD: std::time::Duration = std::time::Duration::from_secs(900);

fn builder(dialect: Dialect, label: &str) -> LockManagerBuilder {
    // A busy machine must not make a client send a command again.
    let builder = one_attempt(LockManager::builder()).command_timeout(ms(4000));
    let builder = builder.default_ttl(LONG);
    builder.label(label).client_name(label).dialect(dialect)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Server,
    /// A server that has the commands of `ReleaseMethod::Conditional`.
    OwnerCommands,
    /// A server that doesn't have them, whatever version the tests run on.
    NoOwnerCommands,
    /// A cluster of one node.
    Cluster,
}

impl Place {
    fn url(self, url: &str) -> String {
        match self {
            Self::Server | Self::OwnerCommands | Self::NoOwnerCommands => url.to_owned(),
            Self::Cluster => url.replace("redis://", "redis+cluster://"),
        }
    }
}

/// A dialect on a server, and what its clients send.
struct Scene {
    dialect: Dialect,
    place: Place,
    able: Capabilities,
    recorder: Recorder,
    /// The client that is recorded.
    locks: LockManager,
    /// A client of the same dialect that is not recorded.
    other: LockManager,
}

impl Scene {
    async fn start(dialect: Dialect, place: Place) -> Self {
        let server = match place {
            Place::Server | Place::OwnerCommands | Place::NoOwnerCommands => RedisServer::start(),
            Place::Cluster => lone_node(),
        };
        let quirk = match place {
            Place::Server | Place::Cluster => None,
            Place::OwnerCommands => Some(Quirk::OwnerCommands),
            Place::NoOwnerCommands => Some(Quirk::Replies(
                Target::Command("COMMAND"),
                Answer::Raw(b"*2\r\n*-1\r\n*-1\r\n".to_vec()),
            )),
        };
        let stand_in = quirk.map(|quirk| StandIn::start(&server, [quirk]));
        let url = stand_in.as_ref().map_or(server.url(), StandIn::url);
        let other = builder(dialect, "other").connect(&place.url(&url)).await;
        let own_port = server.port();
        let heading = format!("The commands of the dialect {dialect}, {place:?}");
        let mut recorder = Recorder::start(server, stand_in, &heading);
        // The node names its own port in the map of the slots.
        recorder.proxy.replace(
            Direction::ToClient,
            format!(":{own_port}\r\n"),
            format!(":{}\r\n", recorder.proxy.address().port()),
        );
        recorder.section("the first connections");
        let url = place.url(&recorder.proxy.url());
        let locks = builder(dialect, "own").connect(&url).await.unwrap();
        recorder.step("connect", Order::Exact);
        Self {
            dialect,
            place,
            able: dialect.capabilities(),
            recorder,
            locks,
            other: other.expect("the server runs"),
        }
    }

    /// The request of a lock that only the caller renews.
    fn lock(&self, name: &str) -> LockRequest {
        self.locks.lock(name).renew(Renew::Never)
    }

    async fn other_holds(&self, name: &str) -> lock_core::LockGuard {
        self.other.lock(name).acquire().await.unwrap()
    }

    /// Writes the commands of the background worker.
    async fn step_of_worker(&mut self, title: &str) {
        shut_down(&self.locks).await;
        self.recorder.step(title, Order::Any);
    }

    fn step(&mut self, title: &str) {
        self.recorder.step(title, Order::Exact);
    }

    /// Starts the worker and the subscription, so that later steps have no connections to open.
    async fn first_use(&mut self) {
        drop(self.lock("first").acquire().await.unwrap());
        shut_down(&self.locks).await;
        self.step("a guard is dropped: the background worker connects");
        let held = self.other_holds("first").await;
        let waiting = tokio::spawn(self.lock("first").wait(SOON).acquire());
        self.waits("first").await;
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        shut_down(&self.locks).await;
        self.recorder
            .step("the first waiter subscribes", Order::Any);
        self.locks.ping().await.unwrap();
        self.step("ping");
    }

    async fn acquires(&mut self) {
        self.recorder.section("acquire and release");
        let held = self.lock("free").try_acquire().await.unwrap().unwrap();
        self.step("try_acquire of a free lock");
        held.renew().await.unwrap();
        self.step("renew");
        held.release().await.unwrap();
        self.step("release");
        let held = self.other_holds("busy").await;
        assert!(self.lock("busy").try_acquire().await.unwrap().is_none());
        self.step("try_acquire of a busy lock");
        if self.able.is_fair() {
            // In the other dialects its last attempt may be under way at its end, and is cancelled.
            let waited = self.lock("busy").wait(ms(300)).acquire().await;
            assert!(waited.unwrap_err().is_contended());
            // It leaves the queue after the wait.
            let queue = "{lock:busy}:q";
            let length = || self.recorder.server.cli(&["ZCARD", queue]).integer();
            eventually_async(SOON, async || length() == 0).await;
            self.recorder
                .step("a wait that ends without the lock", Order::Any);
        }
        held.release().await.unwrap();
        let held = self.lock("free again").wait(SOON).acquire().await.unwrap();
        self.step("acquire of a free lock with a wait");
        held.release().await.unwrap();
        self.step("release");
        let held = self
            .lock("{user:1}:caf\u{e9} \"x\"\r\n")
            .acquire()
            .await
            .unwrap();
        held.release().await.unwrap();
        self.step("a name with a hash tag, spaces, quotes and control characters");
        let held = self
            .lock("kept")
            .ttl(LONG * 60)
            .min_hold(MIN_HOLD)
            .acquire()
            .await
            .unwrap();
        held.release().await.unwrap();
        self.step("min_hold");
        drop(
            self.lock("kept too")
                .ttl(LONG * 60)
                .min_hold(MIN_HOLD)
                .acquire()
                .await
                .unwrap(),
        );
        self.step_of_worker("min_hold, released by the background worker")
            .await;
        let held = self
            .locks
            .lock("renewed")
            .renew(Renew::Every(ms(3000)))
            .acquire()
            .await
            .unwrap();
        self.step("acquire of a lock that the background worker renews");
        // The next renewal is far away then.
        let mut left = held.remaining();
        eventually_async(SOON, async || {
            let before = std::mem::replace(&mut left, held.remaining());
            left > before
        })
        .await;
        held.release().await.unwrap();
        self.recorder
            .step("its renewals, and its release", Order::Any);
    }

    async fn waits_end(&mut self) {
        self.recorder.section("wait");
        let held = self.other_holds("waited").await;
        let waiting = self.start_waiter("waited").await;
        held.release().await.unwrap();
        let held = waiting.await.unwrap().unwrap();
        self.recorder
            .step("a waiter gets the lock after a release", Order::Any);
        held.release().await.unwrap();
        self.recorder.step("release", Order::Any);
        let held = self.lock("passed").acquire().await.unwrap();
        let mut acquiring = Box::pin(self.lock("passed").wait(SOON).acquire());
        assert!(poll_once(&mut acquiring).await.is_pending());
        let waiting = tokio::spawn(acquiring);
        if self.able.is_fair() {
            self.waits("passed").await;
        }
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        self.recorder.step(
            "the lock passes to a waiter of the same manager",
            Order::Any,
        );
    }

    /// Starts a waiter, and returns it when the server knows it.
    async fn start_waiter(&self, name: &str) -> tests::Waiter {
        let mut acquiring = Box::pin(self.lock(name).wait(SOON).acquire());
        assert!(poll_once(&mut acquiring).await.is_pending());
        let waiting = tokio::spawn(acquiring);
        self.waits(name).await;
        waiting
    }

    /// Waits until a waiter of this lock has found it busy. No manager inspects it, because that would load a script.
    async fn waits(&self, name: &str) {
        if self.able.is_fair() {
            let queue = format!("{{lock:{name}}}:q");
            let length = || self.recorder.server.cli(&["ZCARD", &queue]).integer();
            return eventually_async(SOON, async || length() == 1).await;
        }
        // The second attempt follows the reply to the first one.
        let attempts = ["EVALSHA", "SET", "SETNX"];
        let is_attempt = |words: &[String]| {
            attempts.contains(&&*words[0]) && words.iter().any(|it| it.contains(name))
        };
        self.recorder.wait_for(2, is_attempt).await;
    }

    async fn drops(&mut self) {
        self.recorder.section("what is dropped");
        // The dropped future sends a release, and the background worker sends it again unless it is confirmed by then.
        if self.able.is_fair() {
            let held = self.other_holds("left").await;
            let waiting = self.start_waiter("left").await;
            waiting.abort();
            let _ = waiting.await;
            shut_down(&self.locks).await;
            self.recorder.step("a waiter is dropped", Order::Merged);
            held.release().await.unwrap();
        }
        // Its reply is held back, so nobody knows whether the lock was granted.
        let own = 0;
        self.recorder.proxy.hold(own, Direction::ToClient);
        let mut acquiring = Box::pin(self.lock("unanswered").acquire());
        assert!(poll_once(&mut acquiring).await.is_pending());
        let acquiring = tokio::spawn(acquiring);
        let names_it = |words: &[String]| words.iter().any(|it| it.contains("unanswered"));
        self.recorder.wait_for(1, names_it).await;
        acquiring.abort();
        let _ = acquiring.await;
        self.recorder.proxy.resume(own);
        shut_down(&self.locks).await;
        self.recorder
            .step("an acquire is dropped before its reply", Order::Merged);
        drop(self.lock("dropped").acquire().await.unwrap());
        self.step_of_worker("a guard is dropped").await;
        let mut guards = Vec::new();
        for name in ["one", "two", "three"] {
            guards.push(self.lock(name).acquire().await.unwrap());
        }
        drop(guards);
        self.step_of_worker("three guards are dropped at once")
            .await;
    }

    async fn kinds(&mut self) {
        self.recorder.section("readers and permits");
        if !self.able.supports_shared_kinds() {
            self.recorder.note("the dialect has exclusive locks only");
            return;
        }
        let read = |name: &str| self.locks.lock(name).renew(Renew::Never).read();
        let (one, two) = (
            read("shared").acquire().await.unwrap(),
            read("shared").acquire().await.unwrap(),
        );
        self.recorder.step("two readers", Order::Exact);
        one.renew().await.unwrap();
        self.step("renew");
        assert!(
            self.lock("shared")
                .write()
                .try_acquire()
                .await
                .unwrap()
                .is_none()
        );
        self.step("try_acquire of a writer");
        one.release().await.unwrap();
        two.release().await.unwrap();
        self.step("both release");
        let writer = self.lock("downgraded").write().acquire().await.unwrap();
        self.step("a writer");
        let reader = writer.downgrade().await.unwrap();
        self.step("downgrade");
        reader.renew().await.unwrap();
        reader.release().await.unwrap();
        self.step("renew and release");
        let given = self.lock("handed-over").acquire().await.unwrap();
        self.step("a lock that is handed over");
        let ticket = given.into_ticket(LONG).await.unwrap();
        self.step("a ticket");
        let taken = self.lock("handed-over").resume(ticket).await.unwrap();
        self.step("resume");
        taken.release().await.unwrap();
        self.step("release");
        let large = self
            .lock("permits")
            .permits(4)
            .weight(3)
            .acquire()
            .await
            .unwrap();
        let small = self.lock("permits").permits(4).acquire().await.unwrap();
        self.step("permits of the weights 3 and 1");
        assert!(
            self.lock("permits")
                .permits(4)
                .try_acquire()
                .await
                .unwrap()
                .is_none()
        );
        self.step("one permit too many");
        large.renew().await.unwrap();
        large.release().await.unwrap();
        drop(small);
        self.step_of_worker("renew and release; the other one is dropped")
            .await;
        let kept = self
            .lock("kept permit")
            .permits(2)
            .ttl(LONG * 60)
            .min_hold(MIN_HOLD)
            .acquire();
        kept.await.unwrap().release().await.unwrap();
        self.step("min_hold");
        let held = self.other_holds("reader waits").await;
        let waiting = tokio::spawn(self.lock("reader waits").read().wait(SOON).acquire());
        self.waits("reader waits").await;
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        self.recorder.step("a reader waits", Order::Any);
    }

    async fn sets(&mut self) {
        self.recorder.section("sets");
        let names = ["set a", "set b", "set c"];
        let set = self
            .locks
            .lock_all(names)
            .renew(Renew::Never)
            .acquire()
            .await
            .unwrap();
        self.step("acquire");
        set.renew().await.unwrap();
        self.step("renew");
        set.release().await.unwrap();
        shut_down(&self.locks).await;
        self.recorder.step("release", Order::Any);
        let held = self.other_holds("set c").await;
        let refused = self
            .locks
            .lock_all(names)
            .renew(Renew::Never)
            .try_acquire()
            .await;
        assert!(refused.unwrap().is_none());
        shut_down(&self.locks).await;
        self.recorder
            .step("try_acquire, while one lock is busy", Order::Any);
        held.release().await.unwrap();
        let set = self
            .locks
            .lock_all(names)
            .renew(Renew::Never)
            .acquire()
            .await
            .unwrap();
        self.step("acquire again");
        drop(set);
        self.step_of_worker("the set is dropped").await;
        let set = self
            .locks
            .lock_all(names)
            .renew(Renew::Never)
            .ttl(LONG * 60)
            .min_hold(MIN_HOLD);
        set.acquire().await.unwrap().release().await.unwrap();
        self.recorder.step("min_hold", Order::Any);
    }

    async fn operators(&mut self) {
        self.recorder.section("operators");
        let held = self.other_holds("watched").await;
        self.locks.admin().inspect("watched").await.unwrap();
        self.step("inspect");
        self.locks.admin().inspect("watched").await.unwrap();
        self.step("inspect again");
        let seen = self.locks.admin().inspect_foreign("watched").await.unwrap();
        self.step("inspect with a digest");
        self.locks.admin().inspect("nobody's").await.unwrap();
        self.step("inspect of a free lock");
        self.locks.admin().list("watch*").limit(10).await.unwrap();
        self.step("list");
        let admin = self.locks.admin();
        let forced = admin
            .force_release("watched")
            .by("ops")
            .reason("a test")
            .expect_unchanged(&seen)
            .await;
        let _ = forced;
        self.step("force_release of what was seen");
        let _ = admin.force_release("watched").free_at_once().await;
        self.step("force_release, now");
        let _ = held.release().await;
        let held = self.other_holds("other").await;
        if let Some(token) = held.fencing_token() {
            let forced = admin
                .force_release("other")
                .expect_token(token)
                .free_at_once();
            let _ = forced.await;
            self.step("force_release with a token");
        }
        let _ = held.release().await;
        self.recorder.server.cli(&["SET", "lock:foreign", "x"]);
        let _ = admin
            .force_release("foreign")
            .remove_foreign()
            .free_at_once()
            .await;
        self.step("force_release of a foreign value");
    }

    async fn unknown_scripts(&mut self) {
        self.recorder
            .section("scripts that the server has forgotten");
        let flush = |it: &Self| drop(it.recorder.server.cli(&["SCRIPT", "FLUSH"]));
        flush(self);
        let held = self.lock("forgotten").acquire().await.unwrap();
        self.step("acquire");
        flush(self);
        held.renew().await.unwrap();
        self.step("renew");
        flush(self);
        held.release().await.unwrap();
        self.step("release");
        let held = self.lock("forgotten").acquire().await.unwrap();
        self.step("acquire again");
        flush(self);
        drop(held);
        self.step_of_worker("the guard is dropped").await;
    }

    /// Other settings of the manager, and other rights of its user.
    async fn settings(&mut self) {
        let server = &self.recorder.server;
        let address = self.recorder.proxy.address();
        for (name, rights) in [("all", "&*"), ("channelless", "resetchannels")] {
            let user = [
                "ACL", "SETUSER", name, "on", ">secret", "~*", rights, "+@all",
            ];
            assert_eq!(server.cli(&user).text(), "OK");
        }
        self.recorder.section("a user, a database, and a prefix");
        let (at, db) = match self.place {
            Place::Cluster => ("redis+cluster://", ""),
            _ => ("redis://", "/3"),
        };
        let url = format!("{at}all:secret@{address}{db}");
        let named = builder(self.dialect, "named")
            .prefix("my:")
            .fencing_lead(LONG * 60);
        let locks = named.connect(&url).await.unwrap();
        self.step("connect");
        locks
            .lock("a")
            .renew(Renew::Never)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        self.step("acquire and release, with a fencing_lead of an hour");
        self.recorder.section("RESP2");
        let url = format!("{at}all:secret@{address}?protocol=2");
        let locks = builder(self.dialect, "old").connect(&url).await.unwrap();
        self.step("connect");
        locks
            .lock("a")
            .renew(Renew::Never)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        self.step("acquire and release");
        self.recorder
            .section("a waiter that polls: its user may use no channel");
        let url = format!("{at}channelless:secret@{address}");
        let locks = builder(self.dialect, "polling")
            .connect(&url)
            .await
            .unwrap();
        let held = self.other_holds("polled").await;
        let waiting = tokio::spawn(
            locks
                .lock("polled")
                .renew(Renew::Never)
                .wait(SOON)
                .acquire(),
        );
        self.waits("polled").await;
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        shut_down(&locks).await;
        self.recorder.step("everything", Order::Any);
    }

    async fn confirms(&mut self) {
        self.recorder.section("confirm");
        let replica = RedisServer::start();
        let port = self.recorder.server.port().to_string();
        replica.cli(&["REPLICAOF", "127.0.0.1", &port]);
        eventually_async(SOON, async || {
            let info = self.recorder.server.cli(&["INFO", "replication"]);
            info.text().contains("state=online")
        })
        .await;
        let url = self.place.url(&self.recorder.proxy.url());
        let confirm = Confirm::replicas(1).within(ms(3000));
        let confirming = builder(self.dialect, "confirming").confirm(confirm);
        let locks = match confirming.connect(&url).await {
            Ok(locks) => locks,
            Err(error) => return self.recorder.note(&error.to_string()),
        };
        self.step("connect");
        let held = locks
            .lock("confirmed")
            .renew(Renew::Never)
            .acquire()
            .await
            .unwrap();
        self.recorder.step("acquire", Order::Any);
        held.renew().await.unwrap();
        self.recorder.step("renew", Order::Any);
        held.release().await.unwrap();
        self.recorder.step("release", Order::Any);
        let set = locks
            .lock_all(["one", "two"])
            .renew(Renew::Never)
            .acquire()
            .await
            .unwrap();
        set.release().await.unwrap();
        self.recorder.step("a set", Order::Any);
        let held = self.other_holds("confirmed").await;
        let waiting = tokio::spawn(
            locks
                .lock("confirmed")
                .renew(Renew::Never)
                .wait(SOON)
                .acquire(),
        );
        self.waits("confirmed").await;
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        shut_down(&locks).await;
        self.recorder.step("a waiter", Order::Any);
    }
}

async fn recorded(dialect: Dialect, place: Place) {
    let mut scene = Scene::start(dialect, place).await;
    scene.first_use().await;
    scene.acquires().await;
    scene.waits_end().await;
    scene.drops().await;
    scene.kinds().await;
    scene.sets().await;
    scene.operators().await;
    scene.unknown_scripts().await;
    scene.settings().await;
    scene.confirms().await;
    // A channel without waiters is left some seconds later. One dialect is enough to wait for that.
    let left: &[&str] = match (dialect, place) {
        (REDISSON, Place::Server) => &["UNSUBSCRIBE"],
        (REDISSON_FENCED, Place::Cluster) => &["UNSUBSCRIBE", "SUNSUBSCRIBE"],
        _ => &[],
    };
    for verb in left {
        let leaves =
            |words: &[String]| words[0] == *verb && words.iter().any(|it| it.contains("passed"));
        scene.recorder.wait_for_any(leaves).await;
    }
    scene.recorder.end("passed", left);
    let mut name = dialect.to_string().to_lowercase().replace(' ', "_");
    name += match place {
        Place::Server => "",
        Place::OwnerCommands => "_and_owner_commands",
        Place::NoOwnerCommands => "_without_owner_commands",
        Place::Cluster => "_in_a_cluster",
    };
    check(&format!("{name}.txt"), &scene.recorder.into_text());
}

macro_rules! sends_the_recorded_commands {
    ($($name:ident: $dialect:expr, $place:ident;)+) => {
        $(
            #[tokio::test]
            async fn $name() {
                recorded($dialect, Place::$place).await;
            }
        )+

        #[test]
        fn every_dialect_is_recorded() {
            let recorded = [$($dialect),+];
            for dialect in Dialect::all() {
                assert!(recorded.contains(dialect), "{dialect}");
            }
        }
    };
}

sends_the_recorded_commands! {
    native_commands_are_those_recorded: Dialect::Native, Server;
    native_commands_in_a_cluster_are_those_recorded: Dialect::Native, Cluster;
    setnx_expire_commands_are_those_recorded: Dialect::SetnxExpire, Server;
    deadline_getset_commands_are_those_recorded: Dialect::DeadlineGetset, Server;
    lua_setnx_expire_commands_are_those_recorded: Dialect::LuaSetnxExpire, Server;
    set_nx_px_commands_are_those_recorded: SET_NX_PX, Server;
    watch_multi_commands_are_those_recorded: WATCH_MULTI, Server;
    set_nx_px_conditional_commands_are_those_recorded: SET_NX_PX_CONDITIONAL, OwnerCommands;
    set_nx_px_auto_commands_are_those_recorded: SET_NX_PX_AUTO, OwnerCommands;
    set_nx_px_auto_without_them_commands_are_those_recorded: SET_NX_PX_AUTO, NoOwnerCommands;
    redisson_commands_are_those_recorded: REDISSON, Server;
    redisson_fenced_commands_are_those_recorded: REDISSON_FENCED, Server;
    redisson_commands_in_a_cluster_are_those_recorded: REDISSON_FENCED, Cluster;
}
