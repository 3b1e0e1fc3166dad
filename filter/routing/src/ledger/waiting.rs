//! What a view tells the others of those who wait there. Who may pass whom is said in `view/line.rs`.

use berth_shared_state::pod::PodAddress;
use berth_shared_state::units::{Tokens, UnixMillis};
use serde::{Deserialize, Serialize};

use crate::limits::BLOCKED_PATIENCE;

/// How much waits at a view in a band.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The band.
    pub priority: i16,
    /// Requests.
    pub requests: u32,
    /// Their tokens.
    pub tokens: Tokens,
    /// The one that has been without room longest.
    pub blocked: Option<Blocked>,
}

/// A request that found no room where it may go, and keeps a pod free for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    /// The pod; `None`: others keep each that it may go to.
    pub pod: Option<PodAddress>,
    /// Since when it is the next to go and finds no room.
    pub since: UnixMillis,
    /// All others of its band that were asked found none either.
    pub all: bool,
}

impl Waiting {
    /// The pod that it keeps from other views, too, and since when.
    #[must_use]
    pub fn keeps(&self, now: UnixMillis) -> Option<(PodAddress, UnixMillis)> {
        let blocked = self.blocked.filter(|blocked| blocked.is_long(now))?;
        Some((blocked.pod?, blocked.since))
    }

    /// Nothing of it can go for now, and so it holds nobody back but at the pod that it keeps.
    #[must_use]
    pub fn is_stuck(&self, now: UnixMillis) -> bool {
        self.blocked.is_some_and(|blocked| blocked.all && blocked.is_long(now))
    }
}

impl Blocked {
    fn is_long(&self, now: UnixMillis) -> bool {
        now.since(self.since) >= BLOCKED_PATIENCE
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[track_caller]
    fn check(since: u64, all: bool, pod: Option<&str>, keeps: bool, stuck: bool) {
        let waiting = Waiting {
            blocked: Some(Blocked {
                pod: pod.map(|pod| pod.parse().unwrap()),
                since: UnixMillis(since),
                all,
            }),
            ..Waiting::default()
        };
        let now = UnixMillis(10_000);
        assert_eq!((waiting.keeps(now).is_some(), waiting.is_stuck(now)), (keeps, stuck));
    }

    #[test]
    fn a_pod_is_kept_from_others_after_a_second_and_a_band_is_stuck_when_all_of_it_is() {
        check(9_001, true, Some("10.0.0.1:80"), false, false);
        check(9_000, true, Some("10.0.0.1:80"), true, true);
        check(9_000, false, Some("10.0.0.1:80"), true, false);
        check(9_000, true, None, false, true);
        check(20_000, true, Some("10.0.0.1:80"), false, false);
    }
}
