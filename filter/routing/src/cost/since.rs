//! What others sent since the gauges were read.
//!
//! They read the same gauges, and send to whom these show idle, so a second later the least loaded pods
//! are as full as the others. Who takes gauges at their word sends there, too, and all herd. So as many
//! requests as others are likely to have sent are thought to be where they were most welcome, like water
//! that finds its level:
//!
//! ```text
//!  load |      #              level x speed - load = sent there since       sum of it = sent since
//!       |~~#~~~#~~~~~~~~#~~~  level
//!       |  #   #   #    #
//! ```
//!
//! How many: they send as much as this proxy does, in the proportion of their shares of the load. But between
//! near-equals each goes to those that it has to itself, so a part of it is no less elsewhere.

use super::{Fleet, Stage, most};
use crate::decision::PodFacts;

/// Smallest believable part of the load that this proxy sends: one of fifty.
pub const OWN_MIN: f64 = 0.02;
/// Part of what others send that goes to where gauges show room. With all of it, this proxy runs from where they are
/// thought to be as it would run to where they are not.
const SEEKING: f64 = 0.7;
/// Rounds in which the level falls to where it belongs. Each leaves out the pods above it; after a few it stands.
const ROUNDS: usize = 8;

/// The level up to which others have filled the pods.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    /// Requests per unit of speed; `None` = there are no others.
    level: Option<f64>,
}

impl Since {
    /// From all pods, and the part, 0 to 1, of the load that others send.
    pub fn new<'a>(
        fleet: &Fleet,
        elsewhere: f64,
        pods: impl Iterator<Item = (&'a PodFacts<'a>, Stage)> + Clone,
    ) -> Self {
        let own: f64 = pods.clone().map(|(pod, _)| f64::from(pod.own.sent_since)).sum();
        let sent = own * elsewhere / (1.0 - elsewhere).max(OWN_MIN);
        if sent <= 0.0 {
            return Self { level: None };
        }
        let at_pods: Vec<(f64, f64)> = pods.map(|(pod, stage)| fleet.load_and_speed(pod, stage)).collect();
        let mut level = f64::INFINITY;
        for _ in 0..ROUNDS {
            let (mut loads, mut speeds) = (sent, 0.0);
            for (load, speed) in &at_pods {
                if *load < level * speed {
                    loads += load;
                    speeds += speed;
                }
            }
            let lower = loads / speeds;
            if speeds <= 0.0 || lower >= level {
                break;
            }
            level = lower;
        }
        Self { level: Some(level) }
    }

    /// Requests that others sent to a pod.
    #[must_use]
    pub fn at(self, fleet: &Fleet, pod: &PodFacts<'_>, stage: Stage) -> f64 {
        let Some(level) = self.level else { return 0.0 };
        let (load, speed) = fleet.load_and_speed(pod, stage);
        SEEKING * most(level * speed - load, 0.0)
    }
}
