//! The reference page and the JSON Schema file, printed from the description of the options.
//!
//! A test compares both with the files in the repository; `BERTH_BLESS=1` writes them anew.

use core::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::options::{CALL_HEADER, DOCUMENT};
use super::schema::{Field, Kind, Preset, Section};
use crate::limits::CALL_HEADERS_MAX;

/// The smallest useful document.
pub(super) const SMALLEST: &str =
    r#"{"pools": [{"name": "llama", "discovery": {"static": ["10.0.0.1:8000", "10.0.0.2:8000"]}}]}"#;

/// A document with something in most sections.
pub(super) const FULLER: &str = r#"{
  "pools": [
    {
      "name": "llama",
      "models": ["llama-3.1-8b"],
      "engine": "vllm",
      "discovery": {"envoy_admin": {"cluster": "llama_pods"}},
      "scrape": {
        "interval": "500ms",
        "headers": {"authorization": {"env": "VLLM_API_KEY_HEADER"}}
      },
      "adapters": {"resolver": true},
      "routing": {"stale_after": "4s"}
    },
    {
      "name": "qwen",
      "discovery": {"static": ["10.0.1.1:8000", "[fd00::1]:8000"]}
    }
  ],
  "trust": {"headers": ["x-gateway-inference-objective"]},
  "body": {"hold": "16MiB"},
  "status": {"decision_header": true}
}"#;

const HEAD: &str = "# Configuration

<!-- Generated from shared-state/src/config/options.rs; a test fails when it differs.
     Anew: BERTH_BLESS=1 cargo test -p berth-shared-state config -->

Berth is configured by one JSON document, the same for the filter, the service and the `berth` command. On Envoy it is
the `configuration` of the wasm plugin (a `StringValue` with this text, or a `Struct`); in Istio it is `pluginConfig`.
Everything except `pools` has a default that is right for vLLM. The smallest document:

```json
SMALLEST
```

Check a document before it is rolled out; every error is printed at once, with its path, the value and the rule:

    berth validate FILE

An editor completes and checks the document with [`config.schema.json`](../config.schema.json). The schema knows every
key and the bounds of numbers and lists; bounds of durations and sizes written as text, and rules between two options, are
known to `berth validate` alone.

- A **duration** is a text: a whole number and its unit, `\"200ms\"`, `\"1s\"` or `\"1m\"`.
- A **size** is a number of bytes, or a text in `KiB` or `MiB` (1024 and 1024 x 1024 bytes): `\"768KiB\"`, `\"16MiB\"`.
- A key that Berth does not know is an error, and so is a key that stands twice. `null` is no value: leave the key out.

A fuller document:

```json
FULLER
```
";

/// The reference page, in Markdown.
#[must_use]
pub fn reference_markdown() -> String {
    let mut page = HEAD.replace("SMALLEST", SMALLEST).replace("FULLER", FULLER);
    section_page(&DOCUMENT, &mut page);
    page
}

fn section_page(section: &Section, page: &mut String) {
    let title = match section.path {
        "" => "The document".to_owned(),
        path => format!("`{path}`"),
    };
    // Writing to a String cannot fail.
    let _ = write!(
        page,
        "\n## {title}\n\n{}\n\n| key | value | default | meaning |\n|---|---|---|---|\n",
        section.doc
    );
    for field in section.fields {
        let cells = [
            format!("`{}`", field.key),
            field.kind.describe(),
            default_cell(field),
            field.doc.to_owned(),
        ];
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
    for inner in section.fields.iter().filter_map(|field| field.kind.section()) {
        section_page(inner, page);
    }
}

fn default_cell(field: &Field) -> String {
    match (field.preset, field.literal()) {
        (Preset::Required, _) => "required".to_owned(),
        (Preset::Unset(meaning), _) => meaning.to_owned(),
        (_, Some(literal)) => format!("`{literal}`"),
        (_, None) => String::new(),
    }
}

/// The JSON Schema file (draft 2020-12), ending in a line break.
#[must_use]
pub fn json_schema() -> String {
    let mut schema = section_schema(&DOCUMENT, false);
    schema.insert(
        "$schema".to_owned(),
        "https://json-schema.org/draft/2020-12/schema".into(),
    );
    schema.insert("title".to_owned(), "Berth configuration".into());
    format!("{:#}\n", Value::Object(schema))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn section_schema(section: &Section, one_of: bool) -> Map<String, Value> {
    let properties: Map<String, Value> = section
        .fields
        .iter()
        .map(|field| (field.key.to_owned(), Value::Object(field_schema(field))))
        .collect();
    let required = section
        .fields
        .iter()
        .filter(|field| matches!(field.preset, Preset::Required));
    let required: Vec<&str> = required.map(|field| field.key).collect();
    let mut schema = object(json!({
        "type": "object",
        "description": section.doc,
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    }));
    if one_of {
        schema.insert("minProperties".to_owned(), 1.into());
        schema.insert("maxProperties".to_owned(), 1.into());
    }
    schema
}

fn field_schema(field: &Field) -> Map<String, Value> {
    let mut schema = kind_schema(field.kind);
    let bounds = match field.kind {
        Kind::Duration { .. } | Kind::Size { .. } => format!(" Must be {}.", field.kind.describe()),
        _ => String::new(),
    };
    let unset = match field.preset {
        Preset::Unset(meaning) => format!(" Absent: {meaning}."),
        _ => String::new(),
    };
    schema.insert("description".to_owned(), format!("{}{bounds}{unset}", field.doc).into());
    if let Some(literal) = field.literal() {
        schema.insert("default".to_owned(), literal);
    }
    schema
}

fn kind_schema(kind: Kind) -> Map<String, Value> {
    let schema = match kind {
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Duration { .. } => json!({"type": "string", "pattern": "^[0-9]+(ms|s|m)$"}),
        Kind::Size { min, max } => json!({"anyOf": [
            {"type": "integer", "minimum": min, "maximum": max},
            {"type": "string", "pattern": "^[0-9]+(KiB|MiB)$"},
        ]}),
        Kind::Count { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        Kind::Choice(names) => json!({"enum": names}),
        Kind::Text(rule) => json!({"type": "string", "pattern": rule.pattern}),
        Kind::Address => json!({
            "type": "string",
            "pattern": r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$",
        }),
        Kind::List(list) => json!({
            "type": "array",
            "items": kind_schema(list.of),
            "minItems": list.min,
            "maxItems": list.max,
            "uniqueItems": true,
        }),
        Kind::Section(section) => Value::Object(section_schema(section, false)),
        Kind::OneOf(section) => Value::Object(section_schema(section, true)),
        Kind::Headers(section) => json!({
            "type": "object",
            "propertyNames": {"pattern": CALL_HEADER.pattern},
            "additionalProperties": section_schema(section, false),
            "maxProperties": CALL_HEADERS_MAX,
        }),
        Kind::Integer { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
    };
    object(schema)
}
