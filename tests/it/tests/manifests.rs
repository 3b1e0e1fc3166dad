//! The manifests for hosts in Kubernetes: they fit the published schemas, and Berth reads its config in them.
//! That they work is shown in a real Envoy (tests/e2e).

use std::collections::BTreeSet;
use std::fs;

use berth_shared_state::config::{BodyMode, Config};
use berth_tests_it::manifest::{load, misfits, of_kind, schema_of};
use berth_tests_it::root;
use serde_json::{Value, json};

const FILES: [&str; 8] = [
    "istio/sample.yaml",
    "istio/hand-over/berth.yaml",
    "istio/hold/berth.yaml",
    "istio/mesh/berth.yaml",
    "istio/plugins/berth.yaml",
    "istio/plugins/route.yaml",
    "envoy-gateway/sample.yaml",
    "envoy-gateway/berth.yaml",
];

#[test]
fn every_manifest_fits_the_schema_of_its_kind() {
    let mut kinds = BTreeSet::new();
    for file in FILES {
        for document in load(file).expect("YAML") {
            let kind = document["kind"].as_str().expect("a kind").to_owned();
            assert!(document["metadata"]["name"].is_string(), "{file}: {kind} has no name");
            match schema_of(&document).expect("a schema") {
                Some(schema) => {
                    assert_eq!(misfits(&schema, &document), [""; 0], "{file}: {kind}");
                    kinds.insert(kind);
                }
                None => assert!(
                    ["Deployment", "Service"].contains(&kind.as_str()),
                    "{file}: no schema of {kind}"
                ),
            }
        }
    }
    let expected = [
        "BackendTrafficPolicy",
        "ClientTrafficPolicy",
        "DestinationRule",
        "EnvoyExtensionPolicy",
        "EnvoyFilter",
        "EnvoyPatchPolicy",
        "Gateway",
        "HTTPRoute",
        "ServiceEntry",
        "TrafficExtension",
        "WasmPlugin",
    ];
    assert_eq!(kinds.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}

#[test]
fn a_manifest_that_does_not_fit_is_noticed() {
    #[track_caller]
    fn check(change: impl FnOnce(&mut Value), what: &str) {
        let documents = load("istio/hand-over/berth.yaml").expect("YAML");
        let mut plugin = of_kind(&documents, "WasmPlugin").next().expect("a plugin").clone();
        let schema = schema_of(&plugin).expect("JSON").expect("a schema");
        change(&mut plugin);
        assert_eq!(misfits(&schema, &plugin), [what]);
    }
    check(
        |plugin| plugin["spec"]["failPolicy"] = json!("FAIL_OPEN"),
        ".spec.failPolicy: is not known",
    );
    check(
        |plugin| plugin["spec"]["priority"] = json!("20"),
        r#".spec.priority: "20" is no "integer""#,
    );
    check(
        |plugin| plugin["spec"]["failStrategy"] = json!("RELOAD"),
        r#".spec.failStrategy: "RELOAD" is none of [String("FAIL_CLOSE"), String("FAIL_OPEN"), String("FAIL_RELOAD")]"#,
    );
    check(
        |plugin| drop(plugin["spec"].as_object_mut().and_then(|spec| spec.remove("url"))),
        ".spec: lacks url",
    );
}

/// The Berth config inside a file's resources.
fn embedded(file: &str) -> Value {
    let documents = load(file).expect("YAML");
    for document in &documents {
        let spec = &document["spec"];
        let plugin = &spec["pluginConfig"];
        let policy = &spec["wasm"][0]["config"];
        if let Some(config) = [plugin, policy].into_iter().find(|config| config.is_object()) {
            return config.clone();
        }
        for patch in spec["configPatches"].as_array().into_iter().flatten() {
            let value = &patch["patch"]["value"]["typed_config"]["config"]["configuration"]["value"];
            if let Some(text) = value.as_str() {
                return serde_json::from_str(text).expect("JSON");
            }
        }
    }
    panic!("{file} has no Berth config")
}

#[test]
fn berth_reads_the_config_in_every_manifest() {
    let modes = [
        ("istio/hand-over", BodyMode::HandOver),
        ("istio/hold", BodyMode::Hold),
        ("istio/mesh", BodyMode::HandOver),
        ("istio/plugins", BodyMode::HandOver),
        ("envoy-gateway", BodyMode::Hold),
    ];
    for (folder, mode) in modes {
        let inside = embedded(&format!("{folder}/berth.yaml"));
        let config =
            Config::parse(inside.to_string().as_bytes()).unwrap_or_else(|errors| panic!("{folder}: {errors:?}"));
        assert_eq!(config.body.mode, mode, "{folder}");
        let beside = fs::read(root().join(folder).join("berth.json")).expect("a config");
        let beside = Config::parse(&beside).expect("it is valid");
        assert_eq!(config.pools, beside.pools, "{folder}");
    }
}

#[test]
fn the_sample_has_what_the_resources_name() {
    for (sample, resources) in [
        ("istio/sample.yaml", "istio/hand-over/berth.yaml"),
        ("istio/sample.yaml", "istio/hold/berth.yaml"),
        ("istio/sample.yaml", "istio/mesh/berth.yaml"),
        ("istio/sample.yaml", "istio/plugins/berth.yaml"),
        ("envoy-gateway/sample.yaml", "envoy-gateway/berth.yaml"),
    ] {
        let sample = load(sample).expect("YAML");
        let mut seen = 0;
        for document in load(resources).expect("YAML") {
            let spec = &document["spec"];
            let several = spec["targetRefs"].as_array().into_iter().flatten();
            for target in several.chain(spec.get("targetRef")) {
                seen += 1;
                let kind = target["kind"].as_str().expect("a kind");
                assert!(
                    of_kind(&sample, kind).any(|found| found["metadata"]["name"] == target["name"]
                        && found["metadata"]["namespace"] == document["metadata"]["namespace"]),
                    "{resources}: no {target} in the sample"
                );
            }
        }
        assert!(seen > 0, "{resources} names nothing");
    }
}
