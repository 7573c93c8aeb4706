//! Runs the scripts as their headers say.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lock_protocol::scripts::{
    ACQUIRE, DEADLINE_ACQUIRE, DEADLINE_RELEASE, DEADLINE_RENEW, DROP, FORCE_RELEASE, INSPECT,
    OWNER_RELEASE, OWNER_RENEW, OWNER_REPAIR, RAISE, REDISSON_ACQUIRE, REDISSON_FORCE_RELEASE,
    REDISSON_INSPECT, REDISSON_RELEASE, REDISSON_RENEW, RELEASE, RENEW, SETNX_EXPIRE, Script,
    ScriptForm,
};
use test_support::fixtures::{SOON, keys};
use test_support::{RedisServer, Reply, lua_of_another_engine};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../lock-protocol/src/lua");

/// Returns the command in the header of a script, in one line. It is empty where the header has none.
fn recipe(script: &str) -> String {
    let source = std::fs::read_to_string(format!("{FOLDER}/{script}")).unwrap();
    let header = source
        .lines()
        .skip_while(|line| !line.starts_with("-- By hand"))
        .skip(1)
        .map_while(|line| line.strip_prefix("--   "));
    let command: Vec<_> = header
        .map(|line| line.trim_end_matches('\\').trim())
        .collect();
    command.join(" ")
}

/// Runs a script in bash and in its folder as its header says, on the port of the test server.
fn run(server: &RedisServer, script: &str) -> Vec<String> {
    let found = Command::new("redis-cli")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    assert!(
        found.is_ok(),
        "the scripts are run with `redis-cli`, which is not installed; install it \
         (Debian, Ubuntu: redis-tools; Fedora, Alpine, macOS: with the server)"
    );
    let on_the_test_server = format!(
        "set -eu; redis-cli() {{ command redis-cli -p {} \"$@\"; }}; {}",
        server.port(),
        recipe(script)
    );
    let path = Path::new(FOLDER).join(script);
    let output = Command::new("bash")
        .args(["-c", &on_the_test_server])
        .current_dir(path.parent().expect("the script is in a folder"))
        .output()
        .expect("bash runs the command in the header");
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{script}: {stdout}{stderr}");
    assert_eq!(stderr, "", "{script}");
    stdout.lines().map(ToOwned::to_owned).collect()
}

/// Returns the words of a native script's reply.
fn words(reply: &[String]) -> Vec<&str> {
    assert_eq!(reply.len(), 1, "one string: {reply:?}");
    reply[0].split(' ').collect()
}

#[test]
fn native_scripts_run_as_their_headers_say() {
    let server = RedisServer::start();
    assert_eq!(words(&run(&server, "release.lua"))[0], "gone");
    assert_eq!(words(&run(&server, "renew.lua"))[0], "gone");
    assert_eq!(keys(&server), Vec::<String>::new());

    let held = run(&server, "acquire.lua");
    let [verdict, seconds, micros, token, remaining] = words(&held)[..] else {
        panic!("{held:?}");
    };
    assert_eq!((verdict, remaining), ("held", "30000"));
    let value = server.cli(&["GET", "lock:a"]);
    let parts: Vec<_> = value.text().split(' ').collect();
    assert!(parts[0].starts_with("lk1:"), "{value:?}");
    assert_eq!(parts[1], token);
    let micros: u64 = micros.parse().unwrap();
    let since_ms = format!("{seconds}{:03}", micros / 1000);
    assert_eq!(parts[2], since_ms, "when it was granted");
    assert_eq!(parts[3], "by-hand");

    // A repeated acquire with the same owner id gets the same grant.
    let again = run(&server, "acquire.lua");
    assert_eq!((words(&again)[0], words(&again)[3]), ("held", token));
    server.cli(&["PEXPIRE", "lock:a", "5000"]);
    let renewed = run(&server, "renew.lua");
    let renewed = words(&renewed);
    assert_eq!(renewed[0], "held");
    assert_eq!(renewed[3..], [token, "30000"]);
    assert!(server.cli(&["PTTL", "lock:a"]).integer() > 25_000);
    assert_eq!(run(&server, "release.lua"), ["released"]);
    assert_eq!(keys(&server), Vec::<String>::new());
}

#[test]
fn scripts_of_operators_run_as_their_headers_say() {
    let server = RedisServer::start();
    assert_eq!(run(&server, "inspect.lua")[0], "free");
    assert_eq!(run(&server, "force_release.lua")[0], "free");
    run(&server, "acquire.lua");
    let value = server.cli(&["GET", "lock:a"]).text().to_owned();
    let inspected = run(&server, "inspect.lua");
    assert_eq!(inspected[0], "held");
    assert_eq!(inspected[4..], [value.as_str()]);
    let revoked = run(&server, "force_release.lua");
    assert_eq!(revoked[0], "revoked");
    assert_eq!(revoked[4], value);
    let value = server.cli(&["GET", "lock:a"]).text().to_owned();
    assert!(value.ends_with(" revoked by me"), "{value}");
    assert!(server.cli(&["PTTL", "lock:a"]).integer() > 25_000);
    assert_eq!(words(&run(&server, "renew.lua"))[3..].join(" "), value);
}

#[test]
fn dialect_scripts_run_as_their_headers_say() {
    let server = RedisServer::start();
    let run = |script: &str| run(&server, &format!("dialects/{script}"))[0].clone();
    let pttl = || server.cli(&["PTTL", "lock:a"]).integer();

    assert_eq!(run("renew.lua"), "gone");
    assert_eq!(run("release.lua"), "gone");
    assert_eq!(run("setnx_expire.lua"), "held");
    assert_eq!(run("setnx_expire.lua"), "held", "a repeated acquire");
    assert_eq!(server.cli(&["GET", "lock:a"]).text(), "me");
    server.cli(&["PEXPIRE", "lock:a", "5000"]);
    assert_eq!(run("renew.lua"), "held");
    assert!(pttl() > 25_000);
    assert_eq!(
        run("deadline_acquire.lua"),
        "busy",
        "the value is no deadline"
    );
    assert_eq!(run("release.lua"), "held");
    assert_eq!(keys(&server), Vec::<String>::new());

    assert_eq!(run("repair.lua"), "gone");
    server.cli(&["SET", "lock:a", "them"]);
    assert_eq!(run("setnx_expire.lua"), "busy");
    assert_eq!(run("repair.lua"), "held");
    assert!(pttl() > 25_000);
    assert_eq!(run("repair.lua"), "gone", "the key has an expiry now");
    server.cli(&["DEL", "lock:a"]);

    // The deadline in the headers passed long ago.
    server.cli(&["SET", "lock:a", "1763700000000"]);
    assert_eq!(run("deadline_renew.lua"), "gone");
    assert_eq!(run("deadline_release.lua"), "gone");
    assert_eq!(run("deadline_acquire.lua"), "held");
    assert!(pttl() > 25_000);
    assert_eq!(run("deadline_acquire.lua"), "busy");
    assert_eq!(run("deadline_release.lua"), "gone", "another deadline");
}

#[test]
fn scripts_for_locks_of_redisson_run_as_their_headers_say() {
    let server = RedisServer::start();
    let run = |script: &str| run(&server, &format!("dialects/redisson_{script}.lua"));
    let verdict = |script| run(script)[0].clone();
    assert_eq!(verdict("renew"), "gone");
    assert_eq!(verdict("release"), "gone");
    assert_eq!(verdict("inspect"), "free");
    assert_eq!(verdict("force_release"), "freed");
    assert_eq!(keys(&server), Vec::<String>::new());

    let held = run("acquire");
    assert_eq!((&*held[0], &*held[2]), ("held", "30000"));
    assert_eq!(held.len(), 3, "no token without a counter");
    assert_eq!(verdict("acquire"), "held", "a repeated acquire");
    assert_eq!(server.cli(&["HGET", "stock:17", "me"]).text(), "1");
    let inspected = run("inspect");
    assert_eq!((&*inspected[0], &*inspected[3]), ("held", "me"));
    assert_eq!(verdict("force_release"), "foreign", "no owner id");
    server.cli(&["PEXPIRE", "stock:17", "5000"]);
    assert_eq!(verdict("renew"), "held");
    assert!(server.cli(&["PTTL", "stock:17"]).integer() > 25_000);
    let released = run("release");
    assert_eq!((&*released[0], &*released[2]), ("held", "0"));
    assert_eq!(keys(&server), Vec::<String>::new());

    server.cli(&["HSET", "stock:17", "other", "1"]);
    let busy = run("acquire");
    assert_eq!((&*busy[0], &*busy[2], &*busy[3]), ("busy", "-1", "other"));
    assert_eq!(run("renew")[2], "other");
    server.cli(&["HSET", "stock:17", "mode", "write"]);
    assert_eq!(run("acquire")[2], "read-write lock");
    assert_eq!(run("inspect")[2], "read-write lock");
    assert_eq!(run("renew")[2], "hash");
}

/// A renewal got no reply, and the deadline before it has passed. The value may be the next
/// holder's, who wrote the same deadline.
#[test]
fn deadline_of_an_unconfirmed_renewal_is_not_changed() {
    let server = RedisServer::start();
    let ahead = SystemTime::now() + SOON;
    let ahead = ahead.duration_since(UNIX_EPOCH).unwrap().as_millis();
    let ahead = ahead.to_string();
    for (confirmed, expected) in [("1763700000000", "gone"), (&ahead, "held")] {
        server.cli(&["SET", "lock:a", &ahead]);
        for (script, until) in [(&DEADLINE_RENEW, &*ahead), (&DEADLINE_RELEASE, "0")] {
            let text = script.text(ScriptForm::Flagged);
            let call = ["EVAL", text, "1", "lock:a", until, "100", confirmed, &ahead];
            let reply = server.cli(&call);
            assert_eq!(reply.array()[0].text(), expected, "{until} {confirmed}");
        }
        let left = server.cli(&["EXISTS", "lock:a"]).integer();
        assert_eq!(left == 1, expected == "gone");
    }
}

/// In a cluster whose slot is open, a release frees the key by this script first.
#[test]
fn drop_frees_the_key_of_its_owner_only() {
    let server = RedisServer::start();
    let reply = || run(&server, "drop.lua").join("\n");
    assert!(reply().starts_with("gone "));
    let owner_id = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";
    server.cli(&["SET", "lock:a", &format!("lk1:{owner_id} 5 0 by-hand")]);
    assert!(reply().starts_with("released "));
    assert_eq!(server.cli(&["EXISTS", "lock:a"]).integer(), 0);
    let other = "lk1:00000000-0000-0000-0000-000000000001 5 0 other";
    server.cli(&["SET", "lock:a", other]);
    assert!(reply().starts_with("gone "));
    assert_eq!(server.cli(&["GET", "lock:a"]).text(), other);

    // The rest of `min_hold` is kept under the nil owner id.
    let text = DROP.text(ScriptForm::Flagged);
    server.cli(&["SET", "lock:a", &format!("lk1:{owner_id} 5 0 by-hand")]);
    server.cli(&["EVAL", text, "1", "lock:a", owner_id, "5000"]);
    let kept = server.cli(&["GET", "lock:a"]);
    assert!(
        kept.text()
            .starts_with("lk1:00000000-0000-0000-0000-000000000000 5 ")
    );
    assert!(server.cli(&["PTTL", "lock:a"]).integer() > 1_000);
}

/// `WAIT` waits for the last write of its connection. A renewal in the millisecond of its acquire changes nothing.
#[test]
fn renew_writes_always_if_it_is_told_to() {
    let server = RedisServer::start();
    let owner_id = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";
    let value = format!("lk1:{owner_id} 7 7 by hand");
    server.cli(&["SET", "lock:a", &value, "PX", "60000"]);
    let text = RENEW.text(ScriptForm::Flagged);
    let changes = || {
        let info = server.cli(&["INFO", "persistence"]);
        let field = "rdb_changes_since_last_save:";
        let line = info
            .text()
            .lines()
            .find_map(|line| line.strip_prefix(field));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    for (more, writes) in [(None, 0), (Some("write"), 1)] {
        let mut words = vec!["EVAL", text, "1", "lock:a", owner_id, "1000"];
        words.extend(more);
        let before = changes();
        assert!(server.cli(&words).text().starts_with("held "));
        assert_eq!(changes(), before + writes);
        assert!(server.cli(&["PTTL", "lock:a"]).integer() > 50_000);
    }
}

/// The second round of a quorum. Tokens are compared as texts: Lua numbers above 2^53 are not exact.
#[test]
fn raise_writes_the_token_where_its_owner_has_the_key() {
    let server = RedisServer::start();
    let owner_id = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";
    let text = RAISE.text(ScriptForm::Flagged);
    let raise = |token: &str| {
        let words = ["EVAL", text, "2", "lock:a", "{lock:a}:f", owner_id];
        let words: Vec<_> = words.into_iter().chain(token.split(' ')).collect();
        server.cli(&words).text().to_owned()
    };
    assert!(run(&server, "raise.lua").join("\n").starts_with("gone "));
    assert_eq!(server.cli(&["EXISTS", "{lock:a}:f"]).integer(), 0);
    let value = |token: &str| format!("lk1:{owner_id} {token} 7 by hand");
    server.cli(&["SET", "lock:a", &value("5"), "PX", "60000"]);
    let highest = "9007199254740993";
    for (args, token, counter) in [
        ("9", "9", "9"),
        ("10", "10", "10"),
        (highest, highest, highest),
        // A raise that another one has overtaken.
        ("9007199254740992", highest, highest),
        ("10", highest, highest),
        ("9007199254740992 exact", "9007199254740992", highest),
        ("10 exact", "10", highest),
    ] {
        let reply = raise(args);
        let asked = args.split(' ').next().unwrap();
        assert!(reply.starts_with("held "), "{reply}");
        assert!(reply.contains(&format!(" {asked} ")), "{reply}");
        assert_eq!(server.cli(&["GET", "lock:a"]).text(), value(token));
        assert_eq!(server.cli(&["GET", "{lock:a}:f"]).text(), counter);
    }
    assert!(server.cli(&["PTTL", "lock:a"]).integer() > 1_000);
    assert!(server.cli(&["TTL", "{lock:a}:f"]).integer() > 80_000);
}

/// The parts of a set's script stand in functions, so `cat` alone does not make it. The tests of sets run them.
const OF_SETS: [&str; 2] = ["acquire_all.lua", "each_lock.lua"];

/// Every other file belongs to a recipe, and the tests above run every recipe.
#[test]
fn recipe_or_another_test_runs_every_file() {
    let files_in = |folder: &str| {
        let entries = std::fs::read_dir(format!("{FOLDER}/{folder}")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<_> = names.filter(|name| name.contains(".lua")).collect();
        files.sort_unstable();
        files
    };
    let (native, dialects) = (files_in(""), files_in("dialects"));
    let has_recipe = |file: &String| !recipe(file).is_empty();
    let (with_recipe, parts): (Vec<_>, Vec<_>) = native.into_iter().partition(has_recipe);
    assert_eq!(
        with_recipe,
        [
            "acquire.lua",
            "drop.lua",
            "force_release.lua",
            "inspect.lua",
            "raise.lua",
            "release.lua",
            "renew.lua"
        ]
    );
    let recipes: String = with_recipe.iter().map(|file| recipe(file)).collect();
    for part in parts.iter().filter(|part| !OF_SETS.contains(&&***part)) {
        assert!(recipes.contains(&format!(" {part}")), "{part}");
    }
    assert_eq!(
        dialects,
        [
            "deadline_acquire.lua",
            "deadline_release.lua",
            "deadline_renew.lua",
            "redisson_acquire.lua",
            "redisson_force_release.lua",
            "redisson_inspect.lua",
            "redisson_release.lua",
            "redisson_renew.lua",
            "release.lua",
            "renew.lua",
            "repair.lua",
            "setnx_expire.lua"
        ]
    );
    assert!(
        dialects
            .iter()
            .all(|file| has_recipe(&format!("dialects/{file}")))
    );
    assert_eq!(files_in("head").len(), 4, "one for each form");
    assert_eq!(files_in("first").len(), 3, "one for each set of flags");
}

/// What runs by hand is what the client sends: the same parts in the same order, behind the same first line.
#[test]
fn recipes_make_the_texts_that_the_client_sends() {
    for (file, script) in [
        ("acquire.lua", ACQUIRE.of(false)),
        ("release.lua", RELEASE.of(false)),
        ("renew.lua", &RENEW),
        ("raise.lua", &RAISE),
        ("drop.lua", &DROP),
        ("inspect.lua", &INSPECT),
        ("force_release.lua", FORCE_RELEASE.of(false)),
        ("dialects/deadline_acquire.lua", &DEADLINE_ACQUIRE),
        ("dialects/deadline_release.lua", &DEADLINE_RELEASE),
        ("dialects/deadline_renew.lua", &DEADLINE_RENEW),
        ("dialects/redisson_acquire.lua", &REDISSON_ACQUIRE),
        (
            "dialects/redisson_force_release.lua",
            &REDISSON_FORCE_RELEASE,
        ),
        ("dialects/redisson_inspect.lua", &REDISSON_INSPECT),
        ("dialects/redisson_release.lua", &REDISSON_RELEASE),
        ("dialects/redisson_renew.lua", &REDISSON_RENEW),
        ("dialects/release.lua", &OWNER_RELEASE),
        ("dialects/renew.lua", &OWNER_RENEW),
        ("dialects/repair.lua", &OWNER_REPAIR),
        ("dialects/setnx_expire.lua", &SETNX_EXPIRE),
    ] {
        let command = recipe(file);
        let text = command.split_once("<(").expect("the recipe has parts").1;
        let text = text.split_once(") ").expect("the parts have an end").0;
        let folder = Path::new(FOLDER).join(file);
        let output = Command::new("bash")
            .args(["-c", text])
            .current_dir(folder.parent().expect("the script is in a folder"))
            .output()
            .expect("bash runs the recipe");
        let made = String::from_utf8(output.stdout).unwrap();
        assert_eq!(made, script.text(ScriptForm::Flagged), "{file}");
    }
}

/// As [`native_scripts_run_as_their_headers_say`] on an engine whose `redis.pcall` hands errors back in another form.
#[test]
fn keys_of_another_type_are_recognized_on_every_engine() {
    let server = RedisServer::start();
    server.cli(&["RPUSH", "lock:a", "x"]);
    let end = "9999999999999";
    let owner_id = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";
    let scripts: [(&Script, &[&str], &str); 14] = [
        (&SETNX_EXPIRE, &["me", "30", end], "foreign"),
        (&OWNER_RENEW, &["me", "30000"], "gone"),
        (&OWNER_RELEASE, &["me", "0", "nil"], "gone"),
        (&OWNER_REPAIR, &["me", "30000"], "gone"),
        (&DEADLINE_ACQUIRE, &[end, "100", end], "foreign"),
        (&DEADLINE_RENEW, &[end, "100", end], "gone"),
        (&DEADLINE_RELEASE, &["0", "100", end], "gone"),
        (&REDISSON_RENEW, &["me", "30000"], "gone"),
        (
            &REDISSON_RELEASE,
            &["me", "0", "nil", "c", "PUBLISH"],
            "gone",
        ),
        (&DROP, &[owner_id, "0"], "gone"),
        (&RENEW, &[owner_id, "30000"], "gone"),
        (&RAISE, &[owner_id, "9"], "gone"),
        (RELEASE.of(false), &[owner_id, "0", "0"], "gone"),
        (
            ACQUIRE.of(false),
            &[owner_id, "30000", "0", end, "me"],
            "foreign",
        ),
    ];
    for on_error in [
        "error(reply)",
        "return reply.err",
        "return {error = reply.err}",
    ] {
        let prelude = lua_of_another_engine(on_error);
        for (script, args, expected) in scripts {
            let text = script.text(ScriptForm::Flagged).split_once('\n').unwrap();
            let text = [text.0, "\n", &prelude, text.1].concat();
            let keys = [
                "5",
                "lock:a",
                "{lock:a}:q",
                "{lock:a}:f",
                "{lock:a}:g",
                "{lock:a}:h",
            ];
            let reply = server.cli(&[&["EVAL", &*text][..], &keys, args].concat());
            let reply = match &reply {
                Reply::Array(_) => reply.array()[0].text().to_owned(),
                _ => reply.text().to_owned(),
            };
            assert!(reply.starts_with(expected), "{on_error}: {reply}, {text}");
        }
    }
}

/// A script that fails is not rolled back. When the write that sets the expiry is refused, here by access rights, the one
/// before it is undone.
#[test]
fn refused_expiry_leaves_no_key_without_one() {
    let (me, end, passed) = ("me", "9999999999999", "1763700000000");
    let owner_id = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";
    let held = "lk1:00000000-0000-0000-0000-000000000001 5 0 other";
    let entry = format!("{owner_id} p 1000 {end} - me");
    let queued = [owner_id, "30000", "9", end, me, &entry];
    let founding = [owner_id, "30000", "9", end, me, "", "0", "3x2"];
    let plain = [owner_id, "30000", "9", end, me];
    let until = (SystemTime::now() + SOON).duration_since(UNIX_EPOCH);
    let until = until.unwrap().as_millis().to_string();
    let renewal = [end, "100", &until];
    let kept = ["100", "100", &until];
    let cases: [(&Script, &[&str], Option<&str>); 9] = [
        (&SETNX_EXPIRE, &[me, "30", end], None),
        (&DEADLINE_ACQUIRE, &[end, "100", end], None),
        (&DEADLINE_ACQUIRE, &[end, "100", end], Some(passed)),
        (&DEADLINE_RENEW, &renewal, Some(&until)),
        (&DEADLINE_RELEASE, &kept, Some(&until)),
        (&REDISSON_ACQUIRE, &[me, "30000", end], None),
        (ACQUIRE.of(false), &queued, Some(held)),
        (ACQUIRE.of(false), &founding, None),
        // `SET` writes the expiry of a new counter.
        (ACQUIRE.of(false), &plain, None),
    ];
    for (number, (script, args, value)) in cases.into_iter().enumerate() {
        let server = RedisServer::start();
        let refused = if number == 8 {
            &["-set"][..]
        } else {
            &["-expire", "-pexpire", "-pexpireat"]
        };
        let user = ["ACL", "SETUSER", "app", "on", ">pass", "~*", "&*", "+@all"];
        server.cli(&[&user[..], refused].concat());
        if let Some(value) = value {
            let expiry = ["PX", "60000"];
            // A key that outlives its deadline for longer than `spare` is no deadline.
            let expiry = if value == passed { &[][..] } else { &expiry };
            server.cli(&[&["SET", "lock:a", value][..], expiry].concat());
        }
        let mut app = server.connect().unwrap();
        app.call(&["AUTH", "app", "pass"]).unwrap();
        let text = script.text(ScriptForm::Flagged);
        // A lock of Redisson without tokens has no counter.
        let all = [
            "5",
            "lock:a",
            "{lock:a}:q",
            "{lock:a}:f",
            "{lock:a}:g",
            "{lock:a}:h",
        ];
        let declared = if number == 5 {
            &["1", "lock:a"][..]
        } else {
            &all
        };
        let words = [&["EVAL", text][..], declared, args].concat();
        let reply = app.call(&words).unwrap();
        assert!(matches!(reply, Reply::Error(_)), "{number}: {reply:?}");
        let all = server.cli(&["KEYS", "*"]);
        let left: Vec<_> = all.array().iter().map(Reply::text).collect();
        for key in &left {
            assert!(server.cli(&["PTTL", key]).integer() > 0, "{number}: {key}");
        }
        if let Some(value) = value.filter(|value| *value != passed) {
            assert_eq!(server.cli(&["GET", "lock:a"]).text(), value, "{number}");
        } else {
            assert!(!left.contains(&"lock:a"), "{number}");
        }
    }
}

/// A lead beyond any time would write a counter that no longer is an integer.
#[test]
fn absurd_lead_writes_no_counter() {
    let server = RedisServer::start();
    let text = ACQUIRE.of(false).text(ScriptForm::Flagged);
    let owner_id = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";
    let keys = [
        "5",
        "lock:a",
        "{lock:a}:q",
        "{lock:a}:f",
        "{lock:a}:g",
        "{lock:a}:h",
    ];
    let lead = "9223372036854775807";
    for floor in ["9", lead] {
        let args = [owner_id, "30000", floor, "9999999999999", "me", "", lead];
        let reply = server.cli(&[&["EVAL", text][..], &keys, &args].concat());
        assert!(matches!(reply, Reply::Error(_)), "{reply:?}");
        let left = server.cli(&["KEYS", "*"]);
        assert!(left.array().is_empty(), "{left:?}");
    }
}

/// A shared key without an expiry must not be deleted, and its end must not come earlier. Before Redis 7.2 it comes later
/// by the time that passes within the script.
#[test]
fn renew_that_always_writes_keeps_the_end_of_a_shared_key() {
    let server = RedisServer::start();
    let text = RENEW.text(ScriptForm::Flagged);
    let owner_id = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";
    let member = format!("{owner_id} 1 by hand");
    for expiry in [&["PX", "60000"][..], &[]] {
        server.cli(&["DEL", "lock:a"]);
        server.cli(&[&["SET", "lock:a", "lks:r 7 7 by hand"], expiry].concat());
        server.cli(&["ZADD", "{lock:a}:h", "99999999999999", &member]);
        let end = || server.cli(&["PEXPIRETIME", "lock:a"]).integer();
        let (first, begun) = (end(), Instant::now());
        let mut before = first;
        let keys = ["2", "lock:a", "{lock:a}:h"];
        let args = [owner_id, "1000", "write", "by hand", "r"];
        for _ in 0..50 {
            let words = [&["EVAL", text][..], &keys, &args].concat();
            let reply = server.cli(&words);
            assert!(reply.text().starts_with("held "), "{reply:?}");
            let after = end();
            assert!(after >= before, "{after} is earlier than {before}");
            before = after;
        }
        let moved = before - first;
        let longest = if first < 0 {
            0
        } else {
            begun.elapsed().as_millis()
        };
        assert!(
            u128::try_from(moved).unwrap() <= longest,
            "the end moved by {moved} ms"
        );
    }
}
