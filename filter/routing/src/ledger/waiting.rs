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
    /// All others of its band that were asked found none either, and that for long, or since they may only go to pods
    /// of their own: so the band holds nobody back but at the pod that is kept.
    pub stuck: bool,
}

impl Waiting {
    /// The pod that it keeps from other views, too, and since when.
    #[must_use]
    pub fn keeps(&self, now: UnixMillis) -> Option<(PodAddress, UnixMillis)> {
        let blocked = self.blocked.filter(|blocked| blocked.is_long(now))?;
        Some((blocked.pod?, blocked.since))
    }

    /// See [`Blocked`].
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.blocked.is_some_and(|blocked| blocked.stuck)
    }
}

impl Blocked {
    /// For so long that other views keep its pod, too.
    #[must_use]
    pub fn is_long(&self, now: UnixMillis) -> bool {
        now.since(self.since) >= BLOCKED_PATIENCE
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn a_pod_is_kept_from_others_after_a_second() {
        let keeps = |since: u64, pod: Option<&str>| {
            let blocked = Blocked {
                pod: pod.map(|pod| pod.parse().unwrap()),
                since: UnixMillis(since),
                stuck: false,
            };
            let waiting = Waiting {
                blocked: Some(blocked),
                ..Waiting::default()
            };
            waiting.keeps(UnixMillis(10_000)).is_some()
        };
        assert!(!keeps(9_001, Some("10.0.0.1:80")));
        assert!(keeps(9_000, Some("10.0.0.1:80")));
        assert!(!keeps(9_000, None));
        assert!(!keeps(20_000, Some("10.0.0.1:80")), "the clock stepped back");
    }
}
