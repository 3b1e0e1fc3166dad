//! Pods from the Kubernetes API and from a list, over time: pages, bad answers, refused addresses.

use serde_json::{Value, json};

use super::*;
use crate::config::{Asks, Family, Labelled, Service};
use crate::limits::DISCOVERY_PAGE_MAX_BYTES;
use crate::table::{NameId, Readiness};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn asks() -> Asks {
    Asks {
        cluster: "api".into(),
        authority: "kubernetes.default.svc".into(),
        headers: vec![("authorization".into(), "TOKEN".into())],
        interval: Millis(1_000),
    }
}

fn kubernetes_pool() -> Pool {
    pool_of(Discovery::Kubernetes {
        asks: asks(),
        service: Service {
            namespace: "prod".into(),
            name: "llama".into(),
            ports: Vec::new(),
            prefer: Family::Ipv4,
        },
    })
}

fn json_pool() -> Pool {
    pool_of(Discovery::Json {
        asks: asks(),
        path: "/pods".into(),
    })
}

/// A page of the API's list.
fn slices(version: &str, next: Option<&str>, ips: &[&str]) -> String {
    let endpoints: Vec<Value> = ips
        .iter()
        .map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}}))
        .collect();
    let slice = json!({"metadata": {"labels": {"kubernetes.io/service-name": "llama"}},
                       "endpoints": endpoints, "ports": [{"name": "http", "port": 8000}]});
    json!({"kind": "EndpointSliceList", "metadata": {"resourceVersion": version, "continue": next}, "items": [slice]})
        .to_string()
}

/// Answers each discovery call by its path.
fn run(rig: &mut Rig, millis: u64, mut api: impl FnMut(&str) -> (u16, String)) {
    let end = rig.now + millis;
    while rig.now < end {
        rig.send(Event::Tick);
        for call in core::mem::take(&mut rig.open) {
            if call.target != Target::Discovery {
                let reply = idle(call.target);
                rig.reply(call, reply);
                continue;
            }
            let (status, body) = api(&call.path);
            let outcome = Ok(Response {
                status,
                body: body.as_bytes(),
                ..Response::default()
            });
            rig.send(Event::Answer { call: call.id, outcome });
        }
        rig.now += 100;
    }
}

fn pods(rig: &Rig) -> Vec<String> {
    rig.table().pods.iter().map(|row| row.address.to_string()).collect()
}

#[test]
fn the_api_is_asked_with_the_headers_of_the_config() {
    let mut rig = Rig::new(&kubernetes_pool());
    rig.send(Event::Tick);
    let call = &rig.open[0];
    assert_eq!(
        (call.cluster.as_str(), call.authority.as_str()),
        ("api", "kubernetes.default.svc")
    );
    assert!(
        call.path
            .starts_with("/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices?")
    );
    let token = ("authorization".to_owned(), HeaderValue::Variable("TOKEN".to_owned()));
    assert!(call.headers.contains(&token), "{:?}", call.headers);
    assert!(call.headers.contains(&text("accept-encoding", "identity")));
}

#[test]
fn a_list_in_pages_is_published_when_it_is_whole() {
    let mut rig = Rig::new(&kubernetes_pool());
    let mut paths = Vec::new();
    run(&mut rig, 1_000, |path| {
        paths.push(path.split_once("&continue=").map(|(_, token)| token.to_owned()));
        match paths.last().unwrap().as_deref() {
            None => (200, slices("5", Some("one"), &["10.0.0.3"])),
            Some("one") => (200, slices("5", Some("two"), &["10.0.0.1"])),
            Some(_) => (200, slices("5", None, &["10.0.0.2"])),
        }
    });
    assert_eq!(paths, [None, Some("one".to_owned()), Some("two".to_owned())]);
    assert_eq!(pods(&rig), ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]);
    assert_eq!(
        (rig.lines("3 pods: 3 new, 0 gone"), rig.count(Stat::DiscoveryReads)),
        (1, 3)
    );
    assert_eq!(rig.row("10.0.0.1:8000").readiness, Readiness::Ready);
}

#[test]
fn a_list_that_changes_or_expires_between_its_pages_is_read_anew() {
    for second in [(200, slices("6", None, &["10.0.0.9"])), (410, String::new())] {
        let mut rig = Rig::new(&kubernetes_pool());
        run(&mut rig, 1_000, |_| (200, slices("4", None, &["10.0.0.7"])));
        let mut calls = 0;
        run(&mut rig, 3_000, |path| {
            calls += 1;
            match calls {
                1 => (200, slices("5", Some("one"), &["10.0.0.1"])),
                2 => second.clone(),
                _ => {
                    assert!(!path.contains("continue"), "{path}");
                    (200, slices("7", None, &["10.0.0.1", "10.0.0.2"]))
                }
            }
        });
        assert!(calls > 2);
        assert_eq!(pods(&rig), ["10.0.0.1:8000", "10.0.0.2:8000"]);
        assert_eq!(
            (
                rig.lines("read anew; the 1 pods known so far stay"),
                rig.lines("works again")
            ),
            (1, 1)
        );
        let half = address("10.0.0.9:8000");
        let mut rows = rig.published.iter().flat_map(|(_, table)| &table.pods);
        assert!(rows.all(|row| row.address != half), "half a list was believed");
    }
}

#[track_caller]
fn check_bad(pool: &Pool, good: &str, answer: (u16, &str), line: &str) {
    let mut rig = Rig::new(pool);
    run(&mut rig, 1_500, |_| (200, good.to_owned()));
    let (known, at) = (pods(&rig), rig.table().discovery.at);
    assert!(!known.is_empty());
    run(&mut rig, 20_000, |_| (answer.0, answer.1.to_owned()));
    assert_eq!((pods(&rig), rig.table().discovery.at), (known, at), "{line}");
    let error = rig.table().discovery.error.clone().unwrap_or_default();
    assert!(error.contains(line), "{error:?} does not say {line:?}");
    assert_eq!(rig.lines(line), 1, "{line}");
    assert!(rig.count(Stat::DiscoveryFailures) > 1);
}

#[test]
fn bad_answers_keep_the_last_good_pods() {
    let (kubernetes, json) = (kubernetes_pool(), json_pool());
    let listed = slices("1", None, &["10.0.0.1"]);
    let large = " ".repeat(DISCOVERY_PAGE_MAX_BYTES + 1);
    for (answer, line) in [
        ((500, ""), "status 500"),
        ((403, "{}"), "lacks `list` on endpointslices"),
        ((503, "no healthy upstream"), "nobody answers"),
        ((504, ""), "no answer in time"),
        ((302, ""), "redirects are not followed"),
        ((200, listed.trim_end_matches('}')), "not a list of EndpointSlices"),
        ((200, "[]"), "not a list of EndpointSlices"),
        (
            (200, r#"{"kind":"EndpointSliceList","items":[]}"#),
            "no EndpointSlice belongs to the service \"prod/llama\"",
        ),
        (
            (200, &slices("1", None, &["127.0.0.1"])),
            "1 addresses are refused, 127.0.0.1:8000 for example",
        ),
        ((200, &large), "more than 16777216 bytes"),
    ] {
        check_bad(&kubernetes, &listed, answer, line);
    }
    let listed = r#"["10.0.0.1:8000"]"#;
    for (answer, line) in [
        ((404, ""), "status 404"),
        ((401, ""), "the endpoint refuses the call"),
        ((200, listed.trim_end_matches(']')), "not a JSON list of pods"),
        ((200, r#"{"pods": []}"#), "not a JSON list of pods"),
        (
            (200, r#"["10.0.0.1:8000", "pod-b:8000"]"#),
            "\"pod-b:8000\" is not ip:port",
        ),
        ((200, r#"["169.254.169.254:80"]"#), "loopback and link-local"),
        ((200, &large), "more than 16777216 bytes"),
    ] {
        check_bad(&json, listed, answer, line);
    }
}

#[test]
fn an_empty_list_is_believed() {
    let mut rig = Rig::new(&json_pool());
    run(&mut rig, 1_500, |_| (200, r#"["10.0.0.1:8000"]"#.to_owned()));
    run(&mut rig, 1_500, |_| (200, "[]".to_owned()));
    assert_eq!((pods(&rig), rig.lines("the pool has no pods")), (Vec::new(), 1));
    assert_eq!(rig.table().discovery.error, None);
}

#[test]
fn refused_addresses_are_left_out_counted_and_told_once() {
    let mut rig = Rig::new(&json_pool());
    let list = |pods: &str| (200, pods.to_owned());
    run(&mut rig, 5_000, |_| {
        list(r#"["10.0.0.1:80", "127.0.0.1:80", "224.0.0.1:80"]"#)
    });
    assert_eq!(
        (pods(&rig), rig.count(Stat::AddressesRefused)),
        (vec!["10.0.0.1:80".to_owned()], 2)
    );
    assert_eq!(
        rig.lines("2 addresses are refused, 127.0.0.1:80 for example: loopback"),
        1
    );
    run(&mut rig, 2_000, |_| list(r#"["10.0.0.1:80"]"#));
    assert_eq!((rig.count(Stat::AddressesRefused), rig.lines("refused")), (0, 1));
    run(&mut rig, 2_000, |_| list(r#"["10.0.0.1:80", "[::1]:80"]"#));
    assert_eq!((rig.count(Stat::AddressesRefused), rig.lines("refused")), (1, 2));

    let mut pool = json_pool();
    pool.allow = vec!["127.0.0.0/8".parse().unwrap()];
    let mut rig = Rig::new(&pool);
    run(&mut rig, 2_000, |_| list(r#"["10.0.0.1:80", "127.0.0.1:80"]"#));
    assert_eq!(pods(&rig), ["127.0.0.1:80"]);
    assert_eq!(rig.lines("10.0.0.1:80 for example: it is in no range of `allow`"), 1);
}

#[test]
fn what_envoy_resolves_is_refused_alike() {
    const LOCAL: &[u8] = br#"{"cluster_statuses":[{"name":"llama","host_statuses":[
        {"address":{"socket_address":{"address":"127.0.0.1","port_value":8000}},"hostname":"llama.test"},
        {"address":{"socket_address":{"address":"10.0.0.1","port_value":8000}}}]}]}"#;
    let answer = |target| match target {
        Target::Discovery => Reply::Says(200, LOCAL),
        target => idle(target),
    };
    let mut rig = Rig::new(&admin_pool());
    rig.run(1_000, answer);
    assert_eq!(
        (pods(&rig), rig.lines("1 addresses are refused")),
        (vec![POD.to_owned()], 1)
    );
    let mut pool = admin_pool();
    pool.discovery = Discovery::Static(vec![address("127.0.0.1:8000")]);
    let mut rig = Rig::new(&pool);
    rig.run(1_000, answer);
    assert_eq!(pods(&rig), ["127.0.0.1:8000"], "what is configured is meant");
}

#[test]
fn a_service_with_one_address_is_pointed_out() {
    #[track_caller]
    fn check(hosts: &[(&str, &str)], expected: usize) {
        let host = |(ip, name): &(&str, &str)| json!({"hostname": name, "address": {"socket_address": {"address": ip, "port_value": 8000}}});
        let hosts: Vec<Value> = hosts.iter().map(host).collect();
        let page = json!({"cluster_statuses": [{"name": "llama", "host_statuses": hosts}]}).to_string();
        let mut rig = Rig::new(&admin_pool());
        run(&mut rig, 3_000, |_| (200, page.clone()));
        assert_eq!(
            rig.lines("which hides them: make the Service headless"),
            expected,
            "{page}"
        );
    }
    let name = "llama.prod.svc.cluster.local";
    check(&[("10.96.0.7", name)], 1);
    check(&[("10.96.0.7", "llama.prod.svc")], 1);
    check(&[("10.0.0.1", name), ("10.0.0.2", name)], 0);
    check(&[("10.0.0.1", "pod-a")], 0);
    check(&[("10.0.0.1", "")], 0);
}

#[test]
fn several_pods_behind_an_address_are_explained_by_how_it_was_found() {
    use super::super::find::several;
    assert!(several(&admin_pool().discovery, 1).contains("the only host of cluster \"llama\""));
    assert!(several(&admin_pool().discovery, 2).contains("headless Service"));
    assert!(several(&json_pool().discovery, 1).contains("the pods' own addresses"));
    assert!(several(&kubernetes_pool().discovery, 1).contains("EndpointSlices"));
}

#[test]
fn another_poller_keeps_the_pods_of_a_list() {
    let mut first = Rig::new(&json_pool());
    run(&mut first, 2_000, |_| (200, r#"["10.0.0.1:8000"]"#.to_owned()));
    let table = first.table().clone();
    let mut second = Rig::new(&json_pool());
    second.now = first.now;
    second.send(Event::Adopt(&table));
    second.tick(silent);
    assert_eq!(second.table().pods, table.pods);
}

#[test]
fn a_pod_keeps_the_labels_that_the_config_asks_for() {
    let mut pool = json_pool();
    pool.routing.require = vec!["role=decode".into()];
    pool.routing.retry_apart = Some("zone".into());
    pool.labels = vec![Labelled {
        label: "zone=a".into(),
        pods: vec!["10.0.0.2:8000".parse().unwrap()],
        ranges: vec!["10.1.0.0/16".parse().unwrap()],
    }];
    #[track_caller]
    fn check(table: &Table, expected: &[&[&str]]) {
        let names = |row: &PodRow| -> Vec<String> {
            let name = |id: &NameId| table.names[usize::from(id.0)].clone();
            row.labels.iter().map(name).collect()
        };
        assert_eq!(table.pods.iter().map(names).collect::<Vec<_>>(), expected);
    }
    let list = r#"[{"address": "10.0.0.1:8000", "labels": {"role": "decode", "zone": "b", "team": "x"}},
        "10.0.0.2:8000", "10.1.0.3:8000"]"#;
    let mut rig = Rig::new(&pool);
    run(&mut rig, 2_000, |_| (200, list.to_owned()));
    let expected: [&[&str]; 3] = [&["role=decode", "zone=b"], &["zone=a"], &["zone=a"]];
    check(rig.table(), &expected);
    // The next poller has them from the table, before it asked anybody.
    let mut second = Rig::new(&pool);
    second.now = rig.now;
    second.send(Event::Adopt(rig.table()));
    second.tick(silent);
    check(second.table(), &expected);
    let other = list.replace("decode", "prefill");
    run(&mut rig, 2_000, |_| (200, other.clone()));
    check(rig.table(), &[&["role=prefill", "zone=b"], &["zone=a"], &["zone=a"]]);
    assert!(
        !rig.table().names.iter().any(|name| name == "role=decode"),
        "nobody has it any more"
    );
}

#[test]
fn a_pod_is_new_when_it_is_first_read_and_when_it_is_ready_again() {
    let list = |ready: bool| format!(r#"[{{"address": "10.0.0.1:8000", "ready": {ready}}}]"#);
    let mut rig = Rig::new(&json_pool());
    run(&mut rig, 3_000, |_| (200, list(true)));
    let first = rig.row("10.0.0.1:8000").since;
    assert!(
        first.0 >= START && first.0 < START + 2_000,
        "its first page came within a second"
    );
    run(&mut rig, 3_000, |_| (200, list(false)));
    assert_eq!(rig.row("10.0.0.1:8000").since, first);
    let again = rig.now;
    run(&mut rig, 3_000, |_| (200, list(true)));
    assert!(rig.row("10.0.0.1:8000").since.0 >= again);
}
