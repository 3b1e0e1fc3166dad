//! What the requests to a pool were like, as this proxy read them: beside what the engines counted of
//! them it says how many bytes a token has.
//!
//! Deliberately not here: what the engines counted (`view/sizes.rs`), and anything of a single request.

use serde::{Deserialize, Serialize};

use crate::limits::{ASCII_BYTES_PER_TOKEN, SIZES_KEPT_REQUESTS};
use crate::request::{Api, Facts};

/// Sums over the latest requests that all workers sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Requests as engines count them: one for each prompt and choice.
    pub requests: f64,
    /// Their text, in tokens of [`ASCII_BYTES_PER_TOKEN`].
    pub text: f64,
    /// What costs the same in any vocabulary, in tokens: token numbers, media, the template of messages.
    pub fixed: f64,
}

impl Asked {
    /// One request. `None` = it is not counted as a prompt, or not all of its prompt is in it.
    #[must_use]
    pub fn of(facts: &Facts) -> Option<Self> {
        let prompt = &facts.prompt;
        let counted = facts.api != Some(Api::Tokenize) && !prompt.hidden && prompt.at_most.is_none();
        let choices = f64::from(facts.choices.max(1));
        counted.then(|| Self {
            requests: f64::from(facts.prompts.max(1)) * choices,
            text: prompt.text_bytes() / ASCII_BYTES_PER_TOKEN * choices,
            fixed: prompt.fixed().0 as f64 * choices,
        })
    }

    /// Adds one; older ones fade.
    pub(super) fn add(&mut self, one: Self) {
        let kept = if self.requests < SIZES_KEPT_REQUESTS { 1.0 } else { 0.5 };
        *self = Self {
            requests: self.requests * kept + one.requests,
            text: self.text * kept + one.text,
            fixed: self.fixed * kept + one.fixed,
        };
    }
}
