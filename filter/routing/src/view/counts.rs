//! What a view counts, for the proxy's stats.

use crate::ledger::Synced;
use crate::prefix::Written;

/// What happened, mostly to shared data, counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tables decoded: changes seen.
    pub tables_decoded: u64,
    /// Tables that could not be read or opened.
    pub tables_unreadable: u64,
    /// Ledger writes.
    pub ledger_writes: u64,
    /// Ledger writes left for later after losing every race.
    pub ledger_lost_races: u64,
    /// Ledger reads or writes that the host refused, or that did not fit.
    pub ledger_refusals: u64,
    /// Pages of prefix indexes written.
    pub prefix_writes: u64,
    /// Pages of prefix indexes not written: others were faster, or the host refused.
    pub prefix_lost: u64,
    /// Requests that named an objective that the config does not have.
    pub objectives_unknown: u64,
}

impl Counts {
    pub(super) fn prefix(&mut self, written: &Written) {
        self.prefix_writes += u64::from(written.pages);
        self.prefix_lost += u64::from(written.lost);
    }

    pub(super) const fn ledger(&mut self, synced: Synced) {
        match synced {
            Synced::Idle => {}
            Synced::Written => self.ledger_writes += 1,
            Synced::LostRace => self.ledger_lost_races += 1,
            Synced::TooLarge | Synced::Refused(_) => self.ledger_refusals += 1,
        }
    }
}
