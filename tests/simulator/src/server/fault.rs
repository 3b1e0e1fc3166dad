//! What can be wrong with a pod, set at run time.

use serde::{Deserialize, Serialize};

/// One fault. Faults of different kinds add up; a later one of the same kind replaces the earlier.
///
/// As JSON for `POST /sim/fault`: `{"fault":"metrics_status","status":503}`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// All is well again.
    Clear,
    /// The metrics page stays as it is now.
    MetricsFreeze,
    /// The metrics page comes late.
    MetricsDelay {
        /// Milliseconds of real time.
        ms: u64,
    },
    /// The metrics page never comes.
    MetricsHang,
    /// The metrics page is an error, such as 401 or 503.
    MetricsStatus {
        /// HTTP status.
        status: u16,
    },
    /// The metrics page is 200 and something else.
    MetricsGarbage,
    /// The metrics page ends after so many bytes.
    MetricsCut {
        /// Bytes that are left.
        bytes: usize,
    },
    /// The pod is gone: it stops listening and drops its connections. Requests under way are lost.
    RefuseConnections,
    /// Inference answers with an error, such as 429, 500 or 503.
    InferenceStatus {
        /// HTTP status.
        status: u16,
        /// So many times; absent = until cleared.
        #[serde(default)]
        times: Option<u32>,
    },
    /// Inference answers 500 with a context-length text, as llama.cpp does.
    InferenceContext,
    /// Inference is accepted and never answered.
    InferenceHang,
    /// Steps take this many times longer.
    Slow {
        /// 1 = as usual.
        factor: f64,
    },
}

/// What is wrong with the metrics page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MetricsFault {
    /// Holds the page of the moment it froze.
    Frozen(String),
    Delay(u64),
    Hang,
    Status(u16),
    Garbage,
    Cut(usize),
}

/// What is wrong with inference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InferenceFault {
    Status { status: u16, left: Option<u32> },
    Context,
    Hang,
}

/// All that is wrong now, except what lives elsewhere: refused connections, slow steps.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) metrics: Option<MetricsFault>,
    inference: Option<InferenceFault>,
}

impl Faults {
    /// Takes in a fault; `page` is today's metrics page.
    pub(super) fn set(&mut self, fault: Fault, page: impl FnOnce() -> String) {
        match fault {
            Fault::Clear => *self = Self::default(),
            Fault::MetricsFreeze => self.metrics = Some(MetricsFault::Frozen(page())),
            Fault::MetricsDelay { ms } => self.metrics = Some(MetricsFault::Delay(ms)),
            Fault::MetricsHang => self.metrics = Some(MetricsFault::Hang),
            Fault::MetricsStatus { status } => self.metrics = Some(MetricsFault::Status(status)),
            Fault::MetricsGarbage => self.metrics = Some(MetricsFault::Garbage),
            Fault::MetricsCut { bytes } => self.metrics = Some(MetricsFault::Cut(bytes)),
            Fault::InferenceStatus { status, times } => {
                self.inference = Some(InferenceFault::Status { status, left: times });
            }
            Fault::InferenceContext => self.inference = Some(InferenceFault::Context),
            Fault::InferenceHang => self.inference = Some(InferenceFault::Hang),
            Fault::RefuseConnections | Fault::Slow { .. } => {}
        }
    }

    /// The fault that this inference request meets; a counted one is used up by that.
    pub(super) fn meet_inference(&mut self) -> Option<InferenceFault> {
        if let Some(InferenceFault::Status { left: Some(left), .. }) = &mut self.inference {
            if *left == 0 {
                self.inference = None;
                return None;
            }
            *left -= 1;
        }
        self.inference.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::{Fault, Faults, InferenceFault};

    #[test]
    fn faults_are_read_from_json() {
        let read = |text: &str| serde_json::from_str::<Fault>(text).ok();
        assert_eq!(
            read(r#"{"fault":"metrics_status","status":401}"#),
            Some(Fault::MetricsStatus { status: 401 })
        );
        assert_eq!(
            read(r#"{"fault":"inference_status","status":429}"#),
            Some(Fault::InferenceStatus {
                status: 429,
                times: None
            })
        );
        assert_eq!(read(r#"{"fault":"clear"}"#), Some(Fault::Clear));
        assert_eq!(read(r#"{"fault":"metrics_delay"}"#), None);
        assert_eq!(read(r#"{"fault":"slow","factor":2,"times":1}"#), None);
    }

    #[test]
    fn a_counted_fault_is_used_up() {
        let mut faults = Faults::default();
        assert_eq!(faults.meet_inference(), None);
        faults.set(
            Fault::InferenceStatus {
                status: 429,
                times: Some(2),
            },
            String::new,
        );
        let statuses: Vec<_> = (0..3)
            .map(|_| match faults.meet_inference() {
                Some(InferenceFault::Status { status, .. }) => status,
                _ => 200,
            })
            .collect();
        assert_eq!(statuses, [429, 429, 200]);
    }
}
