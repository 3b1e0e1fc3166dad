use super::*;
use core::cell::{Cell, RefCell};

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[cfg(not(target_arch = "wasm32"))]
mod properties;

/// What a host does with tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    Envoy,
    WasmX,
}

/// One value under the rules of a host. Counts what is asked of it.
#[derive(Debug)]
struct Shared {
    rules: Rules,
    value: RefCell<Option<(Vec<u8>, u32)>>,
    last: Cell<u32>,
    reads: Cell<u32>,
    refuses: Cell<bool>,
}

impl Shared {
    fn new(rules: Rules) -> Self {
        Self {
            rules,
            value: RefCell::default(),
            last: Cell::new(0),
            reads: Cell::new(0),
            refuses: Cell::new(false),
        }
    }

    fn lease(&self) -> Option<Lease> {
        sealed::open(Kind::Lease, &self.value.borrow().as_ref()?.0).ok()
    }

    fn holder(&self) -> Option<u64> {
        Some(self.lease()?.holder.nonce)
    }

    fn put(&self, value: Option<&[u8]>) {
        self.last.set(self.last.get() + 1);
        *self.value.borrow_mut() = value.map(|value| (value.to_vec(), self.last.get()));
    }
}

impl SharedData for Shared {
    fn get(&self, _: &str) -> Result<Option<Stored>, StoreError> {
        self.reads.set(self.reads.get() + 1);
        if self.refuses.get() {
            return Err(StoreError::Host(12));
        }
        Ok(self.value.borrow().as_ref().map(|(value, cas)| Stored {
            value: value.clone(),
            cas: Some(Cas(*cas)),
        }))
    }

    fn set(&self, _: &str, value: &[u8], cas: Option<Cas>) -> Result<(), StoreError> {
        if self.refuses.get() {
            return Err(StoreError::Host(12));
        }
        let (current, asked) = (
            self.value.borrow().as_ref().map(|(_, cas)| *cas),
            cas.map(|Cas(cas)| cas),
        );
        let allowed = match (self.rules, current) {
            (Rules::Envoy, None) => true,
            (Rules::Envoy, Some(current)) => asked.is_none_or(|asked| asked == current),
            (Rules::WasmX, current) => asked == current,
        };
        if !allowed {
            return Err(StoreError::CasMismatch);
        }
        self.put(Some(value));
        Ok(())
    }
}

const START: u64 = 1_800_000_000_000;

fn at(millis: u64) -> UnixMillis {
    UnixMillis(START + millis)
}

fn seat(nonce: u64) -> Seat {
    candidate(nonce, 1, 0, false)
}

fn candidate(nonce: u64, epoch: u64, born: u64, preferred: bool) -> Seat {
    let me = Candidate {
        nonce,
        epoch,
        born: at(born),
        preferred,
    };
    Seat::new("lease".to_owned(), me)
}

/// Ticks every 100 ms; the first time at which the seat holds.
#[track_caller]
fn holds_first(seat: &mut Seat, store: &Shared, from: u64, within: u64) -> u64 {
    let ticks = (from..=from + within).step_by(100);
    { ticks }
        .find(|millis| seat.tick(store, at(*millis)))
        .unwrap_or_else(|| panic!("it never held within {within} ms"))
}

#[track_caller]
fn both(check: impl Fn(&Shared)) {
    for rules in [Rules::Envoy, Rules::WasmX] {
        check(&Shared::new(rules));
    }
}

#[test]
fn a_preferred_context_takes_a_new_lease_at_once_and_others_a_moment_later() {
    both(|store| {
        let mut service = candidate(7, 1, 0, true);
        assert!(service.tick(store, at(0)));
        assert_eq!(store.holder(), Some(7));
    });
    both(|store| {
        let mut alone = seat(1);
        assert_eq!(holds_first(&mut alone, store, 0, 1_000), LEASE_PATIENCE.0);
    });
}

#[test]
fn of_several_that_find_no_lease_one_creates_it() {
    both(|store| {
        let (mut a, mut b) = (candidate(1, 1, 0, true), candidate(2, 1, 0, true));
        // Both read before either writes.
        let (first, second) = (a.looked(Ok(None), at(0)), b.looked(Ok(None), at(0)));
        let (first, second) = (first.expect("a write"), second.expect("a write"));
        let wrote = |seat: &mut Seat, write: &Write| seat.wrote(write, store.set("lease", &write.value, write.cas));
        wrote(&mut a, &first);
        wrote(&mut b, &second);
        assert!(!(a.holds() && b.holds()), "{:?}", store.rules);
        a.due = Millis(0);
        b.due = Millis(0);
        let holding = [a.tick(store, at(0)), b.tick(store, at(0))];
        assert_eq!(holding.iter().filter(|holds| **holds).count(), 1, "{:?}", store.rules);
    });
}

#[test]
fn a_holder_that_dies_is_followed_within_a_lease_and_a_look() {
    both(|store| {
        let (mut a, mut b) = (seat(1), seat(2));
        holds_first(&mut a, store, 0, 1_000);
        assert!(!b.tick(store, at(300)));
        let follows = holds_first(&mut b, store, 400, 10_000);
        assert!((LEASE.0..=300 + LEASE.0 + LEASE_LOOK.0).contains(&follows), "{follows}");
        assert!(!a.tick(store, at(follows)), "it was stopped, and asks before it polls");
        assert_eq!(store.holder(), Some(2));
    });
}

#[test]
fn a_lease_that_is_given_back_is_taken_at_the_next_look() {
    both(|store| {
        let (mut a, mut b) = (seat(1), seat(2));
        holds_first(&mut a, store, 0, 1_000);
        b.tick(store, at(300));
        a.release(store);
        assert!(!a.holds());
        assert!(holds_first(&mut b, store, 400, 10_000) <= 300 + LEASE_LOOK.0);
    });
}

#[test]
fn who_does_not_hold_gives_nothing_back() {
    both(|store| {
        let (mut a, mut b) = (seat(1), seat(2));
        holds_first(&mut a, store, 0, 1_000);
        b.tick(store, at(300));
        b.release(store);
        assert_eq!(store.holder(), Some(1));
        assert_ne!(store.lease().map(|lease| lease.expires), Some(UnixMillis(0)));
    });
}

/// `newcomer` comes 5 s after `first` has begun; who holds the lease then?
#[track_caller]
fn check_rank(first: &Seat, newcomer: &Seat, taken: bool) {
    both(|store| {
        let mut seats = [first, newcomer].map(|seat| Seat::new(seat.key.clone(), seat.me));
        holds_first(&mut seats[0], store, 0, 1_000);
        let mut together = 0;
        for tick in 0..100 {
            let now = at(1_000 + tick * 100);
            let old = seats[0].tick(store, now);
            let new = tick >= 50 && seats[1].tick(store, now);
            together += u64::from(old && new) * 100;
        }
        assert_eq!([seats[0].holds(), seats[1].holds()], [!taken, taken]);
        assert!(together <= LEASE_RENEW.0, "both polled for {together} ms");
    });
}

#[test]
fn a_better_candidate_takes_over_from_a_living_holder() {
    // A companion service, a newer configuration.
    check_rank(&candidate(1, 1, 0, false), &candidate(2, 1, 0, true), true);
    check_rank(&candidate(1, 1, 0, false), &candidate(2, 2, 5_000, false), true);
    // Not: another worker, one that was made anew, an older configuration, the filter of a newer one.
    check_rank(&candidate(1, 1, 0, false), &candidate(2, 1, 0, false), false);
    check_rank(&candidate(1, 1, 0, false), &candidate(2, 1, 5_000, false), false);
    check_rank(&candidate(1, 2, 5_000, false), &candidate(2, 1, 0, false), false);
    check_rank(&candidate(1, 1, 0, true), &candidate(2, 2, 5_000, false), false);
}

#[test]
fn a_quiet_second_costs_one_read() {
    both(|store| {
        let (mut a, mut b) = (seat(1), seat(2));
        holds_first(&mut a, store, 0, 1_000);
        b.tick(store, at(400));
        let before = store.reads.get();
        for tick in 0..100 {
            a.tick(store, at(500 + tick * 100));
            b.tick(store, at(500 + tick * 100));
        }
        assert!(store.reads.get() - before <= 20, "{}", store.reads.get() - before);
    });
}

#[test]
fn a_clock_that_steps_back_neither_ends_a_lease_nor_keeps_a_dead_one() {
    both(|store| {
        let (mut a, mut b) = (seat(1), seat(2));
        holds_first(&mut a, store, 100_000, 1_000);
        b.tick(store, at(101_000));
        // 90 s back: a goes on, b does not believe that the lease lasts so long.
        for tick in 0..50 {
            assert!(a.tick(store, at(11_000 + tick * 100)));
            assert!(!b.tick(store, at(11_000 + tick * 100)));
        }
        let follows = holds_first(&mut b, store, 16_000, 10_000);
        assert!(follows <= 16_000 + LEASE.0 + LEASE_LOOK.0, "{follows}");
    });
}

#[test]
fn a_value_that_is_not_a_lease_is_replaced_once_nobody_writes_it() {
    both(|store| {
        store.put(Some(b"of somebody else"));
        let mut a = seat(1);
        let first = holds_first(&mut a, store, 0, 10_000);
        assert!((LEASE.0..=LEASE.0 + LEASE_LOOK.0).contains(&first), "{first}");
    });
}

#[test]
fn a_lease_that_the_host_lost_is_made_anew_by_its_holder() {
    let store = Shared::new(Rules::WasmX);
    let mut a = seat(1);
    holds_first(&mut a, &store, 0, 1_000);
    store.put(None);
    for tick in 0..30 {
        assert!(a.tick(&store, at(400 + tick * 100)));
    }
    assert_eq!(store.holder(), Some(1));
}

#[test]
fn without_shared_data_nobody_polls() {
    both(|store| {
        let mut a = seat(1);
        holds_first(&mut a, store, 0, 1_000);
        store.refuses.set(true);
        let ticks = (0..30)
            .map(|tick| a.tick(store, at(400 + tick * 100)))
            .collect::<Vec<_>>();
        assert!(!ticks[10..].contains(&true), "{ticks:?}");
    });
}

#[test]
fn a_value_is_written_over_under_both_rules() {
    both(|store| {
        for value in [b"one", b"two"] {
            assert_eq!(crate::store::put(store, "any", value), Ok(()));
            assert_eq!(store.get("any").unwrap().unwrap().value, value);
        }
    });
}

/// `dead` contexts die one after the other, each as soon as it holds; how long does the next one wait?
#[track_caller]
fn check_wait_after(dead: u64, seconds: u64) {
    both(|store| {
        let mut now = 0;
        for nonce in 1..=dead {
            now = holds_first(&mut seat(nonce), store, now, 100_000);
        }
        let mut next = seat(dead + 1);
        next.tick(store, at(now));
        let waited = holds_first(&mut next, store, now, 100_000) - now;
        let wait = seconds * 1_000;
        assert!(
            (wait..=wait + LEASE_LOOK.0).contains(&waited),
            "{waited} ms after {dead}"
        );
    });
}

#[test]
fn who_follows_several_that_died_waits_twice_as_long_each_time_and_a_minute_at_most() {
    for (dead, seconds) in [(1, 3), (2, 6), (3, 12), (4, 24), (5, 48), (6, 60), (7, 60), (40, 60)] {
        check_wait_after(dead, seconds);
    }
}

/// The third of them holds for this long before it dies.
#[track_caller]
fn check_wait_after_holding(millis: u64, seconds: u64) {
    both(|store| {
        let mut now = 0;
        for nonce in 1..=2 {
            now = holds_first(&mut seat(nonce), store, now, 100_000);
        }
        let mut third = seat(3);
        now = holds_first(&mut third, store, now, 100_000);
        for tick in 0..=millis / 100 {
            assert!(third.tick(store, at(now + tick * 100)));
        }
        let lasts = store.lease().expect("a lease").expires.since(at(now + millis));
        // It was renewed within the last second.
        let (lasts, wait) = (lasts.0, seconds * 1_000);
        assert!((wait - LEASE_RENEW.0..=wait).contains(&lasts), "{lasts} ms");
    });
}

#[test]
fn a_holder_that_lives_for_a_minute_is_like_the_first() {
    check_wait_after_holding(58_900, 12);
    check_wait_after_holding(61_000, 3);
}

#[test]
fn a_lease_that_is_given_back_ended_well() {
    both(|store| {
        let now = holds_first(&mut seat(1), store, 0, 1_000);
        let mut second = seat(2);
        let now = holds_first(&mut second, store, now, 10_000);
        assert_eq!(store.lease().map(|lease| lease.expired), Some(1));
        second.release(store);
        holds_first(&mut seat(3), store, now, 100);
        assert_eq!(store.lease().map(|lease| lease.expired), Some(0));
    });
}

#[test]
fn a_better_candidate_waits_for_nobody_and_forgets_nothing() {
    both(|store| {
        let now = holds_first(&mut seat(1), store, 0, 1_000);
        let now = holds_first(&mut seat(2), store, now, 10_000);
        assert!(candidate(3, 1, 0, true).tick(store, at(now)));
        assert_eq!(store.lease().map(|lease| lease.expired), Some(1));
    });
}

/// Its next reads find half a value, as in WasmX while a value is written.
struct Torn<'a> {
    shared: &'a Shared,
    reads: Cell<u32>,
}

impl SharedData for Torn<'_> {
    fn get(&self, key: &str) -> Result<Option<Stored>, StoreError> {
        let mut stored = self.shared.get(key)?;
        if let (Some(stored), left @ 1..) = (&mut stored, self.reads.get()) {
            self.reads.set(left - 1);
            stored.value.truncate(30);
        }
        Ok(stored)
    }

    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> Result<(), StoreError> {
        self.shared.set(key, value, cas)
    }
}

#[track_caller]
fn check_torn(reads: u32, holds: bool) {
    both(|shared| {
        let mut a = seat(1);
        let now = holds_first(&mut a, shared, 0, 1_000);
        let store = Torn {
            shared,
            reads: Cell::new(reads),
        };
        assert_eq!(a.tick(&store, at(now + LEASE_RENEW.0)), holds, "{reads} torn reads");
    });
}

#[test]
fn a_holder_that_reads_its_lease_torn_looks_once_more() {
    check_torn(0, true);
    check_torn(1, true);
    check_torn(2, false);
}
