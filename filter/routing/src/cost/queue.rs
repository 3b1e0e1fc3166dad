//! Work of others that lies ahead at a pod: their part of the `queue` term.
//!
//! A page says what waited when it was read, [`super::Since`] guesses what was sent there since, and time passes, in which it is
//! done. Own streams know better, and are younger: at the end of a step that computed no prompt nothing waited, whatever
//! was guessed; and while a step takes too long for that, a prompt is being computed, whatever the page shows.
//!
//! Deliberately not here: own requests, which are known.

use berth_shared_state::units::UnixMillis;

use super::foreign::part;
use super::{Others, least, most};
use crate::decision::PodFacts;

/// Ordinary prompts that are ahead where one is being computed: the rest of it, and who waits behind it. By the formula of Pollaczek and
/// Khinchine it is one at half load, where prompts differ as an exponential distribution does, and two at three quarters.
const BUSY: f64 = 2.0;
/// More than so many that wait are not gone with one step: something keeps them from running (memory, slots), so that steps without
/// prompts say nothing of them. With 1.5 or 8 the lab shows the same.
const AT_ONCE: f64 = 4.0;
/// So full a memory may keep those waiting, too. Own: a tenth of it is a few ordinary prompts on any accelerator.
const FULL: f64 = 0.9;
/// Others have sent a pod no more since its page than so many times what it can do in that time. They are thought to send as this proxy
/// does, but a burst of its own is none of theirs: 60 requests at once beside fifty times as many others stood for a queue of minutes
/// at all pods, in which own ones made no difference.
const SENT_MAX: f64 = 2.0;

/// What others have ahead of a new request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ahead {
    /// Requests that wait, as far as the page still counts.
    pub queued: f64,
    /// The time until they are done.
    pub millis: f64,
    /// Requests that were sent there since the page, as far as that is believed.
    pub sent: f64,
}

impl Ahead {
    /// At a pod where so many were `queued` when it was `read_at`, each of which takes so many milliseconds (`ordinary`).
    pub fn of(
        pod: &PodFacts<'_>,
        read_at: Option<UnixMillis>,
        queued: f64,
        others: &Others,
        ordinary: f64,
        now: UnixMillis,
    ) -> Self {
        let Some(read_at) = read_at else {
            let sent = others.since;
            let millis = (queued + sent) * ordinary;
            return Self { queued, millis, sent };
        };
        let read_since = now.since(read_at).0 as f64;
        // No number where a prompt takes no time.
        let sent = least(SENT_MAX * read_since / ordinary, others.since);
        let decoded_at = others.heard.decoded_at(now).filter(|at| *at > read_at);
        let (queued, millis) = match decoded_at {
            None => (queued, most((queued + sent) * ordinary - read_since, 0.0)),
            Some(at) => {
                let free_since = now.since(at).0 as f64;
                let is_full = part(pod.row.load.kv_mean).is_some_and(|used| used >= FULL);
                let queued = if queued <= AT_ONCE && !is_full { 0.0 } else { queued };
                let sent_then = sent * free_since / read_since;
                let millis = most(queued * ordinary - read_since, 0.0) + most(sent_then * ordinary - free_since, 0.0);
                (queued, millis)
            }
        };
        // An own prompt there may be what takes so long, and is counted.
        let listens = pod.own.generating > 0 && pod.own.unanswered == 0;
        let busy = if listens && others.heard.is_late(now) {
            BUSY * ordinary
        } else {
            0.0
        };
        Self {
            queued,
            millis: most(millis, busy),
            sent,
        }
    }
}
