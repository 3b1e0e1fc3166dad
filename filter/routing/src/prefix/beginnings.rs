//! Which beginnings of prompts are popular: finds how much of a prompt tells where it lives.
//!
//! Proxies that do not talk agree on a pod by hashing how a prompt begins. A beginning that a large part
//! of the traffic has, such as a system prompt, says nothing of where the rest of a prompt is, and its
//! pod could not take them all. So a longer beginning is taken, until few enough have it. All proxies see
//! the same mix of prompts, so they agree on this, too.
//!
//! The most popular keys are counted by the space-saving algorithm (Metwally, Agrawal, El Abbadi 2005):
//! a new key takes the place of the rarest, and its count. Deliberately not here: which pod it is
//! ([`crate::decision`]).

use super::Chains;
use crate::limits::{PREFIX_BEGINNINGS, PREFIX_BEGINNINGS_WINDOW};

/// Blocks from which on a beginning is told from others: about 1,024 tokens. A shorter prefix is cheap to compute
/// anywhere.
const BLOCKS_MIN: usize = 16;
/// Blocks by which a beginning grows at least when it is too popular ...
const STEP_MIN: usize = 4;
/// ... or by this part of it.
const STEP_PART: usize = 8;

/// How a prompt begins, as far as it matters where it lives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beginning {
    /// The hash of it.
    pub key: u64,
    /// The part, 0 to 1, of all requests that begin so.
    pub share: f64,
}

/// Counts of beginnings.
#[derive(Clone, Debug, Default)]
pub struct Beginnings {
    counts: Vec<(u64, u32)>,
    requests: u32,
}

impl Beginnings {
    /// Counts a prompt and tells the shortest beginning of it that at most this part of the requests has; where
    /// all are more popular, the longest. `None` where it is too short.
    pub fn beginning(&mut self, chains: &Chains, part: f64) -> Option<Beginning> {
        let chain = chains.full().next()?;
        self.requests = self.requests.saturating_add(1);
        let (mut blocks, mut found) = (BLOCKS_MIN, None);
        while let Some(key) = blocks.checked_sub(1).and_then(|last| chain.get(last)) {
            let share = f64::from(self.count(*key)) / f64::from(self.requests);
            found = Some(Beginning { key: *key, share });
            if share <= part {
                break;
            }
            blocks += STEP_MIN.max(blocks / STEP_PART);
        }
        if self.requests >= PREFIX_BEGINNINGS_WINDOW {
            self.requests /= 2;
            self.counts.retain_mut(|(_, count)| {
                *count /= 2;
                *count > 0
            });
        }
        found
    }

    /// Counts a key; how often it was seen before.
    fn count(&mut self, key: u64) -> u32 {
        if let Some((_, count)) = self.counts.iter_mut().find(|(known, _)| *known == key) {
            *count = count.saturating_add(1);
            return *count - 1;
        }
        if self.counts.len() < PREFIX_BEGINNINGS {
            self.counts.push((key, 1));
        } else if let Some(rarest) = self.counts.iter_mut().min_by_key(|(_, count)| *count) {
            *rarest = (key, rarest.1 + 1);
        }
        0
    }
}
