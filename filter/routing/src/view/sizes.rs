//! How long prompts and answers of a pool are in the engines' own tokens, and how much of the prompts they found cached.
//!
//! No tokenizer is here and no answer is read. The engines count prompt tokens, generated tokens and
//! requests; this proxy knows the bytes of what it sent. Both means per request are over the same kind
//! of traffic, also where other proxies send a part of it, so their ratio is the length of a token:
//! `bytes per token = 4 x sent text / (counted prompt - sent fixed)`, each per request.
//!
//! A prompt is counted when its answer begins, and a request when it ends. So while load grows, more prompts than
//! requests are counted: those that began to run since, and did not end, are added to the requests. Their
//! answers are half there, on average.

use berth_shared_state::pod::PodAddress;
use berth_shared_state::table::PodRow;
use berth_shared_state::units::{Millis, Tokens, UnixMillis};

use crate::cost;
use crate::ledger::Asked;
use crate::limits::{
    ASCII_BYTES_PER_TOKEN, BYTES_PER_TOKEN_RANGE, FOUND_AT_FIRST, FOUND_EARLY, FOUND_KEPT, PREFIX_CAPACITY_UNKNOWN,
    SIZES_DIFFER, SIZES_KEPT_REQUESTS, SIZES_MIN_REQUESTS,
};

/// Sums over the latest requests, from the pods' counters.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    /// Ended.
    requests: f64,
    /// Began and did not end, less those that ended and began before.
    begun: f64,
    /// Requests that ran at the pods when they were last looked at, by address; the number tells their processes apart.
    ran: Vec<(PodAddress, u32, u32)>,
    prompt: f64,
    generated: f64,
    hits: Hits,
    /// All that began since pods came last; `None` = they do not say.
    all: Option<f64>,
    /// The latest scrape that is in here.
    at: Option<UnixMillis>,
}

/// Prompt tokens that were looked up in prefix caches, and those of them that were there. That tells how often prompts
/// repeat, but not while caches are empty. So it begins with all found, and what is counted outweighs that when the pods'
/// memory was filled.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    /// KV tokens of the pods, at most so far.
    memory: f64,
    looked_up: f64,
    found: f64,
}

impl Hits {
    /// KV tokens of the pods that look prompts up. What comes new has an empty cache; true if anything did.
    fn fill(&mut self, memory: f64) -> bool {
        let new = FOUND_AT_FIRST * (memory - self.memory).max(0.0);
        self.memory = self.memory.max(memory);
        self.looked_up += new;
        self.found += new;
        new > 0.0
    }

    /// Tokens of prompts, and those of them that were cached.
    fn add(&mut self, prompt: f64, cached: f64) {
        self.looked_up += prompt;
        self.found += cached.min(prompt);
        if self.looked_up > FOUND_KEPT * self.memory {
            self.looked_up /= 2.0;
            self.found /= 2.0;
        }
    }

    fn part(self) -> Option<f64> {
        (self.looked_up > 0.0).then(|| self.found / self.looked_up)
    }
}

impl Sizes {
    /// Takes in the rates of pods that were scraped since the last table; `interval` is the time that
    /// one scrape stands for. Scrapes later than their table are from before the clock stepped back: they neither count
    /// nor keep those after it out.
    pub fn add<'a>(
        &mut self,
        pods: impl Iterator<Item = &'a PodRow> + Clone,
        interval: Millis,
        written_at: UnixMillis,
    ) {
        let more = self.runs_more(pods.clone());
        self.begun += more;
        self.all = self.all.map(|all| all + more);
        let looks_up = |row: &&PodRow| row.trend.is_believed() && row.rates.cached_prompt_tokens.is_some();
        if self.hits.fill(pods.clone().filter(looks_up).map(memory).sum()) {
            self.all = self.all.map(|_| 0.0);
        }
        let seconds = interval.0 as f64 / 1_000.0;
        self.at = self.at.filter(|at| *at <= written_at);
        let mut latest = self.at;
        let is_new = |row: &PodRow| row.scraped_at > self.at && row.scraped_at <= Some(written_at);
        for row in pods.filter(|row| row.trend.is_believed() && is_new(row)) {
            latest = latest.max(row.scraped_at);
            let rate = |rate: Option<f32>| rate.map(f64::from).filter(|rate| rate.is_finite() && *rate >= 0.0);
            let rates = &row.rates;
            let all = rate(rates.requests)
                .zip(rate(rates.prompt_tokens))
                .zip(rate(rates.generation_tokens));
            if let Some(((requests, prompt), generated)) = all {
                self.requests += requests * seconds;
                self.all = Some(self.all.unwrap_or(0.0) + requests * seconds);
                self.prompt += prompt * seconds;
                self.generated += generated * seconds;
            }
            if let Some((prompt, cached)) = rate(rates.prompt_tokens).zip(rate(rates.cached_prompt_tokens)) {
                self.hits.add(prompt * seconds, cached * seconds);
            }
        }
        self.at = latest;
        if self.requests > SIZES_KEPT_REQUESTS {
            for sum in [
                &mut self.requests,
                &mut self.begun,
                &mut self.prompt,
                &mut self.generated,
            ] {
                *sum /= 2.0;
            }
        }
    }

    /// Requests by which more run than before, at pods that are as they were: what ran at one that died ended uncounted.
    fn runs_more<'a>(&mut self, pods: impl Iterator<Item = &'a PodRow>) -> f64 {
        let believed = pods.filter(|row| row.trend.is_believed() && row.failures == 0);
        let runs: Vec<_> = believed
            .filter_map(|row| Some((row.address, row.incarnation, row.load.running?)))
            .collect();
        let more = |(address, incarnation, now): &(PodAddress, u32, u32)| {
            let at = self.ran.binary_search_by_key(address, |(before, ..)| *before).ok()?;
            let (_, same, before) = self.ran.get(at)?;
            (same == incarnation).then(|| f64::from(*now) - f64::from(*before))
        };
        let sum = runs.iter().filter_map(more).sum();
        self.ran = runs;
        sum
    }

    /// ASCII bytes per token, as far as it shows.
    pub fn bytes_per_token(&self, asked: &Asked) -> f64 {
        let sent = asked.requests;
        if self.requests < SIZES_MIN_REQUESTS || sent < SIZES_MIN_REQUESTS {
            return ASCII_BYTES_PER_TOKEN;
        }
        let counted = self.prompt / (self.requests + self.begun).max(1.0) - asked.fixed / sent;
        let rate = ASCII_BYTES_PER_TOKEN * (asked.text / sent) / counted;
        let off = (rate / ASCII_BYTES_PER_TOKEN).max(ASCII_BYTES_PER_TOKEN / rate);
        if BYTES_PER_TOKEN_RANGE.contains(&rate) && off > SIZES_DIFFER {
            rate
        } else {
            ASCII_BYTES_PER_TOKEN
        }
    }

    /// Tokens of a prompt; `None` = too few were seen.
    pub fn prompt(&self) -> Option<f64> {
        let prompts = self.requests + self.begun;
        (prompts >= SIZES_MIN_REQUESTS).then(|| self.prompt / prompts)
    }

    /// It is too early to tell by what engines find whether prompts repeat.
    pub fn early(&self) -> bool {
        self.all.is_some_and(|all| all < FOUND_EARLY)
    }

    /// The part, 0 to 1, of prompt tokens that were found in prefix caches; `None` = no engine says.
    pub fn found(&self) -> Option<f64> {
        self.hits.part()
    }

    /// Tokens of an answer; `None` = too few were seen.
    pub fn output(&self) -> Option<Tokens> {
        let answers = (self.requests + self.begun / 2.0).max(1.0);
        (self.requests >= SIZES_MIN_REQUESTS).then(|| Tokens((self.generated / answers).ceil() as u64))
    }
}

/// KV tokens of a pod.
fn memory(row: &PodRow) -> f64 {
    cost::capacity(row).unwrap_or(PREFIX_CAPACITY_UNKNOWN as f64)
}

#[cfg(test)]
mod tests {
    use berth_shared_state::table::{Rates, Trend};
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    /// A pod that finishes ten requests a second of 600 prompt and 50 generated tokens each.
    fn row(at: u64) -> PodRow {
        PodRow {
            scraped_at: Some(UnixMillis(at)),
            rates: Rates {
                prompt_tokens: Some(6_000.0),
                generation_tokens: Some(500.0),
                requests: Some(10.0),
                ..Rates::default()
            },
            ..PodRow::unread("10.0.0.1:80".parse().unwrap(), UnixMillis(0))
        }
    }

    fn seen(scrapes: u64) -> Sizes {
        let mut sizes = Sizes::default();
        for at in 1..=scrapes {
            sizes.add([row(at * 1_000)].iter(), Millis(1_000), UnixMillis(at * 1_000));
        }
        sizes
    }

    #[track_caller]
    fn check(requests: f64, text: f64, fixed: f64, expected: f64) {
        let asked = Asked {
            requests,
            text: text * requests,
            fixed: fixed * requests,
        };
        let found = seen(60).bytes_per_token(&asked);
        assert!((found - expected).abs() < 1e-9, "{found}");
    }

    #[test]
    fn a_growing_load_makes_no_token_shorter() {
        // Ten prompts of 600 tokens begin each second; one answer ends, of 100 tokens, and nine more run.
        let mut sizes = Sizes::default();
        for at in 1..=60 {
            let mut row = row(at * 1_000);
            row.load.running = Some(9 * at as u32);
            row.rates.requests = Some(1.0);
            row.rates.generation_tokens = Some(100.0 + 9.0 * 50.0);
            sizes.add([row].iter(), Millis(1_000), UnixMillis(at * 1_000));
        }
        let asked = Asked {
            requests: 60.0,
            text: 60.0 * 600.0,
            fixed: 0.0,
        };
        // 60 seconds are counted, and 59 steps of the gauge.
        let found = sizes.bytes_per_token(&asked);
        assert!((found - 4.0).abs() < 0.2, "{found}");
        let output = sizes.output().unwrap();
        assert!((95..=110).contains(&output.0), "{output:?}");
    }

    #[test]
    fn bytes_per_token_is_what_was_sent_over_what_was_counted() {
        check(100.0, 600.0, 0.0, 4.0);
        // 300 tokens at 4 bytes were 600 of the engine's: 2 bytes each.
        check(100.0, 300.0, 0.0, 2.0);
        check(1_000.0, 900.0, 0.0, 6.0);
        // A small difference may be the long tail of the prompts.
        check(100.0, 490.0, 0.0, 4.0);
        check(100.0, 470.0, 0.0, 4.0 * 470.0 / 600.0);
        // 200 of the 600 are token numbers: 800 bytes were 400 tokens.
        check(100.0, 200.0, 200.0, 2.0);
    }

    #[test]
    fn what_cannot_be_is_not_believed() {
        check(0.0, 0.0, 0.0, 4.0);
        check(10.0, 300.0, 0.0, 4.0);
        check(100.0, 1.0, 0.0, 4.0);
        check(100.0, 1e6, 0.0, 4.0);
        check(100.0, 300.0, 600.0, 4.0);
        check(100.0, 300.0, 700.0, 4.0);
        check(f64::NAN, 300.0, 0.0, 4.0);
        check(100.0, f64::NAN, 0.0, 4.0);
        let few = Asked {
            requests: 100.0,
            text: 30_000.0,
            fixed: 0.0,
        };
        assert_eq!(seen(4).bytes_per_token(&few).to_bits(), 4.0_f64.to_bits());
    }

    #[test]
    fn an_answer_is_as_long_as_the_pods_count() {
        assert_eq!(seen(4).output(), None);
        assert_eq!(seen(5).output(), Some(Tokens(50)));
        assert_eq!(seen(10_000).output(), Some(Tokens(50)));
    }

    #[test]
    fn a_prompt_is_as_long_as_the_pods_count_also_before_the_first_requests_end() {
        assert_eq!(seen(4).prompt(), None);
        assert_eq!(seen(5).prompt(), Some(600.0));
        // Prompts of 600 tokens begin, ten a second, and none ends.
        let mut sizes = Sizes::default();
        for second in 1..=20_u32 {
            let mut row = row(u64::from(second) * 1_000);
            row.rates.requests = Some(0.0);
            row.load.running = Some(10 * second);
            sizes.add([row].iter(), Millis(1_000), UnixMillis(u64::from(second) * 1_000));
        }
        // 20 seconds are counted, and 19 steps of the gauge.
        assert_eq!(sizes.prompt(), Some(600.0 * 20.0 / 19.0));
    }

    /// What is found after so many seconds of a pod of 100,000 tokens that looks up 50,000 a second.
    fn found(seconds: u64, cached: f32) -> Option<f64> {
        let mut sizes = Sizes::default();
        for at in 1..=seconds {
            let mut row = row(at * 1_000);
            row.load.kv_capacity = Some(Tokens(100_000));
            (row.rates.prompt_tokens, row.rates.cached_prompt_tokens) = (Some(50_000.0), Some(cached));
            sizes.add([row].iter(), Millis(1_000), UnixMillis(at * 1_000));
        }
        sizes.found()
    }

    #[test]
    fn all_counts_as_found_until_the_pods_memory_was_filled() {
        assert_eq!(seen(5).found(), None, "they do not say");
        assert_eq!(found(0, 0.0), None);
        // Half of the memory at first, and as much each second.
        assert_eq!(found(1, 0.0), Some(0.5));
        assert_eq!(found(1, 30_000.0), Some(0.8));
        assert_eq!(found(3, 0.0), Some(0.25));
        // What cannot be is at most all.
        assert_eq!(found(3, 90_000.0), Some(1.0));
    }

    /// In how many of 20 seconds it is early, where ten requests a second end and each page shows one more that runs. `pods` at a second.
    fn early(requests: Option<f32>, pods: fn(u32) -> u32) -> u32 {
        let mut sizes = Sizes::default();
        let mut early = 0;
        for second in 1..=20_u32 {
            let at = u64::from(second) * 1_000;
            let rows: Vec<PodRow> = (0..pods(second))
                .map(|_| {
                    let mut row = row(at);
                    row.load.kv_capacity = Some(Tokens(100_000));
                    row.load.running = Some(second);
                    row.rates.requests = requests;
                    (row.rates.prompt_tokens, row.rates.cached_prompt_tokens) = (Some(6_000.0), Some(0.0));
                    row
                })
                .collect();
            sizes.add(rows.iter(), Millis(1_000), UnixMillis(at));
            early += u32::from(sizes.early());
        }
        early
    }

    #[test]
    fn it_is_early_until_a_hundred_requests_began_and_again_when_pods_come() {
        assert!(!Sizes::default().early());
        // 11 each second, but for the first.
        assert_eq!(early(Some(10.0), |_| 1), 9);
        // From the eleventh on there are two, of which 20 and more end.
        assert_eq!(early(Some(10.0), |second| 1 + u32::from(second > 10)), 9 + 4);
        // llama.cpp counts no requests: nobody could say when it ends.
        assert_eq!(early(None, |_| 1), 0);
    }

    #[test]
    fn pods_that_come_new_have_empty_caches() {
        let mut hits = Hits::default();
        hits.fill(100_000.0);
        hits.add(350_000.0, 150_000.0);
        assert_eq!(hits.part(), Some(0.5));
        // Nine more, half of whose memory counts as looked up and found.
        hits.fill(1_000_000.0);
        assert_eq!(hits.part(), Some(650.0 / 850.0));
        // Some are gone for a while.
        hits.fill(0.0);
        hits.fill(1_000_000.0);
        assert_eq!(hits.part(), Some(650.0 / 850.0));
    }

    #[test]
    fn who_looks_nothing_up_has_no_part_in_it() {
        let mut sizes = Sizes::default();
        let mut row_of_one = row(1_000);
        row_of_one.load.kv_capacity = Some(Tokens(100_000));
        (row_of_one.rates.prompt_tokens, row_of_one.rates.cached_prompt_tokens) = (Some(50_000.0), Some(0.0));
        let silent = (1..20).map(|_| row(1_000));
        let pods: Vec<PodRow> = silent.chain([row_of_one]).collect();
        sizes.add(pods.iter(), Millis(1_000), UnixMillis(1_000));
        assert_eq!(sizes.found(), Some(0.5));
    }

    #[test]
    fn what_is_found_follows_the_traffic() {
        // The sums are halved every few seconds here, so what counted at first is soon nothing.
        assert!(found(60, 0.0).unwrap() < 0.01);
        assert!((found(60, 20_000.0).unwrap() - 0.4).abs() < 0.01);
    }

    #[test]
    fn what_runs_at_a_pod_that_dies_or_is_not_believed_any_more_did_not_end() {
        #[track_caller]
        fn check(change: impl Fn(&mut PodRow)) {
            let at = |second: u64, running: u32| {
                let mut row = row(second * 1_000);
                row.load.running = Some(running);
                row
            };
            let other = || PodRow {
                address: "10.0.0.2:80".parse().unwrap(),
                ..at(1, 500)
            };
            let mut sizes = seen(60);
            sizes.add([at(61, 10), other()].iter(), Millis(1_000), UnixMillis(61_000));
            let mut changed = other();
            change(&mut changed);
            sizes.add([at(62, 10), changed].iter(), Millis(1_000), UnixMillis(62_000));
            assert_eq!(sizes.prompt(), Some(600.0));
        }
        check(|row| (row.load.running, row.incarnation) = (Some(0), 1));
        check(|row| (row.load.running, row.failures) = (Some(0), 3));
        check(|row| (row.load.running, row.trend) = (Some(0), Trend::Frozen));
        check(|row| row.address = "10.0.0.3:80".parse().unwrap());
    }

    #[test]
    fn a_scrape_counts_once_and_only_of_a_pod_that_is_believed() {
        let mut sizes = Sizes::default();
        for _ in 0..100 {
            sizes.add([row(1_000)].iter(), Millis(1_000), UnixMillis(1_000));
        }
        let frozen = PodRow {
            trend: Trend::Frozen,
            ..row(2_000)
        };
        let silent = PodRow {
            rates: Rates::default(),
            ..row(2_000)
        };
        for _ in 0..100 {
            let pods = [frozen.clone(), silent.clone()];
            sizes.add(pods.iter(), Millis(1_000), UnixMillis(2_000));
        }
        assert_eq!(sizes.output(), None);
    }

    #[test]
    fn a_clock_that_steps_back_stops_no_counting_and_doubles_none() {
        let mut sizes = Sizes::default();
        let mut add = |scraped: u64, written: u64| {
            let before = sizes.requests;
            sizes.add([row(scraped)].iter(), Millis(1_000), UnixMillis(written));
            sizes.requests - before
        };
        assert_eq!(add(100_000, 100_100), 10.0);
        // An hour back, as it were: the pod is still to be scraped, then it is.
        assert_eq!([add(100_000, 5_000), add(100_000, 5_100)], [0.0, 0.0]);
        assert_eq!(
            [add(5_200, 5_300), add(5_200, 5_400), add(6_200, 6_300)],
            [10.0, 0.0, 10.0]
        );
    }
}
