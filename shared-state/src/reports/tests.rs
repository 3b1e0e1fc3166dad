use super::*;
use crate::store::{Cas, MemoryStore, StoreError, Stored};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn key() -> String {
    "reports".to_owned()
}

const NOW: UnixMillis = UnixMillis(1_800_000_000_000);

#[track_caller]
fn check(value: &str, waiting: Option<u32>, kv: Option<f32>) {
    let expected = (waiting.is_some() || kv.is_some()).then_some(Report { at: NOW, waiting, kv });
    assert_eq!(read(value.as_bytes(), NOW), expected, "{value:?}");
}

#[test]
fn recorded_values_are_read_with_and_without_the_leading_word() {
    // As recorded from vLLM 0.32.
    check(
        "TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.2864321608040201",
        Some(3),
        Some(0.286_432_16),
    );
    check(
        r#"JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.5}}"#,
        Some(0),
        Some(0.5),
    );
    check(
        "named_metrics.num_requests_waiting=2,named_metrics.kv_cache_usage_perc=1",
        Some(2),
        Some(1.0),
    );
    check(r#"{"named_metrics":{"kv_cache_usage_perc":0}}"#, None, Some(0.0));
    // Triton with TensorRT-LLM.
    check(
        "TEXT named_metrics.kv_cache_utilization=0.25, named_metrics.max_token_capacity=4096",
        None,
        Some(0.25),
    );
}

#[test]
fn what_cannot_be_is_unknown_and_takes_nothing_with_it() {
    check(
        "TEXT named_metrics.num_requests_waiting=-1, named_metrics.kv_cache_usage_perc=0.5",
        None,
        Some(0.5),
    );
    check(
        "TEXT named_metrics.num_requests_waiting=4, named_metrics.kv_cache_usage_perc=1.01",
        Some(4),
        None,
    );
    check(
        "TEXT named_metrics.num_requests_waiting=NaN, named_metrics.kv_cache_usage_perc=inf",
        None,
        None,
    );
    check("TEXT named_metrics.num_requests_waiting=1e12", None, None);
    check("TEXT num_requests_waiting=1", None, None);
    check("TEXT cpu_utilization=0.5", None, None);
    check(r#"JSON {"named_metrics": {"num_requests_waiting": "3"}}"#, None, None);
    check(r#"JSON {"named_metrics": {"num_requests_waiting": 3}"#, None, None);
    check("BIN CgkJ", None, None);
    check("", None, None);
    assert_eq!(read(&[0xff, 0xfe], NOW), None);
}

#[test]
fn a_value_is_read_up_to_its_bound() {
    let report = "named_metrics.num_requests_waiting=3,";
    let padded = |bytes: usize| format!("{report}{}", "x".repeat(bytes - report.len()));
    check(&padded(REPORT_MAX_BYTES), Some(3), None);
    check(&padded(REPORT_MAX_BYTES + 1), None, None);
}

fn pod(port: u16) -> PodAddress {
    format!("10.0.0.1:{port}").parse().unwrap()
}

fn report(at: u64, waiting: u32) -> Report {
    Report {
        at: UnixMillis(NOW.0 + at),
        waiting: Some(waiting),
        kv: None,
    }
}

fn at(millis: u64) -> UnixMillis {
    UnixMillis(NOW.0 + millis)
}

#[test]
fn the_newest_report_of_each_pod_arrives_once() {
    let store = MemoryStore::default();
    let (mut a, mut b, mut inbox) = (Outbox::new(key()), Outbox::new(key()), Inbox::new(key()));
    assert_eq!(inbox.tick(&store), []);
    a.add(pod(1), report(10, 1));
    a.add(pod(1), report(20, 2));
    b.add(pod(1), report(15, 9));
    b.add(pod(2), report(15, 5));
    a.tick(&store, at(100));
    b.tick(&store, at(100));
    assert_eq!(inbox.tick(&store), [(pod(1), report(20, 2)), (pod(2), report(15, 5))]);
    a.tick(&store, at(200));
    assert_eq!(inbox.tick(&store), [], "nothing new was written");
}

#[test]
fn old_reports_and_reports_from_the_future_are_left_out() {
    let store = MemoryStore::default();
    let (mut outbox, mut inbox) = (Outbox::new(key()), Inbox::new(key()));
    let long = REPORT_FORGOTTEN_AFTER.0;
    outbox.add(pod(1), report(1, 1));
    outbox.tick(&store, at(1));
    outbox.add(pod(2), report(long, 2));
    outbox.add(pod(3), report(long + 2, 3));
    outbox.tick(&store, at(long + 1));
    assert_eq!(inbox.tick(&store), [(pod(2), report(long, 2))]);
}

#[test]
fn foreign_bytes_are_no_reports_and_are_replaced() {
    let store = MemoryStore::default();
    let (mut outbox, mut inbox) = (Outbox::new(key()), Inbox::new(key()));
    store.set(&key(), b"of somebody else, and long enough", None).unwrap();
    assert_eq!(inbox.tick(&store), []);
    outbox.add(pod(1), report(1, 1));
    outbox.tick(&store, at(1));
    assert_eq!(inbox.tick(&store), [(pod(1), report(1, 1))]);
}

#[test]
fn what_was_read_torn_is_read_again_under_the_same_head() {
    let store = MemoryStore::default();
    let (mut outbox, mut inbox) = (Outbox::new(key()), Inbox::new(key()));
    outbox.add(pod(1), report(1, 1));
    outbox.tick(&store, at(1));
    let whole = store.get(&key()).unwrap().unwrap().value;
    let mut torn = whole.clone();
    torn[HEADER_BYTES..].fill(0);
    store.set(&key(), &torn, None).unwrap();
    assert_eq!(inbox.tick(&store), []);
    store.set(&key(), &whole, None).unwrap();
    assert_eq!(inbox.tick(&store), [(pod(1), report(1, 1))]);
    assert_eq!(inbox.tick(&store), [], "each change is seen once");
}

/// Another worker writes between this one's read and write, the first time.
struct Faster(MemoryStore, core::cell::Cell<bool>);

impl SharedData for Faster {
    fn get(&self, key: &str) -> Result<Option<Stored>, StoreError> {
        let read = self.0.get(key);
        if !self.1.replace(true) {
            let mut other = Outbox::new(key.to_owned());
            other.add(pod(9), report(1, 9));
            other.tick(&self.0, at(1));
        }
        read
    }

    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> Result<(), StoreError> {
        self.0.set(key, value, cas)
    }
}

#[test]
fn a_report_that_lost_a_race_goes_with_the_next_tick() {
    let store = Faster(MemoryStore::default(), core::cell::Cell::new(true));
    let (mut outbox, mut inbox) = (Outbox::new(key()), Inbox::new(key()));
    outbox.add(pod(1), report(1, 1));
    outbox.tick(&store, at(1));
    store.1.set(false);
    outbox.add(pod(2), report(2, 2));
    outbox.tick(&store, at(2));
    outbox.tick(&store, at(3));
    let all = [(pod(1), report(1, 1)), (pod(2), report(2, 2)), (pod(9), report(1, 9))];
    assert_eq!(inbox.tick(&store), all);
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_header_value_is_read_without_panic(value in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(report) = read(&value, NOW) {
                prop_assert!(report.is_sound());
            }
        }

        #[test]
        fn any_numbers_written_as_the_engines_do_are_read(waiting in 0..WAITING_MAX, kv in 0.0..=1.0_f64) {
            let text = format!("TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={kv:?}");
            let json = format!(r#"JSON {{"named_metrics": {{"num_requests_waiting": {waiting}.0, "kv_cache_usage_perc": {kv:?}}}}}"#);
            let expected = Some(Report { at: NOW, waiting: Some(waiting), kv: Some(kv as f32) });
            prop_assert_eq!(read(text.as_bytes(), NOW), expected);
            prop_assert_eq!(read(json.as_bytes(), NOW), expected);
        }
    }
}
