use super::*;
use berth_shared_state::pod::PodAddress;
use berth_shared_state::table::NameId;
use berth_shared_state::table::{Models, PodRow, Readiness, Table};
use berth_shared_state::units::UnixMillis;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// Bases, and adapters, each with its base.
type Page<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)]);

/// One pod for each page.
fn table(pages: &[Page<'_>]) -> Snapshot {
    let mut names: Vec<String> = Vec::new();
    let mut id = |name: &str| {
        let place = names.iter().position(|known| known == name).unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        });
        NameId(place as u16)
    };
    let mut pods = Vec::new();
    for (number, (bases, adapters)) in pages.iter().enumerate() {
        let address: PodAddress = format!("10.0.0.{}:80", number + 1).parse().unwrap();
        let models = Models {
            at: UnixMillis(1),
            bases: bases.iter().map(|base| id(base)).collect(),
            adapters: adapters
                .iter()
                .map(|(adapter, base)| (id(adapter), (!base.is_empty()).then(|| id(base))))
                .collect(),
            max_model_len: Some(Tokens(1000 - number as u64)),
        };
        pods.push(PodRow {
            models: Some(models),
            ..PodRow::unread(address, UnixMillis(0))
        });
    }
    Snapshot::new(Table {
        names,
        pods,
        ..Table::default()
    })
}

fn config(pools: &str, more: &str) -> Config {
    let pools: Vec<String> = pools
        .split('|')
        .zip(1..)
        .map(|(keys, number)| {
            format!(r#"{{"name": "p{number}", "discovery": {{"static": ["10.0.{number}.1:80"]}} {keys}}}"#)
        })
        .collect();
    let document = format!(r#"{{"pools": [{}] {more}}}"#, pools.join(","));
    Config::parse(document.as_bytes()).unwrap_or_else(|errors| panic!("{document}: {errors:?}"))
}

fn catalogue(config: &Config, tables: &[Option<&Snapshot>]) -> Catalogue {
    Catalogue::new(config, config.pools.iter().zip(tables.iter().copied()))
}

fn names(catalogue: &Catalogue) -> Vec<&str> {
    catalogue.entries.keys().map(String::as_str).collect()
}

#[test]
fn the_list_is_the_union_over_pools_with_adapters_and_aliases() {
    let config = config(
        r#"|, "models": ["extra"], "adapters": {"known": [{"name": "fr"}]}"#,
        r#", "rewrites": [{"from": "gpt", "to": [{"model": "nowhere"}, {"model": "large"}]},
                          {"from": "lost", "to": [{"model": "nowhere"}]}, {"from": "*", "to": [{"model": "large"}]}],
           "models": {"hidden": ["canary"]}"#,
    );
    let one = table(&[(&["small"], &[]), (&["small", "alias"], &[("sql", "small")])]);
    let two = table(&[(&["large", "canary"], &[])]);
    let list = catalogue(&config, &[Some(&one), Some(&two)]);
    assert_eq!(names(&list), ["alias", "extra", "fr", "gpt", "large", "small", "sql"]);
    let expected = json!({"id": "sql", "object": "model", "created": 0, "owned_by": "berth",
                          "parent": "small", "max_model_len": 999});
    assert_eq!(
        serde_json::from_str::<Value>(&list.one("sql", false).unwrap()).unwrap(),
        expected
    );
    let fr: Value = serde_json::from_str(&list.one("fr", false).unwrap()).unwrap();
    assert_eq!((&fr["parent"], fr.get("max_model_len")), (&json!("extra"), None));
    let small: Value = serde_json::from_str(&list.one("small", false).unwrap()).unwrap();
    assert_eq!((&small["parent"], &small["max_model_len"]), (&Value::Null, &json!(999)));
    assert_eq!(list.one("canary", false), None);
    let all: Value = serde_json::from_str(&list.list(false)).unwrap();
    assert_eq!(
        (&all["object"], all["data"].as_array().unwrap().len()),
        (&json!("list"), 7)
    );
}

#[test]
fn anthropics_clients_get_their_own_shape() {
    let config = config("", "");
    let list = catalogue(&config, &[Some(&table(&[(&["b", "a"], &[])]))]);
    let all: Value = serde_json::from_str(&list.list(true)).unwrap();
    let model =
        |name: &str| json!({"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"});
    let expected = json!({"data": [model("a"), model("b")], "has_more": false, "first_id": "a", "last_id": "b"});
    assert_eq!(all, expected);
    assert_eq!(
        serde_json::from_str::<Value>(&list.one("a", true).unwrap()).unwrap(),
        model("a")
    );
}

#[test]
fn pods_that_get_no_requests_list_nothing() {
    let config = config("", "");
    let mut inner = table(&[(&["a"], &[]), (&["b"], &[]), (&["c"], &[])]).table().clone();
    inner.pods[0].readiness = Readiness::Draining;
    inner.pods[1].readiness = Readiness::NotReady;
    let list = catalogue(&config, &[Some(&Snapshot::new(inner))]);
    assert_eq!(names(&list), ["c"]);
    assert!(catalogue(&config, &[None]).is_empty());
}

#[test]
fn the_list_ends_at_its_bound() {
    let config = config("|", "");
    let many = |first: usize, count: usize| {
        let names: Vec<String> = (first..first + count).map(|n| format!("m{n:05}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        table(&[(&names, &[])])
    };
    let (one, two, more) = (many(0, 4000), many(4000, 96), many(4000, 97));
    let at = catalogue(&config, &[Some(&one), Some(&two)]);
    assert_eq!(at.entries.len(), MODELS_LISTED_MAX);
    let over = catalogue(&config, &[Some(&one), Some(&more)]);
    assert_eq!(over, at);
}

#[test]
fn only_a_near_and_listed_name_is_suggested() {
    let config = config("", r#", "models": {"hidden": ["llama-3-8c"]}"#);
    let list = catalogue(
        &config,
        &[Some(&table(&[(&["llama-3-8b", "llama-3-8c", "qwen"], &[])]))],
    );
    assert_eq!(list.nearest("llama3-8B"), Some("llama-3-8b"));
    assert_eq!(
        list.nearest("llama-3-8c"),
        Some("llama-3-8b"),
        "the hidden one is not told"
    );
    assert_eq!(list.nearest("mistral"), None);
    assert_eq!(list.nearest(&"q".repeat(1000)), None);
}

#[test]
fn the_base_behind_a_name_is_what_pages_or_the_config_say() {
    #[track_caller]
    fn check(keys: &str, pages: &[Page<'_>], name: Option<&str>, expected: Option<&str>) {
        let (config, table) = (config(keys, ""), table(pages));
        let table = (!pages.is_empty()).then_some(&table);
        assert_eq!(base_of(&config.pools[0], table, name), expected, "{keys} {name:?}");
    }
    let pages: &[Page<'_>] = &[(&["small"], &[]), (&["small"], &[("sql", "small"), ("fr", "")])];
    check("", pages, Some("small"), Some("small"));
    check("", pages, Some("sql"), Some("small"));
    check("", pages, Some("fr"), Some("small"));
    check("", pages, None, Some("small"));
    check("", pages, Some("other"), None);
    check("", &[], Some("small"), None);
    check("", &[], None, None);
    let two: &[Page<'_>] = &[(&["small", "alias"], &[("fr", "")])];
    check("", two, None, None);
    check("", two, Some("fr"), None);
    check("", two, Some("alias"), Some("alias"));
    let keys = r#", "models": ["m"], "adapters": {"known": [{"name": "sql", "base": "b"}, {"name": "fr"}]}"#;
    check(keys, &[], Some("sql"), Some("b"));
    check(keys, &[], Some("fr"), Some("m"));
    check(keys, &[], Some("m"), Some("m"));
    check(keys, &[], None, Some("m"));
}
