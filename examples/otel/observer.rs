use lock_core::telemetry::{LockEvent, LockId, LockObserver};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter, UpDownCounter};

/// Gives the events of locks to a meter of OpenTelemetry.
pub struct OtelObserver {
    acquire: Histogram<f64>,
    hold: Histogram<f64>,
    held: UpDownCounter<i64>,
    losses: Counter<u64>,
    renewals: Counter<u64>,
}

impl OtelObserver {
    pub fn new(meter: &Meter) -> Self {
        let seconds = |name| meter.f64_histogram(name).with_unit("s").build();
        let count = |name| meter.u64_counter(name).build();
        Self {
            acquire: seconds("distributed_lock.acquire.duration"),
            hold: seconds("distributed_lock.hold.duration"),
            held: meter.i64_up_down_counter("distributed_lock.held").build(),
            losses: count("distributed_lock.losses"),
            renewals: count("distributed_lock.renewals"),
        }
    }
}

fn label(key: &'static str, value: &'static str) -> KeyValue {
    KeyValue::new(key, value)
}

/// Keeps the standbys of `lead`, which wait for as long as another one leads, apart from calls.
fn role(lock: LockId<'_>) -> Option<KeyValue> {
    lock.is_candidate().then(|| label("role", "candidate"))
}

impl LockObserver for OtelObserver {
    fn on_event(&self, event: &LockEvent<'_>) {
        const NAME: &str = "distributed_lock.name";
        let renewed = |outcome| self.renewals.add(1, &[label("outcome", outcome)]);
        match *event {
            LockEvent::Granted { lock, waited, .. } => {
                let name = label(NAME, lock.name());
                self.held.add(1, std::slice::from_ref(&name));
                let mut labels = vec![name, label("outcome", "acquired")];
                labels.extend(role(lock));
                self.acquire.record(waited.as_secs_f64(), &labels);
            }
            LockEvent::NotAcquired {
                lock,
                outcome,
                waited,
                error,
                ..
            } => {
                let mut labels = vec![label(NAME, lock.name()), label("outcome", outcome.as_str())];
                labels.extend(error.map(|error| label("error.type", error.code())));
                labels.extend(role(lock));
                self.acquire.record(waited.as_secs_f64(), &labels);
            }
            LockEvent::HoldEnded {
                lock,
                outcome,
                held_for,
                ..
            } => {
                let name = label(NAME, lock.name());
                self.held.add(-1, std::slice::from_ref(&name));
                let labels = [name, label("outcome", outcome.as_str())];
                self.hold.record(held_for.as_secs_f64(), &labels);
            }
            LockEvent::Lost { lock, reason, .. } => {
                let labels = [label(NAME, lock.name()), label("reason", reason.as_str())];
                self.losses.add(1, &labels);
            }
            LockEvent::Renewed { .. } => renewed("renewed"),
            LockEvent::RenewalLate { .. } => renewed("late"),
            LockEvent::RenewalFailed { .. } => renewed("failed"),
            LockEvent::RenewalRefused { .. } => renewed("refused"),
            _ => {}
        }
    }
}
