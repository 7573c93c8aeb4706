//! The recorder, the register and the files.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{LockManager, Renew};
use lock_testing::{
    AccessKind, Call, Check, Checker, Event, FencedRegister, History, Kind, RecordClock, Recorder,
    RecorderBuilder, Validity, in_memory_with_faults,
};
use tokio::task::JoinSet;
use tokio::time::{advance, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

fn steps(history: &History) -> Vec<(Call, Kind)> {
    let events = history.events.iter();
    events.map(|event| (event.call, event.kind)).collect()
}

#[tokio::test(start_paused = true)]
async fn every_step_of_a_lock_is_recorded() {
    let recorder = Recorder::new(LockManager::in_memory()).for_task(4);
    let guard = recorder.lock("a").wait(SECOND).acquire().await.unwrap();
    guard.renew().await.unwrap();
    assert!(recorder.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    drop(recorder.lock("a").await.unwrap());
    let history = recorder.history();
    let expected = [
        (Call::Acquire, Kind::Invoke),
        (Call::Acquire, Kind::Ok),
        (Call::Renew, Kind::Invoke),
        (Call::Renew, Kind::Ok),
        (Call::Acquire, Kind::Invoke),
        (Call::Acquire, Kind::Fail),
        (Call::Release, Kind::Invoke),
        (Call::Release, Kind::Ok),
        (Call::Acquire, Kind::Invoke),
        (Call::Acquire, Kind::Ok),
        (Call::Release, Kind::Invoke),
        (Call::Release, Kind::Dropped),
    ];
    assert_eq!(steps(&history), expected);
    assert!(
        history
            .events
            .iter()
            .all(|event| event.task == 4 && &*event.key == "lock:a")
    );
    assert_eq!(history.events[0].limit, Some(1_250_000_000));
    assert_eq!(history.events[1].valid_until, Some(Validity::Endless));
    assert_eq!(history.held_locks().len(), 2);
    Checker::new().check(&history).assert_ok();
}

#[tokio::test(start_paused = true)]
async fn dropped_futures_are_recorded() {
    let (locks, faults) = in_memory_with_faults(LockManager::builder()).unwrap();
    let recorder = Recorder::new(locks);
    let other = faults.hold("a").unwrap();
    let dropped = timeout(SECOND, recorder.lock("a").acquire()).await;
    assert!(dropped.is_err());
    drop(other);
    let guard = recorder.lock("a").acquire().await.unwrap();
    faults.delay(lock_testing::Command::Release, SECOND / 2);
    assert!(timeout(SECOND / 4, guard.release()).await.is_err());
    let steps = steps(&recorder.history());
    assert_eq!(steps[1], (Call::Acquire, Kind::Dropped));
    assert_eq!(
        steps[4..],
        [
            (Call::Release, Kind::Invoke),
            (Call::Release, Kind::Dropped)
        ]
    );
    // Nothing is left behind.
    assert!(recorder.lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn bodies_are_recorded_also_when_they_are_dropped() {
    let (locks, faults) = in_memory_with_faults(LockManager::builder()).unwrap();
    let recorder = Recorder::new(locks);
    let register = FencedRegister::new(&recorder);
    let run = recorder.lock("a").run(async |held, record| {
        assert!(!held.is_lost());
        register.increment(record, SECOND).await
    });
    assert_eq!(run.await.unwrap(), Ok(1));
    let lost = recorder.lock("a").run(async |_, _| {
        faults.lose_all();
        sleep(SECOND).await;
    });
    assert!(lost.await.unwrap_err().is_lost());
    let dropped = recorder.lock("a").run(async |_, _| sleep(2 * SECOND).await);
    assert!(timeout(SECOND, dropped).await.is_err());
    let other = faults.hold("a").unwrap();
    let busy = recorder.lock("a").wait(SECOND).run(async |_, _| ()).await;
    assert!(busy.unwrap_err().is_contended());
    drop(other);
    let history = recorder.history();
    let acquired = [(Call::Acquire, Kind::Invoke), (Call::Acquire, Kind::Ok)];
    let dropped = [
        (Call::Release, Kind::Invoke),
        (Call::Release, Kind::Dropped),
    ];
    let expected = [
        &acquired[..],
        &[(Call::Release, Kind::Invoke), (Call::Release, Kind::Info)],
        &acquired,
        &[(Call::Lost, Kind::Ok)],
        &dropped,
        &acquired,
        &dropped,
        &[(Call::Acquire, Kind::Invoke), (Call::Acquire, Kind::Info)],
    ];
    assert_eq!(steps(&history), expected.concat());
    Checker::new().check(&history).assert_ok();
}

#[tokio::test(start_paused = true)]
async fn loss_is_recorded_at_its_time() {
    let (locks, faults) = in_memory_with_faults(LockManager::builder()).unwrap();
    let recorder = Recorder::new(locks);
    let guard = recorder.lock("a").acquire().await.unwrap();
    advance(100 * SECOND).await;
    // The next holder gets the lock before any other task runs.
    faults.lose_all();
    let next = recorder.lock("a").acquire().await.unwrap();
    assert!(guard.renew().await.is_err());
    assert!(guard.release().await.is_err());
    next.release().await.unwrap();
    let history = recorder.history();
    let held = &history.held_locks()[0];
    assert_eq!(held.lost, held.end().lease_end());
    assert_eq!(held.lost.unwrap() - held.granted, 100_000_000_000);
    // A jump of the paused clock is no stall.
    assert_eq!(history.stalls, []);
    Checker::new().check(&history).assert_ok();
    // Without the loss, the second holder would overlap the first one.
    let mut without = history;
    without.events.retain(|event| event.call != Call::Lost);
    without.events.retain(|event| event.call != Call::Release);
    let report = Checker::new().check(&without);
    assert_eq!(report.found_by(Check::Exclusion).count(), 1, "{report}");
}

#[tokio::test(start_paused = true)]
async fn end_of_a_lease_without_renewals_is_recorded_as_a_loss() {
    let recorder = Recorder::new(LockManager::in_memory());
    let request = recorder.lock("a").ttl(2 * SECOND).renew(Renew::Never);
    let guard = request.acquire().await.unwrap();
    sleep(SECOND).await;
    guard.renew().await.unwrap();
    sleep(5 * SECOND).await;
    assert!(guard.is_lost());
    let history = recorder.history();
    let held = &history.held_locks()[0];
    let end = held.end().lease_end().unwrap();
    let valid = Duration::from_nanos(end - held.granted);
    assert!(valid > 2 * SECOND && valid <= 3 * SECOND, "{valid:?}");
    assert!(held.lost.unwrap() - end < 10_000_000);
    Checker::new().check(&history).assert_ok();
}

#[tokio::test(start_paused = true)]
async fn register_refuses_the_write_of_a_holder_that_lost_its_lock() {
    let (locks, faults) = in_memory_with_faults(LockManager::builder()).unwrap();
    let recorder = Recorder::new(locks);
    let register = FencedRegister::new(&recorder);
    let old = recorder.lock("a").acquire().await.unwrap();
    let value = register.read(old.record()).unwrap();
    faults.lose("a");
    let new = recorder.lock("a").acquire().await.unwrap();
    assert_eq!(register.read(new.record()), Ok(0));
    let refused = register.write(old.record(), value + 1).unwrap_err();
    assert_eq!(refused.token, old.record().token());
    assert!(refused.to_string().contains("stop this work"), "{refused}");
    assert!(register.read(old.record()).is_err());
    register.write(new.record(), 1).unwrap();
    drop((old, new));
    let report = Checker::new().check(&recorder.history());
    report.assert_ok();
    assert_eq!(report.accepted_writes(), 1);
    let refused = |kind| !AccessKind::is_accepted(kind);
    let history = recorder.history();
    assert_eq!(
        history
            .accesses
            .iter()
            .filter(|access| refused(access.kind))
            .count(),
        2
    );
}

/// A register that does not check tokens loses an update, and the checker finds it.
#[tokio::test(start_paused = true)]
async fn unfenced_resource_loses_an_update() {
    let (locks, faults) = in_memory_with_faults(LockManager::builder()).unwrap();
    let recorder = Recorder::new(locks);
    let mut history = History::new();
    let mut access = |guard: &lock_testing::RecordedGuard, kind| {
        let (record, at) = (guard.record(), recorder.now());
        let (number, token) = (record.number(), record.token());
        let access = lock_testing::Access::new(at, record.key(), 1, number, token, kind);
        history.accesses.push(access);
    };
    let old = recorder.lock("a").acquire().await.unwrap();
    access(&old, AccessKind::Read);
    faults.lose_all();
    let new = recorder.lock("a").acquire().await.unwrap();
    access(&new, AccessKind::Read);
    access(&new, AccessKind::Write { value: 1 });
    access(&old, AccessKind::Write { value: 1 });
    drop((old, new));
    history.merge(recorder.history());
    let report = Checker::new().check(&history);
    let found: Vec<Check> = report
        .violations()
        .iter()
        .map(lock_testing::Violation::check)
        .collect();
    assert_eq!(
        found,
        [Check::StaleAccesses, Check::LostUpdates],
        "{report}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_several_processes_are_merged() {
    let folder = std::env::temp_dir().join(format!("lock-testing-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let files = [folder.join("1.jsonl"), folder.join("2.jsonl")];
    let locks = LockManager::in_memory();
    let mut tasks = JoinSet::new();
    let mut recorders = Vec::new();
    for (number, file) in (1..).zip(&files) {
        let builder = Recorder::builder(locks.clone()).process(number);
        let recorder = builder.only_file(file).build().unwrap();
        recorders.push(recorder.clone());
        let register = Arc::new(FencedRegister::new(&recorder));
        let stalls = recorder.watch_stalls();
        for task in 0..4 {
            let (recorder, register) = (recorder.for_task(task), Arc::clone(&register));
            tasks.spawn(async move {
                for _ in 0..20 {
                    let guard = recorder.lock("a").acquire().await.unwrap();
                    let pause = Duration::from_micros(10);
                    register.increment(guard.record(), pause).await.unwrap();
                    guard.release().await.unwrap();
                }
            });
        }
        tasks.spawn(async move {
            sleep(SECOND / 4).await;
            drop(stalls);
        });
    }
    tasks.join_all().await;
    for recorder in &recorders {
        assert_eq!(recorder.history(), {
            let mut empty = History::new();
            empty.ended = recorder.history().ended;
            empty
        });
        recorder.finish().unwrap();
    }
    let history = History::read_files(&files).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(history.held_locks().len(), 160);
    assert!(history.deaths.is_empty() && history.ended.is_some());
    let report = Checker::new().check(&history);
    report.assert_ok();
    assert_eq!(report.accepted_writes(), 160);
}

async fn record_one_lock(builder: RecorderBuilder) -> Result<(), Box<dyn std::error::Error>> {
    let recorder = builder.build()?;
    recorder.lock("a").await?.release().await?;
    Ok(recorder.finish()?)
}

#[tokio::test]
async fn second_run_replaces_the_file_unless_it_appends() {
    let folder = std::env::temp_dir().join(format!("lock-testing-runs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("run.jsonl");
    let locks = LockManager::in_memory();
    let builder = |number| Recorder::builder(locks.clone()).process(number).file(&file);
    for _ in 0..2 {
        record_one_lock(builder(1)).await.unwrap();
        let history = History::read_files([&file]).unwrap();
        assert_eq!(history.held_locks().len(), 1);
    }
    // As a process that was killed while it wrote a key.
    let mut text = std::fs::read(&file).unwrap();
    text.extend_from_slice("{\"at\":1,\"key\":\"\u{e9}".as_bytes());
    text.pop();
    std::fs::write(&file, text).unwrap();
    assert_eq!(History::read_files([&file]).unwrap().held_locks().len(), 1);
    record_one_lock(builder(2).append()).await.unwrap();
    let history = History::read_files([&file]).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(history.held_locks().len(), 2);
    assert!(history.deaths.is_empty());
    Checker::new().check(&history).assert_ok();
}

#[tokio::test(start_paused = true)]
async fn only_an_error_without_an_effect_is_recorded_as_such() {
    let (locks, faults) = in_memory_with_faults(LockManager::builder()).unwrap();
    let recorder = Recorder::new(locks);
    let _other = faults.hold("a").unwrap();
    let busy = recorder.lock("a").wait(Duration::ZERO).await;
    assert!(busy.unwrap_err().is_contended());
    let invalid = recorder.lock("b").ttl(Duration::ZERO).await;
    assert!(invalid.is_err());
    // Such a waiter may have got the lock just before it left the queue.
    let late = recorder.lock("a").wait(SECOND).await;
    assert!(late.unwrap_err().is_contended());
    let held = recorder.lock("c").await.unwrap();
    faults.lose("c");
    assert!(held.release().await.unwrap_err().is_lost());
    let history = recorder.history();
    let operations = history.operations();
    let kinds: Vec<Kind> = operations.iter().map(|operation| operation.kind).collect();
    let expected = [Kind::Fail, Kind::Fail, Kind::Info, Kind::Ok, Kind::Info];
    assert_eq!(kinds, expected);
}

#[tokio::test(start_paused = true)]
async fn recorded_limit_is_the_promise_of_the_guarantees() {
    let builder = LockManager::builder().command_timeout(Duration::from_millis(100));
    let recorder = Recorder::new(builder.in_memory().unwrap());
    let _guard = recorder.lock("a").try_acquire().await.unwrap().unwrap();
    let long = recorder.lock("b").wait(Duration::MAX);
    drop(long.acquire().await.unwrap());
    let limits: Vec<_> = recorder
        .history()
        .operations()
        .iter()
        .filter(|operation| operation.call == Call::Acquire)
        .map(|operation| operation.limit.unwrap())
        .collect();
    assert_eq!(limits, [250_000_000, u64::MAX]);
}

#[tokio::test]
async fn blocked_runtime_is_recorded_as_a_stall() {
    let recorder = Recorder::new(LockManager::in_memory());
    let _stalls = recorder.watch_stalls();
    sleep(Duration::from_millis(60)).await;
    std::thread::sleep(Duration::from_millis(300));
    sleep(Duration::from_millis(60)).await;
    let stalls = recorder.history().stalls;
    assert!(
        stalls
            .iter()
            .any(|stall| stall.to - stall.from >= 250_000_000),
        "{stalls:?}"
    );
}

#[tokio::test]
async fn wall_clock_records_the_time_since_the_epoch() {
    let builder = Recorder::builder(LockManager::in_memory()).clock(RecordClock::Wall);
    let recorder = builder.build().unwrap();
    let request = recorder.lock("a").ttl(10 * SECOND).renew(Renew::Never);
    let guard = request.acquire().await.unwrap();
    guard.release().await.unwrap();
    let history = recorder.history();
    let granted: &Event = &history.events[1];
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = lock_testing::nanos(since.unwrap());
    assert!(now - granted.at < 60_000_000_000);
    let until = granted.valid_until.unwrap().lease_end().unwrap();
    let valid = Duration::from_nanos(until - granted.at);
    assert!(valid > 9 * SECOND && valid <= 10 * SECOND, "{valid:?}");
    Checker::new().check(&history).assert_ok();
}

#[test]
fn public_types_can_be_shared() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Recorder>();
    shared::<lock_testing::RecordedGuard>();
    shared::<lock_testing::Faults>();
    shared::<lock_testing::OtherHolder>();
    shared::<lock_testing::Report>();
    shared::<History>();
    shared::<FencedRegister>();
}

#[tokio::test(start_paused = true)]
async fn lost_readers_free_the_lock_for_a_writer() {
    let (locks, faults) = in_memory_with_faults(LockManager::builder()).unwrap();
    let reader = locks.lock("a").read().acquire().await.unwrap();
    let permit = locks.lock("b").permits(1).acquire().await.unwrap();
    assert_eq!(faults.lose_all(), 2);
    assert!(reader.is_lost() && permit.is_lost());
    for name in ["a", "b"] {
        assert!(locks.lock(name).try_acquire().await.unwrap().is_some());
    }
}
