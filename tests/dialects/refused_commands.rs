//! A server that says it has the commands that check an owner, and then refuses them: a proxy, or a service that
//! knows their names only.

use lock_core::LockManager;
use lock_core::error::BackendErrorKind;
use test_support::fixtures::{KEY, NAME, exists};
use test_support::{Direction, Proxy, Recording, RedisServer};
use tests::{SET_NX_PX_AUTO, SET_NX_PX_CONDITIONAL, backend_error_kind};

use super::connect_in;

/// An option of `SET` that no server knows.
const UNKNOWN: &str = "IFXX";

/// Returns a proxy behind which the server knows the name `DELEX`, and no condition of `SET`: it replies
/// `ERR syntax error`.
fn lying(server: &RedisServer) -> Proxy {
    let proxy = Proxy::in_front_of(server);
    let to_server = Direction::ToServer;
    // The question whether the server has the commands is a question for DEL.
    let question = "$4\r\nINFO\r\n$5\r\nDELEX\r\n";
    proxy.replace(to_server, question, "$4\r\nINFO\r\n$3\r\nDEL\r\n");
    proxy.replace(to_server, "$4\r\nIFEQ\r\n", format!("$4\r\n{UNKNOWN}\r\n"));
    proxy
}

/// Returns how many commands had this word.
fn count(recording: &Recording, word: &str) -> usize {
    let commands = recording.from_clients();
    let with_word = commands.filter(|command| command.words.iter().any(|it| it == word));
    with_word.count()
}

async fn renews_and_releases(locks: &LockManager, server: &RedisServer) {
    let held = locks.lock(NAME).acquire().await.unwrap();
    server.cli(&["PEXPIRE", KEY, "5000"]);
    held.renew().await.unwrap();
    assert!(server.cli(&["PTTL", KEY]).integer() > 5_000);
    held.renew().await.unwrap();
    held.release().await.unwrap();
    assert!(!exists(server, KEY));
}

/// The next best method is a script, and a transaction for a user who may not run scripts.
#[tokio::test]
async fn auto_remembers_that_a_condition_is_a_syntax_error() {
    for (rights, next) in [("+@all", "EVALSHA"), ("-@scripting", "WATCH")] {
        let server = RedisServer::start();
        let all = ["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all"];
        assert_eq!(server.cli(&all).text(), "OK");
        server.cli(&["ACL", "SETUSER", "app", rights]);
        let proxy = lying(&server);
        let url = proxy.url().replace("://", "://app:pw@");
        let locks = connect_in(SET_NX_PX_AUTO, &url).await;
        let monitor = server.monitor();
        for _ in 0..3 {
            renews_and_releases(&locks, &server).await;
        }
        let recording = monitor.stop();
        assert_eq!(count(&recording, UNKNOWN), 1, "the first renewal only");
        assert!(count(&recording, next) > 0, "{next}");
    }
}

#[tokio::test]
async fn native_reports_that_a_condition_is_a_syntax_error() {
    let server = RedisServer::start();
    let proxy = lying(&server);
    let locks = connect_in(SET_NX_PX_CONDITIONAL, &proxy.url()).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let refused = held.renew().await;
    let text = refused.as_ref().unwrap_err().to_string();
    assert_eq!(backend_error_kind(refused), BackendErrorKind::Unsupported);
    assert!(text.contains("`ReleaseMethod::Auto`"), "{text}");
    // It is not lost: the command had no effect.
    assert!(!held.is_lost() && exists(&server, KEY));
}
