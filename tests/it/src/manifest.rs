//! Kubernetes manifests as data, and whether they fit their published schemas.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::root;

/// All documents of a YAML file below the project's root.
///
/// # Errors
/// When it cannot be read or is no YAML.
pub fn load(file: impl AsRef<Path>) -> Result<Vec<Value>> {
    let file = root().join(file);
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    serde_yaml_ng::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).with_context(|| file.display().to_string()))
        .collect()
}

/// The documents of one kind.
pub fn of_kind<'a>(documents: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    documents.iter().filter(move |document| document["kind"] == kind)
}

/// The schema of a document's kind in `tests/fixtures/crds/`; `None` = none is kept for it.
///
/// # Errors
/// When there is one and it is no JSON.
pub fn schema_of(document: &Value) -> Result<Option<Value>> {
    let (version, kind) = (document["apiVersion"].as_str(), document["kind"].as_str());
    let name = format!(
        "{}_{}.json",
        version.unwrap_or_default().replace('/', "_"),
        kind.unwrap_or_default()
    );
    match fs::read(root().join("tests/fixtures/crds").join(&name)) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text).context(name)?)),
        Err(_) => Ok(None),
    }
}

/// What of a document does not fit its schema, each with its path: unknown fields, missing ones, types, enums, bounds.
/// Rules in CEL are not looked at.
#[must_use]
pub fn misfits(schema: &Value, document: &Value) -> Vec<String> {
    let mut document = document.clone();
    if let Some(fields) = document.as_object_mut() {
        // Every kind has these; not every schema says so.
        fields.retain(|name, _| !["apiVersion", "kind", "metadata"].contains(&name.as_str()));
    }
    let mut found = Vec::new();
    check(schema, &document, "", &mut found);
    found
}

fn check(schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    let mut say = |what: String| found.push(format!("{path}: {what}"));
    if !fits_type(schema, value) {
        return say(format!("{value} is no {}", schema["type"]));
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        say(format!("{value} is none of {allowed:?}"));
    }
    if let Some(number) = value.as_f64() {
        let over = schema["maximum"].as_f64().is_some_and(|most| number > most);
        let under = schema["minimum"].as_f64().is_some_and(|least| number < least);
        if over || under {
            say(format!("{value} is out of bounds"));
        }
    }
    if let Some(text) = value.as_str() {
        let length = text.chars().count() as u64;
        let over = schema["maxLength"].as_u64().is_some_and(|most| length > most);
        let under = schema["minLength"].as_u64().is_some_and(|least| length < least);
        if over || under {
            say(format!("{length} characters"));
        }
    }
    match value {
        Value::Object(fields) => object(schema, fields, path, found),
        Value::Array(items) => {
            let count = items.len() as u64;
            if schema["maxItems"].as_u64().is_some_and(|most| count > most) {
                say(format!("{count} items"));
            }
            for (index, item) in items.iter().enumerate() {
                check(&schema["items"], item, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

fn object(schema: &Value, fields: &serde_json::Map<String, Value>, path: &str, found: &mut Vec<String>) {
    for name in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        if !fields.contains_key(name) {
            found.push(format!("{path}: lacks {name}"));
        }
    }
    let open = schema["x-kubernetes-preserve-unknown-fields"] == true || schema["properties"].is_null();
    for (name, field) in fields {
        let known = &schema["properties"][name];
        let place = format!("{path}.{name}");
        if !known.is_null() {
            check(known, field, &place, found);
        } else if schema["additionalProperties"].is_object() {
            check(&schema["additionalProperties"], field, &place, found);
        } else if !open {
            found.push(format!("{place}: is not known"));
        }
    }
}

fn fits_type(schema: &Value, value: &Value) -> bool {
    if schema["x-kubernetes-int-or-string"] == true {
        return value.is_string() || value.is_i64();
    }
    match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    }
}
