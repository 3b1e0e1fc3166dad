//! Log lines: once per place and cause, and never a flood.

use core::fmt;

use super::{Effect, Severity};
use crate::clock::Now;
use crate::limits::{LOG_LINES_MAX, LOG_WINDOW, RECOVERED_AFTER};
use crate::table::ScrapeError;
use crate::units::Millis;

/// The lines of one pool.
#[derive(Debug)]
pub(super) struct Journal {
    pool: String,
    window_from: Millis,
    lines: u32,
    left_out: usize,
    out: Vec<Effect>,
}

impl Journal {
    pub(super) fn new(pool: &str) -> Self {
        Self {
            pool: pool.to_owned(),
            window_from: Millis(0),
            lines: 0,
            left_out: 0,
            out: Vec::new(),
        }
    }

    pub(super) fn info(&mut self, now: Now, text: fmt::Arguments<'_>) {
        self.say(Severity::Info, now, text);
    }

    pub(super) fn warn(&mut self, now: Now, text: fmt::Arguments<'_>) {
        self.say(Severity::Warn, now, text);
    }

    fn say(&mut self, severity: Severity, now: Now, text: fmt::Arguments<'_>) {
        if now.steady.since(self.window_from) >= LOG_WINDOW {
            self.window_from = now.steady;
            self.lines = 0;
        }
        if self.lines >= LOG_LINES_MAX {
            self.left_out += 1;
            return;
        }
        self.lines += 1;
        let text = format!("pool {}: {text}", self.pool);
        self.out.push(Effect::Log { severity, text });
    }

    /// The lines since the last call.
    pub(super) fn take(&mut self) -> Vec<Effect> {
        core::mem::take(&mut self.out)
    }

    /// How many were left out since the last call; they are in the stats.
    pub(super) const fn take_left_out(&mut self) -> usize {
        core::mem::replace(&mut self.left_out, 0)
    }
}

/// Which causes were told for one place.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    causes: u8,
    good: u32,
}

impl Told {
    /// Is this cause news?
    pub(super) const fn failed(&mut self, error: ScrapeError) -> bool {
        let cause = match error {
            ScrapeError::NotSent => 1,
            ScrapeError::Unreachable => 2,
            ScrapeError::Timeout => 4,
            ScrapeError::Unauthorized => 8,
            ScrapeError::Http(_) => 16,
            ScrapeError::Page => 32,
        };
        let news = self.causes & cause == 0;
        self.causes |= cause;
        self.good = 0;
        news
    }

    /// Is the recovery news? Once, after [`RECOVERED_AFTER`] good answers in a row.
    pub(super) fn succeeded(&mut self) -> bool {
        self.good = self.good.saturating_add(1);
        let news = self.causes != 0 && self.good >= RECOVERED_AFTER;
        if news {
            *self = Self::default();
        }
        news
    }
}
