//! Does the host really deliver bodies while headers are held?
//!
//! Envoy does so only with `allow_on_headers_stop_iteration: true`. Without it a held request hangs
//! until its timeout, and nothing tells the filter. So the filter watches: a request paused for
//! [`UNHELD_AFTER`] without a body callback, on a VM where no paused request ever had one, is let go.
//!
//! ```text
//!              paused, no body for 500 ms            5 s, 10 s, ... have passed
//!   Unproven ------------------------------> Missing -------------------------> one probe
//!      |                                        ^------- no body for 500 ms ------+
//!      +---- body callback of a paused request ----> Proven <---------------------+
//! ```
//! Proven is for ever: a slow upload is just slow. Missing passes requests without holding them. It
//! is no verdict, since one slow upload on a fresh VM looks the same: single requests are held as
//! probes, first after 5 s, then twice as late each time, so a slow client costs a VM 5 s of routing
//! and a missing flag costs next to nothing.

use berth_shared_state::units::{Millis, UnixMillis};
use hashbrown::HashMap;

/// A held request without a body callback for this long is let go while the flag is unproven.
pub const UNHELD_AFTER: Millis = Millis(500);
/// Time until the first probe when the flag seems to be missing; doubles with each that fails.
pub const PROBE_FIRST: Millis = Millis(5_000);
/// Longest time between two probes. Each may delay one request.
pub const PROBE_MAX: Millis = Millis(60_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unproven,
    Proven,
    Missing {
        since: UnixMillis,
        wait: Millis,
        probing: bool,
    },
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
            State::Missing { since, wait, probing } => {
                if *probing || now.since(*since) < *wait {
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
        if let State::Missing { probing, .. } = &mut self.state {
            *probing = *probing && !self.waiting.is_empty();
        }
    }

    /// The held requests to let go now.
    pub fn overdue(&mut self, now: UnixMillis) -> Vec<u32> {
        let overdue = self.waiting.values().any(|since| now.since(*since) >= UNHELD_AFTER);
        if self.state == State::Proven || !overdue {
            return Vec::new();
        }
        let wait = match self.state {
            State::Missing { wait, .. } => Millis(wait.0.saturating_mul(2)).min(PROBE_MAX),
            _ => PROBE_FIRST,
        };
        self.state = State::Missing {
            since: now,
            wait,
            probing: false,
        };
        // The younger ones hang as well: nothing will come for them either.
        self.waiting.drain().map(|(stream, _)| stream).collect()
    }

    /// The host does not deliver bodies, as far as is known.
    #[cfg(test)]
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
    fn a_missing_flag_is_probed_by_one_request_at_a_time() {
        let mut hold = Hold::default();
        hold.begin(1, at(0));
        hold.overdue(at(500));
        assert!(!hold.begin(2, at(5_499)));
        assert!(hold.begin(3, at(5_500)), "the probe");
        assert!(!hold.begin(4, at(5_501)), "only one at a time");
        assert!(hold.body(3));
        assert!(!hold.is_missing());
        assert!(hold.begin(5, at(5_600)));
    }

    #[test]
    fn probes_that_fail_come_twice_as_late_up_to_a_minute() {
        let mut hold = Hold::default();
        let mut now = 0;
        hold.begin(0, at(now));
        for (id, wait) in (1..).zip([5_000, 10_000, 20_000, 40_000, 60_000, 60_000]) {
            now += 500;
            assert_eq!(hold.overdue(at(now)), vec![id - 1]);
            now += wait;
            assert!(!hold.begin(id, at(now - 1)), "before {wait} ms");
            assert!(hold.begin(id, at(now)), "after {wait} ms");
        }
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
