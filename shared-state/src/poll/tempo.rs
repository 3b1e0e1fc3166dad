//! How fast a pod decodes: tokens per second of a request that runs, usually and now.
//!
//! A pod that becomes slow shows it on its next page, without a request being lost on it, and shows in the same way that
//! it works again. It is compared with itself: a pod on another GPU is slower from the start, and not at fault.
//!
//! ```text
//!         tokens generated between two pages          before - finished,  at most after   to find it slow
//! tempo = -----------------------------------,  n =
//!                    seconds x n                      (before + after) / 2                to find it well, and to learn
//! ```
//! Requests that ran all the time are at least so many as the first line says: where others came and went between the
//! pages, `n` is too small and a slow pod looks better, but none that is well looks slow. What else slows decoding is
//! the prompts that share its steps: what the pod read of them stands beside the finding, for readers, who know its rate.
//!
//! Deliberately not here: whether all pods became slower together, and what own requests have seen. Readers know.

use crate::limits::{
    SLOW_CLEARS, SLOW_FROM, SLOW_TRIED_AFTER, SLOW_TRIED_AFTER_MAX, TEMPO_PAGES_MIN, TEMPO_SPAN_MIN, TEMPO_WEIGHT_DOWN,
    TEMPO_WEIGHT_UP,
};
use crate::sample::{Counters, Engine, Sample};
use crate::table::{self, PodRow};
use crate::units::{Millis, UnixMillis};

/// One pod's tempo over its pages.
#[derive(Debug, Default)]
pub(super) struct Tempo {
    page: Option<Page>,
    /// An upper expectile of what was seen: prompts that share the steps only ever make it slower.
    usual: Option<f64>,
    /// Spans that taught it.
    spans: u32,
    slow: Option<Slow>,
}

/// It is slower than usual.
#[derive(Clone, Copy, Debug)]
struct Slow {
    times: f64,
    /// Prompt tokens per second that it read meanwhile.
    reads: f64,
    /// Nothing on its pages moved since.
    still_since: Option<Millis>,
    /// When a request may try it, and how long it was left alone before; unknown after a change of the poller.
    again: Option<Millis>,
    wait: Millis,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    at: Millis,
    counters: Counters,
    loads: [Option<u32>; 3],
    kv: Option<f64>,
}

impl Page {
    fn of(sample: &Sample, at: Millis) -> Self {
        Self {
            at,
            counters: sample.counters,
            loads: [sample.running, sample.waiting, sample.deferred],
            kv: sample.kv_mean,
        }
    }

    fn is_like(&self, later: &Self) -> bool {
        (self.counters, self.loads, self.kv) == (later.counters, later.loads, later.kv)
    }
}

/// What happened between two pages.
#[derive(Clone, Copy, Debug)]
struct Span {
    seconds: f64,
    generated: f64,
    /// Requests that ran all the time, at least.
    throughout: f64,
    /// Those that ran at a time, if they did not come and go meanwhile.
    mean: f64,
    /// And if they did, at most.
    running: f64,
    /// Prompt tokens that were computed.
    read: f64,
}

impl Span {
    /// `None` where a page does not say enough.
    fn between(old: &Page, new: &Page, sample: &Sample) -> Option<Self> {
        let grown = |of: fn(&Counters) -> Option<f64>| {
            let grown = of(&new.counters)? - of(&old.counters)?;
            (grown.is_finite() && grown >= 0.0).then_some(grown)
        };
        let (before, after) = (f64::from(old.loads[0]?), f64::from(new.loads[0]?));
        let finished = grown(|counters| counters.requests)?;
        let mean = f64::midpoint(before, after);
        let answered = grown(|counters| counters.prompt_tokens).unwrap_or(0.0)
            - grown(|counters| counters.cached_prompt_tokens).unwrap_or(0.0);
        // A prompt is counted when its first token comes; what it takes shows while it is read.
        let filled = old.kv.zip(new.kv).map_or(0.0, |(old, new)| new - old)
            * sample.kv_capacity.map_or(0.0, |tokens| tokens.0 as f64);
        Some(Self {
            seconds: new.at.since(old.at).0 as f64 / 1_000.0,
            generated: grown(|counters| counters.generation_tokens)?,
            throughout: (before - finished).min(after).max(0.0),
            mean,
            // Where more came and went than stayed, as many as there can have been.
            running: if finished <= mean { mean } else { after + finished },
            read: answered.max(filled).max(0.0),
        })
    }

    fn tempo(&self, requests: f64) -> Option<f64> {
        (requests >= 1.0 && self.seconds > 0.0).then(|| self.generated / (self.seconds * requests))
    }
}

impl Tempo {
    /// Goes on from the row that another poller published.
    pub(super) fn of(row: &PodRow) -> Self {
        Self {
            page: None,
            usual: row.tempo.map(f64::from),
            spans: if row.tempo.is_some() { TEMPO_PAGES_MIN } else { 0 },
            slow: row.slow.map(|slow| Slow {
                times: slow.times.into(),
                reads: slow.reads.into(),
                still_since: None,
                again: None,
                wait: SLOW_TRIED_AFTER,
            }),
        }
    }

    /// Takes the next page of the same process in.
    pub(super) fn step(&mut self, sample: &Sample, at: Millis) {
        if !sample.engine.is_some_and(Engine::counts_each_token) {
            *self = Self::default();
            return;
        }
        if let Some(slow) = &mut self.slow {
            slow.again.get_or_insert(at + slow.wait);
        }
        let new = Page::of(sample, at);
        let Some(old) = self.page else {
            self.page = Some(new);
            return;
        };
        let passed = at.since(old.at);
        if passed < TEMPO_SPAN_MIN {
            return;
        }
        let span = Span::between(&old, &new, sample);
        if old.is_like(&new) {
            // It counts from the page that moved last.
            if let Some(span) = span.filter(|span| span.throughout >= 1.0) {
                self.stands_still(&span, old.at, at);
            }
            return;
        }
        self.page = Some(new);
        if let Some(span) = span {
            self.moved(&span, at);
        }
    }

    /// What it shows is not to be believed.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Tokens per second of a request that runs, once enough was seen.
    pub(super) fn usual(&self) -> Option<f32> {
        let usual = self.usual.filter(|_| self.spans >= TEMPO_PAGES_MIN)? as f32;
        (usual.is_finite() && usual > 0.0).then_some(usual)
    }

    /// What readers are told. `now` is the time of the last page on both clocks.
    pub(super) fn slow(&self, now: crate::clock::Now) -> Option<table::Slow> {
        let slow = self.slow?;
        let ago = |at: Millis| UnixMillis(now.wall.0.saturating_sub(now.steady.since(at).0));
        Some(table::Slow {
            times: slow.times as f32,
            reads: slow.reads as f32,
            still_since: slow.still_since.map(ago),
            again: now.wall + slow.again.unwrap_or(now.steady).since(now.steady),
        })
    }

    fn stands_still(&mut self, span: &Span, since: Millis, at: Millis) {
        // One token of each may be just about to come.
        let times = self.usual().map_or(1.0, |usual| f64::from(usual) * span.seconds);
        if times >= SLOW_FROM {
            self.condemn(times, 0.0, Some(since), at);
        }
    }

    fn moved(&mut self, span: &Span, at: Millis) {
        if let (Some(usual), Some(worst)) = (self.usual(), span.tempo(span.throughout)) {
            // Less than one token of each is still one step.
            let times = f64::from(usual) / worst.max(1.0 / span.seconds / span.throughout);
            if times >= SLOW_FROM {
                self.condemn(times, span.read / span.seconds, None, at);
            }
        }
        if let (Some(usual), Some(best)) = (self.usual(), span.tempo(span.mean.max(1.0)))
            && f64::from(usual) < best * SLOW_CLEARS
        {
            self.slow = None;
        }
        let Some(seen) = span.tempo(span.running).filter(|tempo| *tempo > 0.0) else {
            return;
        };
        self.usual = Some(self.usual.map_or(seen, |usual| {
            let weight = if seen > usual {
                TEMPO_WEIGHT_UP
            } else {
                TEMPO_WEIGHT_DOWN
            };
            usual + weight * (seen - usual)
        }));
        self.spans = self.spans.saturating_add(1);
    }

    fn condemn(&mut self, times: f64, reads: f64, still_since: Option<Millis>, at: Millis) {
        let wait = match self.slow {
            None => SLOW_TRIED_AFTER,
            // It was left alone and tried, and is slow still.
            Some(Slow {
                again: Some(again),
                wait,
                ..
            }) if again <= at => Millis((wait.0 * 2).min(SLOW_TRIED_AFTER_MAX.0)),
            Some(slow) => slow.wait,
        };
        self.slow = Some(Slow {
            times: times.min(f64::from(f32::MAX)),
            reads,
            still_since,
            again: Some(at + wait),
            wait,
        });
    }
}
