//! Rules for dependencies, checked over `cargo metadata`: where they come from, under which licence,
//! that nothing is there twice inside the wasm, and which way the project's own crates point.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

fn metadata(more: &[&str]) -> Value {
    let output = Command::new(env!("CARGO"))
        // Not offline: it wants the packages of all platforms, and a build fetches those of one.
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(more)
        .current_dir(berth_tests_it::root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn packages(metadata: &Value) -> &Vec<Value> {
    metadata["packages"].as_array().expect("packages")
}

/// Names of everything that `root` is built from for wasm32-wasip1, dev-dependencies left out.
pub fn tree(root: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--offline",
            "--target",
            "wasm32-wasip1",
            "-e",
            "normal",
            "--prefix",
            "none",
        ])
        .args(["--format", "{p}", "-p", root])
        .current_dir(berth_tests_it::root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: BTreeSet<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "))
        .collect();
    lines.into_iter().collect()
}

#[test]
fn every_dependency_comes_from_the_registry_under_a_permissive_licence() {
    const ALLOWED: [&str; 11] = [
        "MIT",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "ISC",
        "Unicode-3.0",
        "Unlicense",
        "Zlib",
        "0BSD",
    ];
    let metadata = metadata(&[]);
    for package in packages(&metadata) {
        let name = package["name"].as_str().unwrap();
        if let Some(source) = package["source"].as_str() {
            assert!(source.starts_with("registry+"), "{name} comes from {source}");
        }
        let licence = package["license"].as_str().unwrap_or("").replace('/', " OR ");
        let fits = licence.split(" OR ").any(|choice| {
            choice
                .split(" AND ")
                .all(|one| ALLOWED.contains(&one.trim_matches(['(', ')', ' '])))
        });
        assert!(fits, "{name} is under {licence:?}");
    }
}

#[test]
fn no_crate_is_in_the_wasm_twice() {
    for artifact in ["berth-filter", "berth-shared-state-service"] {
        let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in tree(artifact) {
            let (name, version) = line.split_once(' ').unwrap_or((&line, ""));
            versions.entry(name.to_owned()).or_default().push(version.to_owned());
        }
        for (name, versions) in versions {
            assert_eq!(versions.len(), 1, "{artifact} links {name} as {versions:?}");
        }
    }
}

#[test]
fn the_halves_point_one_way() {
    let ours = |root: &str| -> BTreeSet<String> {
        tree(root)
            .iter()
            .filter(|line| line.starts_with("berth-"))
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .filter(|name| name != root)
            .collect()
    };
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(ours("berth-shared-state"), set(&[]));
    assert_eq!(ours("berth-filter-routing"), set(&["berth-shared-state"]));
    assert_eq!(
        ours("berth-shared-state-service"),
        set(&["berth-shared-state", "berth-shared-state-glue"])
    );
    assert_eq!(ours("berth-tests-host"), set(&[]), "the host knows nothing of Berth");
    assert_eq!(
        ours("berth-tests-simulator"),
        set(&[]),
        "the simulator knows nothing of Berth"
    );
}
