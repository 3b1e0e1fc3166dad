//! What one scrape alone cannot tell: rates, restarts, frozen and stuck pods, several pods behind one address.

use super::pod::load;
use super::tempo::Watch;
use crate::limits::{
    FROZEN_AFTER, FROZEN_SCRAPES, RATE_WEIGHT, SEVERAL_QUIET, SEVERAL_RETURNS, STUCK_AFTER, STUCK_SCRAPES,
};
use crate::sample::{Counters, Engine, Sample};
use crate::table::{Load, PodRow, Rates, Trend};
use crate::units::Millis;

/// What earlier scrapes of one process showed.
#[derive(Debug, Default)]
pub(super) struct History {
    last: Option<Seen>,
    rates: Rates,
    pub(super) tempo: Watch,
    frozen: Run,
    stuck: Run,
    returns: Returns,
}

#[derive(Debug)]
struct Seen {
    at: Millis,
    /// By another poller, whose table does not have all counters.
    inherited: bool,
    counters: Counters,
    started_at: Option<f64>,
    gauges: Gauges,
}

#[derive(Debug, PartialEq)]
struct Gauges([Option<u32>; 3], [Option<f32>; 2]);

impl Gauges {
    const fn of(load: &Load) -> Self {
        Self([load.running, load.waiting, load.deferred], [load.kv_mean, load.kv_max])
    }
}

/// What a scrape adds to the earlier ones.
#[derive(Debug, PartialEq)]
pub(super) struct Step {
    pub(super) restarted: bool,
    pub(super) rates: Rates,
    pub(super) trend: Trend,
}

impl History {
    /// Goes on from the row that another poller published: a restart in between shows, and a trend ends by its own
    /// rule, not by the change of the poller.
    pub(super) fn of(row: &PodRow) -> Self {
        if row.scraped_at.is_none() {
            return Self::default();
        }
        let goes_on = |trend, scrapes| {
            let scrapes = if row.trend == trend { scrapes } else { 0 };
            let since = (scrapes > 0).then_some(Millis(0));
            Run { since, scrapes }
        };
        let several = row.trend == Trend::Several;
        Self {
            last: Some(Seen {
                at: Millis(0),
                inherited: true,
                counters: Counters {
                    generation_tokens: row.generated,
                    ..Counters::default()
                },
                started_at: row.started_at,
                gauges: Gauges::of(&row.load),
            }),
            rates: row.rates,
            tempo: Watch::of(row),
            frozen: goes_on(Trend::Frozen, FROZEN_SCRAPES),
            stuck: goes_on(Trend::Stuck, STUCK_SCRAPES),
            returns: Returns {
                seen: if several { SEVERAL_RETURNS } else { 0 },
                quiet: 0,
            },
        }
    }

    /// Takes the next usable page in.
    pub(super) fn step(&mut self, sample: &Sample, at: Millis) -> Step {
        let restarted = self
            .last
            .as_ref()
            .is_some_and(|last| last.is_of_another_process(sample));
        let returned = self.last.as_ref().is_some_and(|last| last.moved(sample) < -1.0);
        let several = self.returns.step(returned);
        if restarted {
            *self = Self {
                returns: core::mem::take(&mut self.returns),
                ..Self::default()
            };
        }
        let gauges = Gauges::of(&load(sample));
        let unchanged = self
            .last
            .as_ref()
            .is_some_and(|last| last.gauges == gauges && last.counted(&sample.counters));
        let frozen = self
            .frozen
            .step(unchanged && may_freeze(sample), at, FROZEN_SCRAPES, FROZEN_AFTER);
        let queue_only = sample.running == Some(0) && sample.waiting.is_some_and(|waiting| waiting > 0);
        let stuck = self.stuck.step(queue_only, at, STUCK_SCRAPES, STUCK_AFTER);
        // Two pages in one millisecond give no rate: wait for the next.
        let passed = self.last.as_ref().map(|last| at.since(last.at));
        if let (Some(last), Some(Millis(passed @ 1..))) = (self.last.as_ref().filter(|last| !last.inherited), passed) {
            self.rates = rates(&self.rates, &last.counters, &sample.counters, passed as f64 / 1000.0);
        }
        if passed != Some(Millis(0)) {
            self.last = Some(Seen {
                at,
                inherited: false,
                counters: sample.counters,
                started_at: sample.started_at,
                gauges,
            });
        }
        let trend = match (several, stuck, frozen) {
            (true, ..) => Trend::Several,
            (_, true, _) => Trend::Stuck,
            (_, _, true) => Trend::Frozen,
            _ => Trend::Live,
        };
        // What hangs goes on hanging when its load is not believed any more; for some minutes, since a pod that works
        // behind a frozen page cannot always show it.
        if trend.is_believed() || (trend == Trend::Frozen && self.tempo.hangs(at)) {
            self.tempo.step(sample, at);
        } else {
            self.tempo.doubt();
        }
        Step {
            restarted: restarted && !several,
            rates: self.rates,
            trend,
        }
    }
}

/// Load is shown, and there is a counter that must move under load. llama.cpp counts tokens only
/// when a request ends, so a long answer looks like a frozen page.
fn may_freeze(sample: &Sample) -> bool {
    let shown = |gauge: Option<u32>| gauge.is_some_and(|value| value > 0);
    (shown(sample.running) || shown(sample.waiting))
        && sample.counters.generation_tokens.is_some()
        && sample.engine != Some(Engine::LlamaCpp)
}

impl Seen {
    /// Do all counters that are known of it stand still?
    fn counted(&self, counters: &Counters) -> bool {
        if self.inherited {
            self.counters.generation_tokens == counters.generation_tokens
        } else {
            self.counters == *counters
        }
    }

    /// A counter fell, or the start moved by more than a rounding.
    fn is_of_another_process(&self, sample: &Sample) -> bool {
        let fell = fields(&self.counters).into_iter().zip(fields(&sample.counters));
        let fell = { fell }.any(|(old, new)| matches!((old, new), (Some(old), Some(new)) if new < old));
        fell || self.moved(sample).abs() > 1.0
    }

    /// Seconds from the start of its process to that of the sample's; 0 where a page does not tell.
    fn moved(&self, sample: &Sample) -> f64 {
        let starts = self.started_at.zip(sample.started_at);
        starts.map_or(0.0, |(old, new)| new - old)
    }
}

/// Pages of a process that started before the one of the page before. A restart never gives one: the older process
/// is gone. So it lives beside the other, behind the same address.
#[derive(Debug, Default)]
struct Returns {
    seen: u32,
    /// Pages since the last.
    quiet: u32,
}

impl Returns {
    /// Do several processes answer?
    const fn step(&mut self, returned: bool) -> bool {
        if returned {
            self.seen = self.seen.saturating_add(1);
            self.quiet = 0;
        } else {
            self.quiet = self.quiet.saturating_add(1);
        }
        if self.quiet >= SEVERAL_QUIET {
            self.seen = 0;
        }
        self.seen >= SEVERAL_RETURNS
    }
}

const fn fields(counters: &Counters) -> [Option<f64>; 5] {
    [
        counters.prompt_tokens,
        counters.cached_prompt_tokens,
        counters.generation_tokens,
        counters.requests,
        counters.preemptions,
    ]
}

fn rates(earlier: &Rates, old: &Counters, new: &Counters, seconds: f64) -> Rates {
    let rate = |earlier: Option<f32>, old: Option<f64>, new: Option<f64>| {
        let latest = ((new? - old?) / seconds) as f32;
        let mean = earlier.map_or(latest, |earlier| earlier + RATE_WEIGHT * (latest - earlier));
        (mean.is_finite() && mean >= 0.0).then_some(mean)
    };
    Rates {
        prompt_tokens: rate(earlier.prompt_tokens, old.prompt_tokens, new.prompt_tokens),
        cached_prompt_tokens: rate(
            earlier.cached_prompt_tokens,
            old.cached_prompt_tokens,
            new.cached_prompt_tokens,
        ),
        generation_tokens: rate(earlier.generation_tokens, old.generation_tokens, new.generation_tokens),
        requests: rate(earlier.requests, old.requests, new.requests),
        preemptions: rate(earlier.preemptions, old.preemptions, new.preemptions),
    }
}

/// How long something has held without a break.
#[derive(Debug, Default)]
struct Run {
    since: Option<Millis>,
    scrapes: u32,
}

impl Run {
    /// Has it held for that many scrapes and that long?
    fn step(&mut self, holds: bool, at: Millis, scrapes: u32, long: Millis) -> bool {
        if !holds {
            *self = Self::default();
            return false;
        }
        self.scrapes = self.scrapes.saturating_add(1);
        let since = *self.since.get_or_insert(at);
        self.scrapes >= scrapes && at.since(since) >= long
    }
}
