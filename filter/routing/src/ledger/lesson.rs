//! What is to be remembered of a pool and its pods, until a write succeeds.

use berth_shared_state::pod::PodKey;
use berth_shared_state::units::{Tokens, UnixMillis};

use super::memory::{Ending, Observation};
use super::{Asked, Ledger, Outcome};

/// Something to remember of a pod, until it is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lesson {
    Asked(Asked),
    Sent {
        pod: PodKey,
        tokens: Tokens,
        sent_at: UnixMillis,
    },
    Adapter {
        pod: PodKey,
        incarnation: u32,
        adapter: u64,
        at: UnixMillis,
    },
    NoAdapter {
        pod: PodKey,
        adapter: u64,
    },
    Rate {
        pod: PodKey,
        seen: Observation,
    },
    Answered {
        pod: PodKey,
        sent_at: UnixMillis,
        at: UnixMillis,
    },
    End {
        pod: PodKey,
        end: Ending,
        at: UnixMillis,
    },
}

impl Lesson {
    /// Adds another one of the same kind to a sum; false where both must stand.
    pub fn takes_in(&mut self, other: &Self) -> bool {
        match (self, other) {
            (Self::Asked(sum), Self::Asked(one)) => sum.add(*one),
            (
                Self::Sent {
                    pod: known,
                    tokens: sum,
                    ..
                },
                // Of several, the first is the one that may be the probe.
                Self::Sent { pod, tokens, .. },
            ) if known == pod => {
                *sum = *sum + *tokens;
            }
            _ => return false,
        }
        true
    }
}

impl Ledger {
    /// Remembers it.
    pub(super) fn learn(&mut self, lesson: &Lesson, now: UnixMillis) {
        let pod = match *lesson {
            Lesson::Asked(one) => return self.asked.add(one),
            Lesson::Sent { pod, .. }
            | Lesson::Adapter { pod, .. }
            | Lesson::NoAdapter { pod, .. }
            | Lesson::Rate { pod, .. }
            | Lesson::Answered { pod, .. }
            | Lesson::End { pod, .. } => pod,
        };
        let Some(state) = self.pod_mut(pod, now) else {
            return;
        };
        match *lesson {
            Lesson::Asked(_) => {}
            Lesson::Sent { tokens, sent_at, .. } => state.memory.sent(tokens, sent_at, now),
            Lesson::Answered { sent_at, at, .. } => {
                state.memory.works(sent_at, at, now);
                state.memory.answered(sent_at, now);
            }
            Lesson::Adapter {
                incarnation,
                adapter,
                at,
                ..
            } => {
                state.memory.restarted(incarnation);
                state.memory.sent_adapter(adapter, at);
            }
            Lesson::NoAdapter { adapter, .. } => state.memory.lacks_adapter(adapter),
            Lesson::Rate { seen, .. } => state.memory.observe(seen, now),
            Lesson::End { end, at, .. } => {
                if end.outcome == Outcome::Success {
                    state.memory.works(end.sent_at, at, now);
                }
                state.memory.ended(end, at);
            }
        }
    }
}
