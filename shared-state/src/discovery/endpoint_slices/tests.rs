//! Lists as the API writes them.

use serde_json::{Value, json};

use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn service(ports: &[PortOf]) -> Service {
    Service {
        namespace: "prod".into(),
        name: "llama".into(),
        ports: ports.to_vec(),
        prefer: Family::Ipv4,
    }
}

fn name(port: &str) -> PortOf {
    PortOf::Name(port.into())
}

fn endpoint(ip: &str, pod: &str, conditions: Value) -> Value {
    json!({
        "addresses": [ip], "conditions": conditions, "nodeName": "node-1", "zone": "a",
        "targetRef": {"kind": "Pod", "namespace": "prod", "name": pod, "uid": format!("uid-{pod}")},
    })
}

fn ready(ip: &str, pod: &str) -> Value {
    endpoint(ip, pod, json!({"ready": true, "serving": true, "terminating": false}))
}

fn slice(ports: Value, endpoints: &[Value]) -> Value {
    json!({
        "metadata": {"name": "llama-abcde", "namespace": "prod", "resourceVersion": "7",
                     "labels": {"kubernetes.io/service-name": "llama", "endpointslice.kubernetes.io/managed-by": "x"}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
    })
}

fn http() -> Value {
    json!([{"name": "http", "port": 8000, "protocol": "TCP"}])
}

/// A page of a list: its version, where the next one begins, its slices.
fn page(version: &str, next: &str, slices: &[Value]) -> Vec<u8> {
    let mut page = json!({
        "kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"resourceVersion": version}, "items": slices,
    });
    if !next.is_empty() {
        page["metadata"]["continue"] = json!(next);
        page["metadata"]["remainingItemCount"] = json!(3);
    }
    page.to_string().into_bytes()
}

fn read(slices: &[Value], of: &Service) -> Result<Vec<Found>, DiscoveryError> {
    let mut listing = Listing::default();
    listing.add(&page("1", "", slices), of).map(Option::unwrap)
}

fn shown_as(pods: &[Found]) -> Vec<String> {
    let one = |pod: &Found| {
        let readiness = match pod.readiness {
            Readiness::Ready => "",
            Readiness::Draining => " draining",
            Readiness::NotReady => " not ready",
            Readiness::Unknown => " unknown",
        };
        format!("{}{readiness}", pod.address)
    };
    pods.iter().map(one).collect()
}

#[track_caller]
fn check(slices: &[Value], of: &Service, expected: &[&str]) {
    assert_eq!(shown_as(&read(slices, of).unwrap()), expected);
}

#[test]
fn the_path_asks_for_the_slices_of_one_service() {
    let mut listing = Listing::default();
    let first = "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dllama&limit=20";
    assert_eq!(listing.path(&service(&[])), first);
    let more = page("1", "ab+/= &limit=9", &[]);
    assert_eq!(listing.add(&more, &service(&[])), Ok(None));
    assert_eq!(
        listing.path(&service(&[])),
        format!("{first}&continue=ab%2B%2F%3D%20%26limit%3D9")
    );
}

#[test]
fn conditions_become_readiness() {
    #[track_caller]
    fn of(conditions: Value, expected: Readiness) {
        let slice = slice(http(), &[endpoint("10.0.0.1", "a", conditions.clone())]);
        let pods = read(&[slice], &service(&[])).unwrap();
        assert_eq!((pods.len(), pods[0].readiness), (1, expected), "{conditions}");
        assert_eq!(pods[0].name.as_deref(), Some("a"));
    }
    of(
        json!({"ready": true, "serving": true, "terminating": false}),
        Readiness::Ready,
    );
    of(
        json!({"ready": false, "serving": false, "terminating": false}),
        Readiness::NotReady,
    );
    of(
        json!({"ready": false, "serving": true, "terminating": true}),
        Readiness::Draining,
    );
    of(
        json!({"ready": false, "serving": false, "terminating": true}),
        Readiness::NotReady,
    );
    // The API: absent means ready, and serving is as ready.
    of(json!({}), Readiness::Ready);
    of(Value::Null, Readiness::Ready);
    of(
        json!({"ready": null, "serving": null, "terminating": null}),
        Readiness::Ready,
    );
    of(json!({"ready": false}), Readiness::NotReady);
    of(json!({"terminating": true}), Readiness::Draining);
    // publishNotReadyAddresses makes ready true whatever serving says.
    of(json!({"ready": true, "serving": false}), Readiness::Ready);
}

#[test]
fn all_slices_of_the_service_count_and_no_others() {
    let mut other = slice(http(), &[ready("10.9.0.1", "x")]);
    other["metadata"]["labels"]["kubernetes.io/service-name"] = json!("llama-canary");
    let mut unlabelled = slice(http(), &[ready("10.9.0.2", "y")]);
    unlabelled["metadata"]["labels"] = Value::Null;
    let slices = [
        slice(http(), &[ready("10.0.0.2", "b")]),
        other,
        slice(http(), &[ready("10.0.0.1", "a"), ready("10.0.0.3", "c")]),
        unlabelled,
        slice(http(), &[]),
        slice(Value::Null, &[]),
    ];
    check(
        &slices,
        &service(&[]),
        &["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"],
    );
}

#[test]
fn an_endpoint_that_moves_between_slices_is_one_pod_in_its_best_state() {
    let not = endpoint("10.0.0.1", "a", json!({"ready": false}));
    let slices = [slice(http(), &[not]), slice(http(), &[ready("10.0.0.1", "a")])];
    check(&slices, &service(&[]), &["10.0.0.1:8000"]);
}

#[test]
fn ports_go_by_name_or_number() {
    let ports = json!([
        {"name": "http", "port": 8000, "protocol": "TCP"}, {"name": "rank-1", "port": 8001},
        {"name": "metrics", "port": 9000, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"},
    ]);
    let slices = [slice(ports, &[ready("10.0.0.1", "a")])];
    check(&slices, &service(&[name("http")]), &["10.0.0.1:8000"]);
    check(
        &slices,
        &service(&[name("http"), name("rank-1")]),
        &["10.0.0.1:8000", "10.0.0.1:8001"],
    );
    check(
        &slices,
        &service(&[PortOf::Number(8000), PortOf::Number(8007)]),
        &["10.0.0.1:8000", "10.0.0.1:8007"],
    );
    check(
        &slices,
        &service(&[PortOf::Number(8000), name("http")]),
        &["10.0.0.1:8000"],
    );
    // What is no TCP port is none.
    let there = "http 8000, metrics 9000, rank-1 8001";
    for ports in [vec![], vec![name("grpc")], vec![name("dns")]] {
        let expected = Err(DiscoveryError::NoPort(there.to_owned()));
        assert_eq!(read(&slices, &service(&ports)), expected, "{ports:?}");
    }
}

#[test]
fn a_name_may_be_another_port_in_another_slice() {
    let other = json!([{"name": "http", "port": 9000}]);
    let slices = [
        slice(http(), &[ready("10.0.0.1", "a")]),
        slice(other, &[ready("10.0.0.2", "b")]),
    ];
    check(&slices, &service(&[name("http")]), &["10.0.0.1:8000", "10.0.0.2:9000"]);
    check(&slices, &service(&[]), &["10.0.0.1:8000", "10.0.0.2:9000"]);
}

#[test]
fn a_service_without_ports_needs_a_number() {
    for ports in [Value::Null, json!([]), json!([{"name": null, "port": null}])] {
        let slices = [slice(ports, &[ready("10.0.0.1", "a")])];
        check(&slices, &service(&[PortOf::Number(8000)]), &["10.0.0.1:8000"]);
        assert_eq!(read(&slices, &service(&[])), Err(DiscoveryError::NoPort(String::new())));
    }
    let unnamed = json!([{"name": "", "port": 8000}, {"port": 8001}]);
    let slices = [slice(unnamed, &[ready("10.0.0.1", "a")])];
    let there = "(unnamed) 8000, (unnamed) 8001".to_owned();
    assert_eq!(read(&slices, &service(&[])), Err(DiscoveryError::NoPort(there)));
}

#[test]
fn a_pod_with_two_addresses_is_one_pod() {
    let slices = [
        slice(http(), &[ready("fd00::1", "a"), ready("fd00::2", "b")]),
        slice(http(), &[ready("10.0.0.1", "a")]),
    ];
    check(&slices, &service(&[]), &["10.0.0.1:8000", "[fd00::2]:8000"]);
    let prefer = Family::Ipv6;
    check(
        &slices,
        &Service { prefer, ..service(&[]) },
        &["[fd00::1]:8000", "[fd00::2]:8000"],
    );
    // Without a reference nothing tells that two addresses are one pod.
    let bare = |ip: &str| json!({"addresses": [ip]});
    let slices = [slice(http(), &[bare("fd00::1"), bare("10.0.0.1")])];
    check(&slices, &service(&[]), &["10.0.0.1:8000", "[fd00::1]:8000"]);
}

#[test]
fn a_uid_tells_pods_up_to_its_bound_and_then_the_name_does() {
    #[track_caller]
    fn check(length: usize, names: [&str; 2], expected: &[&str]) {
        let one =
            |ip: &str, name: &str| json!({"addresses": [ip], "targetRef": {"name": name, "uid": "u".repeat(length)}});
        let slices = [slice(http(), &[one("fd00::1", names[0]), one("10.0.0.1", names[1])])];
        assert_eq!(
            shown_as(&read(&slices, &service(&[])).unwrap()),
            expected,
            "{length} {names:?}"
        );
    }
    check(TEXT_MAX_BYTES, ["a", "b"], &["10.0.0.1:8000"]);
    check(TEXT_MAX_BYTES + 1, ["a", "b"], &["10.0.0.1:8000", "[fd00::1]:8000"]);
    check(TEXT_MAX_BYTES + 1, ["a", "a"], &["10.0.0.1:8000"]);
}

#[test]
fn ports_of_which_none_fits_are_kept_for_the_message_up_to_their_bound() {
    let of = service(&[]);
    let mut listing = Listing::default();
    let mut add = |next: &str, ports: Vec<Value>| {
        let added = listing.add(&page("1", next, &[slice(json!(ports), &[ready("10.0.0.1", "a")])]), &of);
        (listing.unfit.len(), listing.unfit.first().cloned(), added)
    };
    let numbered = |from: u16, count: u16| (from..from + count).map(|n| json!({"name": format!("p{n}"), "port": n}));
    let (kept, _, added) = add("t", numbered(2_000, 100).collect());
    assert_eq!((kept, added), (PORTS_PER_SLICE_MAX, Ok(None)));
    // More of them: those that the message begins with stay.
    let long = json!({"name": "a".repeat(1_000), "port": 9});
    let (kept, first, added) = add("t", numbered(3_000, 99).chain([long]).collect());
    assert_eq!((kept, added), (PORTS_PER_SLICE_MAX, Ok(None)));
    assert_eq!(first, Some(("a".repeat(60), 9)));
    let (_, _, added) = add("", numbered(1_000, 2).collect());
    assert_eq!(added, Err(DiscoveryError::NoPort("a".repeat(60))));
}

#[test]
fn endpoints_without_an_address_are_no_pods() {
    let slices = [slice(
        http(),
        &[
            json!({"addresses": ["llama.example"]}),
            json!({"addresses": []}),
            json!({"addresses": null}),
            json!({}),
            json!({"addresses": ["10.0.0.1", "10.0.0.2"], "hostname": "rank-0"}),
        ],
    )];
    let pods = read(&slices, &service(&[])).unwrap();
    assert_eq!(shown_as(&pods), ["10.0.0.1:8000"]);
    assert_eq!(pods[0].name.as_deref(), Some("rank-0"));
}

#[test]
fn no_endpoints_are_an_answer_and_no_slices_are_not() {
    let empty = slice(Value::Null, &[]);
    check(std::slice::from_ref(&empty), &service(&[]), &[]);
    let missing = Err(DiscoveryError::NoSuchService("prod/llama".into()));
    assert_eq!(read(&[], &service(&[])), missing);
}

#[test]
fn pages_of_one_version_are_one_list() {
    let of = service(&[]);
    let mut listing = Listing::default();
    assert_eq!(
        listing.add(&page("9", "t1", &[slice(http(), &[ready("10.0.0.2", "b")])]), &of),
        Ok(None)
    );
    assert_eq!(listing.add(&page("9", "t2", &[]), &of), Ok(None));
    let all = listing.add(&page("9", "", &[slice(http(), &[ready("10.0.0.1", "a")])]), &of);
    assert_eq!(shown_as(&all.unwrap().unwrap()), ["10.0.0.1:8000", "10.0.0.2:8000"]);
    // The next list begins at its first page.
    assert!(!listing.path(&of).contains("continue"));
}

#[test]
fn pages_of_two_versions_are_no_list() {
    let of = service(&[]);
    let mut listing = Listing::default();
    assert_eq!(
        listing.add(&page("9", "t1", &[slice(http(), &[ready("10.0.0.2", "b")])]), &of),
        Ok(None)
    );
    assert_eq!(listing.add(&page("10", "t2", &[]), &of), Err(DiscoveryError::Changed));
    assert!(!listing.path(&of).contains("continue"));
    // What the first page had is forgotten.
    let all = listing.add(&page("10", "", &[slice(http(), &[ready("10.0.0.1", "a")])]), &of);
    assert_eq!(shown_as(&all.unwrap().unwrap()), ["10.0.0.1:8000"]);
}

#[test]
fn other_documents_are_no_slices() {
    let status = br#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"forbidden","code":403}"#;
    let service_list = br#"{"kind":"ServiceList","metadata":{},"items":[]}"#;
    let whole = page("1", "", &[slice(http(), &[ready("10.0.0.1", "a")])]);
    for other in [
        &b""[..],
        b"[]",
        b"{}",
        b"<html>",
        status,
        service_list,
        &whole[..whole.len() - 1],
    ] {
        let shown = String::from_utf8_lossy(other);
        let read = Listing::default().add(other, &service(&[]));
        assert_eq!(read, Err(DiscoveryError::NotSlices), "{shown}");
    }
}

#[test]
fn the_bounds_hold() {
    let of = service(&[]);
    let some = |count: usize| {
        let all: Vec<Value> = (0..count)
            .map(|n| json!({"addresses": [format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255)]}))
            .collect();
        all
    };
    assert_eq!(
        read(&[slice(http(), &some(ENDPOINTS_PER_SLICE_MAX))], &of)
            .unwrap()
            .len(),
        1000
    );
    let over = read(&[slice(http(), &some(ENDPOINTS_PER_SLICE_MAX + 1))], &of);
    assert_eq!(over, Err(DiscoveryError::TooMany));

    let all = some(DISCOVERED_MAX + 1);
    let slices = |count: usize| -> Vec<Value> { all[..count].chunks(1000).map(|part| slice(http(), part)).collect() };
    assert_eq!(read(&slices(DISCOVERED_MAX), &of).unwrap().len(), DISCOVERED_MAX);
    assert_eq!(read(&slices(DISCOVERED_MAX + 1), &of), Err(DiscoveryError::TooMany));

    let empty = slice(http(), &[]);
    assert_eq!(read(&vec![empty.clone(); SLICES_PER_ANSWER_MAX], &of), Ok(vec![]));
    assert_eq!(
        read(&vec![empty; SLICES_PER_ANSWER_MAX + 1], &of),
        Err(DiscoveryError::TooMany)
    );

    let token = |length: usize| Listing::default().add(&page("1", &"t".repeat(length), &[]), &of);
    assert_eq!(token(CONTINUE_MAX_BYTES), Ok(None));
    assert_eq!(token(CONTINUE_MAX_BYTES + 1), Err(DiscoveryError::TooMany));

    let mut listing = Listing::default();
    for _ in 1..LIST_PAGES_MAX {
        assert_eq!(listing.add(&page("1", "t", &[]), &of), Ok(None));
    }
    assert_eq!(
        listing.clone().add(&page("1", "t", &[]), &of),
        Err(DiscoveryError::TooMany)
    );
    let last = listing.add(&page("1", "", &[slice(http(), &[])]), &of);
    assert_eq!(last, Ok(Some(vec![])));

    let mut large = page("1", "", &[slice(http(), &[])]);
    large.resize(DISCOVERY_PAGE_MAX_BYTES, b' ');
    assert_eq!(Listing::default().add(&large, &of), Ok(Some(vec![])));
    large.push(b' ');
    let expected = Err(DiscoveryError::TooLarge(DISCOVERY_PAGE_MAX_BYTES + 1));
    assert_eq!(Listing::default().add(&large, &of), expected);
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(
            bytes: Vec<u8>, at in any::<prop::sample::Index>(), value: u8, cut in any::<prop::sample::Index>(),
        ) {
            let mut page = page("1", "", &[slice(http(), &[ready("10.0.0.1", "a")])]);
            prop_assert!(Listing::default().add(&page[..cut.index(page.len())], &service(&[])).is_err());
            let at = at.index(page.len());
            page[at] = value;
            let _ = Listing::default().add(&page, &service(&[]));
            let _ = Listing::default().add(&bytes, &service(&[name("http")]));
        }

        /// However the endpoints are dealt out to slices and pages, also twice: the pods are the same.
        #[test]
        fn slices_and_pages_make_no_difference(
            pods in proptest::collection::btree_set(any::<u32>(), 1..60),
            deal in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..4, 0usize..3), 0..60),
        ) {
            let of = service(&[]);
            let pods: Vec<String> = pods.into_iter().map(|bits| core::net::Ipv4Addr::from(bits).to_string()).collect();
            let mut pages = vec![vec![Vec::new(); 4]; 3];
            for (n, ip) in pods.iter().enumerate() {
                pages[n % 3][n % 4].push(ready(ip, ip));
            }
            for (which, slice, page) in deal {
                let ip = &pods[which.index(pods.len())];
                pages[page][slice].push(ready(ip, ip));
            }
            let mut listing = Listing::default();
            let mut found = None;
            for (n, slices) in pages.iter().enumerate() {
                let slices: Vec<Value> = slices.iter().map(|endpoints| slice(http(), endpoints)).collect();
                found = listing.add(&page("5", ["t", "t", ""][n], &slices), &of).unwrap();
            }
            let found: BTreeSet<String> = found.unwrap().iter().map(|pod| pod.address.to_string()).collect();
            prop_assert_eq!(found, pods.iter().map(|ip| format!("{ip}:8000")).collect::<BTreeSet<_>>());
        }
    }
}

#[test]
fn an_endpoint_has_its_zone_and_its_node_as_labels() {
    let of = service(&[]);
    let mut bare = ready("10.0.0.2", "b");
    bare["zone"] = json!(null);
    bare.as_object_mut().unwrap().remove("nodeName");
    let found = read(&[slice(http(), &[ready("10.0.0.1", "a"), bare])], &of).unwrap();
    assert_eq!(found[0].labels, ["zone=a", "node=node-1"]);
    assert!(found[1].labels.is_empty());
}
