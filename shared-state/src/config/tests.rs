use serde_json::{Value, json};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::options::{DOCUMENT, ENGINES};
use super::reference::{FULLER, SMALLEST};
use super::schema::{Kind, Preset, Section};
use super::*;
use crate::limits;
use crate::names;

/// The smallest document with these changes; paths as in `pools.0.scrape.interval`.
fn document(changes: &[(&str, Value)]) -> Value {
    let mut document: Value = serde_json::from_str(SMALLEST).unwrap();
    for (path, value) in changes {
        set(&mut document, path, value.clone());
    }
    document
}

fn set(document: &mut Value, path: &str, value: Value) {
    let mut place = document;
    for step in path.split('.') {
        place = match step.parse::<usize>() {
            Ok(index) => &mut place[index],
            Err(_) => &mut place[step],
        };
    }
    *place = value;
}

fn parse(document: &Value) -> Result<Config, Vec<ConfigError>> {
    Config::parse(document.to_string().as_bytes())
}

fn lines(document: &[u8]) -> Vec<String> {
    let errors = Config::parse(document).err().unwrap_or_default();
    errors.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn accepts(path: &str, value: Value) -> Config {
    let document = document(&[(path, value)]);
    parse(&document).unwrap_or_else(|errors| panic!("{document} was refused: {errors:?}"))
}

#[track_caller]
fn refuses(path: &str, value: Value, at: &str, rule: &str) {
    let document = document(&[(path, value)]);
    let errors = parse(&document).expect_err("accepted");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].path, at);
    assert!(errors[0].rule.contains(rule), "{} does not say {rule:?}", errors[0]);
}

#[test]
fn the_smallest_document_has_every_default() {
    let pod = |text: &str| text.parse::<PodAddress>().unwrap();
    let expected = Config {
        pools: vec![Pool {
            name: "llama".to_owned(),
            models: Vec::new(),
            routes: Vec::new(),
            engine: None,
            discovery: Discovery::Static(vec![pod("10.0.0.1:8000"), pod("10.0.0.2:8000")]),
            allow: Vec::new(),
            scrape: Scrape {
                path: None,
                port: None,
                interval: Millis(1_000),
                timeout: Millis(1_000),
                models_interval: Millis(10_000),
                cluster: "berth_scrape".to_owned(),
                address_header: "x-envoy-original-dst-host".to_owned(),
                headers: Vec::new(),
                tls: false,
                in_band: true,
                per_second: 500,
            },
            adapters: Adapters {
                resolver: false,
                known: Vec::new(),
                cold_load: Millis(2_000),
            },
            routing: Routing {
                prefill_tokens_per_second: 8_000,
                expected_output_tokens: 256,
                stale_after: Millis(5_000),
                prefix: Prefix {
                    enabled: true,
                    max_bytes: 8 << 20,
                },
                affinity: Affinity::None,
                require: Vec::new(),
                retry_apart: None,
                caps: Caps::default(),
                slow_start: Millis(0),
            },
            labels: Vec::new(),
        }],
        trust: Trust::default(),
        models: ModelNames {
            list: true,
            near_names: false,
            hidden: Vec::new(),
        },
        rewrites: Vec::new(),
        admission: Admission {
            objectives: Vec::new(),
            patience: Millis(2_000),
            queue: None,
        },
        body: Body {
            mode: BodyMode::Hold,
            hold_bytes: 768 * 1024,
        },
        status: StatusPage { decision_header: false },
        role: Role::Auto,
        host: Host::Auto,
        epoch: xxh64(SMALLEST.as_bytes(), 0),
    };
    assert_eq!(Config::parse(SMALLEST.as_bytes()), Ok(expected));
}

#[test]
fn every_option_reaches_the_config() {
    let config = Config::parse(
        br#"{
          "pools": [{
            "name": "a", "models": ["m1", "m2"], "routes": ["r1"], "engine": "sglang",
            "discovery": {"envoy_admin": {"cluster": "c", "admin": "adm", "interval": "3s"}},
            "scrape": {"path": "/m", "port": 9000, "interval": "2s", "timeout": "3s", "models_interval": "1m",
                       "cluster": "sc", "address_header": "x-gateway-destination-endpoint",
                       "headers": {"authorization": {"env": "KEY"}}, "tls": true, "in_band": false},
            "adapters": {"resolver": true, "cold_load": "7s", "known": [{"name": "sql", "base": "m1"}, {"name": "fr"}]},
            "routing": {"stale_after": "13s"}
          }],
          "trust": {"headers": ["x-session-id"]}, "body": {"hold": 8192}, "status": {"decision_header": true},
          "role": "reader", "host": "envoy", "poll": {"budget_per_second": 77}
          }"#,
    )
    .unwrap();
    let pool = &config.pools[0];
    assert_eq!(pool.models, ["m1", "m2"]);
    assert_eq!(pool.routes, ["r1"]);
    assert_eq!(pool.engine, Some(Engine::Sglang));
    let expected = Discovery::EnvoyAdmin {
        cluster: "c".to_owned(),
        admin: "adm".to_owned(),
        interval: Millis(3_000),
    };
    assert_eq!(pool.discovery, expected);
    let expected = Scrape {
        path: Some("/m".to_owned()),
        port: Some(9000),
        interval: Millis(2_000),
        timeout: Millis(3_000),
        models_interval: Millis(60_000),
        cluster: "sc".to_owned(),
        address_header: "x-gateway-destination-endpoint".to_owned(),
        headers: vec![("authorization".to_owned(), "KEY".to_owned())],
        tls: true,
        in_band: false,
        per_second: 77,
    };
    assert_eq!(pool.scrape, expected);
    let adapters = Adapters {
        resolver: true,
        known: vec![("sql".to_owned(), Some("m1".to_owned())), ("fr".to_owned(), None)],
        cold_load: Millis(7_000),
    };
    assert_eq!(pool.adapters, adapters);
    assert_eq!(pool.routing.stale_after, Millis(13_000));
    assert_eq!(config.trust.headers, ["x-session-id"]);
    assert_eq!(config.body.hold_bytes, 8192);
    assert!(config.status.decision_header);
    assert_eq!((config.role, config.host), (Role::Reader, Host::Envoy));
}

#[test]
fn every_option_of_routing_reaches_the_config() {
    let routing = json!({
        "prefill_tokens_per_second": 11, "expected_output_tokens": 12, "stale_after": "13s",
        "prefix": {"enabled": false, "max_bytes": "2MiB"},
        "affinity": {"by": "cookie", "key": {"env": "SEAL"}, "max_age": "1m"},
        "require": ["role=decode"], "retry_apart": "zone", "max_requests": 14, "max_tokens": 15, "slow_start": "16s",
    });
    let labels = json!([{"label": "zone=a", "pods": ["10.0.0.1:80", "10.1.0.0/16"]}]);
    let config = parse(&document(&[("pools.0.routing", routing), ("pools.0.labels", labels)])).unwrap();
    let pool = &config.pools[0];
    let routing = Routing {
        prefill_tokens_per_second: 11,
        expected_output_tokens: 12,
        stale_after: Millis(13_000),
        prefix: Prefix {
            enabled: false,
            max_bytes: 2 << 20,
        },
        affinity: Affinity::Cookie {
            key: "SEAL".to_owned(),
            max_age: Millis(60_000),
        },
        require: vec!["role=decode".to_owned()],
        retry_apart: Some("zone".to_owned()),
        caps: Caps {
            requests: Some(14),
            tokens: Some(Tokens(15)),
        },
        slow_start: Millis(16_000),
    };
    assert_eq!(pool.routing, routing);
    let labelled = Labelled {
        label: "zone=a".to_owned(),
        pods: vec!["10.0.0.1:80".parse().unwrap()],
        ranges: vec!["10.1.0.0/16".parse().unwrap()],
    };
    assert_eq!(pool.labels, [labelled]);
}

#[test]
fn every_option_of_admission_reaches_the_config() {
    let objectives = json!([{"name": "batch", "priority": -3, "patience": "7s"}, {"name": "chat"}]);
    let queue = json!({"enabled": true, "max_requests": 20, "max_bytes": "8MiB", "band_requests": 30, "band_bytes": "4MiB",
                       "max_wait": "9s"});
    let config = parse(&document(&[
        ("trust.headers", json!(["x-gateway-inference-objective"])),
        (
            "admission",
            json!({"objectives": objectives, "patience": "3s", "queue": queue}),
        ),
    ]))
    .unwrap();
    let objective = |name: &str, priority, seconds: u64| Objective {
        name: name.to_owned(),
        priority,
        patience: Millis(seconds * 1_000),
    };
    let admission = Admission {
        objectives: vec![objective("batch", -3, 7), objective("chat", 0, 3)],
        patience: Millis(3_000),
        queue: Some(Queue {
            max_requests: 20,
            max_bytes: 8 << 20,
            band_requests: 20,
            band_bytes: 4 << 20,
            max_wait: Millis(9_000),
        }),
    };
    assert_eq!(config.admission, admission);
}

#[test]
fn every_way_to_ask_for_pods_reaches_the_config() {
    let config = Config::parse(
        br#"{"pools": [
          {"name": "a", "discovery": {"kubernetes": {"cluster": "api", "namespace": "prod", "service": "llama",
             "ports": ["http", "8001"], "prefer": "ipv6", "authority": "api.example:6443", "interval": "3s",
             "headers": {"authorization": {"env": "TOKEN"}}, "allow": ["10.0.0.0/8", "fd00::/8"]}}},
          {"name": "b", "discovery": {"json": {"cluster": "list", "path": "/pods?all", "authority": "list.example",
             "headers": {"x-key": {"env": "KEY"}}, "interval": "4s", "allow": ["127.0.0.0/8"]}}},
          {"name": "c", "discovery": {"kubernetes": {"cluster": "api", "namespace": "prod", "service": "qwen"}}},
          {"name": "d", "discovery": {"envoy_admin": {"cluster": "c", "allow": ["10.0.0.0/8"]}}}]}"#,
    )
    .unwrap();
    let asks = |cluster: &str, authority: &str, headers: &[(&str, &str)], seconds: u64| Asks {
        cluster: cluster.to_owned(),
        authority: authority.to_owned(),
        headers: headers
            .iter()
            .map(|(name, env)| (name.to_string(), env.to_string()))
            .collect(),
        interval: Millis(seconds * 1_000),
    };
    let service = |name: &str, ports: &[PortOf], prefer| Service {
        namespace: "prod".to_owned(),
        name: name.to_owned(),
        ports: ports.to_vec(),
        prefer,
    };
    let ranges = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Range>>();
    let expected = [
        Discovery::Kubernetes {
            asks: asks("api", "api.example:6443", &[("authorization", "TOKEN")], 3),
            service: service(
                "llama",
                &[PortOf::Name("http".to_owned()), PortOf::Number(8001)],
                Family::Ipv6,
            ),
        },
        Discovery::Json {
            asks: asks("list", "list.example", &[("x-key", "KEY")], 4),
            path: "/pods?all".to_owned(),
        },
        Discovery::Kubernetes {
            asks: asks("api", "kubernetes.default.svc", &[], 2),
            service: service("qwen", &[], Family::Ipv4),
        },
    ];
    let allow = [&["10.0.0.0/8", "fd00::/8"][..], &["127.0.0.0/8"], &[], &["10.0.0.0/8"]];
    for (pool, expected) in config.pools.iter().zip(expected) {
        assert_eq!(pool.discovery, expected);
    }
    for (pool, allow) in config.pools.iter().zip(allow) {
        assert_eq!(pool.allow, ranges(allow));
    }
}

#[test]
fn what_is_asked_for_pods_is_checked() {
    #[track_caller]
    fn check(change: Value, at: &str, rule: &str) {
        let mut kubernetes = json!({"cluster": "c", "namespace": "n", "service": "s"});
        for (key, value) in change.as_object().unwrap() {
            kubernetes[key] = value.clone();
        }
        let at = format!("pools[0].discovery.kubernetes.{at}");
        refuses("pools.0.discovery", json!({ "kubernetes": kubernetes }), &at, rule);
    }
    check(json!({"namespace": "Prod"}), "namespace", "a Kubernetes name");
    check(json!({"namespace": "n?limit=1"}), "namespace", "a Kubernetes name");
    check(json!({"service": "-s"}), "service", "a Kubernetes name");
    check(json!({"service": "s".repeat(254)}), "service", "1 to 253");
    check(json!({"ports": ["0"]}), "ports[0]", "1 to 65535");
    check(json!({"ports": ["65536"]}), "ports[0]", "1 to 65535");
    check(json!({"ports": ["http", "http"]}), "ports[1]", "stands twice");
    check(
        json!({"ports": (1..66).map(|port| port.to_string()).collect::<Vec<_>>()}),
        "ports",
        "0 to 64",
    );
    check(
        json!({"allow": ["10.0.0.1/8"]}),
        "allow[0]",
        "without bits behind the prefix",
    );
    check(json!({"allow": ["10.0.0.1"]}), "allow[0]", "a range of addresses");
    check(
        json!({"allow": (0..65).map(|n| format!("10.{n}.0.0/16")).collect::<Vec<_>>()}),
        "allow",
        "0 to 64",
    );
    check(json!({"prefer": "any"}), "prefer", "one of `ipv4`, `ipv6`");
    check(json!({"authority": "a b"}), "authority", "a host");
    check(
        json!({"headers": {"authorization": "Bearer x"}}),
        "headers.authorization",
        "env",
    );
    check(json!({"interval": "199ms"}), "interval", "200ms");
}

#[test]
fn a_list_of_pods_belongs_to_one_pool() {
    let of = |name: &str, ports: &[&str]| {
        let service = json!({"cluster": "c", "namespace": "n", "service": "s", "ports": ports});
        json!({"name": name, "discovery": {"kubernetes": service}})
    };
    accepts("pools", json!([of("a", &["8000"]), of("b", &["8001"])]));
    let at = "pools[1].discovery.kubernetes";
    refuses(
        "pools",
        json!([of("a", &["8000"]), of("b", &["8000"])]),
        at,
        "one pool only",
    );
    let of = |name: &str, path: &str| json!({"name": name, "discovery": {"json": {"cluster": "c", "path": path}}});
    accepts("pools", json!([of("a", "/a"), of("b", "/b")]));
    let at = "pools[1].discovery.json";
    refuses("pools", json!([of("a", "/a"), of("b", "/a")]), at, "one pool only");
}

#[test]
fn every_error_is_reported_in_the_order_of_the_document() {
    let document = br#"{
      "pool": [],
      "pools": [
        {
          "name": "Llama",
          "discovery": {"static": ["10.0.0.1:8000", "pod-2:8000", "10.0.0.1:8000"]},
          "routing": {"stale_after": "2s"},
          "scrape": {"interval": "100ms", "timout": "1s", "timeout": 500}
        },
        {"name": "b", "routing": {"stale_after": "2s"}, "interval": "1s"},
        {"name": "b", "discovery": {"static": ["10.0.0.1:8000"], "envoy_admin": {}}}
      ],
      "body": {"hold": "768KB"}
    }"#;
    let expected = [
        r#"pool: [...] (0 items): unknown key; did you mean `pools`?"#,
        r#"pools[0].name: "Llama": must be 1 to 63 of `a-z`, `0-9` and `-`, not starting with `-`"#,
        r#"pools[0].discovery.static[1]: "pod-2:8000": must be ip:port, for example 10.0.0.1:8000 or [fd00::1]:8000; names are not accepted"#,
        r#"pools[0].discovery.static[2]: "10.0.0.1:8000": stands twice in this list, also at [0]; keep one"#,
        r#"pools[0].scrape.interval: "100ms": must be a duration from 200ms to 1m"#,
        r#"pools[0].scrape.timout: (not shown): unknown key; did you mean `timeout`?"#,
        r#"pools[0].scrape.timeout: 500: must be a duration from 50ms to 10s: a text with its unit ms, s or m, such as "1500ms"; a bare number does not say which"#,
        r#"pools[1].routing.stale_after: "2s": must be at least 3 x scrape.interval, here 3s: with less, one lost scrape makes a healthy pod unknown"#,
        r#"pools[1].interval: (not shown): unknown key; did you mean `scrape.interval`?"#,
        r#"pools[1].discovery: absent: required, must be an object with exactly one of `static`, `envoy_admin`, `kubernetes`, `json`"#,
        r#"pools[2].name: "b": must differ from the name of every other pool; pools[1] has it too"#,
        r#"pools[2].discovery: {...} (2 keys): must be an object with exactly one of `static`, `envoy_admin`, `kubernetes`, `json`"#,
        r#"pools[2].discovery.static[0]: "10.0.0.1:8000": must stand in one pool only, since each pool counts its own requests; also at pools[0].discovery.static[0]"#,
        r#"pools[2].discovery.envoy_admin.cluster: absent: required, must be the name of a cluster of the proxy, 1 to 256 visible ASCII characters"#,
        r#"body.hold: "768KB": must be a size from 4KiB to 64MiB: bytes as a whole number, or a text such as "768KiB" or "16MiB""#,
    ];
    assert_eq!(lines(document), expected);
}

#[test]
fn numbers_end_at_their_bounds() {
    #[track_caller]
    fn check(path: &str, inside: [Value; 2], outside: [Value; 2]) {
        let at = path.replace(".0.", "[0].");
        for value in inside {
            accepts(path, value);
        }
        for value in outside {
            refuses(path, value, &at, "must be a");
        }
    }
    let text = |values: [&str; 2]| values.map(Value::from);
    check(
        "pools.0.scrape.interval",
        text(["200ms", "60s"]),
        text(["199ms", "60001ms"]),
    );
    check(
        "pools.0.scrape.timeout",
        text(["50ms", "10s"]),
        text(["49ms", "10001ms"]),
    );
    check(
        "pools.0.scrape.models_interval",
        text(["1s", "10m"]),
        text(["999ms", "600001ms"]),
    );
    check(
        "pools.0.scrape.port",
        [json!(1), json!(65_535)],
        [json!(0), json!(65_536)],
    );
    check(
        "pools.0.adapters.cold_load",
        text(["0s", "10m"]),
        text(["-1s", "600001ms"]),
    );
    check(
        "pools.0.routing.prefill_tokens_per_second",
        [json!(1), json!(8_000_000)],
        [json!(0), json!(8_000_001)],
    );
    check(
        "pools.0.routing.expected_output_tokens",
        [json!(1), json!(1_048_576)],
        [json!(0), json!(1_048_577)],
    );
    check(
        "pools.0.routing.stale_after",
        text(["3s", "10m"]),
        text(["599ms", "600001ms"]),
    );
    check(
        "body.hold",
        [json!(4096), json!("64MiB")],
        [json!(4095), json!(67_108_865_u64)],
    );
    check("body.hold", text(["4KiB", "65536KiB"]), text(["3KiB", "65MiB"]));
}

#[test]
fn a_reading_is_believed_for_three_intervals_at_least() {
    let with = |interval: &str, stale: &str| {
        parse(&document(&[
            ("pools.0.scrape.interval", json!(interval)),
            ("pools.0.routing.stale_after", json!(stale)),
        ]))
    };
    assert!(with("200ms", "600ms").is_ok());
    let errors = with("2s", "5999ms").unwrap_err();
    assert_eq!(errors[0].path, "pools[0].routing.stale_after");
    assert!(errors[0].rule.contains("here 6s"), "{errors:?}");
}

#[test]
fn without_stale_after_it_is_five_intervals_and_five_seconds_at_least() {
    #[track_caller]
    fn check(interval: &str, expected: u64) {
        let config = accepts("pools.0.scrape.interval", json!(interval));
        assert_eq!(config.pools[0].routing.stale_after, Millis(expected));
    }
    check("200ms", 5_000);
    check("1s", 5_000);
    check("1001ms", 5_005);
    check("1m", 300_000);
}

#[test]
fn names_and_rewrites_reach_the_config() {
    let models = json!({"list": false, "near_names": true, "hidden": ["m2"]});
    let rewrites = json!([
        {"from": "gpt", "to": [{"model": "m1", "weight": 9}, {"model": "m2", "weight": 1}], "sticky": "user"},
        {"from": "*", "to": [{"model": "m1"}]}
    ]);
    let config = parse(&document(&[("models", models), ("rewrites", rewrites)])).unwrap();
    let models = ModelNames {
        list: false,
        near_names: true,
        hidden: vec!["m2".to_owned()],
    };
    assert_eq!(config.models, models);
    let target = |model: &str, weight| Target {
        model: model.to_owned(),
        weight,
    };
    let rewrites = [
        Rewrite {
            from: Some("gpt".to_owned()),
            to: vec![target("m1", 9), target("m2", 1)],
            sticky: Sticky::User,
        },
        Rewrite {
            from: None,
            to: vec![target("m1", 1)],
            sticky: Sticky::None,
        },
    ];
    assert_eq!(config.rewrites, rewrites);
}

#[test]
fn lists_end_at_their_bounds() {
    /// A list of `max` is accepted, and one of one more refused.
    #[track_caller]
    fn check(path: &str, list: impl Fn(usize) -> Value, max: usize, at: &str, rule: &str) -> Config {
        refuses(path, list(max + 1), at, rule);
        accepts(path, list(max))
    }
    let pods = |count: usize| -> Value {
        (0..count)
            .map(|n| format!("10.1.{}.{}:8000", n / 256, n % 256))
            .collect()
    };
    let (path, at) = ("pools.0.discovery.static", "pools[0].discovery.static");
    let config = check(path, pods, limits::PODS_MAX, at, "a list of 1 to 4096");
    assert!(matches!(&config.pools[0].discovery, Discovery::Static(list) if list.len() == 4096));
    refuses(path, pods(0), at, "a list of 1 to 4096");

    let pools = |count: usize| -> Value {
        (0..count)
            .map(|n| json!({"name": format!("p{n}"), "discovery": {"static": [format!("10.0.0.{n}:1")]}}))
            .collect()
    };
    let config = check("pools", pools, limits::POOLS_MAX, "pools", "a list of 1 to 64");
    assert_eq!(config.pools.len(), 64);
    refuses("pools", pools(0), "pools", "a list of 1 to 64");

    let models = |count: usize| -> Value { (0..count).map(|n| format!("m{n}")).collect() };
    let (path, max) = ("pools.0.models", limits::POOL_MODELS_MAX);
    check(path, models, max, "pools[0].models", "a list of 0 to 64");
    let (path, max) = ("pools.0.routes", limits::POOL_ROUTES_MAX);
    check(path, models, max, "pools[0].routes", "a list of 0 to 64");

    let rules = |count: usize| -> Value {
        let rule = |n| json!({"from": format!("m{n}"), "to": [{"model": "m"}]});
        (0..count).map(rule).collect()
    };
    check(
        "rewrites",
        rules,
        limits::REWRITES_MAX,
        "rewrites",
        "a list of 0 to 1024",
    );
    let hidden = |count: usize| json!({"hidden": models(count)});
    let max = limits::HIDDEN_NAMES_MAX;
    check("models", hidden, max, "models.hidden", "a list of 0 to 1024");

    let headers = |count: usize| -> Value {
        let entries = (0..count).map(|n| (format!("h{n}"), json!({"env": "V"})));
        Value::Object(entries.collect())
    };
    let (path, max) = ("pools.0.scrape.headers", limits::CALL_HEADERS_MAX);
    check(path, headers, max, "pools[0].scrape.headers", "at most 16");
}

#[test]
fn texts_end_at_their_bounds() {
    #[track_caller]
    fn check(path: &str, inside: &[String], outside: &[String]) {
        let at = path.replace(".0.", "[0].");
        for text in inside {
            accepts(path, json!(text));
        }
        for text in outside {
            refuses(path, json!(text), &at, "must be ");
        }
    }
    let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    check(
        "pools.0.name",
        &["a".repeat(63), "0-".to_owned()],
        &[
            "a".repeat(64),
            String::new(),
            "-a".to_owned(),
            "a_b".to_owned(),
            "A".to_owned(),
            "ä".to_owned(),
        ],
    );
    check(
        "pools.0.scrape.path",
        &["/".to_owned(), format!("/{}", "m".repeat(1023))],
        &[
            format!("/{}", "m".repeat(1024)),
            "metrics".to_owned(),
            "/a b".to_owned(),
            "/a\r\nx: y".to_owned(),
        ],
    );
    check(
        "pools.0.scrape.cluster",
        &[
            "c".repeat(256),
            "outbound|80||llama.default.svc.cluster.local".to_owned(),
        ],
        &["c".repeat(257), String::new(), "a b".to_owned()],
    );
    let at = "pools[0].models[0]";
    accepts("pools.0.models", json!(["m".repeat(256)]));
    refuses("pools.0.models", json!(["m".repeat(257)]), at, "1 to 256 visible");
    refuses("pools.0.models", json!(["a b"]), at, "1 to 256 visible");
    refuses(
        "pools.0.models",
        json!(["a", "a"]),
        "pools[0].models[1]",
        "stands twice",
    );
    check("pools.0.engine", &own(&ENGINES), &own(&["vLLM", "ollama"]));
    check(
        "role",
        &own(&["auto", "service", "poller", "reader"]),
        &own(&["leader"]),
    );
    check(
        "host",
        &own(&["auto", "envoy", "nginx", "kong", "apisix"]),
        &own(&["istio"]),
    );
    check(
        "pools.0.scrape.address_header",
        &own(&[names::DESTINATION_ENDPOINT]),
        &own(&["x-pod"]),
    );
}

#[test]
fn every_engine_has_its_name() {
    let of = |engine: Engine| match engine {
        Engine::Vllm => "vllm",
        Engine::Sglang => "sglang",
        Engine::Trtllm => "trtllm",
        Engine::Triton => "triton",
        Engine::Lmdeploy => "lmdeploy",
        Engine::LlamaCpp => "llama-cpp",
        Engine::Tgi => "tgi",
        Engine::Max => "max",
        Engine::Nim => "nim",
    };
    for name in ENGINES {
        let engine = accepts("pools.0.engine", json!(name)).pools[0].engine;
        assert_eq!(engine.map(of), Some(name));
    }
}

#[test]
fn a_pod_is_one_dialable_address() {
    #[track_caller]
    fn check(text: &str, rule: &str) {
        let at = "pools[0].discovery.static[0]";
        refuses("pools.0.discovery.static", json!([text]), at, rule);
    }
    check("0.0.0.0:80", "stand for every address");
    check("[::]:80", "stand for every address");
    check("[::ffff:0.0.0.0]:80", "stand for every address");
    check("224.0.0.1:80", "multicast");
    check("239.255.255.255:80", "multicast");
    check("[ff02::1]:80", "multicast");
    check("[fe80::1%2]:80", "without a scope");
    check("10.0.0.1", "ip:port");
    check("10.0.0.1:0", "ip:port");
    check("10.0.0.1:65536", "ip:port");
    check("llama.svc:80", "ip:port");
    accepts("pools.0.discovery.static", json!(["223.255.255.255:65535", "[::1]:1"]));
    let twice = json!(["10.0.0.1:80", "[::ffff:10.0.0.1]:80"]);
    refuses(
        "pools.0.discovery.static",
        twice,
        "pools[0].discovery.static[1]",
        "stands twice",
    );
}

#[test]
fn two_pools_share_neither_name_nor_pod_nor_cluster() {
    let two = |second: Value| {
        let first = json!({"name": "a", "discovery": {"static": ["10.0.0.1:1"]}});
        json!([first, second])
    };
    let static_pods = |name: &str, pod: &str| two(json!({"name": name, "discovery": {"static": [pod]}}));
    accepts("pools", static_pods("b", "10.0.0.1:2"));
    refuses(
        "pools",
        static_pods("a", "10.0.0.1:2"),
        "pools[1].name",
        "pools[0] has it too",
    );
    let at = "pools[1].discovery.static[0]";
    refuses(
        "pools",
        static_pods("b", "10.0.0.1:1"),
        at,
        "also at pools[0].discovery.static[0]",
    );
    let admin =
        |name: &str, admin: &str| json!({"name": name, "discovery": {"envoy_admin": {"cluster": "c", "admin": admin}}});
    accepts("pools", json!([admin("a", "x"), admin("b", "y")]));
    let at = "pools[1].discovery.envoy_admin.cluster";
    refuses("pools", json!([admin("a", "x"), admin("b", "x")]), at, "one pool only");
}

#[test]
fn the_admin_page_is_envoys_alone() {
    let with = |host: &str| {
        parse(&document(&[
            ("pools.0.discovery", json!({"envoy_admin": {"cluster": "c"}})),
            ("host", json!(host)),
        ]))
    };
    assert!(with("auto").is_ok() && with("envoy").is_ok());
    let errors = with("nginx").unwrap_err();
    assert_eq!(errors[0].path, "pools[0].discovery.envoy_admin");
    assert!(errors[0].rule.contains("only Envoy"), "{errors:?}");
}

#[test]
fn apisix_reads_nothing_so_its_pods_are_named() {
    let with =
        |discovery: Value, host: &str| parse(&document(&[("pools.0.discovery", discovery), ("host", json!(host))]));
    let list = json!({"json": {"cluster": "10.0.0.9:80", "path": "/pods"}});
    let slices = json!({"kubernetes": {"cluster": "10.0.0.9:80", "namespace": "n", "service": "s"}});
    for (discovery, kind) in [(list, "json"), (slices, "kubernetes")] {
        assert!(with(discovery.clone(), "nginx").is_ok());
        let errors = with(discovery, "apisix").unwrap_err();
        assert_eq!(
            (errors.len(), errors[0].path.clone()),
            (1, format!("pools[0].discovery.{kind}"))
        );
        assert!(errors[0].rule.contains("static"), "{errors:?}");
    }
    assert!(with(json!({"static": ["10.0.0.1:80"]}), "apisix").is_ok());
}

#[test]
fn only_envoy_has_routes_that_lead_to_a_pool() {
    let with = |host: &str| parse(&document(&[("pools.0.routes", json!(["r"])), ("host", json!(host))]));
    assert!(with("auto").is_ok() && with("envoy").is_ok());
    for host in ["nginx", "kong", "apisix"] {
        let errors = with(host).unwrap_err();
        assert_eq!((errors.len(), errors[0].path.as_str()), (1, "pools[0].routes"));
    }
}

#[test]
fn a_model_belongs_to_one_pool() {
    let pools = |first: Value, second: Value| {
        let mut pools = json!([
            {"name": "a", "discovery": {"static": ["10.0.0.1:1"]}},
            {"name": "b", "discovery": {"static": ["10.0.0.2:1"]}}
        ]);
        for (pool, keys) in [first, second].iter().enumerate() {
            for (key, value) in keys.as_object().unwrap() {
                pools[pool][key] = value.clone();
            }
        }
        pools
    };
    accepts("pools", pools(json!({"models": ["m"]}), json!({"models": ["n"]})));
    let rule = "pools[0] has it too";
    let twice = pools(json!({"models": ["m"]}), json!({"models": ["n", "m"]}));
    refuses("pools", twice, "pools[1].models[1]", rule);
    let shared = pools(json!({"routes": ["r"]}), json!({"routes": ["s", "r"]}));
    refuses("pools", shared, "pools[1].routes[1]", rule);
    let known = json!({"adapters": {"known": [{"name": "m"}]}});
    let at = "pools[1].adapters.known[0].name";
    refuses("pools", pools(json!({"models": ["m"]}), known), at, rule);
    let twice = json!({"adapters": {"known": [{"name": "m"}, {"name": "m"}]}});
    refuses(
        "pools",
        pools(twice, json!({})),
        "pools[0].adapters.known[1].name",
        rule,
    );
}

#[test]
fn a_rewrite_that_cannot_mean_what_it_says_is_refused() {
    let to = |weights: [Option<u32>; 2]| -> Value {
        let target = |(model, weight): (&str, Option<u32>)| match weight {
            Some(weight) => json!({"model": model, "weight": weight}),
            None => json!({"model": model}),
        };
        ["b", "c"].into_iter().zip(weights).map(target).collect()
    };
    let one = |to: Value| json!([{"from": "a", "to": to}]);
    accepts("rewrites", one(to([None, None])));
    accepts("rewrites", one(to([Some(1), Some(1_000_000)])));
    let at = "rewrites[0].to[1].weight";
    refuses("rewrites", one(to([Some(1), None])), at, "all or none");
    refuses("rewrites", one(to([Some(1), Some(0)])), at, "from 1 to 1000000");
    refuses("rewrites", one(to([Some(1), Some(1_000_001)])), at, "from 1 to 1000000");
    refuses("rewrites", one(json!([])), "rewrites[0].to", "a list of 1 to 16");
    let twice = json!([{"from": "*", "to": [{"model": "b"}]}, {"from": "*", "to": [{"model": "c"}]}]);
    refuses("rewrites", twice, "rewrites[1].from", "rewrites[0] has the same name");
    let sticky = json!([{"from": "a", "to": [{"model": "b"}], "sticky": "session"}]);
    refuses(
        "rewrites",
        sticky.clone(),
        "rewrites[0].sticky",
        "x-session-id in trust",
    );
    let trusted = document(&[("rewrites", sticky), ("trust", json!({"headers": ["x-session-id"]}))]);
    assert!(parse(&trusted).is_ok());
    let apisix = document(&[("rewrites", one(to([None, None]))), ("host", json!("apisix"))]);
    let errors = parse(&apisix).unwrap_err();
    assert_eq!((errors.len(), errors[0].path.as_str()), (1, "rewrites"));
}

#[test]
fn prefixes_are_not_indexed_where_the_shared_memory_is_small() {
    for (host, enabled) in [
        ("auto", true),
        ("envoy", true),
        ("nginx", false),
        ("kong", false),
        ("apisix", true),
    ] {
        let config = parse(&document(&[("host", json!(host))])).unwrap();
        assert_eq!(config.pools[0].routing.prefix.enabled, enabled, "{host}");
    }
}

#[test]
fn a_choice_is_handed_over_in_envoy_only() {
    let with = |host: &str| {
        parse(&document(&[
            ("body", json!({"mode": "hand-over"})),
            ("host", json!(host)),
        ]))
    };
    assert_eq!(with("auto").unwrap().body.mode, BodyMode::HandOver);
    assert!(with("envoy").is_ok());
    for host in ["nginx", "kong", "apisix"] {
        let errors = with(host).unwrap_err();
        assert_eq!((errors.len(), errors[0].path.as_str()), (1, "body.mode"));
        assert!(errors[0].rule.contains("only Envoy"), "{errors:?}");
    }
    let rewrites = json!([{"from": "a", "to": [{"model": "b"}]}]);
    let both = document(&[("body", json!({"mode": "hand-over"})), ("rewrites", rewrites)]);
    let errors = parse(&both).unwrap_err();
    assert_eq!((errors.len(), errors[0].path.as_str()), (1, "body.mode"));
    assert!(errors[0].rule.contains("rewrites"), "{errors:?}");
}

#[test]
fn the_choice_of_a_pool_is_not_handed_over() {
    let pool = |name: &str, pod: &str| json!({"name": name, "discovery": {"static": [pod]}});
    let several = json!([pool("a", "10.0.0.1:80"), pool("b", "10.0.0.2:80")]);
    let errors = parse(&document(&[("body", json!({"mode": "hand-over"})), ("pools", several)])).unwrap_err();
    assert_eq!((errors.len(), errors[0].path.as_str()), (1, "body.mode"));
    assert!(errors[0].rule.contains("several pools"), "{errors:?}");
}

#[test]
fn affinity_needs_what_tells_sessions_apart() {
    const BY: &str = "pools[0].routing.affinity.by";
    let path = "pools.0.routing.affinity";
    let session = json!({"by": "session"});
    refuses(path, session.clone(), BY, "x-session-id in trust");
    let trust = ("trust", json!({"headers": ["x-session-id"]}));
    let config = parse(&document(&[(path, session.clone()), trust.clone()])).unwrap();
    assert_eq!(config.pools[0].routing.affinity, Affinity::Session);
    let nginx = document(&[(path, session), trust, ("host", json!("nginx"))]);
    let errors = parse(&nginx).unwrap_err();
    assert_eq!((errors.len(), errors[0].path.as_str()), (1, BY));
    refuses(path, json!({"by": "cookie"}), BY, "needs `key`");
    let key = json!({"env": "SEAL"});
    let config = accepts(path, json!({"by": "cookie", "key": key}));
    let cookie = Affinity::Cookie {
        key: "SEAL".to_owned(),
        max_age: Millis(300_000),
    };
    assert_eq!(config.pools[0].routing.affinity, cookie);
    let at = "pools[0].routing.affinity.key";
    refuses(path, json!({"key": key}), at, "has no effect");
    refuses(
        path,
        json!({"by": "cookie", "key": {"env": "a b"}}),
        &format!("{at}.env"),
        "variable",
    );
}

#[test]
fn a_label_has_a_name_and_a_value() {
    let part = "x".repeat(limits::LABEL_PART_MAX_BYTES);
    let both = format!("{part}={part}");
    let required = |label: &str| ("pools.0.routing.require", json!([label]));
    for label in ["role=decode", "topology.kubernetes.io/zone=eu-1a", &both] {
        let (path, value) = required(label);
        assert_eq!(accepts(path, value).pools[0].routing.require, [label]);
    }
    for label in [
        "role",
        "=decode",
        "role=",
        "a=b=c",
        "ro le=x",
        &format!("{both}x"),
        &format!("x{both}"),
    ] {
        let (path, value) = required(label);
        refuses(path, value, "pools[0].routing.require[0]", "name=value");
    }
    let pods = |pod: &str| json!([{"label": "zone=a", "pods": [pod]}]);
    for pod in ["10.0.0.1:8000", "[fd00::1]:8000", "10.0.0.0/8", "fd00::/8"] {
        accepts("pools.0.labels", pods(pod));
    }
    for pod in ["10.0.0.1", "pod-a:8000", "10.0.0.1/8", "10.0.0.0/33"] {
        refuses(
            "pools.0.labels",
            pods(pod),
            "pools[0].labels[0].pods[0]",
            "or a range of addresses",
        );
    }
    let names: Vec<String> = (0..9).map(|n| format!("n{n}=v")).collect();
    accepts("pools.0.routing.require", json!(names[..8]));
    refuses(
        "pools.0.routing.require",
        json!(names),
        "pools[0].routing.require",
        "0 to 8",
    );
}

#[test]
fn a_secret_neither_stands_in_the_config_nor_in_an_error() {
    #[track_caller]
    fn check(headers: Value, at: &str, rule: &str) {
        let document = document(&[("pools.0.scrape.headers", headers)]);
        let errors = parse(&document).unwrap_err();
        assert_eq!(errors[0].path, at);
        assert!(errors[0].rule.contains(rule), "{errors:?}");
        assert!(!format!("{errors:?}").contains("s3cret"), "{errors:?}");
    }
    let at = "pools[0].scrape.headers.authorization";
    let inner = "pools[0].scrape.headers.authorization.env";
    check(
        json!({"authorization": "Bearer s3cret"}),
        at,
        "never stands in the config",
    );
    check(
        json!({"authorization": {"env": "Bearer s3cret"}}),
        inner,
        "the name of an environment variable",
    );
    let other = "pools[0].scrape.headers.authorization.value";
    check(
        json!({"authorization": {"value": "s3cret"}}),
        other,
        "unknown key; known here: env",
    );
    check(
        json!({"Authorization": {"env": "K"}}),
        "pools[0].scrape.headers.Authorization",
        "lower case",
    );
    for name in [
        "host",
        "content-length",
        names::DESTINATION_ENDPOINT,
        names::ORIGINAL_DST_HOST,
    ] {
        check(
            json!({name: {"env": "K"}}),
            &format!("pools[0].scrape.headers.{name}"),
            "the key must be",
        );
    }
    let errors = parse(&document(&[("pools.0.scrape.api_key", json!("s3cret"))])).unwrap_err();
    assert!(!format!("{errors:?}").contains("s3cret"), "{errors:?}");
    let broken = br#"{"pools": [{"scrape": {"headers": {"authorization": "s3cret" x "s3cret"}}}]}"#;
    assert!(!lines(broken)[0].contains("s3cret"), "{:?}", lines(broken));
}

#[test]
fn a_filter_before_berth_tells_each_input_once() {
    let metadata = json!({"input": names::FAIRNESS_ID[0], "from": {"metadata": ["jwt", "token", "tenant"]}});
    let state = json!({"input": names::SESSION, "from": {"filter_state": "session"}});
    let config = accepts("trust.filters", json!([metadata, state]));
    let told: Vec<(&str, String)> = config
        .trust
        .filters
        .iter()
        .map(|told| (told.input.as_str(), told.path.join("/")))
        .collect();
    let expected = [
        (
            names::FAIRNESS_ID[0],
            "metadata/filter_metadata/jwt/token/tenant".to_owned(),
        ),
        (names::SESSION, "filter_state/session".to_owned()),
    ];
    assert_eq!(told, expected);

    let refused = |told: Value, at: &str, rule: &str| {
        refuses("trust.filters", json!([told]), &format!("trust.filters[0]{at}"), rule);
    };
    refused(
        json!({"input": names::BASE_MODEL_NAME, "from": {"filter_state": "x"}}),
        ".input",
        "must be one of",
    );
    refused(
        json!({"input": names::FAIRNESS_ID[1], "from": {"filter_state": "x"}}),
        ".input",
        "must be one of",
    );
    refused(
        json!({"input": names::SESSION, "from": {"metadata": ["jwt"]}}),
        ".from.metadata",
        "2 to 8 keys",
    );
    let nine = json!(["a", "b", "c", "d", "e", "f", "g", "h", "i"]);
    refused(
        json!({"input": names::SESSION, "from": {"metadata": nine}}),
        ".from.metadata",
        "2 to 8 keys",
    );
    refused(json!({"input": names::SESSION}), ".from", "required");
    let twice = json!([{"input": names::SESSION, "from": {"filter_state": "x"}}, {"input": names::SESSION, "from": {"filter_state": "y"}}]);
    refuses(
        "trust.filters",
        twice,
        "trust.filters[1].input",
        "filters[0] is it, too",
    );
    let nginx = document(&[("trust.filters", json!([state])), ("host", json!("nginx"))]);
    assert_eq!(parse(&nginx).unwrap_err()[0].path, "trust.filters[0].input");
}

#[test]
fn only_steering_headers_can_be_trusted() {
    let config = accepts("trust.headers", json!(names::TRUSTABLE));
    assert_eq!(config.trust.headers, names::TRUSTABLE);
    for name in names::STRIPPED {
        let steers = names::TRUSTABLE.contains(&name);
        let never = [
            names::DESTINATION_ENDPOINT,
            names::ORIGINAL_DST_HOST,
            names::DECISION,
            names::POOL,
        ]
        .contains(&name);
        assert!(steers != never, "{name}");
        if never {
            refuses("trust.headers", json!([name]), "trust.headers[0]", "must be one of");
        }
    }
    let typo = json!(["x-gateway-inference-objectiv"]);
    refuses(
        "trust.headers",
        typo,
        "trust.headers[0]",
        "did you mean `x-gateway-inference-objective`?",
    );
    let twice = json!(["x-session-id", "x-session-id"]);
    refuses("trust.headers", twice, "trust.headers[1]", "stands twice");
}

#[test]
fn admission_is_off_unless_it_is_configured() {
    accepts("admission", json!({}));
    let config = Config::parse(SMALLEST.as_bytes()).unwrap();
    assert_eq!((config.admission.objectives.len(), config.admission.queue), (0, None));
    accepts("admission", json!({"queue": {"enabled": true}}));
}

#[test]
fn objectives_have_names_of_their_own_and_a_header_that_is_believed() {
    #[track_caller]
    fn check(document: Value, expected: Option<(&str, &str)>) {
        let mut whole: Value = serde_json::from_str(SMALLEST).unwrap();
        for (key, value) in document.as_object().unwrap() {
            whole[key] = value.clone();
        }
        let found = Config::parse(whole.to_string().as_bytes()).err().unwrap_or_default();
        match (found.as_slice(), expected) {
            ([], None) => {}
            ([one], Some((path, rule))) => assert!(one.path == path && one.rule.contains(rule), "{one}"),
            (found, _) => panic!("{found:?}"),
        }
    }
    let trust = json!({"headers": ["x-llm-d-inference-objective"]});
    let objectives = |list: Value| json!({"trust": trust, "admission": {"objectives": list}});
    check(
        objectives(json!([{"name": "batch", "priority": -1}, {"name": "chat", "priority": 10, "patience": "500ms"}])),
        None,
    );
    check(
        objectives(json!([{"name": "a", "priority": -10_000}, {"name": "b", "priority": 10_000.0}])),
        None,
    );
    check(
        objectives(json!([{"name": "a", "priority": 10_001}])),
        Some(("admission.objectives[0].priority", "from -10000 to 10000")),
    );
    check(
        objectives(json!([{"name": "a", "priority": -10_001}])),
        Some(("admission.objectives[0].priority", "from -10000 to 10000")),
    );
    check(
        objectives(json!([{"name": "a"}, {"name": "a", "priority": 1}])),
        Some(("admission.objectives[1].name", "objectives[0] has it too")),
    );
    check(
        json!({"admission": {"objectives": [{"name": "a"}]}}),
        Some(("admission.objectives", "in trust")),
    );
}

#[test]
fn a_queue_needs_a_host_that_can_hold() {
    let queue = json!({"enabled": true});
    let mut document: Value = serde_json::from_str(SMALLEST).unwrap();
    document["admission"] = json!({"queue": queue});
    for (key, value, rule) in [
        ("host", json!("nginx"), "under the host nginx"),
        ("body", json!({"mode": "hand-over"}), "hand-over"),
    ] {
        let mut document = document.clone();
        document[key] = value;
        let errors = Config::parse(document.to_string().as_bytes()).unwrap_err();
        let [error] = errors.as_slice() else {
            panic!("{errors:?}")
        };
        assert_eq!(error.path, "admission.queue.enabled");
        assert!(error.rule.contains(rule), "{error}");
        document["admission"] = json!({});
        Config::parse(document.to_string().as_bytes()).unwrap();
    }
}

#[test]
fn a_value_of_another_type_is_told_what_to_be() {
    refuses(
        "status.decision_header",
        json!("true"),
        "status.decision_header",
        "without quotes",
    );
    refuses(
        "pools.0.scrape.port",
        json!("9000"),
        "pools[0].scrape.port",
        "without quotes",
    );
    refuses(
        "pools.0.scrape.port",
        json!(80.5),
        "pools[0].scrape.port",
        "a whole number",
    );
    refuses(
        "pools.0.scrape.interval",
        json!("1"),
        "pools[0].scrape.interval",
        "ms, s or m",
    );
    refuses(
        "pools.0.scrape.interval",
        json!("1.5s"),
        "pools[0].scrape.interval",
        "1500ms",
    );
    refuses(
        "pools.0.scrape.interval",
        json!("1 s"),
        "pools[0].scrape.interval",
        "a whole number and",
    );
    refuses("pools.0.scrape", json!([]), "pools[0].scrape", "must be an object");
    refuses("pools.0.scrape", Value::Null, "pools[0].scrape", "leave the key out");
    refuses("trust.headers", json!("x-session-id"), "trust.headers", "a list of");
    refuses("pools", json!({}), "pools", "a list of 1 to 64");
    refuses("body.hold", json!(-4096), "body.hold", "bytes as a whole number");
    refuses(
        "body.hold",
        json!("99999999999999999999MiB"),
        "body.hold",
        "a size from",
    );
}

#[test]
fn a_whole_number_may_come_as_a_double() {
    assert_eq!(
        accepts("pools.0.scrape.port", json!(9000.0)).pools[0].scrape.port,
        Some(9000)
    );
    assert_eq!(accepts("body.hold", json!(1.0e6)).body.hold_bytes, 1_000_000);
}

#[test]
fn a_key_that_stands_twice_is_an_error_everywhere() {
    #[track_caller]
    fn check(document: &str, expected: &str) {
        assert_eq!(lines(document.as_bytes()), [expected]);
    }
    let pool = r#"{"name": "a", "discovery": {"static": ["10.0.0.1:1"]}"#;
    check(
        &format!(r#"{{"role": "auto", "pools": [{pool}}}], "role": "reader"}}"#),
        r#"role: "reader": this key stands twice in its object; keep one"#,
    );
    check(
        &format!(r#"{{"pools": [{pool}, "scrape": {{"tls": false, "tls": false}}}}]}}"#),
        "pools[0].scrape.tls: false: this key stands twice in its object; keep one",
    );
    check(
        r#"{"pools": [{"name": "a", "discovery": {"static": ["10.0.0.1:1"], "static": ["10.0.0.2:1"]}}]}"#,
        "pools[0].discovery.static: [...] (1 items): this key stands twice in its object; keep one",
    );
    check(
        &format!(r#"{{"pools": [{pool}, "scrape": {{"headers": {{"a": {{"env": "A"}}, "a": {{"env": "B"}}}}}}}}]}}"#),
        "pools[0].scrape.headers.a: (not shown): this header stands twice; keep one",
    );
}

#[test]
fn an_unknown_key_is_told_the_nearest_one() {
    #[track_caller]
    fn check(path: &str, rule: &str) {
        let at = path.replace(".0.", "[0].");
        refuses(path, json!(1), &at, rule);
    }
    check("pools.0.scrape.modelsInterval", "did you mean `models_interval`?");
    check("pools.0.scrape.models-interval", "did you mean `models_interval`?");
    check("pools.0.scrape.inetrval", "did you mean `interval`?");
    check("pools.0.discvery", "did you mean `discovery`?");
    check("pools.0.resolver", "did you mean `adapters.resolver`?");
    check("hold", "did you mean `body.hold`?");
    check("trusts", "did you mean `trust`?");
    check(
        "zzz",
        "known here: pools, trust, body, status, models, rewrites, poll, role, host, admission",
    );
    let odd = "k".repeat(5_000);
    let errors = parse(&document(&[(&odd, json!(1))])).unwrap_err();
    assert!(errors[0].path.len() < 100, "{errors:?}");
}

#[test]
fn a_syntax_error_has_its_place_and_a_remedy() {
    #[track_caller]
    fn check(document: &str, place: &str, value: &str, remedy: &str) {
        let errors = Config::parse(document.as_bytes()).unwrap_err();
        assert_eq!(errors.len(), 1);
        assert_eq!((errors[0].path.as_str(), errors[0].value.as_str()), (place, value));
        assert!(errors[0].rule.contains(remedy), "{}", errors[0]);
    }
    check("", "document", "empty", "must be a JSON object");
    check(" \n", "document", "empty", "must be a JSON object");
    check("{\n \"pools\": [1,]\n}", "line 2 column 14", "']'", "remove the comma");
    check("{\"a\": 1,}", "line 1 column 9", "'}'", "remove the comma");
    check(
        "{\"pools\": [",
        "line 1 column 11",
        "end of the document",
        "close every quote",
    );
    check("{\"a\": 1} x", "line 1 column 10", "'x'", "remove what follows");
    check("{\"a\": 1 \"b\": 2}", "line 1 column 9", "'\"'", "write a comma");
    check("{\"a\" 1}", "line 1 column 6", "'1'", "write a colon");
    check("{a: 1}", "line 1 column 2", "'a'", "keys stand in double quotes");
    check(
        "{\"a\": 'x'}",
        "line 1 column 7",
        "'\\''",
        "text stands in double quotes",
    );
    check("{\"a\": 01}", "line 1 column 8", "'1'", "without leading zero");
    check("{\"a\": 1s}", "line 1 column 8", "'s'", "write a comma");
    check("{\"a\": \"x\ny\"}", "line 2 column 1", "line break", "\\n");
    check("{\"a\": \"\\x\"}", "line 1 column 9", "'x'", "backslash");
    check("{\"a\": tru}", "line 1 column 10", "'}'", "without quotes");
    check("pools:\n- name: a\n", "line 1 column 1", "'p'", "YAML");
    check("\u{feff}{}", "line 1 column 1", "'\\u{feff}'", "byte order mark");
    let errors = Config::parse(b"{\"a\": \"\xff\"}").unwrap_err();
    assert!(errors[0].rule.contains("UTF-8"), "{errors:?}");
}

#[test]
fn other_json_than_an_object_is_refused() {
    assert_eq!(lines(b"[]"), ["document: [...] (0 items): must be an object"]);
    assert_eq!(
        lines(b"null"),
        ["document: null: must be an object; null is no value, leave the key out"]
    );
}

#[test]
fn depth_and_length_of_a_document_end_at_their_bounds() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let at_bound = format!(r#"{{"x": {}}}"#, nested(limits::DOCUMENT_DEPTH_MAX - 1));
    assert!(lines(at_bound.as_bytes())[0].contains("unknown key"));
    let beyond = format!(r#"{{"x": {}}}"#, nested(limits::DOCUMENT_DEPTH_MAX));
    assert!(lines(beyond.as_bytes())[0].contains("nested too deep"));

    let mut long = SMALLEST.as_bytes().to_vec();
    long.resize(limits::DOCUMENT_MAX_BYTES, b' ');
    assert!(Config::parse(&long).is_ok());
    long.push(b' ');
    assert_eq!(
        lines(&long),
        ["document: 8388609 bytes: must have at most 8388608 bytes"]
    );
}

#[test]
fn a_flood_of_errors_ends_at_its_bound() {
    let flood = |count: usize| {
        let keys: Vec<String> = (0..count).map(|n| format!("\"k{n}\": 1")).collect();
        let pools = SMALLEST.trim_start_matches('{');
        lines(format!("{{{}, {pools}", keys.join(",")).as_bytes())
    };
    assert_eq!(flood(limits::CONFIG_ERRORS_MAX).len(), 256);
    let more = flood(limits::CONFIG_ERRORS_MAX + 1);
    assert_eq!(more.len(), 257);
    assert_eq!(more[256], "document: more errors: only the first 256 are shown");
}

#[test]
fn a_shown_value_is_short_and_harmless() {
    let long = "x".repeat(limits::SHOWN_VALUE_MAX_CHARS + 1);
    let errors = parse(&document(&[("role", json!(long))])).unwrap_err();
    assert_eq!(errors[0].value, format!("\"{}...\"", "x".repeat(60)));
    let errors = parse(&document(&[("role", json!("\u{1b}[31m\u{202e}\n"))])).unwrap_err();
    assert_eq!(errors[0].value, r#""\u{1b}[31m\u{202e}\n""#);
}

#[test]
fn the_epoch_tells_documents_apart() {
    let epoch = |text: &str| Config::parse(text.as_bytes()).unwrap().epoch;
    assert_eq!(epoch(SMALLEST), epoch(SMALLEST));
    assert_ne!(epoch(SMALLEST), epoch(&SMALLEST.replace("llama", "llamb")));
}

#[test]
fn a_minimal_config_has_the_given_pods() {
    let pods: Vec<PodAddress> = vec!["10.0.0.1:8000".parse().unwrap(), "[::1]:8000".parse().unwrap()];
    let config = Config::minimal(&pods).unwrap();
    assert_eq!(config.pools[0].discovery, Discovery::Static(pods));
    assert!(Config::minimal(&[]).is_err());
}

/// Every section: its path in a document, and what must stand there for it to be legal.
fn sections() -> Vec<(&'static Section, String)> {
    fn visit(section: &'static Section, path: String, found: &mut Vec<(&'static Section, String)>) {
        for field in section.fields {
            let inner = match (path.is_empty(), field.kind) {
                (true, Kind::List(_)) => format!("{}.0", field.key),
                (false, Kind::List(_)) => format!("{path}.{}.0", field.key),
                (true, _) => field.key.to_owned(),
                (false, Kind::Headers(_)) => format!("{path}.{}.x-key", field.key),
                (false, _) => format!("{path}.{}", field.key),
            };
            if let Some(section) = field.kind.section() {
                visit(section, inner, found);
            }
        }
        found.push((section, path));
    }
    let mut found = Vec::new();
    visit(&DOCUMENT, String::new(), &mut found);
    found
}

#[test]
fn every_printed_default_means_the_same_as_leaving_it_out() {
    let mut compared = 0;
    for (section, path) in sections() {
        for field in section.fields {
            let Some(literal) = field.literal() else { continue };
            let mut without = document(&[]);
            for (kind, required) in [
                ("envoy_admin", json!({"cluster": "c"})),
                ("kubernetes", json!({"cluster": "c", "namespace": "n", "service": "s"})),
                ("json", json!({"cluster": "c", "path": "/"})),
            ] {
                if path.contains(kind) {
                    set(&mut without, "pools.0.discovery", json!({ kind: required }));
                }
            }
            if path.contains("objectives") {
                set(
                    &mut without,
                    "trust",
                    json!({"headers": ["x-gateway-inference-objective"]}),
                );
                set(&mut without, "admission", json!({"objectives": [{"name": "a"}]}));
            }
            if path.starts_with("rewrites") {
                set(&mut without, "rewrites", json!([{"from": "a", "to": [{"model": "b"}]}]));
            }
            let mut with = without.clone();
            let place = if path.is_empty() {
                field.key.to_owned()
            } else {
                format!("{path}.{}", field.key)
            };
            set(&mut with, &place, literal);
            let without = parse(&without).unwrap();
            let with = parse(&with).unwrap_or_else(|errors| panic!("{place}: {errors:?}"));
            assert_eq!(Config { epoch: 0, ..with }, Config { epoch: 0, ..without }, "{place}");
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn every_option_is_documented_and_has_a_fitting_default() {
    for (section, path) in sections() {
        assert!(!section.doc.is_empty());
        for field in section.fields {
            let place = format!("{path}.{}", field.key);
            assert!(field.doc.ends_with('.') && !field.doc.contains('\n'), "{place}");
            let fits = match (field.preset, field.kind) {
                (Preset::Bool(_), Kind::Bool) | (Preset::Word(_), Kind::Choice(_) | Kind::Text(_)) => true,
                (Preset::Number(_), Kind::Duration { .. } | Kind::Size { .. } | Kind::Count { .. }) => true,
                (Preset::Empty, Kind::List(list)) => list.min == 0,
                (Preset::Empty, Kind::Section(inner)) => !inner
                    .fields
                    .iter()
                    .any(|field| matches!(field.preset, Preset::Required)),
                (Preset::Integer(_), Kind::Integer { .. }) | (Preset::Empty, Kind::Headers(_)) => true,
                (Preset::Required | Preset::Unset(_), _) => true,
                _ => false,
            };
            assert!(fits, "{place}");
        }
    }
}

#[test]
fn the_examples_of_the_reference_are_valid() {
    assert!(reference_markdown().contains(SMALLEST));
    assert!(reference_markdown().contains(FULLER));
    Config::parse(FULLER.as_bytes()).unwrap();
}

#[test]
fn durations_and_sizes_are_printed_in_the_largest_unit() {
    let durations = [0, 1, 999, 1_000, 1_500, 59_000, 60_000, 90_000].map(|millis| duration_text(Millis(millis)));
    assert_eq!(durations, ["0ms", "1ms", "999ms", "1s", "1500ms", "59s", "1m", "90s"]);
    let sizes = [0, 1_000, 1_024, 786_432, 1_048_576].map(size_text);
    assert_eq!(sizes, ["0", "1000", "1KiB", "768KiB", "1MiB"]);
}

/// Files, and arbitrary input: only where there are files and time.
#[cfg(not(target_arch = "wasm32"))]
mod native {
    use proptest::prelude::*;
    use proptest::string::string_regex;

    use super::*;
    use crate::config::values;

    #[track_caller]
    fn same_as_file(name: &str, generated: &str) {
        let path = format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("BERTH_BLESS").is_some() {
            std::fs::write(&path, generated).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == generated,
            "{name} differs from the options in shared-state/src/config/options.rs; write it anew with\n    \
             BERTH_BLESS=1 cargo test -p berth-shared-state config"
        );
    }

    #[test]
    fn the_reference_page_is_the_generated_one() {
        same_as_file("docs/configuration.md", &reference_markdown());
    }

    #[test]
    fn the_json_schema_is_the_generated_one() {
        same_as_file("config.schema.json", &json_schema());
    }

    fn key() -> impl Strategy<Value = String> {
        let known: Vec<&str> = sections().iter().flat_map(|(section, _)| section.keys()).collect();
        prop_oneof![9 => proptest::sample::select(known).prop_map(str::to_owned), 1 => ".{0,8}"]
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
            "[0-9]{1,20}(ms|s|m|KiB|MiB)".prop_map(Value::from),
            r"[0-9]{1,3}(\.[0-9]{1,3}){3}:[0-9]{1,5}".prop_map(Value::from),
        ];
        leaf.prop_recursive(8, 64, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::vec((key(), inner), 0..6)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    /// Those whose pattern says all that they accept.
    fn rules() -> [&'static values::TextRule; 11] {
        [
            &values::SHORT_NAME,
            &values::MODEL_NAME,
            &values::PATH,
            &values::CLUSTER,
            &values::VARIABLE,
            &values::HEADER_NAME,
            &values::ROUTE,
            &values::PROPERTY_KEY,
            &values::KUBERNETES_NAME,
            &values::LABEL_NAME,
            &values::LABEL,
        ]
    }

    /// Never panics, and a refusal always says where and why.
    fn answers(document: &[u8]) -> Result<(), TestCaseError> {
        if let Err(errors) = Config::parse(document) {
            prop_assert!((1..=limits::CONFIG_ERRORS_MAX + 1).contains(&errors.len()));
            for error in errors {
                prop_assert!(!error.path.is_empty() && !error.value.is_empty() && !error.rule.is_empty());
                prop_assert!(!error.to_string().contains('\n'), "{error}");
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn any_bytes_get_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            answers(&bytes)?;
        }

        #[test]
        fn any_json_gets_an_answer(json in any_json(), path in key()) {
            answers(json.to_string().as_bytes())?;
            let (mut at_top, mut in_pool) = (document(&[]), document(&[]));
            at_top[&path] = json.clone();
            in_pool["pools"][0][path] = json;
            answers(at_top.to_string().as_bytes())?;
            answers(in_pool.to_string().as_bytes())?;
        }

        #[test]
        fn any_cut_of_a_document_gets_an_answer(at in 0..FULLER.len()) {
            answers(&FULLER.as_bytes()[..at])?;
        }

        #[test]
        fn a_duration_reads_as_it_is_printed(millis in any::<u64>()) {
            prop_assert_eq!(values::duration(&duration_text(Millis(millis))), Some(Millis(millis)));
        }

        #[test]
        fn a_size_reads_as_it_is_printed(kib in 1..u64::MAX >> 10) {
            prop_assert_eq!(values::size(&size_text(kib << 10)), Some(kib << 10));
        }

        #[test]
        fn a_text_accepted_by_the_schema_is_accepted(
            (index, text) in (0..rules().len()).prop_flat_map(|index| {
                let pattern = rules()[index].pattern.trim_matches(['^', '$']);
                (Just(index), string_regex(pattern).unwrap())
            })
        ) {
            // Short header names may be forbidden, which the pattern cannot say.
            let forbidden = index == 5 && text.len() <= 40;
            prop_assert!(forbidden || (rules()[index].accepts)(&text), "{}", text);
        }

        #[test]
        fn any_value_inside_its_bounds_reaches_the_config(
            interval in 200..=60_000_u64, hold in 4_096..=67_108_864_u64, port in 1..=u16::MAX
        ) {
            let config = parse(&document(&[
                ("pools.0.scrape.interval", json!(format!("{interval}ms"))),
                ("body.hold", json!(hold)),
                ("pools.0.scrape.port", json!(port)),
            ])).unwrap();
            let scrape = &config.pools[0].scrape;
            prop_assert_eq!((scrape.interval, scrape.port), (Millis(interval), Some(port)));
            prop_assert_eq!(config.body.hold_bytes as u64, hold);
        }
    }
}

#[track_caller]
fn check_source(changes: &[(&str, Value)], other: bool) {
    let source = |changes| parse(&document(changes)).unwrap().pools[0].source();
    assert_eq!(source(changes) != source(&[]), other, "{changes:?}");
}

#[test]
fn what_a_table_is_read_from_tells_configs_apart_and_how_often_or_what_for_does_not() {
    check_source(&[("pools.0.discovery.static", json!(["10.9.9.9:8000"]))], true);
    check_source(
        &[("pools.0.discovery", json!({"envoy_admin": {"cluster": "llama"}}))],
        true,
    );
    check_source(&[("pools.0.engine", json!("sglang"))], true);
    for (option, value) in [
        ("path", json!("/other")),
        ("port", json!(9000)),
        ("cluster", json!("other")),
        ("address_header", json!(names::DESTINATION_ENDPOINT)),
        ("headers", json!({"authorization": {"env": "KEY"}})),
        ("tls", json!(true)),
    ] {
        check_source(&[(&format!("pools.0.scrape.{option}"), value)], true);
    }
    check_source(&[("pools.0.scrape.interval", json!("500ms"))], false);
    check_source(&[("pools.0.scrape.in_band", json!(false))], false);
    check_source(&[("pools.0.routing.expected_output_tokens", json!(7))], false);
    check_source(&[("poll.budget_per_second", json!(100))], false);
    check_source(&[("pools.0.routing.require", json!(["role=decode"]))], true);
    check_source(&[("pools.0.routing.retry_apart", json!("zone"))], true);
    let labels = json!([{"label": "zone=a", "pods": ["10.0.0.1:8000"]}]);
    check_source(&[("pools.0.labels", labels)], true);
    let every = |interval: &str| {
        let admin = json!({"envoy_admin": {"cluster": "llama", "interval": interval, "allow": ["10.0.0.0/8"]}});
        parse(&document(&[("pools.0.discovery", admin)])).unwrap().pools[0].source()
    };
    assert_eq!(every("2s"), every("3s"));
}

#[test]
fn a_budget_is_at_least_one_read_per_pool() {
    let with = |budget: u64| {
        let pool = |n: u64| json!({"name": format!("p{n}"), "discovery": {"static": [format!("10.0.0.{n}:8000")]}});
        let pools: Vec<Value> = (1..=64).map(pool).collect();
        parse(&json!({"pools": pools, "poll": {"budget_per_second": budget}}))
    };
    let config = with(64).unwrap();
    assert!(config.pools.iter().all(|pool| pool.scrape.per_second == 1));
    let errors = with(63).unwrap_err();
    assert_eq!(
        errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["poll.budget_per_second: 63: must be at least 1 for each pool, here 64: each gets an equal share"]
    );
    assert!(with(130).unwrap().pools.iter().all(|pool| pool.scrape.per_second == 2));
}

/// What a document that names its host may not ask for is off where the host was found out.
#[test]
fn a_host_that_was_found_out_has_what_one_that_is_named_may_have() {
    let rewrites = json!([{"from": "a", "to": [{"model": "b"}]}]);
    let filters = json!([{"input": "x-session-id", "from": {"metadata": ["session", "id"]}}]);
    let queue = json!({"enabled": true});
    let rewriting = document(&[("rewrites", rewrites)]);
    let queueing = document(&[("admission.queue", queue)]);
    let told = document(&[("trust.filters", filters)]);
    let over = document(&[("body.mode", json!("hand-over"))]);
    for host in [Host::Nginx, Host::Kong, Host::Apisix] {
        for text in [&rewriting, &queueing, &told, &over] {
            let mut named = text.clone();
            named["host"] = json!(host);
            let refused = parse(&named).is_err();
            let whole = parse(text).unwrap();
            let mut settled = whole.clone();
            settled.settle(host);
            let same = (&settled.rewrites, &settled.admission, &settled.trust, &settled.body)
                == (&whole.rewrites, &whole.admission, &whole.trust, &whole.body);
            assert_eq!(refused, !same, "{host:?}: {text}");
        }
    }
}
