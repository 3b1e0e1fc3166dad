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
    /// What costs the same in any vocabulary, in tokens: token numbers, the template of messages.
    pub fixed: f64,
}

impl Asked {
    /// One request. `None` = engines count it otherwise than it was read: no prompt of generation, not all of it
    /// here, or images and the like, whose cost is a guess.
    #[must_use]
    pub fn of(facts: &Facts) -> Option<Self> {
        let prompt = &facts.prompt;
        let counted = facts.has_whole_prompt() && prompt.media_parts == 0 && facts.api != Some(Api::Tokenize);
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

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[track_caller]
    fn check(change: impl Fn(&mut Facts), counted: bool) {
        let mut facts = Facts {
            api: Some(Api::Chat),
            complete: true,
            ..Facts::default()
        };
        facts.prompt.ascii_bytes = 400;
        facts.prompt.messages = 1;
        change(&mut facts);
        assert_eq!(Asked::of(&facts).is_some(), counted, "{facts:?}");
    }

    #[test]
    fn only_what_engines_count_as_it_was_read_is_asked() {
        check(|_| {}, true);
        check(|facts| facts.complete = false, false);
        check(|facts| facts.malformed = true, false);
        check(|facts| facts.prompt.media_parts = 1, false);
        check(|facts| facts.prompt.hidden = true, false);
        check(|facts| facts.api = Some(Api::Tokenize), false);
    }

    #[test]
    fn each_choice_of_each_prompt_is_a_request() {
        let mut facts = Facts {
            api: Some(Api::Completions),
            complete: true,
            prompts: 2,
            choices: 3,
            ..Facts::default()
        };
        facts.prompt.ascii_bytes = 400;
        facts.prompt.tokens = 7;
        let asked = Asked::of(&facts).unwrap();
        let expected = Asked {
            requests: 6.0,
            text: 300.0,
            fixed: 21.0,
        };
        assert_eq!(asked, expected);
    }
}
