//! Exposition text -> [`Sample`]. Reading never fails: what cannot be read is unknown.

use crate::sample::{Engine, Sample, Status};
use crate::units::UnixMillis;

/// What helps to read a page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints<'a> {
    /// The configured engine; `None` = detect.
    pub engine: Option<Engine>,
    /// Adapter names from /v1/models: they resolve commas inside names, longest first.
    pub known_adapters: &'a [String],
    /// The time, for LoRA clocks that several processes summed.
    pub now: UnixMillis,
}

/// Reads one page.
#[must_use]
pub fn read(_page: &[u8], _hints: Hints<'_>) -> Sample {
    Sample::empty(Status::Unknown, Some("not written yet"))
}
