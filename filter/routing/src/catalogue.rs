//! The models of all pools, as clients are told of them: the answer to GET /v1/models, and the name nearest to an
//! unknown one.
//!
//! From tables and config, so no pod is asked. Deliberately not here: whether a name is served (`naming` decides that
//! more carefully: absence from this list proves nothing), and when the list is made anew ([`crate::view`]).

use std::collections::BTreeMap;

use berth_shared_state::config::{Config, Pool, nearest};
use berth_shared_state::limits::{MODELS_LISTED_MAX, NEAR_NAMES_MAX};
use berth_shared_state::snapshot::Snapshot;
use berth_shared_state::units::Tokens;
use serde_json::{Map, Value, json};

use crate::decision::is_ready;

#[cfg(test)]
mod tests;

/// What is known of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// The base behind an adapter.
    parent: Option<String>,
    /// Longest context over its pods, the smallest.
    max_model_len: Option<Tokens>,
}

/// The models that may be asked for, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    entries: BTreeMap<String, Entry>,
}

impl Catalogue {
    /// The union over the pools, each with its table, if there is one.
    pub fn new<'a>(config: &Config, tables: impl Iterator<Item = (&'a Pool, Option<&'a Snapshot>)>) -> Self {
        let mut all = Self::default();
        for (pool, table) in tables {
            if let Some(table) = table {
                all.listed(table);
            }
            for name in &pool.models {
                all.add(name, Entry::default());
            }
            for (name, base) in &pool.adapters.known {
                let parent = base.clone().or_else(|| only_base(pool, table).map(str::to_owned));
                all.add(
                    name,
                    Entry {
                        parent,
                        ..Entry::default()
                    },
                );
            }
        }
        let aliases = config.rewrites.iter().filter_map(|rewrite| {
            let behind = rewrite.to.iter().find_map(|target| all.entries.get(&target.model))?;
            let alias = Entry {
                parent: None,
                ..behind.clone()
            };
            Some((rewrite.from.as_deref()?, alias))
        });
        for (name, alias) in aliases.collect::<Vec<_>>() {
            all.add(name, alias);
        }
        for hidden in &config.models.hidden {
            all.entries.remove(hidden);
        }
        while all.entries.len() > MODELS_LISTED_MAX {
            all.entries.pop_last();
        }
        all
    }

    /// What the pods that may get requests list.
    fn listed(&mut self, table: &Snapshot) {
        let pages = table.pods().iter().filter(|row| is_ready(row));
        for page in pages.filter_map(|row| row.models.as_ref()) {
            let bases = page.bases.iter().map(|base| (*base, None));
            for (name, parent) in bases.chain(page.adapters.iter().copied()) {
                let entry = Entry {
                    parent: parent.map(|base| table.name(base).to_owned()),
                    max_model_len: page.max_model_len,
                };
                self.add(table.name(name), entry);
            }
        }
    }

    /// A name is listed once: with the first parent that is told, and the shortest context.
    fn add(&mut self, name: &str, entry: Entry) {
        match self.entries.get_mut(name) {
            None => drop(self.entries.insert(name.to_owned(), entry)),
            Some(known) => {
                known.parent = known.parent.take().or(entry.parent);
                let lengths = [known.max_model_len, entry.max_model_len];
                known.max_model_len = lengths.into_iter().flatten().min();
            }
        }
    }

    /// No model is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The listed name nearest to an unknown one, a few letters away.
    #[must_use]
    pub fn nearest(&self, name: &str) -> Option<&str> {
        let near = |known: &&str| known.len().abs_diff(name.len()) <= 3;
        let names = self.entries.keys().map(String::as_str);
        nearest(name, names.filter(near).take(NEAR_NAMES_MAX))
    }

    /// The list in the shape that the client's library reads.
    #[must_use]
    pub fn list(&self, anthropic: bool) -> String {
        let entries = self.entries.iter();
        let data: Vec<Value> = entries.map(|(name, entry)| model(name, entry, anthropic)).collect();
        if anthropic {
            let id = |entry: Option<&Value>| entry.and_then(|entry| entry.get("id")).cloned();
            let (first, last) = (id(data.first()), id(data.last()));
            json!({"data": data, "has_more": false, "first_id": first, "last_id": last}).to_string()
        } else {
            json!({"object": "list", "data": data}).to_string()
        }
    }

    /// One model; `None` = it is not listed.
    #[must_use]
    pub fn one(&self, name: &str, anthropic: bool) -> Option<String> {
        let entry = self.entries.get(name)?;
        Some(model(name, entry, anthropic).to_string())
    }
}

/// Nobody says when a model was made: zero, and for Anthropic's clients the epoch, which their reference names for it.
fn model(name: &str, entry: &Entry, anthropic: bool) -> Value {
    if anthropic {
        return json!({"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"});
    }
    let mut model = Map::new();
    model.insert("id".to_owned(), name.into());
    model.insert("object".to_owned(), "model".into());
    model.insert("created".to_owned(), 0.into());
    model.insert("owned_by".to_owned(), "berth".into());
    model.insert("parent".to_owned(), entry.parent.clone().into());
    if let Some(length) = entry.max_model_len {
        model.insert("max_model_len".to_owned(), length.0.into());
    }
    Value::Object(model)
}

/// The base model behind a name of a pool, or of the pool, where no name was asked for. `None` = nobody says.
#[must_use]
pub fn base_of<'a>(pool: &'a Pool, table: Option<&'a Snapshot>, name: Option<&'a str>) -> Option<&'a str> {
    let Some(name) = name else {
        return only_base(pool, table);
    };
    if let Some((_, base)) = pool.adapters.known.iter().find(|(known, _)| known == name) {
        return base.as_deref().or_else(|| only_base(pool, table));
    }
    if pool.models.iter().any(|model| model == name) {
        return Some(name);
    }
    let table = table?;
    let id = table.id(name)?;
    let pages = table.pods().iter().filter_map(|row| row.models.as_ref());
    for page in pages {
        if page.bases.contains(&id) {
            return Some(name);
        }
        if let Some((_, base)) = page.adapters.iter().find(|(adapter, _)| *adapter == id) {
            return match base {
                Some(base) => Some(table.name(*base)),
                None => only_base(pool, Some(table)),
            };
        }
    }
    None
}

/// The pool's base, if one alone is known.
fn only_base<'a>(pool: &'a Pool, table: Option<&'a Snapshot>) -> Option<&'a str> {
    match pool.models.as_slice() {
        [] => {}
        [one] => return Some(one),
        _ => return None,
    }
    let table = table?;
    let pages = table.pods().iter().filter_map(|row| row.models.as_ref());
    let mut bases = pages.flat_map(|page| &page.bases);
    let first = bases.next()?;
    bases.all(|base| base == first).then(|| table.name(*first))
}
