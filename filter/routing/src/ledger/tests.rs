use super::truth::{InFlight, Truth};
use super::*;
use berth_shared_state::limits::{
    LEDGER_ENTRY_MAX_AGE, LEDGER_EXCESS_PATIENCE, LEDGER_IN_FLIGHT_MAX, LEDGER_TRIES, LEDGER_WAIT_MIN,
    STEPS_TOLD_EVERY, TABLE_BYTES_PER_MILLI,
};
use berth_shared_state::names::ledger_key;
use berth_shared_state::store::{MemoryStore, SharedData, StoreError, Stored};
use core::cell::Cell;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const A: PodKey = PodKey(10);
const B: PodKey = PodKey(20);

fn at(ms: u64) -> UnixMillis {
    UnixMillis(ms)
}

/// A stream of 1000 uncached tokens, 1500 in all, predicted to take 100 ms.
fn stream(id: u64, pod: PodKey) -> Sent {
    Sent {
        id,
        pod,
        adapter: None,
        uncached: Tokens(1000),
        context: Tokens(1500),
        predicted: Millis(100),
        streams: true,
        teaches: true,
    }
}

fn whole(id: u64, pod: PodKey) -> Sent {
    Sent {
        streams: false,
        ..stream(id, pod)
    }
}

fn fact(pod: PodKey) -> PodFact {
    PodFact {
        pod,
        incarnation: 0,
        sample_at: None,
        proxy_active: None,
        generated: None,
    }
}

fn ledger_in(store: &dyn SharedData) -> Ledger {
    Ledger::decode(&store.get(&ledger_key("p")).unwrap().unwrap().value).unwrap()
}

fn counts(own: OwnLoad) -> (u32, u32, u32, u32) {
    (own.unanswered, own.generating, own.sent_since, own.unanswered_at_sample)
}

#[test]
fn a_request_moves_from_unanswered_to_generating_to_gone() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    assert_eq!(view.sent(&store, &stream(1, A), at(1000)), Synced::Written);
    let own = ledger_in(&store).own(A, None);
    assert_eq!(counts(own), (1, 0, 1, 0));
    assert_eq!(own.unanswered_tokens, Tokens(1000));
    assert_eq!(own.context_tokens, Tokens(1500));
    assert_eq!(own.oldest_unanswered, Some((at(1000), Millis(100))));

    assert_eq!(view.first_token(&store, 1, true, true, at(1200)), Synced::Written);
    let own = ledger_in(&store).own(A, None);
    assert_eq!(counts(own), (0, 1, 1, 0));
    assert_eq!((own.unanswered_tokens, own.context_tokens), (Tokens(0), Tokens(1500)));
    assert_eq!(own.oldest_unanswered, None);
    assert_eq!(view.first_token(&store, 1, true, true, at(1300)), Synced::Idle);

    assert_eq!(view.ended(&store, 1, Outcome::Success, at(1400)), Synced::Written);
    assert_eq!(ledger_in(&store).own(A, None), OwnLoad::default());
    assert_eq!(view.ended(&store, 1, Outcome::Success, at(1400)), Synced::Idle);
}

#[test]
fn a_sample_splits_requests_by_what_its_gauges_could_show() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    // Sent at 1000, answered at 1200, ended at 1400; sent at 1100 and unanswered; sent at 1500.
    view.sent(&store, &stream(1, A), at(1000));
    view.sent(&store, &stream(2, A), at(1100));
    view.first_token(&store, 1, true, true, at(1200));
    view.ended(&store, 1, Outcome::Success, at(1400));
    view.sent(&store, &stream(3, A), at(1500));
    for (sample, expected) in [
        (900, (2, 0, 2, 0)),
        (1000, (2, 0, 2, 0)),
        (1001, (2, 0, 2, 1)),
        (1101, (2, 0, 1, 2)),
        (1200, (2, 0, 1, 2)),
        (1201, (2, 0, 1, 1)),
        (1500, (2, 0, 1, 1)),
        (1501, (2, 0, 0, 2)),
    ] {
        assert_eq!(
            counts(ledger_in(&store).own(A, Some(at(sample)))),
            expected,
            "sample at {sample}"
        );
    }
    assert_eq!(ledger_in(&store).own(A, Some(at(1101))).sent_since_tokens, Tokens(1500));
}

#[test]
fn a_short_wait_is_forgotten_with_its_request() {
    for (waited, remembered) in [(LEDGER_WAIT_MIN.0 - 1, 0), (LEDGER_WAIT_MIN.0, 1)] {
        let store = MemoryStore::default();
        let mut view = LedgerView::new("p", 1);
        view.sent(&store, &stream(1, A), at(1000));
        view.first_token(&store, 1, true, true, at(1000 + waited));
        let sample = Some(at(1001));
        assert_eq!(
            ledger_in(&store).own(A, sample).unanswered_at_sample,
            1,
            "while in flight"
        );
        view.ended(&store, 1, Outcome::Success, at(1400));
        let own = ledger_in(&store).own(A, sample);
        assert_eq!(own.unanswered_at_sample, remembered, "after {waited} ms");
    }
}

#[test]
fn what_the_latest_sample_shows_is_folded_without_changing_the_sums() {
    let mut truth = Truth::default();
    for id in 0..6 {
        truth.sent(id, in_flight(A, 1000 + id));
    }
    for id in 0..3 {
        let mut request = *truth.get(id).unwrap();
        request.answered_at = Some(at(1500));
        truth.replace(id, request);
    }
    truth.end(0, at(1700));
    truth.sent(9, in_flight(A, 2500));
    // Generating 1 and 2, unanswered 3 to 5, all before the sample; 9 after it; 0 is forgotten.
    let records = truth.all(at(3000), 100, |_| Some(at(2000))).0;
    let counted: Vec<u32> = records.iter().map(|(_, record)| record.count).collect();
    assert_eq!(counted, [3, 1, 2]);
    let ledger = ledger_of(records);
    assert_eq!(counts(ledger.own(A, Some(at(2000)))), (4, 2, 1, 3));
    assert_eq!(
        ledger.own(A, Some(at(2000))).oldest_unanswered,
        Some((at(1003), Millis(100)))
    );
    // Before that sample came, with the older one: nothing was folded and 0 was still counted.
    let records = truth.all(at(1800), 100, |_| Some(at(1000))).0;
    assert_eq!(records.len(), 6);
}

#[test]
fn records_are_bounded_and_folding_keeps_the_sums() {
    // One each 8 ms. The horizon is halved to 312 ms: 39 requests and the fold of the others.
    for (requests, expected) in [(64, 64), (65, 40), (4000, 40)] {
        let mut truth = Truth::default();
        for id in 0..requests {
            truth.sent(id, in_flight(A, 100_000 - 8 * (requests - id)));
        }
        let records = truth.all(at(100_000), 64, |_| None).0;
        assert_eq!(records.len(), expected, "{requests} requests");
        let own = ledger_of(records).own(A, None);
        assert_eq!(u64::from(own.unanswered), requests);
        assert_eq!(own.context_tokens, Tokens(1500 * requests));
        assert_eq!(own.oldest_unanswered, Some((at(100_000 - 8 * requests), Millis(100))));
    }
}

fn in_flight(pod: PodKey, sent_at: u64) -> InFlight {
    InFlight {
        pod,
        sent_at: at(sent_at),
        uncached: Tokens(1000),
        work: Tokens(1000),
        context: Tokens(1500),
        predicted: Millis(100),
        streams: true,
        teaches: true,
        answered_at: None,
        adapter: None,
    }
}

fn ledger_of(records: Vec<(PodKey, Record)>) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.replace(1, at(0), &records, &[], &[]);
    ledger
}

#[test]
fn a_worker_follows_a_bounded_number_of_requests() {
    let mut truth = Truth::default();
    for id in 0..=LEDGER_IN_FLIGHT_MAX as u64 {
        truth.sent(id, in_flight(A, id));
    }
    assert_eq!(truth.oldest_at(A), Some((1, at(1))));
}

#[test]
fn an_answer_that_streams_shows_its_first_token_though_the_body_did_not_tell() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    view.sent(&store, &whole(1, A), at(1000));
    assert_eq!(view.first_token(&store, 1, true, true, at(1050)), Synced::Written);
    let own = ledger_in(&store).own(A, None);
    assert_eq!((own.unanswered, own.generating), (0, 1));
}

#[test]
fn sums_do_not_push_endings_out_while_writes_fail() {
    let store = Refusing;
    let mut view = LedgerView::new("p", 1);
    view.sent(&store, &whole(1, A), at(1000));
    view.ended(&store, 1, Outcome::Unreachable, at(1000));
    let one = Asked {
        requests: 1.0,
        text: 10.0,
        fixed: 4.0,
    };
    for id in 2..1_000 {
        view.asked(one);
        view.sent(&store, &whole(id, A), at(1001));
    }
    let healed = MemoryStore::default();
    view.tick(&healed, at(1002));
    view.sent(&healed, &whole(1_000, A), at(1002));
    let ledger = ledger_in(&healed);
    assert!(
        ledger.at(A).avoided_until().is_some(),
        "the first failure is remembered"
    );
    assert_eq!(ledger.asked().requests.to_bits(), 998.0_f64.to_bits());
}

/// A host that keeps nothing.
struct Refusing;

impl SharedData for Refusing {
    fn get(&self, _: &str) -> Result<Option<Stored>, StoreError> {
        Err(StoreError::Host(10))
    }

    fn set(&self, _: &str, _: &[u8], _: Option<berth_shared_state::store::Cas>) -> Result<(), StoreError> {
        Err(StoreError::Host(10))
    }
}

#[test]
fn a_request_without_stream_is_released_at_its_prediction_and_teaches_nothing() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    for id in 0..4 {
        view.sent(&store, &whole(id, A), at(1000));
        assert_eq!(view.first_token(&store, id, false, true, at(1050)), Synced::Idle);
    }
    assert_eq!(view.tick(&store, at(1099)), Synced::Idle);
    assert_eq!(ledger_in(&store).own(A, None).unanswered, 4);
    assert_eq!(view.tick(&store, at(1100)), Synced::Written);
    let own = ledger_in(&store).own(A, None);
    assert_eq!(
        (own.unanswered, own.generating, own.context_tokens),
        (0, 4, Tokens(6000))
    );
    for id in 0..4 {
        view.ended(&store, id, Outcome::Success, at(9000));
    }
    assert_eq!(ledger_in(&store).at(A).rate(), None);
    assert_eq!(ledger_in(&store).own(A, None), OwnLoad::default());
}

#[test]
fn the_work_ahead_of_a_request_counts_as_its_own_when_it_teaches() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    // Three prompts of 1000 tokens sent together to a pod that reads 10 tokens per millisecond.
    for id in 1..=3 {
        view.sent(&store, &stream(id, A), at(1000));
    }
    for id in 1..=3 {
        view.first_token(&store, id, true, true, at(1000 + 100 * id));
    }
    assert_eq!(ledger_in(&store).at(A).rate(), Some(10.0));
}

#[test]
fn only_a_stream_answered_with_2xx_by_its_first_pod_teaches() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    for id in 0..8 {
        view.sent(&store, &stream(id, A), at(1000));
        if id % 2 == 0 {
            view.moved(&store, id, &[A], B, at(1050));
        }
        view.first_token(&store, id, true, id % 2 == 0, at(1100));
    }
    let ledger = ledger_in(&store);
    assert_eq!((ledger.at(A).rate(), ledger.at(B).rate()), (None, None));
}

#[test]
fn a_retry_moves_the_request_and_charges_the_pods_that_failed() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    view.sent(&store, &stream(1, A), at(1000));
    view.moved(&store, 1, &[A], B, at(1050));
    let ledger = ledger_in(&store);
    assert_eq!((ledger.own(A, None).unanswered, ledger.own(B, None).unanswered), (0, 1));
    assert_eq!(
        (ledger.at(A).avoided_until(), ledger.at(B).avoided_until()),
        (Some(at(4050)), None)
    );
    view.ended(&store, 1, Outcome::Success, at(2000));
    assert_eq!(ledger_in(&store).at(A).avoided_until(), Some(at(4050)));
}

#[test]
fn requests_of_two_workers_are_a_pair_whatever_their_numbers() {
    // Workers of a replay count through: 1 + 3 and 2 + 2 are not the same request.
    let store = MemoryStore::default();
    let (mut one, mut two) = (LedgerView::new("p", 1), LedgerView::new("p", 2));
    two.sent(&store, &whole(2, A), at(1000));
    two.ended(&store, 2, Outcome::ServerError, at(1001));
    assert_eq!(ledger_in(&store).at(A).avoided_until(), None);
    one.sent(&store, &whole(3, A), at(1010));
    one.ended(&store, 3, Outcome::ServerError, at(1011));
    assert_eq!(ledger_in(&store).at(A).avoided_until(), Some(at(4011)));
}

#[test]
fn workers_see_each_other_and_learn_together() {
    let store = MemoryStore::default();
    let (mut one, mut two) = (LedgerView::new("p", 1), LedgerView::new("p", 2));
    one.sent(&store, &stream(1, A), at(1000));
    two.sent(
        &store,
        &Sent {
            adapter: Some(77),
            ..stream(1, A)
        },
        at(1000),
    );
    assert_eq!(one.refresh(&store, at(1010)), Synced::Idle);
    assert_eq!(one.ledger().own(A, None).unanswered, 2);
    assert_eq!(one.ledger().at(A).recent_adapters(0), [(77, at(1000))]);
    two.ended(&store, 1, Outcome::Overloaded, at(1020));
    one.refresh(&store, at(1030));
    assert_eq!(one.ledger().own(A, None).unanswered, 1);
    assert_eq!(one.ledger().at(A).avoided_until(), Some(at(4020)));
}

#[test]
fn a_dead_worker_is_forgotten_after_five_silent_seconds() {
    let store = MemoryStore::default();
    let (mut dead, mut alive) = (LedgerView::new("p", 1), LedgerView::new("p", 2));
    dead.sent(&store, &stream(1, A), at(1000));
    alive.sent(&store, &stream(1, A), at(1001));
    alive.refresh(&store, at(6000));
    assert_eq!(alive.ledger().own(A, None).unanswered, 2);
    alive.refresh(&store, at(6002));
    assert_eq!(alive.ledger().own(A, None).unanswered, 1);
    alive.tick(&store, at(6002));
    assert_eq!(ledger_in(&store).views.len(), 1);
}

#[test]
fn a_worker_with_requests_shows_that_it_lives_and_an_idle_one_writes_nothing() {
    let store = MemoryStore::default();
    let (mut busy, mut other) = (LedgerView::new("p", 1), LedgerView::new("p", 2));
    busy.sent(&store, &stream(1, A), at(1000));
    for tick in 1..200 {
        let expected = if tick % 10 == 0 { Synced::Written } else { Synced::Idle };
        assert_eq!(busy.tick(&store, at(1000 + tick * 100)), expected, "tick {tick}");
        assert_eq!(other.tick(&store, at(1000 + tick * 100)), Synced::Idle);
    }
    other.refresh(&store, at(21_000));
    assert_eq!(other.ledger().own(A, None).unanswered, 1);
    busy.ended(&store, 1, Outcome::Success, at(21_000));
    // Once more, to take back what a scrape may have counted; then never.
    assert_eq!(busy.tick(&store, at(90_000)), Synced::Written);
    assert_eq!(busy.tick(&store, at(99_000)), Synced::Idle);
    assert!(ledger_in(&store).views.is_empty());
}

#[test]
fn views_are_bounded_and_the_most_silent_one_makes_room() {
    let mut ledger = Ledger::default();
    let records = || vec![(A, record_of(0))];
    for nonce in 0..LEDGER_VIEWS_MAX as u64 {
        ledger.replace(nonce, at(1000 + nonce), &records(), &[], &[]);
    }
    assert_eq!(ledger.own(A, None).unanswered, 256);
    ledger.replace(0, at(2000), &records(), &[], &[]);
    assert_eq!((ledger.views.len(), ledger.own(A, None).unanswered), (256, 256));
    ledger.replace(999, at(2000), &records(), &[], &[]);
    assert_eq!((ledger.views.len(), ledger.own(A, None).unanswered), (256, 256));
    assert!(ledger.views.iter().all(|head| head.nonce != 1));
    let mut slots: Vec<u8> = ledger.views.iter().map(|head| head.slot).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 256);
}

fn record_of(slot: u8) -> Record {
    let phase = Phase::Unanswered {
        tokens: Tokens(1000),
        predicted: Millis(100),
    };
    Record {
        slot,
        count: 1,
        sent_at: at(1000),
        context: Tokens(1500),
        phase,
    }
}

#[test]
fn a_clock_that_steps_back_does_not_keep_the_dead_alive() {
    let mut ledger = Ledger::default();
    ledger.replace(1, at(1_000_000), &[(A, record_of(0))], &[], &[]);
    ledger.drop_silent(at(995_000));
    assert_eq!(ledger.own(A, None).unanswered, 1);
    ledger.drop_silent(at(994_999));
    assert_eq!(ledger.own(A, None).unanswered, 0);
}

#[test]
fn nothing_stays_for_ever() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    view.sent(&store, &stream(1, A), at(0));
    view.tick(&store, at(LEDGER_ENTRY_MAX_AGE.0));
    assert_eq!(view.ledger().own(A, None).unanswered, 1);
    view.tick(&store, at(LEDGER_ENTRY_MAX_AGE.0 + 1));
    assert_eq!(ledger_in(&store).own(A, None).unanswered, 0);
}

/// Ticks a view with one old request at A, of which the proxy knows `active`; when was it dropped?
fn dropped_after(active: impl Fn(u64) -> u32) -> Option<u64> {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    view.sent(&store, &stream(1, A), at(1000));
    (1..40).map(|second| 1000 + second * 1000).find(|now| {
        view.facts([PodFact {
            proxy_active: Some((active(*now), at(*now))),
            ..fact(A)
        }]);
        view.tick(&store, at(*now));
        view.ledger().own(A, None).unanswered == 0
    })
}

#[test]
fn a_request_the_proxy_does_not_know_is_dropped_after_patience() {
    assert_eq!(dropped_after(|_| 0), Some(2000 + LEDGER_EXCESS_PATIENCE.0 + 1000));
    assert_eq!(dropped_after(|_| 1), None);
    assert_eq!(dropped_after(|_| 7), None);
    // One good reading in between starts the patience anew.
    assert_eq!(
        dropped_after(|now| u32::from(now == 10_000)),
        Some(11_000 + LEDGER_EXCESS_PATIENCE.0 + 1000)
    );
}

#[test]
fn requests_sent_after_the_proxys_count_are_not_held_against_it() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    for second in 1..40 {
        let now = at(second * 1000);
        view.facts([PodFact {
            proxy_active: Some((0, now)),
            ..fact(A)
        }]);
        view.tick(&store, now);
        view.sent(&store, &stream(second, A), now);
        view.tick(&store, UnixMillis(now.0 + 500));
        assert_eq!(view.ledger().own(A, None).unanswered, 1);
        view.ended(&store, second, Outcome::Success, UnixMillis(now.0 + 900));
    }
}

#[test]
fn only_the_view_with_the_oldest_request_drops_it() {
    let store = MemoryStore::default();
    let (mut one, mut two) = (LedgerView::new("p", 1), LedgerView::new("p", 2));
    one.sent(&store, &stream(1, A), at(1000));
    two.sent(&store, &stream(1, A), at(1001));
    for second in 2..30 {
        for view in [&mut two, &mut one] {
            view.facts([PodFact {
                proxy_active: Some((1, at(second * 1000))),
                ..fact(A)
            }]);
            view.tick(&store, at(second * 1000));
        }
    }
    let ledger = ledger_in(&store);
    assert_eq!(
        ledger.own(A, None).oldest_unanswered.map(|(sent_at, _)| sent_at),
        Some(at(1001))
    );
}

/// Seen with a real vLLM: an adapter was loaded on one pod, a first guess went to the other, was answered
/// with 404, and made the next one go there again.
#[test]
fn a_pod_that_answers_not_found_is_not_thought_to_have_the_adapter() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    view.facts([fact(A)]);
    for (id, adapter) in [(1, 7), (2, 8)] {
        let sent = Sent {
            adapter: Some(adapter),
            ..stream(id, A)
        };
        view.sent(&store, &sent, at(1000));
    }
    view.ended(&store, 1, Outcome::NotFound, at(1010));
    view.ended(&store, 2, Outcome::Success, at(1010));
    assert_eq!(view.ledger().at(A).recent_adapters(0), [(8, at(1000))]);
    assert_eq!(view.ledger().at(A).avoided_until(), None, "it is no failure of the pod");
}

#[test]
fn a_restart_empties_the_adapters_that_were_sent() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    view.facts([fact(A)]);
    view.sent(
        &store,
        &Sent {
            adapter: Some(7),
            ..stream(1, A)
        },
        at(1000),
    );
    assert_eq!(view.ledger().at(A).recent_adapters(0).len(), 1);
    assert_eq!(view.ledger().at(A).recent_adapters(1), []);
    view.facts([PodFact {
        incarnation: 1,
        ..fact(A)
    }]);
    view.sent(
        &store,
        &Sent {
            adapter: Some(8),
            ..stream(2, A)
        },
        at(1100),
    );
    assert_eq!(ledger_in(&store).at(A).recent_adapters(1), [(8, at(1100))]);
}

#[test]
fn a_pod_that_left_the_table_is_forgotten_when_its_requests_and_five_minutes_are_over() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    view.facts([fact(A), fact(B)]);
    view.sent(
        &store,
        &Sent {
            adapter: Some(7),
            ..stream(1, A)
        },
        at(0),
    );
    view.ended(&store, 1, Outcome::Success, at(10));
    view.facts([fact(B)]);
    for (now, known) in [(300_010, 1), (300_011 + 1000, 0)] {
        view.sent(&store, &stream(2, B), at(now));
        view.ended(&store, 2, Outcome::Success, at(now));
        assert_eq!(ledger_in(&store).at(A).recent_adapters(0).len(), known, "at {now}");
    }
    assert_eq!(ledger_in(&store).pods.len(), 1);
}

#[test]
fn adapters_of_all_pods_together_are_bounded() {
    let mut ledger = Ledger::default();
    for pod in 0..257 {
        for adapter in 0..32 {
            ledger
                .pod_mut(PodKey(pod), at(0))
                .unwrap()
                .memory
                .sent_adapter(adapter, at(0));
        }
    }
    ledger.keep_house(at(0), |_| Some(0));
    assert_eq!(ledger.at(A).recent_adapters(0).len(), 16);
    ledger.pods.retain_mut(|state| state.pod != PodKey(256));
    ledger.keep_house(at(0), |_| Some(0));
    assert_eq!(ledger.at(A).recent_adapters(0).len(), 16);
}

#[track_caller]
fn check_rates(milliseconds: &[u64], pool: Option<f64>) {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    for (pod, took) in (0..).zip(milliseconds) {
        for id in 0..3 {
            view.sent(&store, &stream(id, PodKey(pod)), at(1000));
            view.first_token(&store, id, true, true, at(1000 + took));
            view.ended(&store, id, Outcome::Success, at(1000 + took));
        }
        assert_eq!(view.ledger().at(PodKey(pod)).rate(), Some(1000.0 / *took as f64));
    }
    assert_eq!(view.ledger().pool_rate(), pool);
}

#[test]
fn the_rate_of_a_pool_is_the_median_of_its_pods() {
    check_rates(&[], None);
    check_rates(&[100], Some(10.0));
    check_rates(&[100, 1000, 125], Some(8.0));
    check_rates(&[100, 100, 10, 1], Some(100.0));
}

/// A store that fails the next operations.
#[derive(Default)]
struct Flaky {
    inner: MemoryStore,
    lose: Cell<u32>,
    refuse: Cell<u32>,
    /// WasmX: without a token only an absent key can be written, and an absent one only so.
    strict: bool,
    operations: Cell<u32>,
}

fn take(counter: &Cell<u32>) -> bool {
    let left = counter.get();
    counter.set(left.saturating_sub(1));
    left > 0
}

impl SharedData for Flaky {
    fn get(&self, key: &str) -> Result<Option<Stored>, StoreError> {
        self.operations.set(self.operations.get() + 1);
        if take(&self.refuse) {
            Err(StoreError::Host(10))
        } else {
            self.inner.get(key)
        }
    }

    fn set(&self, key: &str, value: &[u8], cas: Option<berth_shared_state::store::Cas>) -> Result<(), StoreError> {
        self.operations.set(self.operations.get() + 1);
        let exists = self.inner.get(key)?.is_some();
        if take(&self.lose) || (self.strict && exists != cas.is_some()) {
            return Err(StoreError::CasMismatch);
        }
        if take(&self.refuse) {
            Err(StoreError::Host(10))
        } else {
            self.inner.set(key, value, cas)
        }
    }
}

#[test]
fn a_lost_race_or_a_refusing_host_costs_only_freshness() {
    for (lose, refuse, expected) in [
        (3, 0, Synced::Written),
        (4, 0, Synced::LostRace),
        (0, 1, Synced::Refused(StoreError::Host(10))),
    ] {
        let store = Flaky::default();
        let mut view = LedgerView::new("p", 1);
        store.lose.set(lose);
        store.refuse.set(refuse);
        assert_eq!(
            view.sent(
                &store,
                &Sent {
                    adapter: Some(7),
                    ..stream(1, A)
                },
                at(1000)
            ),
            expected
        );
        assert_eq!(view.ledger().own(A, None).unanswered, 1);
        assert_eq!(view.ledger().at(A).recent_adapters(0).len(), 1);
        view.sent(&store, &stream(2, A), at(1100));
        let ledger = ledger_in(&store.inner);
        assert_eq!(ledger.own(A, None).unanswered, 2);
        assert_eq!(ledger.at(A).recent_adapters(0), [(7, at(1000))]);
    }
}

#[test]
fn that_nobody_waits_any_more_is_told_at_the_next_tick_where_a_race_was_lost() {
    let store = Flaky::default();
    let mut view = LedgerView::new("p", 1);
    // It stays in the ledger with a request in flight.
    view.sent(&store, &stream(1, A), at(1000));
    let band = Waiting {
        requests: 1,
        ..Waiting::default()
    };
    assert_eq!(view.waits(&store, vec![band], at(1000)), Synced::Written);
    store.lose.set(LEDGER_TRIES as u32);
    assert_eq!(view.waits(&store, Vec::new(), at(1010)), Synced::LostRace);
    let told = || ledger_in(&store.inner).waiting_elsewhere(0).count();
    assert_eq!(told(), 1);
    view.tick(&store, at(1100));
    assert_eq!(told(), 0);
    let before = store.operations.get();
    view.tick(&store, at(1200));
    assert_eq!(store.operations.get(), before, "once");
}

#[test]
fn a_store_that_always_refuses_leaves_the_worker_with_its_own_truth() {
    let store = Flaky::default();
    store.refuse.set(u32::MAX);
    let mut view = LedgerView::new("p", 1);
    for id in 0..1000 {
        view.refresh(&store, at(1000 + id * 10));
        view.sent(&store, &stream(id, A), at(1000 + id * 10));
        view.first_token(&store, id, true, true, at(1005 + id * 10));
        view.ended(&store, id, Outcome::Success, at(1008 + id * 10));
        assert_eq!(view.ledger().own(A, None).context_tokens, Tokens(0));
    }
    // 1000 tokens in 5 ms.
    assert_eq!(view.ledger().at(A).rate(), Some(200.0));
}

#[test]
fn both_rules_of_compare_and_swap_are_kept() {
    for strict in [false, true] {
        let store = Flaky {
            strict,
            ..Flaky::default()
        };
        let (mut one, mut two) = (LedgerView::new("p", 1), LedgerView::new("p", 2));
        one.refresh(&store, at(1000));
        two.refresh(&store, at(1000));
        assert_eq!(one.sent(&store, &stream(1, A), at(1000)), Synced::Written);
        assert_eq!(two.sent(&store, &stream(1, A), at(1010)), Synced::Written);
        assert_eq!(one.sent(&store, &stream(2, A), at(1010)), Synced::Written);
        assert_eq!(ledger_in(&store.inner).own(A, None).unanswered, 3, "strict {strict}");
    }
}

#[test]
fn a_request_costs_one_read_and_one_write_at_each_of_its_three_steps() {
    let store = Flaky::default();
    let mut view = LedgerView::new("p", 1);
    view.refresh(&store, at(1000));
    view.sent(&store, &stream(1, A), at(1000));
    assert_eq!(store.operations.get(), 2);
    view.first_token(&store, 1, true, true, at(1100));
    assert_eq!(store.operations.get(), 4);
    view.ended(&store, 1, Outcome::Success, at(1200));
    assert_eq!(store.operations.get(), 6);
}

#[test]
fn a_value_that_cannot_be_opened_is_replaced() {
    let store = MemoryStore::default();
    for garbage in [&b""[..], b"garbage", &[0; 64]] {
        store.set(&ledger_key("p"), garbage, None).unwrap();
        let mut view = LedgerView::new("p", 1);
        view.refresh(&store, at(1000));
        assert_eq!(view.ledger(), &Ledger::default());
        assert_eq!(view.sent(&store, &stream(1, A), at(1000)), Synced::Written);
        assert_eq!(ledger_in(&store).own(A, None).unanswered, 1);
    }
}

#[test]
fn what_the_workers_learned_survives_an_evicted_value() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    view.sent(
        &store,
        &Sent {
            adapter: Some(7),
            ..stream(1, A)
        },
        at(1000),
    );
    store.set(&ledger_key("p"), b"", None).unwrap();
    view.ended(&store, 1, Outcome::Success, at(1100));
    assert_eq!(ledger_in(&store).at(A).recent_adapters(0).len(), 1);
}

#[test]
fn a_full_ledger_of_a_large_pool_fits_one_value() {
    let mut ledger = Ledger::default();
    for pod in 0..1000 {
        let state = ledger.pod_mut(PodKey(u64::MAX - pod), at(1_700_000_000_000)).unwrap();
        for adapter in 0..8 {
            state.memory.sent_adapter(u64::MAX - adapter, at(1_700_000_000_000));
        }
    }
    for view in 0..16 {
        let record = Record {
            sent_at: at(1_700_000_000_000),
            ..record_of(0)
        };
        let records: Vec<_> = (0..256).map(|n| (PodKey(u64::MAX - n), record)).collect();
        let in_use: Vec<_> = (0..256).map(|n| (PodKey(u64::MAX - n), u64::MAX - n)).collect();
        ledger.replace(u64::MAX - view, at(1_700_000_000_000), &records, &in_use, &[]);
    }
    let bytes = ledger.encode().unwrap().to_vec();
    assert!(bytes.len() < 300 << 10, "{} bytes", bytes.len());
    assert_eq!(Ledger::decode(&bytes), Ok(ledger));
}

#[test]
fn adapters_are_in_use_while_requests_are_in_flight_and_their_view_lives() {
    let store = MemoryStore::default();
    let (mut one, mut other) = (LedgerView::new("p", 1), LedgerView::new("p", 2));
    let sent = |id, adapter| Sent {
        adapter: Some(adapter),
        ..stream(id, A)
    };
    let used = |ledger: &Ledger| {
        let mut used: Vec<u64> = ledger.at(A).adapters_in_use().iter().map(|used| used.adapter).collect();
        used.sort_unstable();
        used
    };
    one.sent(&store, &sent(1, 7), at(1_000));
    one.sent(&store, &sent(2, 7), at(1_000));
    other.sent(&store, &sent(1, 7), at(1_000));
    other.sent(&store, &sent(2, 8), at(1_000));
    assert_eq!(used(other.ledger()), [7, 7, 8], "each view says its own");
    one.ended(&store, 1, Outcome::Success, at(1_100));
    assert_eq!(used(one.ledger()), [7, 7, 8]);
    one.ended(&store, 2, Outcome::Success, at(1_200));
    assert_eq!(used(one.ledger()), [7, 8]);
    // The other view falls silent.
    one.sent(&store, &sent(3, 9), at(1_200 + LEDGER_VIEW_SILENT.0 + 1));
    assert_eq!(used(one.ledger()), [9]);
}

#[test]
fn pods_out_of_order_are_damage() {
    let mut ledger = Ledger::default();
    ledger.pod_mut(A, at(0));
    ledger.pod_mut(B, at(0));
    assert!(Ledger::decode(ledger.encode().unwrap()).is_ok());
    ledger.pods.get_mut(0).unwrap().pod = PodKey(u64::MAX);
    assert_eq!(Ledger::decode(ledger.encode().unwrap()), Err(SealError::Damaged));
    // Nor are they taken for what was there before.
    let known = ledger.clone();
    assert_eq!(
        ledger.update(known.clone().encode().unwrap().to_vec()),
        Err(SealError::Damaged)
    );
    assert_eq!(ledger, known);
}

/// The bytes are a contract between workers that run different builds during an update: when this
/// changes, raise `sealed::SCHEMA`.
#[test]
fn the_bytes_are_pinned() {
    let generating = Record {
        phase: Phase::Generating { answered_at: at(200) },
        sent_at: at(100),
        ..record_of(0)
    };
    let mut ledger = Ledger::default();
    ledger.replace(
        7,
        at(300),
        &[(PodKey(5), generating)],
        &[(PodKey(5), 8)],
        &[Waiting {
            priority: -1,
            requests: 2,
            tokens: Tokens(300),
            blocked: Some(Blocked {
                pod: Some("10.0.0.5:80".parse().unwrap()),
                since: at(250),
                stuck: true,
            }),
        }],
    );
    let state = ledger.pod_mut(PodKey(5), at(300)).unwrap();
    state.memory.sent_adapter(9, at(100));
    ledger.heard(PodKey(5), heard_at(480), at(480));
    #[rustfmt::skip]
    let payload: &[u8] = &[
        1, 7, 0, 172, 2,                        // one view: nonce 7, slot 0, heartbeat 300
        1, 1, 2, 172, 2,                        // one band of it waits: priority -1, 2 requests, 300 tokens
        1, 1, 0, 10, 0, 0, 5, 80, 250, 1, 1,    // one has no room: keeps 10.0.0.5:80, since 250; stuck
        0, 0, 0, 0, 0, 0, 0, 0,                 // nothing asked: requests 0.0,
        0, 0, 0, 0, 0, 0, 0, 0,                 // text 0.0,
        0, 0, 0, 0, 0, 0, 0, 0,                 // fixed 0.0
        1, 5, 172, 2,                           // one pod: key 5, used at 300
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,        // incarnation 0, rate 0.0, no samples, never observed,
        0, 0,                                   // never answered, no request
        1, 9, 100,                              // one adapter, sent at 100
        0, 0, 0, 0, 0, 0, 0,                    // no tokens sent, never, no strikes, charged at 0, closed, no probe, no error
        224, 3, 131, 4,                         // a step without prompts ended at 480, the next one is late from 515 on
        27,                                     // one record: 27 bytes
        200, 0, 0, 0, 0, 0, 0, 0,               // the last thing was at 200
        0, 1, 1, 0, 0, 100, 0, 0,               // slot 0, generating, 1 request, sent 100 before,
        220, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0,      // 1500 tokens, answered 0 before
        1, 0, 8,                                // one adapter in use: slot 0
    ];
    let bytes = ledger.encode().unwrap();
    assert_eq!(bytes[..8], [b'B', b'R', b'T', b'H', 5, 0, 2, 0]);
    assert_eq!(&bytes[20..], payload);
}

/// What is heard of a stream with tokens 20 ms apart, the last of which came at this time.
fn heard_at(ms: u64) -> Heard {
    let mut times = StepTimes::default();
    (0..10)
        .rev()
        .for_each(|step| times.token(Millis(20), at(ms - 20 * step)));
    times.heard()
}

#[test]
fn what_a_stream_shows_of_its_pod_reaches_the_other_workers() {
    let store = MemoryStore::default();
    let [mut one, mut two] = [1, 2].map(|nonce| LedgerView::new("p", nonce));
    one.sent(&store, &stream(1, A), at(1_000));
    // With the next write, whatever it is of.
    assert_eq!(one.heard(&store, A, heard_at(1_020), at(1_020)), Synced::Idle);
    assert_eq!(one.first_token(&store, 1, true, true, at(1_040)), Synced::Written);
    two.refresh(&store, at(1_050));
    assert_eq!(two.ledger().at(A).heard(), heard_at(1_020));
    // Or with one of its own, once in a while.
    assert_eq!(one.heard(&store, A, heard_at(1_060), at(1_060)), Synced::Idle);
    assert_eq!(one.heard(&store, A, heard_at(1_090), at(1_090)), Synced::Written);
    assert_eq!(one.heard(&store, A, heard_at(1_110), at(1_110)), Synced::Idle);
    two.refresh(&store, at(1_120));
    assert_eq!(two.ledger().at(A).heard().decoded_at(at(1_120)), Some(at(1_090)));
    // Of a pod that nobody sent anything to there is nothing to tell.
    one.heard(&store, B, heard_at(1_300), at(1_300));
    assert_eq!(ledger_in(&store).at(B).heard(), Heard::default());
}

#[test]
fn what_is_heard_at_a_large_pool_is_told_less_often() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    assert_eq!(view.told_every(), STEPS_TOLD_EVERY);
    for pod in 0..1_000 {
        view.sent(&store, &stream(pod, PodKey(pod)), at(1_000));
    }
    let more = store.get(&ledger_key("p")).unwrap().unwrap().value.len() / TABLE_BYTES_PER_MILLI;
    assert!(more > 1);
    let every = STEPS_TOLD_EVERY + Millis(more as u64);
    assert_eq!(view.told_every(), every);
    let told = |view: &mut LedgerView, now| view.heard(&store, PodKey(1), heard_at(now), at(now)) == Synced::Written;
    assert!(!told(&mut view, 1_000 + every.0 - 1));
    assert!(told(&mut view, 1_000 + every.0));
}

#[test]
fn what_was_heard_while_writes_fail_is_told_later_and_not_tried_with_each_token() {
    let store = Flaky::default();
    let mut view = LedgerView::new("p", 1);
    view.sent(&store, &stream(1, A), at(1_000));
    store.lose.set(100);
    let tries = |view: &mut LedgerView| {
        let tries = (1_050..1_250).filter(|now| view.heard(&store, A, heard_at(*now), at(*now)) != Synced::Idle);
        tries.count() as u64
    };
    assert_eq!(tries(&mut view), 200 / STEPS_TOLD_EVERY.0);
    store.lose.set(0);
    view.ended(&store, 1, Outcome::Success, at(1_260));
    assert_eq!(ledger_in(&store).at(A).heard().decoded_at(at(1_260)), Some(at(1_249)));
}

#[test]
fn what_was_heard_before_a_clock_stepped_back_gives_way() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    view.sent(&store, &stream(1, A), at(900_000));
    view.heard(&store, A, heard_at(900_100), at(900_100));
    view.heard(&store, A, heard_at(1_000), at(1_000));
    assert_eq!(ledger_in(&store).at(A).heard(), heard_at(1_000));
}

#[cfg(not(target_arch = "wasm32"))]
mod properties;

/// Sends another request at 3,500 where B may be tried from 3,100 on, since one failed there at 100.
fn opened(store: &dyn SharedData, pod: PodKey) -> LedgerView {
    let mut view = LedgerView::new("p", 1);
    view.sent(store, &whole(1, B), at(0));
    view.ended(store, 1, Outcome::Unreachable, at(100));
    view.sent(store, &whole(2, pod), at(3_500));
    view
}

#[test]
fn a_probe_that_was_moved_there_and_says_nothing_lets_another_one_try() {
    for outcome in [Outcome::Refused, Outcome::NotFound, Outcome::Abandoned] {
        let store = MemoryStore::default();
        let mut view = opened(&store, A);
        view.sent(&store, &whole(3, A), at(50));
        for (id, tried_until) in [(2, 13_500), (3, 10_050)] {
            view.moved(&store, id, &[], B, at(4_000));
            assert_eq!(ledger_in(&store).at(B).avoided_until(), Some(at(tried_until)));
            view.ended(&store, id, outcome, at(4_100));
            assert_eq!(ledger_in(&store).at(B).avoided_until(), Some(at(3_100)), "{id}");
        }
    }
}

#[test]
fn a_probe_that_was_written_late_and_says_nothing_lets_another_one_try() {
    let store = Flaky::default();
    let mut view = opened(&store, A);
    store.lose.set(100);
    assert_eq!(view.sent(&store, &whole(3, B), at(3_600)), Synced::LostRace);
    store.lose.set(0);
    // What it lost the race to.
    LedgerView::new("p", 2).sent(&store, &whole(1, A), at(3_650));
    view.sent(&store, &whole(4, A), at(3_700));
    assert_eq!(ledger_in(&store).at(B).avoided_until(), Some(at(13_600)));
    view.ended(&store, 3, Outcome::Abandoned, at(3_800));
    assert_eq!(ledger_in(&store).at(B).avoided_until(), Some(at(3_100)));
}

/// A stream is sent to A at 1,000, predicted to take 100 ms, and ends at `left` with nothing of an answer.
#[track_caller]
fn check_silent(prepare: impl FnOnce(&mut LedgerView, &MemoryStore), left: u64, outcome: Outcome, charged: bool) {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    view.sent(&store, &stream(1, A), at(1_000));
    prepare(&mut view, &store);
    view.ended(&store, 1, outcome, at(left));
    let until = charged.then_some(at(left + 3_000));
    assert_eq!(ledger_in(&store).at(A).avoided_until(), until);
}

#[test]
fn a_client_that_leaves_a_pod_that_answers_nobody_charges_it() {
    let nothing = |_: &mut LedgerView, _: &MemoryStore| {};
    // 2 x 100 + 1,000 after it was sent it is overdue.
    check_silent(nothing, 2_200, Outcome::Abandoned, false);
    check_silent(nothing, 2_201, Outcome::Abandoned, true);
    check_silent(nothing, 2_201, Outcome::Refused, false);
}

#[test]
fn a_pod_that_answers_others_meanwhile_is_slow_and_not_charged() {
    // Their first tokens came before and after the one that waits was sent.
    for (sent, token, charged) in [(500, 900, true), (500, 1_500, false), (1_100, 1_500, false)] {
        let other = |view: &mut LedgerView, store: &MemoryStore| {
            view.sent(store, &stream(2, A), at(sent));
            view.first_token(store, 2, true, true, at(token));
        };
        check_silent(other, 9_000, Outcome::Abandoned, charged);
    }
}

#[test]
fn who_waits_behind_one_that_is_not_overdue_yet_charges_nothing() {
    /// One that loads an adapter, say, is predicted to take 10 s, so that it is overdue 21 s after it was sent.
    fn loads(view: &mut LedgerView, store: &MemoryStore, sent: u64) {
        let predicted = Millis(10_000);
        let load = Sent {
            predicted,
            ..stream(2, A)
        };
        view.sent(store, &load, at(sent));
    }
    let before = |view: &mut LedgerView, store: &MemoryStore| loads(view, store, 900);
    check_silent(before, 9_000, Outcome::Abandoned, false);
    check_silent(before, 21_900, Outcome::Abandoned, false);
    check_silent(before, 21_901, Outcome::Abandoned, true);
    let elsewhere = |_: &mut LedgerView, store: &MemoryStore| {
        let mut other = LedgerView::new("p", 2);
        loads(&mut other, store, 900);
        other.tick(store, at(8_500));
    };
    check_silent(elsewhere, 9_000, Outcome::Abandoned, false);
    let behind = |view: &mut LedgerView, store: &MemoryStore| loads(view, store, 1_100);
    check_silent(behind, 9_000, Outcome::Abandoned, true);
    let at_another_pod = |view: &mut LedgerView, store: &MemoryStore| {
        let predicted = Millis(10_000);
        let load = Sent {
            predicted,
            ..stream(2, B)
        };
        view.sent(store, &load, at(900));
    };
    check_silent(at_another_pod, 9_000, Outcome::Abandoned, true);
}

#[test]
fn whatever_a_pod_answers_shows_that_it_lives() {
    let whole_ended = |view: &mut LedgerView, store: &MemoryStore| {
        view.sent(store, &whole(2, A), at(1_100));
        view.ended(store, 2, Outcome::Success, at(1_500));
    };
    let whole_began = |view: &mut LedgerView, store: &MemoryStore| {
        view.sent(store, &whole(2, A), at(1_100));
        assert_eq!(view.first_token(store, 2, false, true, at(1_500)), Synced::Idle);
    };
    // At a worker that knows of nothing ahead of it.
    let cached = |_: &mut LedgerView, store: &MemoryStore| {
        let (uncached, mut other) = (Tokens(0), LedgerView::new("p", 2));
        other.sent(
            store,
            &Sent {
                uncached,
                ..stream(1, A)
            },
            at(1_100),
        );
        other.first_token(store, 1, true, true, at(1_500));
    };
    let misleading = |view: &mut LedgerView, store: &MemoryStore| {
        let teaches = false;
        view.sent(
            store,
            &Sent {
                teaches,
                ..stream(2, A)
            },
            at(1_100),
        );
        view.first_token(store, 2, true, true, at(1_500));
    };
    let retried = |view: &mut LedgerView, store: &MemoryStore| {
        view.sent(store, &stream(2, B), at(1_100));
        view.moved(store, 2, &[], A, at(1_200));
        view.first_token(store, 2, true, true, at(1_500));
    };
    let elsewhere = |_: &mut LedgerView, store: &MemoryStore| {
        let mut other = LedgerView::new("p", 2);
        other.sent(store, &whole(1, A), at(1_100));
        other.ended(store, 1, Outcome::Success, at(1_500));
    };
    let signs = [whole_ended, whole_began, cached, misleading, retried, elsewhere];
    for sign in signs {
        check_silent(sign, 9_000, Outcome::Abandoned, false);
    }
}

#[test]
fn a_pod_that_generates_for_other_proxies_is_slow_and_not_charged() {
    // Pages by when they were read, with the tokens generated by then.
    let check = |pages: &[(u64, Option<f64>)], charged| {
        let pages_show = |view: &mut LedgerView, _: &MemoryStore| {
            for (read, generated) in pages {
                view.facts([PodFact {
                    sample_at: Some(at(*read)),
                    generated: *generated,
                    ..fact(A)
                }]);
            }
        };
        check_silent(pages_show, 9_000, Outcome::Abandoned, charged);
    };
    check(&[(1_000, Some(5.0)), (2_000, Some(6.0))], false);
    check(&[(1_000, Some(5.0)), (2_000, Some(6.0)), (3_000, Some(6.0))], false);
    // All of it may have been before the request was sent.
    check(&[(999, Some(5.0)), (2_000, Some(6.0)), (3_000, Some(6.0))], true);
    check(&[(1_000, Some(5.0)), (2_000, Some(5.0))], true);
    // A restart, and pages that do not say.
    check(&[(1_000, Some(5.0)), (2_000, Some(1.0))], true);
    check(&[(1_000, None), (2_000, Some(6.0)), (3_000, None)], true);
}

#[test]
fn an_error_and_an_answer_of_another_clock_are_no_signs_of_life() {
    let refused = |view: &mut LedgerView, store: &MemoryStore| {
        view.sent(store, &stream(2, A), at(1_100));
        view.first_token(store, 2, true, false, at(1_500));
        view.ended(store, 2, Outcome::Refused, at(1_500));
    };
    // The clock steps back from there.
    let ahead = |view: &mut LedgerView, store: &MemoryStore| {
        view.sent(store, &whole(2, A), at(20_000));
        view.ended(store, 2, Outcome::Success, at(20_100));
    };
    for no_sign in [refused, ahead] {
        check_silent(no_sign, 9_000, Outcome::Abandoned, true);
    }
}

#[test]
fn to_ask_whether_a_client_left_in_vain_costs_no_reading_of_its_own() {
    let store = Flaky::default();
    let mut view = LedgerView::new("p", 1);
    view.sent(&store, &stream(1, A), at(1_000));
    let before = store.operations.get();
    view.ended(&store, 1, Outcome::Abandoned, at(9_000));
    assert_eq!(store.operations.get() - before, 2);
}

#[test]
fn who_shows_no_first_token_or_was_retried_leaves_no_charge() {
    let leaves = |request: &Sent, moved: bool| {
        let store = MemoryStore::default();
        let mut view = LedgerView::new("p", 1);
        view.sent(&store, request, at(1_000));
        if moved {
            view.moved(&store, 1, &[B], A, at(2_000));
        }
        view.ended(&store, 1, Outcome::Abandoned, at(9_000));
        ledger_in(&store).at(A).avoided_until()
    };
    assert_eq!(leaves(&whole(1, A), false), None);
    assert_eq!(leaves(&stream(1, B), true), None);
    assert_eq!(leaves(&stream(1, A), false), Some(at(12_000)));
}

#[test]
fn clients_that_leave_a_silent_pod_one_after_another_are_one_failure() {
    let store = MemoryStore::default();
    let mut view = LedgerView::new("p", 1);
    view.sent(&store, &stream(1, A), at(1_000));
    view.sent(&store, &stream(2, A), at(1_500));
    view.ended(&store, 1, Outcome::Abandoned, at(16_000));
    view.ended(&store, 2, Outcome::Abandoned, at(16_500));
    assert_eq!(ledger_in(&store).at(A).avoided_until(), Some(at(19_000)));
    // The probe leaves in vain, too: 6 s.
    view.sent(&store, &stream(3, A), at(20_000));
    view.ended(&store, 3, Outcome::Abandoned, at(35_000));
    assert_eq!(ledger_in(&store).at(A).avoided_until(), Some(at(41_000)));
}
