//! A pod's /v1/models -> base models and adapters.
//!
//! The list is what may be asked for, not what is in memory. Entries without a usable name are
//! skipped, other surprises are ignored: a pod must not be lost to a new key. What is deliberately
//! not here: aliases of a base told apart from the base (both have no parent), and paths.

use core::fmt;

use serde_json::Value;

use crate::limits::{ADAPTERS_PER_POD_MAX, NAME_MAX_BYTES, PAGE_MAX_BYTES};
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
    /// More entries than [`crate::limits::ADAPTERS_PER_POD_MAX`], or more bytes than
    /// [`crate::limits::PAGE_MAX_BYTES`].
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

/// Reads the page. Of two entries with one id the first counts.
///
/// # Errors
/// See [`ModelsError`].
pub fn read(page: &[u8]) -> Result<Vec<Model>, ModelsError> {
    if page.len() > PAGE_MAX_BYTES {
        return Err(ModelsError::TooMany);
    }
    let page: Value = serde_json::from_slice(page).map_err(|_| ModelsError::NotAList)?;
    let entries = page
        .get("data")
        .and_then(Value::as_array)
        .ok_or(ModelsError::NotAList)?;
    if entries.len() > ADAPTERS_PER_POD_MAX {
        return Err(ModelsError::TooMany);
    }
    let mut models: Vec<Model> = Vec::with_capacity(entries.len());
    for model in entries.iter().filter_map(model) {
        if models.iter().all(|known| known.id != model.id) {
            models.push(model);
        }
    }
    Ok(models)
}

fn model(entry: &Value) -> Option<Model> {
    let id = name(entry.get("id")?)?;
    let parent = entry.get("parent").and_then(name).filter(|parent| *parent != id);
    // llama.cpp: the context of a slot, else the one the model was trained for.
    let meta = |key| entry.get("meta").and_then(|meta| meta.get(key));
    let max_model_len = [entry.get("max_model_len"), meta("n_ctx"), meta("n_ctx_train")]
        .into_iter()
        .flatten()
        .find_map(tokens);
    Some(Model {
        id,
        parent,
        max_model_len,
    })
}

fn name(value: &Value) -> Option<String> {
    let name = value.as_str()?;
    (!name.is_empty() && name.len() <= NAME_MAX_BYTES).then(|| name.to_owned())
}

/// Zero is no length.
fn tokens(value: &Value) -> Option<Tokens> {
    let whole = value
        .as_u64()
        .or_else(|| value.as_f64().filter(|v| (1.0..9e15).contains(v)).map(|v| v as u64))?;
    (whole > 0).then_some(Tokens(whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const IDLE: &str = include_str!("../../tests/fixtures/captures/vllm-models-idle.txt");
    const ENDPOINTS: &str = include_str!("../../tests/fixtures/captures/vllm-lora-endpoints.txt");
    const LLAMACPP: &str = include_str!("../../tests/fixtures/captures/llamacpp-idle.txt");

    /// The body of the last `GET /v1/models` in a recording.
    fn body(recording: &str) -> &str {
        let (_, from) = recording.rsplit_once("> GET /v1/models").unwrap();
        from.lines().find(|line| line.starts_with('{')).unwrap()
    }

    fn list(page: &str) -> Vec<(String, Option<String>, Option<u64>)> {
        let models = read(page.as_bytes()).unwrap();
        models
            .into_iter()
            .map(|m| (m.id, m.parent, m.max_model_len.map(|t| t.0)))
            .collect()
    }

    #[track_caller]
    fn check(page: &str, wanted: &[(&str, Option<&str>, Option<u64>)]) {
        let wanted: Vec<_> = wanted
            .iter()
            .map(|&(id, parent, len)| (id.to_owned(), parent.map(str::to_owned), len))
            .collect();
        assert_eq!(list(page), wanted);
    }

    #[test]
    fn vllm_lists_its_base_and_then_its_adapters() {
        check(body(IDLE), &[("base", None, Some(4096))]);
        let (before, _) = ENDPOINTS.split_once("### request for the strange name").unwrap();
        let base = Some("base");
        check(
            body(before),
            &[
                ("base", None, Some(4096)),
                ("sql", base, None),
                ("chat", base, None),
                ("fr", base, None),
                ("code", base, None),
                ("a,b \"c\" d", base, None),
            ],
        );
    }

    #[test]
    fn llamacpp_tells_the_context_of_a_slot() {
        check(body(LLAMACPP), &[("base", None, Some(4096))]);
        let trained = r#"{"data":[{"id":"b","meta":{"n_ctx_train":8192}}]}"#;
        check(trained, &[("b", None, Some(8192))]);
        let both = r#"{"data":[{"id":"b","meta":{"n_ctx_train":8192,"n_ctx":2048}}]}"#;
        check(both, &[("b", None, Some(2048))]);
    }

    #[test]
    fn wrong_types_extra_keys_and_duplicates_cost_only_themselves() {
        let page = r#"{"x":[1],"data":[
            {"id":"a","parent":7,"max_model_len":"4096","new":{}},
            {"id":"a","parent":"b"}, {"id":3}, {}, null, "a", {"id":""},
            {"id":"c","parent":"a","max_model_len":null},
            {"id":"d","parent":"d","max_model_len":16.0}, {"id":"e","max_model_len":0},
            {"id":"f","max_model_len":-1}, {"id":"g","meta":null}]}"#;
        check(
            page,
            &[
                ("a", None, None),
                ("c", Some("a"), None),
                ("d", None, Some(16)),
                ("e", None, None),
                ("f", None, None),
                ("g", None, None),
            ],
        );
        check(r#"{"data":[]}"#, &[]);
    }

    #[test]
    fn anything_but_a_list_is_an_error() {
        for page in [
            "",
            "[]",
            "{}",
            "null",
            r#"{"data":{}}"#,
            r#"{"detail":"Not Found"}"#,
            r#"{"data":["#,
            "<html>",
        ] {
            assert_eq!(read(page.as_bytes()), Err(ModelsError::NotAList), "{page}");
        }
        assert_eq!(read("[".repeat(100_000).as_bytes()), Err(ModelsError::NotAList));
    }

    #[test]
    fn entries_names_and_bytes_have_bounds() {
        let with = |n: usize| {
            let entries: Vec<String> = (0..n).map(|i| format!(r#"{{"id":"n{i}"}}"#)).collect();
            read(format!(r#"{{"data":[{}]}}"#, entries.join(",")).as_bytes()).map(|models| models.len())
        };
        assert_eq!(with(ADAPTERS_PER_POD_MAX), Ok(ADAPTERS_PER_POD_MAX));
        assert_eq!(with(ADAPTERS_PER_POD_MAX + 1), Err(ModelsError::TooMany));
        let named = |n: usize| list(&format!(r#"{{"data":[{{"id":"{}"}}]}}"#, "x".repeat(n))).len();
        assert_eq!((named(NAME_MAX_BYTES), named(NAME_MAX_BYTES + 1)), (1, 0));
        let padded = |n: usize| {
            let mut page = br#"{"data":[]}"#.to_vec();
            page.resize(n, b' ');
            read(&page)
        };
        assert_eq!(padded(PAGE_MAX_BYTES), Ok(Vec::new()));
        assert_eq!(padded(PAGE_MAX_BYTES + 1), Err(ModelsError::TooMany));
    }
}
