//! How long a pod's engine takes for what its pages show it did, usually and now.
//!
//! A pod that becomes slow shows it on its next page, without a request being lost on it, and shows in the same way that
//! it works again. It is compared with itself: a pod on another GPU is slower from the start, and not at fault.
//!
//! ```text
//!  seconds = step x steps + token x prompt tokens computed,   steps = tokens generated / requests that run
//! ```
//! holds between two pages between which the engine was never idle. Its two times are fitted to them, older pages
//! counting less. A pod is slow when it takes many times as long as these say. Of what is not known exactly that is
//! taken which makes it look better when it is to be found slow: the fewest requests that ran all the time, the most
//! prompt tokens. And two pages in a row must say so: a request that was aborted is counted nowhere, and looks like one
//! that ran all the time when another came.
//!
//! Deliberately not here: whether all pods became slower together, and what own requests have seen. Readers know.

use crate::clock::Now;
use crate::limits::{
    SLOW_CLEARS, SLOW_FROM, SLOW_TIMES_MAX, SLOW_TRIED_AFTER, SLOW_TRIED_AFTER_MAX, TEMPO_SPAN_MIN, TEMPO_SPANS,
    TEMPO_SPANS_MIN, TEMPO_WEIGHT_SLOW, TOKENS_AT_ONCE, TOKENS_PER_STEP,
};
use crate::sample::{Counters, Engine, Sample};
use crate::table::{self, PodRow, Tempo};
use crate::units::{Millis, UnixMillis};

/// One pod's tempo over its pages.
#[derive(Debug, Default)]
pub(super) struct Watch {
    page: Option<Page>,
    fit: Fit,
    slow: Option<Slow>,
    /// The last page alone would say so.
    suspect: bool,
}

/// It is slower than usual.
#[derive(Clone, Copy, Debug)]
struct Slow {
    times: f64,
    /// Nothing on its pages moved since.
    still_since: Option<Millis>,
    /// When a request may try it; unknown after a change of the poller.
    again: Option<Millis>,
    /// How long it is left alone.
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
    /// Those that ran at a time.
    running: f64,
    /// Prompt tokens that were computed, of requests whose answers began.
    answered: f64,
    /// And the most that they can have been with those still under way.
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
        let cached = grown(|counters| counters.cached_prompt_tokens).unwrap_or(0.0);
        let answered = (grown(|counters| counters.prompt_tokens)? - cached).max(0.0);
        // A prompt is counted when its first token comes; the memory that it takes shows while it is read, beside that
        // of the answers that ended.
        let ended = old.kv? * (finished / before.max(1.0)).min(1.0);
        let filled = (new.kv? - old.kv? + ended) * sample.kv_capacity?.0 as f64;
        Some(Self {
            seconds: new.at.since(old.at).0 as f64 / 1_000.0,
            generated: grown(|counters| counters.generation_tokens)?,
            throughout: (before - finished).min(after),
            running: f64::midpoint(before, after).max(1.0),
            answered,
            read: answered.max(filled),
        })
    }
}

/// Sums of spans, from which the two times are fitted: per second of each, `x` steps and `y` prompt tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Fit {
    /// How many were added.
    added: u32,
    /// Their weights.
    spans: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    yy: f64,
}

impl Fit {
    fn add(&mut self, x: f64, y: f64, weight: f64) {
        self.added = self.added.saturating_add(1);
        let keep = 1.0 - weight / TEMPO_SPANS;
        let add = |sum: &mut f64, value: f64| *sum = *sum * keep + value * weight;
        add(&mut self.spans, 1.0);
        add(&mut self.x, x);
        add(&mut self.y, y);
        add(&mut self.xx, x * x);
        add(&mut self.xy, x * y);
        add(&mut self.yy, y * y);
    }

    /// What another poller had found, as if of as many spans as make it count.
    fn of(tempo: Tempo) -> Self {
        let (x, y) = (500.0 / f64::from(tempo.step), 500.0 / f64::from(tempo.token));
        let mut fit = Self::default();
        for _ in 0..TEMPO_SPANS_MIN {
            fit.add(2.0 * x, 0.0, 0.5);
            fit.add(x, y, 0.5);
        }
        fit
    }

    /// Least squares of `1 = step x + token y`, with one span's weight for the proportion that accelerators have: it says
    /// what spans do not that are all alike.
    fn tempo(&self) -> Option<Tempo> {
        if self.added < TEMPO_SPANS_MIN {
            return None;
        }
        // Steps per second, where prompts count by that proportion.
        let scale = (self.x + self.y / TOKENS_PER_STEP) / self.spans;
        let square = scale * scale;
        let (xx, xy, yy) = (
            self.xx + square,
            self.xy - square * TOKENS_PER_STEP,
            self.yy + square * TOKENS_PER_STEP * TOKENS_PER_STEP,
        );
        let det = xx * yy - xy * xy;
        let both = [(self.x * yy - self.y * xy) / det, (self.y * xx - self.x * xy) / det];
        // Noise can make one of them negative: then the proportion decides.
        let sum = self.xx + 2.0 * self.xy / TOKENS_PER_STEP + self.yy / (TOKENS_PER_STEP * TOKENS_PER_STEP);
        let step = (self.x + self.y / TOKENS_PER_STEP) / sum;
        let usable = |time: &f64| time.is_finite() && *time > 0.0;
        let [step, token] = if both.iter().all(usable) {
            both
        } else {
            [step, step / TOKENS_PER_STEP]
        };
        let tempo = Tempo {
            step: (step * 1_000.0) as f32,
            token: (token * 1_000.0) as f32,
        };
        tempo.is_sound().then_some(tempo)
    }
}

impl Watch {
    /// Goes on from the row that another poller published.
    pub(super) fn of(row: &PodRow) -> Self {
        Self {
            page: None,
            fit: row.tempo.map(Fit::of).unwrap_or_default(),
            slow: row.slow.map(|slow| Slow {
                times: slow.times.into(),
                still_since: None,
                again: None,
                wait: SLOW_TRIED_AFTER,
            }),
            suspect: false,
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
        if at.since(old.at) < TEMPO_SPAN_MIN {
            return;
        }
        let span = Span::between(&old, &new, sample);
        if let Some(span) = span.filter(|span| span.throughout >= 1.0 && old.is_like(&new)) {
            // It counts from the page that moved last.
            self.stands_still(&span, old.at, at);
            return;
        }
        self.page = Some(new);
        if let Some(span) = span {
            self.moved(&span, at);
        }
    }

    /// What the pages show now is not to be believed.
    pub(super) fn doubt(&mut self) {
        (self.page, self.slow, self.suspect) = (None, None, false);
    }

    /// It is slow, and nothing on its pages has moved, for not longer than anybody is left alone.
    pub(super) fn hangs(&self, at: Millis) -> bool {
        let since = self.slow.and_then(|slow| slow.still_since);
        since.is_some_and(|since| at.since(since) <= SLOW_TRIED_AFTER_MAX)
    }

    /// How long it usually takes, once enough was seen.
    pub(super) fn tempo(&self) -> Option<Tempo> {
        self.fit.tempo()
    }

    /// What readers are told. `now` is the time of the last page on both clocks.
    pub(super) fn slow(&self, now: Now) -> Option<table::Slow> {
        let slow = self.slow?;
        let ago = |at: Millis| UnixMillis(now.wall.0.saturating_sub(now.steady.since(at).0));
        Some(table::Slow {
            times: slow.times as f32,
            still_since: slow.still_since.map(ago),
            again: now.wall + slow.again.unwrap_or(now.steady).since(now.steady),
        })
    }

    fn stands_still(&mut self, span: &Span, since: Millis, at: Millis) {
        // A step may be just about to end, and be one full of prompts.
        if let Some(tempo) = self.tempo()
            && span.seconds > tempo.seconds(1.0, TOKENS_AT_ONCE)
        {
            self.found(span.seconds / tempo.seconds(1.0, 0.0), Some(since), at);
        }
    }

    fn moved(&mut self, span: &Span, at: Millis) {
        let tempo = self.tempo();
        let was = self.slow.is_some();
        if let Some(tempo) = tempo {
            let steps = (span.generated / span.throughout.max(1.0)).max(1.0);
            let times = span.seconds / tempo.seconds(steps, span.read);
            self.found(if span.throughout >= 1.0 { times } else { 0.0 }, None, at);
            let done = tempo.seconds(span.generated / span.running, span.answered);
            if span.seconds < SLOW_CLEARS * done {
                (self.slow, self.suspect) = (None, false);
            }
        }
        if span.throughout >= 1.0 && span.generated > 0.0 {
            let weight = if was || self.suspect { TEMPO_WEIGHT_SLOW } else { 1.0 };
            let (steps, read) = (span.generated / span.running, span.answered);
            self.fit.add(steps / span.seconds, read / span.seconds, weight);
        }
    }

    /// It took so many times longer than usual; 0 where nobody can say.
    fn found(&mut self, times: f64, still_since: Option<Millis>, at: Millis) {
        let before = self.suspect;
        self.suspect = times >= SLOW_FROM && times.is_finite();
        if !self.suspect || !(before || self.slow.is_some()) {
            return;
        }
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
            times: times.min(SLOW_TIMES_MAX),
            still_since,
            again: Some(at + wait),
            wait,
        });
    }
}

#[cfg(test)]
mod tests;
