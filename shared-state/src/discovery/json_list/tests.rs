//! Lists as people and scripts write them.

use super::*;
use crate::limits::PODS_MAX;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn found(text: &str, name: Option<&str>, readiness: Readiness) -> Found {
    Found {
        name: name.map(str::to_owned),
        readiness,
        ..Found::at(text.parse().unwrap())
    }
}

#[test]
fn texts_and_objects_may_be_mixed() {
    let page = br#" [ "10.0.0.2:8000", {"address": "[fd00::1]:8000", "name": "c", "ready": true},
        {"address": "10.0.0.1:8000", "ready": false, "zone": "x"}, {"address": "10.0.0.1:8001", "name": null} ] "#;
    let expected = [
        found("10.0.0.1:8000", None, Readiness::NotReady),
        found("10.0.0.1:8001", None, Readiness::Unknown),
        found("10.0.0.2:8000", None, Readiness::Unknown),
        found("[fd00::1]:8000", Some("c"), Readiness::Ready),
    ];
    assert_eq!(read(page).unwrap(), expected);
}

#[test]
fn labels_are_read_where_a_config_could_name_them() {
    let page = br#"[{"address": "10.0.0.1:80", "labels": {"role": "decode", "zone": "a b", "": "x"}},
        {"address": "10.0.0.2:80", "labels": null}, {"address": "10.0.0.3:80", "labels": {}}]"#;
    let read = read(page).unwrap();
    let labels: Vec<&[String]> = read.iter().map(|pod| pod.labels.as_slice()).collect();
    assert_eq!(labels, [&["role=decode".to_owned()][..], &[], &[]]);
    for wrong in [r#"["role"]"#, r#"{"role": 1}"#] {
        let page = format!(r#"[{{"address": "10.0.0.1:80", "labels": {wrong}}}]"#);
        assert_eq!(super::read(page.as_bytes()), Err(DiscoveryError::NotAList), "{wrong}");
    }
}

#[test]
fn an_empty_list_is_an_answer() {
    assert_eq!(read(b"[]"), Ok(vec![]));
}

#[test]
fn a_pod_that_stands_twice_is_one_pod() {
    let page = br#"["10.0.0.1:80", {"address": "10.0.0.1:80", "name": "a", "ready": false}, "10.0.0.1:80"]"#;
    assert_eq!(
        read(page).unwrap(),
        [found("10.0.0.1:80", Some("a"), Readiness::Unknown)]
    );
}

#[test]
fn other_documents_are_no_lists() {
    for other in [
        &b""[..],
        b"{}",
        b"null",
        b"<html>",
        br#"{"pods": ["10.0.0.1:80"]}"#,
        br#"["10.0.0.1:80""#,
        br#"["10.0.0.1:80"] x"#,
        b"[1]",
        b"[[]]",
        br#"[["10.0.0.1:80", "a", true]]"#,
        br#"[{"ip": "10.0.0.1"}]"#,
        br#"[{"address": "10.0.0.1:80", "ready": "yes"}]"#,
    ] {
        let shown = String::from_utf8_lossy(other);
        assert_eq!(read(other), Err(DiscoveryError::NotAList), "{shown}");
    }
}

#[test]
fn what_else_an_entry_has_is_skipped_and_not_kept() {
    let with = |other: &str| format!(r#"[{{"address": "10.0.0.1:80", "other": {other}, "name": "a"}}]"#);
    let expected = [found("10.0.0.1:80", Some("a"), Readiness::Unknown)];
    let long = format!("[{}0]", "0,".repeat(1_000_000));
    assert_eq!(read(with(&long).as_bytes()).unwrap(), expected);
    // serde_json keeps nothing that is nested deeper than 128.
    let deep = "[".repeat(1_000) + &"]".repeat(1_000);
    assert_eq!(read(with(&deep).as_bytes()).unwrap(), expected);
}

#[test]
fn an_entry_that_is_no_address_makes_the_list_unusable_and_is_named() {
    for (page, text) in [
        (r#"["10.0.0.1:80", "pod-b:80"]"#, "pod-b:80"),
        (r#"["10.0.0.1"]"#, "10.0.0.1"),
        (r#"[{"address": "10.0.0.1:0"}]"#, "10.0.0.1:0"),
        (r#"[""]"#, ""),
    ] {
        let expected = DiscoveryError::NotAnAddress(text.to_owned());
        assert_eq!(read(page.as_bytes()), Err(expected));
    }
    let long = format!(r#"["{}"]"#, "x".repeat(1000));
    let expected = DiscoveryError::NotAnAddress("x".repeat(60));
    assert_eq!(read(long.as_bytes()), Err(expected));
}

#[test]
fn a_name_is_kept_up_to_its_bound() {
    let with = |length: usize| format!(r#"[{{"address": "10.0.0.1:80", "name": "{}"}}]"#, "n".repeat(length));
    let name = |length| read(with(length).as_bytes()).unwrap().remove(0).name;
    assert_eq!(name(TEXT_MAX_BYTES), Some("n".repeat(TEXT_MAX_BYTES)));
    assert_eq!((name(TEXT_MAX_BYTES + 1), name(0)), (None, None));
}

#[test]
fn the_bounds_hold() {
    let list = |count: usize| {
        let all: Vec<String> = (0..count)
            .map(|n| format!("\"10.{}.{}.{}:80\"", n >> 16, n >> 8 & 255, n & 255))
            .collect();
        format!("[{}]", all.join(","))
    };
    assert_eq!(read(list(DISCOVERED_MAX).as_bytes()).unwrap().len(), 4 * PODS_MAX);
    assert_eq!(read(list(DISCOVERED_MAX + 1).as_bytes()), Err(DiscoveryError::TooMany));
    let mut page = b"[]".to_vec();
    page.resize(DISCOVERY_PAGE_MAX_BYTES, b' ');
    assert_eq!(read(&page), Ok(vec![]));
    page.push(b' ');
    assert_eq!(read(&page), Err(DiscoveryError::TooLarge(DISCOVERY_PAGE_MAX_BYTES + 1)));
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use super::*;
    use proptest::prelude::*;

    const PAGE: &[u8] = br#"["10.0.0.2:8000", {"address": "[fd00::1]:8000", "name": "c", "ready": true}]"#;

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, at in 0..PAGE.len(), value: u8, cut in 0..PAGE.len()) {
            let _ = read(&bytes);
            let mut page = PAGE.to_vec();
            page[at] = value;
            let _ = read(&page);
            prop_assert!(read(&PAGE[..cut]).is_err(), "a list that lost its end is no list");
        }

        #[test]
        fn what_is_listed_is_found(pods in proptest::collection::btree_set((any::<u32>(), 1u16..), 0..40)) {
            let pods: Vec<PodAddress> = pods.into_iter().map(|(ip, port)| PodAddress::new((ip.to_be_bytes(), port).into())).collect();
            let texts: Vec<String> = pods.iter().rev().map(PodAddress::to_string).collect();
            let found = read(serde_json::to_string(&texts).unwrap().as_bytes()).unwrap();
            prop_assert_eq!(found, pods.into_iter().map(Found::at).collect::<Vec<_>>());
        }
    }
}
