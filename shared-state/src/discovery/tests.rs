//! Sets of pods, and Envoy's admin page. The pages follow what Envoy 1.40 prints.

use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn address(text: &str) -> PodAddress {
    text.parse().unwrap()
}

fn found(text: &str, readiness: Readiness, proxy_active: Option<u32>) -> Found {
    Found {
        readiness,
        proxy_active,
        given: true,
        ..Found::at(address(text))
    }
}

/// One cluster of the page.
fn cluster(name: &str, hosts: &[String]) -> String {
    format!(
        r#"{{"name":"{name}","added_via_api":true,"host_statuses":[{}],
            "circuit_breakers":{{"thresholds":[{{"max_connections":1024}},{{"priority":"HIGH"}}]}},
            "observability_name":"{name}","eds_service_name":"e"}}"#,
        hosts.join(",")
    )
}

/// One host, as Envoy prints it; `health` is the inside of `health_status`.
fn host(ip: &str, port: u16, health: &str, active: &str) -> String {
    format!(
        r#"{{"address":{{"socket_address":{{"address":"{ip}","port_value":{port}}}}},
            "stats":[{{"name":"cx_connect_fail"}},{{"value":"7","name":"cx_total"}},
                     {{"type":"GAUGE","name":"cx_active"}},{{"type":"GAUGE",{active}"name":"rq_active"}}],
            "health_status":{{{health}}},"weight":1,"locality":{{}}}}"#
    )
}

fn page(clusters: &[String]) -> Vec<u8> {
    format!(r#"{{"cluster_statuses":[{}]}}"#, clusters.join(",")).into_bytes()
}

#[test]
fn the_path_escapes_the_name_for_the_expression_and_for_the_query() {
    assert_eq!(envoy_admin::path("llama"), "/clusters?format=json&filter=%5Ellama%24");
    assert_eq!(
        envoy_admin::path("outbound|8000||a.b"),
        "/clusters?format=json&filter=%5Eoutbound%5C%7C8000%5C%7C%5C%7Ca%5C.b%24"
    );
}

#[test]
fn a_host_has_the_zone_of_its_locality() {
    let zoned = |zone: &str| {
        let host = host("10.0.0.1", 8000, "", r#""value":"1","#);
        host.replace(
            r#""locality":{}"#,
            &format!(r#""locality":{{"region":"r","zone":"{zone}"}}"#),
        )
    };
    let labels = |zone: &str| {
        let page = page(&[cluster("llama", &[zoned(zone)])]);
        envoy_admin::read(&page, "llama").unwrap()[0].labels.clone()
    };
    assert_eq!(labels("eu-1a"), ["zone=eu-1a"]);
    assert!(labels("").is_empty() && labels("a b").is_empty());
}

#[test]
fn an_old_envoy_lists_all_clusters_and_the_right_one_is_found() {
    let hosts = [host(
        "10.0.0.1",
        8000,
        r#""eds_health_status":"HEALTHY""#,
        r#""value":"3","#,
    )];
    let page = page(&[
        cluster("llama-canary", &[host("10.9.0.1", 8000, "", "")]),
        cluster("llama", &hosts),
        cluster("other", &[]),
    ]);
    let expected = [found("10.0.0.1:8000", Readiness::Ready, Some(3))];
    assert_eq!(envoy_admin::read(&page, "llama").unwrap(), expected);
}

#[track_caller]
fn check_health(health: &str, expected: Readiness) {
    let page = page(&[cluster("c", &[host("10.0.0.1", 80, health, "")])]);
    assert_eq!(
        envoy_admin::read(&page, "c").unwrap(),
        [found("10.0.0.1:80", expected, Some(0))]
    );
}

#[test]
fn health_becomes_readiness() {
    check_health("", Readiness::Unknown);
    check_health(r#""eds_health_status":"HEALTHY""#, Readiness::Ready);
    check_health(r#""eds_health_status":"DEGRADED""#, Readiness::Ready);
    check_health(r#""eds_health_status":"UNHEALTHY""#, Readiness::NotReady);
    check_health(r#""eds_health_status":"TIMEOUT""#, Readiness::NotReady);
    check_health(r#""eds_health_status":"DRAINING""#, Readiness::Draining);
    check_health(
        r#""eds_health_status":"DRAINING","failed_outlier_check":true"#,
        Readiness::Draining,
    );
    for flag in [
        "failed_active_health_check",
        "failed_outlier_check",
        "active_hc_timeout",
        "excluded_via_immediate_hc_fail",
    ] {
        check_health(
            &format!(r#""eds_health_status":"HEALTHY","{flag}":true"#),
            Readiness::NotReady,
        );
        check_health(&format!(r#""{flag}":true"#), Readiness::NotReady);
    }
    check_health(
        r#""eds_health_status":"HEALTHY","pending_dynamic_removal":true"#,
        Readiness::Draining,
    );
    check_health(
        r#""eds_health_status":"HEALTHY","failed_active_degraded_check":true"#,
        Readiness::Ready,
    );
    check_health(r#""eds_health_status":"SOMETHING_NEW""#, Readiness::Unknown);
}

#[test]
fn one_address_in_several_statuses_and_priorities_is_one_pod() {
    let healthy = r#""eds_health_status":"HEALTHY""#;
    let page = page(&[
        cluster(
            "c",
            &[
                host("10.0.0.2", 80, healthy, ""),
                host("10.0.0.1", 80, healthy, r#""value":"2","#),
            ],
        ),
        cluster(
            "c",
            &[
                host(
                    "10.0.0.1",
                    80,
                    r#""failed_active_health_check":true"#,
                    r#""value":"5","#,
                ),
                host("fd00::1", 80, "", ""),
            ],
        ),
    ]);
    let expected = [
        found("10.0.0.1:80", Readiness::Ready, Some(7)),
        found("10.0.0.2:80", Readiness::Ready, Some(0)),
        found("[fd00::1]:80", Readiness::Unknown, Some(0)),
    ];
    assert_eq!(envoy_admin::read(&page, "c").unwrap(), expected);
}

#[test]
fn a_host_without_a_socket_address_is_no_pod() {
    let page = page(&[cluster(
        "c",
        &[
            r#"{"address":{"pipe":{"path":"/run/x"}}}"#.to_owned(),
            r#"{"address":{"envoy_internal_address":{"server_listener_name":"x"}}}"#.to_owned(),
            r#"{"address":{"socket_address":{"address":"llama.svc","port_value":80}}}"#.to_owned(),
            r#"{"address":{"socket_address":{"address":"10.0.0.1"}}}"#.to_owned(),
            "{}".to_owned(),
        ],
    )]);
    assert_eq!(envoy_admin::read(&page, "c"), Ok(vec![]));
}

#[test]
fn a_name_is_kept_where_it_tells_pods_apart() {
    let named = |ip: &str, name: &str| {
        let address = format!(r#""socket_address":{{"address":"{ip}","port_value":80}}"#);
        format!(r#"{{"address":{{{address}}},"hostname":"{name}"}}"#)
    };
    let hosts = [
        named("10.0.0.1", "svc"),
        named("10.0.0.2", "svc"),
        named("10.0.0.3", "p3"),
        named("10.0.0.4", &"n".repeat(257)),
    ];
    let pods = envoy_admin::read(&page(&[cluster("c", &hosts)]), "c").unwrap();
    let names: Vec<_> = pods.iter().map(|pod| pod.name.as_deref()).collect();
    assert_eq!(names, [None, None, Some("p3"), None]);
}

#[test]
fn a_host_that_came_of_a_name_was_not_given() {
    #[track_caller]
    fn check(ip: &str, hostname: &str, expected: bool) {
        let host = format!(
            r#"{{"address":{{"socket_address":{{"address":"{ip}","port_value":80}}}},"hostname":"{hostname}"}}"#
        );
        let pods = envoy_admin::read(&page(&[cluster("c", &[host])]), "c").unwrap();
        assert_eq!(pods[0].given, expected, "{ip} {hostname}");
    }
    check("127.0.0.1", "llama.prod.svc", false);
    check("127.0.0.1", "localhost", false);
    check("127.0.0.1", "127.0.0.1", true);
    check("fd00::1", "fd00::1", true);
    check("127.0.0.1", "", true);
}

#[test]
fn what_was_given_may_be_at_the_own_machine() {
    #[track_caller]
    fn check(given: bool, ip: &str, allow: &[&str], left: usize) {
        let there = Found::at(address("10.0.0.1:80"));
        let asked = Found {
            given,
            ..Found::at(address(ip))
        };
        let allow: Vec<Range> = allow.iter().map(|range| range.parse().unwrap()).collect();
        let mut pods = vec![there, asked];
        let refused = admit(&mut pods, &allow).unwrap();
        assert_eq!(
            (pods.len(), refused.is_some()),
            (left, left == 1),
            "{given} {ip} {allow:?}"
        );
    }
    check(true, "127.0.0.1:80", &[], 2);
    check(false, "127.0.0.1:80", &[], 1);
    check(true, "127.0.0.1:80", &["10.0.0.0/8"], 1);
    check(false, "127.0.0.1:80", &["10.0.0.0/8", "127.0.0.0/8"], 2);
    check(true, "224.0.0.1:80", &[], 1);
    check(true, "240.240.0.1:80", &[], 1);
}

#[test]
fn an_empty_cluster_is_an_answer_and_a_missing_one_is_not() {
    assert_eq!(envoy_admin::read(&page(&[cluster("c", &[])]), "c"), Ok(vec![]));
    assert_eq!(
        envoy_admin::read(br#"{"cluster_statuses":[{"name":"c"}]}"#, "c"),
        Ok(vec![])
    );
    let missing = Err(DiscoveryError::NoSuchCluster("c".into()));
    assert_eq!(envoy_admin::read(&page(&[]), "c"), missing);
    assert_eq!(envoy_admin::read(b"{}", "c"), missing);
}

#[test]
fn other_pages_are_refused() {
    for other in [
        &b""[..],
        b"[]",
        b"c::10.0.0.1:80::cx_active::0",
        b"<html>",
        br#"{"cluster_statuses":7}"#,
    ] {
        assert_eq!(envoy_admin::read(other, "c"), Err(DiscoveryError::NotClusters));
    }
}

#[test]
fn the_size_bound_holds() {
    let mut page = page(&[cluster("c", &[])]);
    page.resize(DISCOVERY_PAGE_MAX_BYTES, b' ');
    assert_eq!(envoy_admin::read(&page, "c"), Ok(vec![]));
    page.push(b' ');
    let bytes = DISCOVERY_PAGE_MAX_BYTES + 1;
    assert_eq!(envoy_admin::read(&page, "c"), Err(DiscoveryError::TooLarge(bytes)));
}

#[test]
fn a_static_list_is_ordered_and_has_no_readiness() {
    let pods = fixed(&[address("10.0.0.2:80"), address("10.0.0.1:80"), address("10.0.0.2:80")]);
    assert_eq!(
        pods,
        [Found::at(address("10.0.0.1:80")), Found::at(address("10.0.0.2:80"))]
    );
}

#[test]
fn a_set_is_cut_at_the_bound() {
    let set = |n: u32| {
        (0..n)
            .map(|i| Found::at(PodAddress::new((i.to_be_bytes(), 80).into())))
            .collect::<Vec<_>>()
    };
    let mut pods = set(PODS_MAX as u32);
    assert_eq!((cut(&mut pods), pods.len()), (0, PODS_MAX));
    let mut pods = set(PODS_MAX as u32 + 1);
    assert_eq!((cut(&mut pods), pods.len()), (1, PODS_MAX));
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(at in any::<prop::sample::Index>(), value: u8, cut in any::<prop::sample::Index>()) {
            let mut page = page(&[cluster("c", &[host("10.0.0.1", 80, "", r#""value":"1","#)])]);
            let position = at.index(page.len());
            page[position] = value;
            let length = cut.index(page.len()) + 1;
            let _ = envoy_admin::read(&page, "c");
            let _ = envoy_admin::read(&page[..length], "c");
        }

        #[test]
        fn the_path_is_visible_ascii_without_reserved_bytes(name in "\\PC{0,40}") {
            let path = envoy_admin::path(&name);
            let value = path.strip_prefix("/clusters?format=json&filter=").unwrap();
            prop_assert!(value.bytes().all(|b| b.is_ascii_alphanumeric() || b"%-_.~".contains(&b)));
        }
    }
}
