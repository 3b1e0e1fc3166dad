//! What pages must show for a pod to be slow, and to be well again.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::*;
use crate::sample::Status;
use crate::table::Table;
use crate::units::Tokens;

/// Pages of one pod, a second apart.
struct Pod {
    watch: Watch,
    at: u64,
    running: u32,
    tokens: f64,
    finished: f64,
    prompts: f64,
    kv: f64,
    engine: Engine,
}

fn idle() -> Pod {
    Pod {
        watch: Watch::default(),
        at: 0,
        running: 0,
        tokens: 0.0,
        finished: 0.0,
        prompts: 0.0,
        kv: 0.5,
        engine: Engine::Vllm,
    }
}

/// Ten requests have run for six pages, with a step of 10 ms.
fn usual() -> Pod {
    let mut pod = Pod { running: 10, ..idle() };
    pod.page(0.0);
    (0..TEMPO_SPANS_MIN).for_each(|_| pod.page(1_000.0));
    pod
}

impl Pod {
    fn sample(&self) -> Sample {
        Sample {
            engine: Some(self.engine),
            running: Some(self.running),
            waiting: Some(0),
            kv_mean: Some(self.kv),
            kv_capacity: Some(Tokens(100_000)),
            counters: Counters {
                generation_tokens: Some(self.tokens),
                requests: Some(self.finished),
                prompt_tokens: Some(self.prompts),
                cached_prompt_tokens: Some(0.0),
                ..Counters::default()
            },
            ..Sample::empty(Status::Ok, None)
        }
    }

    /// The next page, so many tokens later.
    fn page(&mut self, tokens: f64) {
        self.tokens += tokens;
        self.watch.step(&self.sample(), Millis(self.at));
        self.at += 1_000;
    }

    /// Two of them: one alone condemns nobody.
    fn pages(&mut self, tokens: f64) {
        (0..2).for_each(|_| self.page(tokens));
    }

    /// What readers are told after the last page, which was at 50 s more by the wall's clock.
    fn slow(&self) -> Option<table::Slow> {
        let last = self.at - 1_000;
        self.watch.slow(Now {
            wall: UnixMillis(last + 50_000),
            steady: Millis(last),
        })
    }

    fn times(&self) -> Option<f32> {
        self.slow().map(|slow| (slow.times * 10.0).round() / 10.0)
    }
}

#[test]
fn five_spans_in_which_it_never_idled_make_a_tempo() {
    let mut pod = idle();
    (0..20).for_each(|_| pod.page(0.0));
    pod.running = 4;
    pod.page(400.0);
    for _ in 1..TEMPO_SPANS_MIN {
        pod.page(400.0);
        assert_eq!(pod.watch.tempo(), None);
    }
    pod.page(400.0);
    let tempo = pod.watch.tempo().unwrap();
    assert!((tempo.step - 10.0).abs() < 1e-3, "{tempo:?}");
    assert!((tempo.token - 10.0 / TOKENS_PER_STEP as f32).abs() < 1e-3, "{tempo:?}");
}

#[test]
fn steps_and_prompts_are_told_apart_by_spans_that_differ() {
    #[track_caller]
    fn check(step: f64, token: f64) {
        let mut pod = Pod { running: 8, ..idle() };
        // What part of a second it reads prompts.
        for part in [0.0, 0.8, 0.2, 0.5].into_iter().cycle().take(100) {
            pod.prompts += 1_000.0 * part / token;
            pod.page(8.0 * 1_000.0 * (1.0 - part) / step);
        }
        let tempo = pod.watch.tempo().unwrap();
        let near = |found: f32, expected: f64| (f64::from(found) / expected - 1.0).abs() < 0.1;
        assert!(near(tempo.step, step) && near(tempo.token, token), "{tempo:?}");
    }
    // H100 and L4 of tests/simulator, and one that reads prompts more slowly for its steps.
    check(7.0, 0.032);
    check(64.0, 0.264);
    check(12.0, 0.12);
}

#[test]
fn a_pod_that_becomes_slow_shows_it_on_its_next_two_pages() {
    #[track_caller]
    fn check(tokens: f64, times: Option<f32>) {
        let mut pod = usual();
        pod.page(tokens);
        assert_eq!(pod.times(), None);
        pod.page(tokens);
        assert_eq!(pod.times(), times);
    }
    check(1_000.0, None);
    check(254.0, None);
    check(246.0, Some(4.0));
    check(100.0, Some(10.0));
    // One step in a second. Of less nobody can say where in it the engine is.
    check(10.0, Some(100.0));
    check(1.0, Some(100.0));
}

#[test]
fn counters_that_lie_blind_nobody() {
    let mut pod = Pod { running: 1, ..idle() };
    (0..=TEMPO_SPANS_MIN).for_each(|_| pod.page(5e38));
    (0..3).for_each(|_| pod.page(0.0));
    assert_eq!(pod.slow().map(|slow| f64::from(slow.times)), Some(SLOW_TIMES_MAX));
    assert!(is_published(pod.watch.tempo(), pod.slow()));
}

/// A reader takes the table that a pod is published in so.
fn is_published(tempo: Option<Tempo>, slow: Option<table::Slow>) -> bool {
    let mut row = PodRow::unread("10.0.0.1:80".parse().unwrap(), UnixMillis(0));
    (row.tempo, row.slow) = (tempo, slow);
    let table = Table {
        pods: vec![row],
        ..Table::default()
    };
    table::decode(&table::encode(&table).unwrap()).is_ok()
}

#[test]
fn one_that_was_slow_from_the_start_is_not() {
    let mut pod = Pod { running: 10, ..idle() };
    (0..30).for_each(|_| pod.page(50.0));
    assert!((pod.watch.tempo().unwrap().step - 200.0).abs() < 1e-2);
    assert_eq!(pod.times(), None);
}

#[test]
fn requests_that_came_and_went_condemn_nobody() {
    #[track_caller]
    fn check(after: u32, finished: f64, times: Option<f32>) {
        let mut pod = usual();
        for _ in 0..2 {
            // What ended made room for nothing.
            pod.kv -= pod.kv * finished / 10.0;
            pod.finished += finished;
            pod.running = after;
            pod.page(100.0);
        }
        assert_eq!(pod.times(), times);
    }
    check(10, 0.0, Some(10.0));
    // Eight may have gone at once: two made 50 tokens each.
    check(10, 8.0, None);
    check(10, 10.0, None);
    // Who left without being counted does not run any more.
    check(2, 0.0, None);
    check(0, 0.0, None);
}

#[test]
fn a_request_that_was_aborted_condemns_nobody() {
    let mut pod = Pod { running: 1, ..idle() };
    (0..=TEMPO_SPANS_MIN).for_each(|_| pod.page(100.0));
    for _ in 0..5 {
        // One left after the page, another came before the next: as if one had run for 9 tokens.
        pod.page(9.0);
        assert_eq!(pod.times(), None);
        pod.page(100.0);
    }
}

#[test]
fn a_step_full_of_prompts_is_no_hang() {
    // Steps of 50 ms: 8,192 tokens take 2.8 s.
    let busy = || {
        let mut pod = Pod { running: 1, ..idle() };
        (0..=TEMPO_SPANS_MIN).for_each(|_| pod.page(20.0));
        pod.pages(0.0);
        assert_eq!(pod.times(), None);
        pod
    };
    let mut pod = busy();
    pod.prompts += TOKENS_AT_ONCE;
    pod.page(1.0);
    assert_eq!(pod.times(), None);
    let mut pod = busy();
    pod.page(0.0);
    assert_eq!(pod.times(), None);
    pod.page(0.0);
    assert_eq!(pod.times(), Some(80.0));
}

#[test]
fn prompts_that_were_read_explain_what_was_not_generated() {
    #[track_caller]
    fn check(change: fn(&mut Pod), times: Option<f32>) {
        let mut pod = usual();
        for _ in 0..2 {
            change(&mut pod);
            pod.page(50.0);
        }
        // The first of the two changed the tempo by some percent.
        assert_eq!(pod.times().map(f32::round), times);
    }
    check(|_| {}, Some(20.0));
    // 2,250 tokens are fifteen steps.
    check(|pod| pod.prompts += 2_250.0, Some(5.0));
    check(|pod| pod.prompts += 4_500.0, None);
    // It is still being read, and takes memory.
    check(|pod| pod.kv += 0.0225, Some(5.0));
    check(|pod| pod.kv += 0.08, None);
    // One of ten ended. A tenth of the memory is free, and was taken by a prompt.
    check(|pod| pod.finished += 1.0, None);
}

#[test]
fn a_page_that_stands_still_counts_from_when_it_moved_last() {
    let still = |pod: &Pod| pod.slow().map(|slow| (slow.times.round(), slow.still_since));
    let since = Some(UnixMillis(55_000));
    let mut pod = usual();
    pod.page(0.0);
    assert_eq!(still(&pod), None);
    pod.page(0.0);
    assert_eq!(still(&pod), Some((200.0, since)));
    pod.page(0.0);
    assert_eq!(still(&pod), Some((300.0, since)));
    // Four seconds for a step.
    pod.page(10.0);
    assert_eq!(still(&pod), Some((400.0, None)));
    // An idle pod may stand still.
    let mut pod = usual();
    pod.running = 0;
    pod.page(900.0);
    (0..9).for_each(|_| pod.page(0.0));
    assert_eq!(still(&pod), None);
}

#[test]
fn a_pod_is_well_again_at_half_of_its_tempo() {
    #[track_caller]
    fn check(tokens: f64, well: bool) {
        let mut pod = usual();
        pod.pages(100.0);
        assert!(pod.times().is_some());
        pod.page(tokens);
        assert_eq!(pod.times().is_none(), well);
    }
    check(100.0, false);
    check(450.0, false);
    check(550.0, true);
}

#[test]
fn one_request_shows_that_an_idle_pod_is_well_again() {
    let mut pod = usual();
    pod.pages(100.0);
    (pod.running, pod.finished) = (0, 10.0);
    pod.page(100.0);
    (0..40).for_each(|_| pod.page(0.0));
    assert!(pod.times().is_some());
    // It came and went between two pages, with 60 tokens.
    pod.finished += 1.0;
    pod.page(60.0);
    assert_eq!(pod.times(), None);
}

#[test]
fn who_was_tried_in_vain_is_left_alone_for_longer() {
    let mut pod = usual();
    let mut waits = Vec::new();
    for _ in 0..6 {
        pod.running = 10;
        pod.page(0.0);
        // While it is watched it is not tried.
        (0..5).for_each(|_| pod.page(20.0));
        let wait = pod.slow().unwrap().again.since(UnixMillis(pod.at - 1_000 + 50_000));
        waits.push(wait.0 / 1_000);
        // Idle until it may be.
        pod.running = 0;
        (0..=wait.0 / 1_000).for_each(|_| pod.page(0.0));
    }
    assert_eq!(waits, [30, 60, 120, 240, 240, 240]);
}

#[test]
fn who_stays_slow_is_another_pod_by_and_by() {
    let mut pod = usual();
    (0..50).for_each(|_| pod.page(1_000.0));
    (0..60).for_each(|_| pod.page(100.0));
    assert!(pod.times().is_some(), "after a minute");
    (0..3_600).for_each(|_| pod.page(100.0));
    assert_eq!(pod.times(), None, "after an hour");
}

#[test]
fn an_engine_that_counts_answers_at_their_end_has_no_tempo() {
    for engine in [Engine::Sglang, Engine::Tgi, Engine::LlamaCpp] {
        let mut pod = Pod {
            engine,
            running: 10,
            ..idle()
        };
        (0..20).for_each(|_| pod.page(1_000.0));
        (0..20).for_each(|_| pod.page(0.0));
        assert_eq!((pod.watch.tempo(), pod.slow()), (None, None));
    }
}

#[test]
fn what_a_page_does_not_say_condemns_nobody() {
    #[track_caller]
    fn check(change: fn(&mut Sample), slow: bool) {
        let mut pod = usual();
        for _ in 0..2 {
            pod.tokens += 100.0;
            let mut sample = pod.sample();
            change(&mut sample);
            pod.watch.step(&sample, Millis(pod.at));
            pod.at += 1_000;
        }
        assert_eq!(pod.slow().is_some(), slow);
    }
    check(|_| {}, true);
    check(|sample| sample.running = None, false);
    check(|sample| sample.counters.generation_tokens = None, false);
    check(|sample| sample.counters.generation_tokens = Some(f64::NAN), false);
    check(|sample| sample.counters.prompt_tokens = None, false);
    check(|sample| sample.counters.requests = None, false);
    check(|sample| sample.kv_capacity = None, false);
    check(|sample| sample.kv_mean = None, false);
}

#[test]
fn pages_that_come_fast_are_one_span() {
    let mut pod = usual();
    let mut step = |tokens: f64, after: u64| {
        pod.tokens += tokens;
        pod.at += after;
        pod.watch.step(&pod.sample(), Millis(pod.at - 1_000));
        pod.watch.slow.map(|slow| slow.times.round())
    };
    assert_eq!(step(0.0, TEMPO_SPAN_MIN.0 - 1), None);
    assert_eq!(step(80.0, 1), None);
    assert_eq!(step(0.0, TEMPO_SPAN_MIN.0 - 1), None);
    assert_eq!(step(80.0, 1), Some(10.0));
}

#[test]
fn another_poller_goes_on() {
    let mut pod = usual();
    pod.pages(100.0);
    let mut row = PodRow::unread("10.0.0.1:80".parse().unwrap(), UnixMillis(0));
    (row.tempo, row.slow) = (pod.watch.tempo(), pod.slow());
    pod.watch = Watch::of(&row);
    pod.page(100.0);
    let (old, new) = (row.tempo.unwrap(), pod.watch.tempo().unwrap());
    assert!((old.step / new.step - 1.0).abs() < 0.05 && (old.token / new.token - 1.0).abs() < 0.05);
    assert_eq!(pod.slow().map(|slow| slow.times), row.slow.map(|slow| slow.times));
    pod.page(900.0);
    assert_eq!(pod.times(), None);
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use proptest::prelude::*;

    use super::*;

    fn number() -> impl Strategy<Value = Option<f64>> {
        prop_oneof![
            6 => (0.0..1e4_f64).prop_map(Some),
            1 => Just(None),
            1 => any::<f64>().prop_map(Some),
            1 => (1e38..1e41_f64).prop_map(Some),
        ]
    }

    proptest! {
        #[test]
        fn whatever_pages_say_readers_get_numbers(
            pages in prop::collection::vec((0_u32..50, number(), number(), number(), number(), 0_u64..3_000), 0..60),
        ) {
            let mut watch = Watch::default();
            let (mut at, mut sums) = (0, [0.0; 3]);
            for (running, generated, requests, prompts, kv_mean, passed) in pages {
                at += passed;
                for (sum, more) in sums.iter_mut().zip([generated, requests, prompts]) {
                    *sum += more.unwrap_or(f64::NAN).abs().min(1e300);
                }
                let counters = Counters {
                    generation_tokens: generated.and(Some(sums[0])),
                    requests: requests.and(Some(sums[1])),
                    prompt_tokens: prompts.and(Some(sums[2])),
                    ..Counters::default()
                };
                let sample = Sample { running: Some(running), kv_mean, counters, ..usual().sample() };
                watch.step(&sample, Millis(at));
                let told = watch.slow(Now { wall: UnixMillis(at), steady: Millis(at) });
                prop_assert!(watch.tempo().is_none_or(Tempo::is_sound));
                prop_assert!(told.is_none_or(|slow| slow.times >= SLOW_FROM as f32 && slow.times.is_finite()));
                prop_assert!(is_published(watch.tempo(), told));
            }
        }
    }
}
