//! Does the host really deliver bodies while headers are held?
//!
//! Envoy does so only with `allow_on_headers_stop_iteration: true`. Without it a held request hangs
//! until its timeout, and nothing tells the filter. So the filter watches: a request paused for
//! [`UNHELD_AFTER`] without a body callback, on a VM where no paused request ever had one, is let go.
//!
//! ```text
//!              paused, no body for 500 ms              a minute has passed
//!   Unproven ------------------------------> Missing ----------------------> Unproven (one probe)
//!      |                                                                        |
//!      +---- body callback of a paused request ----> Proven <-------------------+
//! ```
//! Proven is for ever: a slow upload is just slow. Missing passes requests without holding them,
//! and tries again once a minute, since one slow first upload looks the same.

use berth_shared_state::units::{Millis, UnixMillis};
use hashbrown::HashMap;

/// A held request without a body callback for this long is let go while the flag is unproven.
pub const UNHELD_AFTER: Millis = Millis(500);
/// Time between two probes while the flag seems to be missing. Each may delay one request.
pub const PROBE_EVERY: Millis = Millis(60_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unproven,
    Proven,
    Missing { since: UnixMillis, probing: bool },
}

/// What one VM knows of the host's body delivery.
#[derive(Debug)]
pub struct Hold {
    state: State,
    /// Held requests without a body callback so far.
    waiting: HashMap<u32, UnixMillis>,
}

impl Default for Hold {
    fn default() -> Self {
        Self {
            state: State::Unproven,
            waiting: HashMap::new(),
        }
    }
}

impl Hold {
    /// May this request be held? Records it as waiting for its body if so.
    pub fn begin(&mut self, stream: u32, now: UnixMillis) -> bool {
        match &mut self.state {
            State::Proven => return true,
            State::Unproven => {}
            State::Missing { since, probing } => {
                if *probing || now.since(*since) < PROBE_EVERY {
                    return false;
                }
                *probing = true;
            }
        }
        self.waiting.insert(stream, now);
        true
    }

    /// A held request got its body callback. True when this is the first proof on this VM.
    pub fn body(&mut self, stream: u32) -> bool {
        let first = self.waiting.remove(&stream).is_some() && self.state != State::Proven;
        if first {
            self.state = State::Proven;
            self.waiting.clear();
        }
        first
    }

    /// A stream is over.
    pub fn end(&mut self, stream: u32) {
        self.waiting.remove(&stream);
        if let State::Missing { since: _, probing } = &mut self.state {
            *probing = *probing && !self.waiting.is_empty();
        }
    }

    /// The held requests to let go now.
    pub fn overdue(&mut self, now: UnixMillis) -> Vec<u32> {
        let overdue = self.waiting.values().any(|since| now.since(*since) >= UNHELD_AFTER);
        if self.state == State::Proven || !overdue {
            return Vec::new();
        }
        self.state = State::Missing {
            since: now,
            probing: false,
        };
        // The younger ones hang as well: nothing will come for them either.
        self.waiting.drain().map(|(stream, _)| stream).collect()
    }

    /// The host does not deliver bodies, as far as is known.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(self.state, State::Missing { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const fn at(millis: u64) -> UnixMillis {
        UnixMillis(1_000_000 + millis)
    }

    #[test]
    fn a_request_without_a_body_callback_is_let_go_after_half_a_second() {
        let mut hold = Hold::default();
        assert!(hold.begin(1, at(0)));
        assert_eq!(hold.overdue(at(499)), Vec::<u32>::new());
        assert_eq!(hold.overdue(at(500)), vec![1]);
        assert!(hold.is_missing());
        assert!(!hold.begin(2, at(600)), "nothing is held any more");
    }

    #[test]
    fn all_held_requests_are_let_go_with_the_first_overdue_one() {
        let mut hold = Hold::default();
        hold.begin(1, at(0));
        hold.begin(2, at(400));
        let mut gone = hold.overdue(at(500));
        gone.sort_unstable();
        assert_eq!(gone, vec![1, 2]);
    }

    #[test]
    fn one_body_callback_proves_the_flag_and_a_slow_upload_is_just_slow() {
        let mut hold = Hold::default();
        hold.begin(1, at(0));
        hold.begin(2, at(0));
        assert!(hold.body(1));
        assert!(!hold.body(1), "proven once");
        assert_eq!(hold.overdue(at(60_000)), Vec::<u32>::new());
        assert!(hold.begin(3, at(60_000)));
    }

    #[test]
    fn a_missing_flag_is_probed_once_a_minute_by_one_request() {
        let mut hold = Hold::default();
        hold.begin(1, at(0));
        hold.overdue(at(500));
        assert!(!hold.begin(2, at(60_499)));
        assert!(hold.begin(3, at(60_500)), "the probe");
        assert!(!hold.begin(4, at(60_501)), "only one at a time");
        assert!(hold.body(3));
        assert!(!hold.is_missing());
        assert!(hold.begin(5, at(60_600)));
    }

    #[test]
    fn a_probe_whose_client_left_makes_room_for_the_next() {
        let mut hold = Hold::default();
        hold.begin(1, at(0));
        hold.overdue(at(500));
        assert!(hold.begin(3, at(70_000)));
        hold.end(3);
        assert!(hold.begin(4, at(70_001)));
    }

    #[test]
    fn a_stream_that_ended_is_not_let_go() {
        let mut hold = Hold::default();
        hold.begin(1, at(0));
        hold.end(1);
        assert_eq!(hold.overdue(at(10_000)), Vec::<u32>::new());
        assert!(!hold.is_missing());
    }
}
