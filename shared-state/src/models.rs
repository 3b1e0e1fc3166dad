//! A pod's /v1/models -> base models and adapters.

use core::fmt;

use crate::units::Tokens;

/// One entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Name a request may ask for.
    pub id: String,
    /// The base, for an adapter; `None` for a base model (or an alias of one).
    pub parent: Option<String>,
    /// Longest context, prompt and output together.
    pub max_model_len: Option<Tokens>,
}

/// Why a models page cannot be used. The last good one stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelsError {
    /// Not a JSON object with a `data` array.
    NotAList,
    /// More entries than [`crate::limits::ADAPTERS_PER_POD_MAX`].
    TooMany,
}

impl fmt::Display for ModelsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAList => f.write_str("not an OpenAI model list (object with a `data` array)"),
            Self::TooMany => f.write_str("more models than one pod may list"),
        }
    }
}

/// Reads the page.
///
/// # Errors
/// See [`ModelsError`].
pub fn read(_page: &[u8]) -> Result<Vec<Model>, ModelsError> {
    Err(ModelsError::NotAList)
}
