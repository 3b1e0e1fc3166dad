//! Documents do not drift: every path that ARCHITECTURE.md and README.md name exists, and every test
//! that ARCHITECTURE.md names as the keeper of an invariant exists.

use std::fs;

use berth_tests_it::root;

fn text(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Words in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_path_that_the_documents_name_exists() {
    const FOLDERS: [&str; 10] = [
        "shared-state/",
        "filter/",
        "tests/",
        "scripts/",
        "envoy-config/",
        "istio/",
        "envoy-gateway/",
        "kong-apisix/",
        "docs/",
        ".ci/",
    ];
    let mut seen = 0;
    for document in ["README.md", "ARCHITECTURE.md"] {
        let text = text(document);
        for word in quoted(&text).flat_map(str::split_whitespace) {
            let path = word.trim_end_matches(['.', ',', ':', ';']);
            if FOLDERS.iter().any(|folder| path.starts_with(folder)) && !path.contains(['*', '{', '<']) {
                seen += 1;
                assert!(
                    root().join(path).exists(),
                    "{document} names {path}, which does not exist"
                );
            }
        }
    }
    assert!(seen > 10, "the documents name {seen} paths: is the search broken?");
}

/// Whole documents that stand in the README, indented.
#[test]
fn the_configs_of_the_readme_are_valid() {
    let text = text("README.md");
    let blocks = text
        .split("\n\n")
        .filter(|block| block.lines().all(|line| line.starts_with("    ")));
    let configs: Vec<_> = blocks
        .filter(|block| block.trim_start().starts_with('{') && block.contains("\"pools\""))
        .collect();
    assert!(configs.len() >= 2, "{configs:?}");
    for config in configs {
        let parsed = berth_shared_state::config::Config::parse(config.as_bytes());
        assert!(parsed.is_ok(), "{config}: {parsed:?}");
    }
}

#[test]
fn every_link_of_the_host_pages_leads_somewhere() {
    let pages = [
        "istio/README.md",
        "istio/hand-over/README.md",
        "istio/hold/README.md",
        "istio/mesh/README.md",
        "istio/plugins/README.md",
        "envoy-gateway/README.md",
        "envoy-config/README.md",
        "kong-apisix/README.md",
        "kong-apisix/nginx-wasmx/README.md",
        "kong-apisix/kong/README.md",
        "kong-apisix/apisix/README.md",
    ];
    for page in pages {
        let text = text(page);
        let folder = root().join(page);
        let folder = folder.parent().expect("a folder");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            let there = link.starts_with("http") || file.is_empty() || folder.join(file).exists();
            assert!(there, "{page} leads to {link}");
        }
    }
}

#[test]
fn every_test_that_keeps_an_invariant_exists() {
    let architecture = text("ARCHITECTURE.md");
    let mut sources = String::new();
    collect(&root(), &mut sources);
    let mut seen = 0;
    // A bullet may go on in the next line, and its first name stand there.
    for part in architecture.split("\n\n").flat_map(|block| block.split("\n- ")) {
        let part = part.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some((_, keepers)) = part.split_once("kept by") else {
            continue;
        };
        for name in quoted(keepers) {
            seen += 1;
            assert!(
                sources.contains(&format!("fn {name}(")),
                "no test is called {name}: {part}"
            );
        }
    }
    assert!(seen >= 60, "only {seen} tests are named as keepers");
}

fn collect(folder: &std::path::Path, sources: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && !matches!(&*name, "target" | "dist") {
            collect(&path, sources);
        } else if name.ends_with(".rs") {
            sources.push_str(&fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

#[test]
fn no_document_has_a_place_left_to_fill() {
    for document in [
        "README.md",
        "ARCHITECTURE.md",
        "DESIGN.md",
        "CHANGELOG.md",
        "docs/real-engines.md",
    ] {
        let text = text(document);
        let left = text
            .split('@')
            .skip(1)
            .find(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase() || c == '_'));
        assert_eq!(left, None, "{document}");
    }
}
