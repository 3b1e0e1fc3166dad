//! `berth render`: the folders hold what is rendered for their configs, and what cannot work is refused.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use berth_shared_state::config::{Config, Host};
use berth_shared_state::names;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn render(config: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.arg("render").args(args).arg("--config").arg(config);
    command.output().unwrap()
}

#[track_caller]
fn check(folder: &str, args: &[&str]) {
    check_file(folder, "berth.yaml", args);
}

#[track_caller]
fn check_file(folder: &str, file: &str, args: &[&str]) {
    let folder = root().join(folder);
    let output = render(&folder.join("berth.json"), args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rendered = String::from_utf8(output.stdout).unwrap();
    let file = folder.join(file);
    if std::env::var_os("BERTH_BLESS").is_some() {
        fs::write(&file, &rendered).unwrap();
    }
    assert!(
        fs::read_to_string(&file).unwrap_or_default() == rendered,
        "{} differs from what is rendered; write it anew with\n    BERTH_BLESS=1 cargo test -p berth-filter-cli --test render",
        file.display()
    );
    assert!(!has_place(&rendered), "a place was not filled");
}

/// Whether a place of a template is left, such as `@CLUSTER@`.
fn has_place(text: &str) -> bool {
    let place = |word: &str| word.chars().all(|c| c.is_ascii_uppercase() || c == '_') && !word.is_empty();
    text.split('@').skip(1).any(place)
}

#[test]
fn the_folders_hold_what_is_rendered() {
    check("istio/hand-over", &["istio", "--gateway", "llama"]);
    check("istio/hold", &["istio", "--gateway", "llama", "--way", "hold"]);
    check("istio/mesh", &["istio", "--gateway", "llama"]);
    check("istio/plugins", &["istio", "--gateway", "llama", "--way", "plugins"]);
    check("envoy-gateway", &["envoy-gateway", "--gateway", "llama"]);
    check_file("kong-apisix/nginx-wasmx", "nginx.conf", &["nginx"]);
    check_file("kong-apisix/kong", "kong.yaml", &["kong", "--listen", "0.0.0.0:8000"]);
    let settings = ["kong", "--listen", "0.0.0.0:8000", "--part", "settings"];
    check_file("kong-apisix/kong", "kong.conf", &settings);
    check_file(
        "kong-apisix/apisix",
        "apisix.yaml",
        &["apisix", "--listen", "0.0.0.0:9080"],
    );
    let settings = ["apisix", "--listen", "0.0.0.0:9080", "--part", "settings"];
    check_file("kong-apisix/apisix", "config.yaml", &settings);
}

/// Renders a document from a file of its own.
fn render_text(document: &str, args: &[&str]) -> Output {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("berth-render-{}-{number}.json", std::process::id()));
    fs::write(&file, document).unwrap();
    let output = render(&file, args);
    fs::remove_file(&file).unwrap();
    output
}

#[track_caller]
fn refuses(document: &str, args: &[&str], why: &str) {
    let output = render_text(document, args);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains(why), "{error}");
}

/// Where a VM traps, what waits in it has not come to the router: only an idle timeout ends it.
#[test]
fn where_requests_wait_every_route_has_an_idle_timeout() {
    #[track_caller]
    fn check(cluster: &str, queue: bool, args: &[&str], timeout: Option<&str>) {
        let document = format!(
            r#"{{"pools": [{{"name": "p", "discovery": {{"envoy_admin": {{"cluster": "{cluster}", "admin": "prometheus_stats"}}}}}}],
                "admission": {{"queue": {{"enabled": {queue}}}}}}}"#
        );
        let output = render_text(&document, args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let own = |line: &&str| !line.contains('{');
        let mut lines = text.lines().filter(own).map(str::trim);
        let found = lines.find_map(|line| {
            let idle = line.strip_prefix("idle_timeout: ");
            idle.or_else(|| line.strip_prefix("streamIdleTimeout: "))
        });
        assert_eq!(found, timeout, "{args:?}");
    }
    let service = "outbound|8000||llama.default.svc.cluster.local";
    let hold = ["istio", "--gateway", "llama", "--way", "hold"];
    check(service, false, &hold, None);
    check(service, true, &hold, Some("600s"));
    let longer = [&hold[..], &["--timeout", "1200"]].concat();
    check(service, true, &longer, Some("1200s"));
    let rule = "httproute/default/llama/rule/0";
    check(rule, true, &["envoy-gateway", "--gateway", "llama"], Some("600s"));
    check("llama", true, &["envoy", "--dns", "llama:8000"], Some("600s"));
}

#[test]
fn what_cannot_work_there_is_refused_with_the_remedy() {
    let found = |cluster: &str, more: &str| {
        format!(
            r#"{{"pools": [{{"name": "p", "discovery": {{"envoy_admin": {{"cluster": "{cluster}", "admin": "prometheus_stats"}}}}}}]{more}}}"#
        )
    };
    let istio = ["istio", "--gateway", "llama"];
    let eg = ["envoy-gateway", "--gateway", "llama"];
    let fixed = r#"{"pools": [{"name": "p", "discovery": {"static": ["10.0.0.1:8000"]}}]}"#;
    refuses(fixed, &istio, "use discovery.envoy_admin");
    refuses(fixed, &eg, "use discovery.envoy_admin");
    refuses(&found("llama", ""), &istio, "named outbound|8000||");
    refuses(&found("llama", ""), &eg, "named httproute/default/llama/rule/0");
    refuses(
        &found("httproute/models/llama/rule/0", ""),
        &eg,
        "say --namespace models",
    );
    let over = [fixed.trim_end_matches('}'), r#", "body": {"mode": "hand-over"}}"#].concat();
    refuses(&over, &["envoy"], "leave it out");
    let service = "outbound|8000||llama.default.svc.cluster.local";
    refuses(
        &found(service, r#", "body": {"mode": "hold"}"#),
        &istio,
        "body.mode is another than these resources are for",
    );
    refuses(
        &found(service, "").replace("prometheus_stats", "other"),
        &istio,
        r#"is "prometheus_stats""#,
    );
    let scrape = |scrape: &str| found(service, "").replace("\"p\",", &format!("\"p\", \"scrape\": {scrape},"));
    refuses(
        &scrape(r#"{"cluster": "outbound|8000|x|llama.default.svc.cluster.local"}"#),
        &istio,
        "the subset that is made here is \"outbound|8000|berth-scrape|",
    );
    refuses(
        &scrape(r#"{"address_header": "x-gateway-destination-endpoint"}"#),
        &["istio", "--gateway", "llama", "--way", "plugins"],
        "the one that is made here is \"outbound|8000||*.berth.internal\"",
    );
    refuses(
        &scrape(r#"{"address_header": "x-gateway-destination-endpoint"}"#),
        &istio,
        "address_header must be \"x-envoy-original-dst-host\"",
    );
}

#[test]
fn what_an_nginx_cannot_do_is_refused_with_the_remedy() {
    let fixed =
        |more: &str| format!(r#"{{"pools": [{{"name": "p", "discovery": {{"static": ["10.0.0.1:8000"]}}}}]{more}}}"#);
    for host in ["nginx", "kong", "apisix"] {
        let admin = r#"{"pools": [{"name": "p", "discovery": {"envoy_admin": {"cluster": "c"}}}]}"#;
        refuses(admin, &[host], "only Envoy has this page");
        refuses(&fixed(r#", "host": "envoy""#), &[host], "leave `host` out");
        refuses(
            &fixed(r#", "body": {"mode": "hand-over"}"#),
            &[host],
            "must be \"hold\"",
        );
    }
    let list = r#"{"pools": [{"name": "p", "discovery": {"json": {"cluster": "10.0.0.9:80", "path": "/pods"}}}]}"#;
    refuses(list, &["nginx"], "is made of discovery.static");
    refuses(list, &["apisix"], "name the pods in `static`");
    let rewrite = r#", "rewrites": [{"from": "a", "to": [{"model": "b"}]}]"#;
    refuses(&fixed(rewrite), &["apisix"], "cannot write bodies");
    let hidden: Vec<String> = (0..400).map(|number| format!("\"name-{number}\"")).collect();
    let long = format!(r#", "models": {{"hidden": [{}]}}"#, hidden.join(","));
    refuses(&fixed(&long), &["nginx"], "reads no word of more than");
}

/// What is rendered is read as the proxies read it, and the config in it is Berth's and names its host.
#[test]
fn the_config_arrives_whole_in_every_file_of_the_nginx_family() {
    let read = |file: &str| fs::read_to_string(root().join("kong-apisix").join(file)).unwrap();
    let yaml = |file: &str| serde_yaml_ng::from_str::<serde_json::Value>(&read(file)).unwrap();
    let kong = yaml("kong/kong.yaml");
    let apisix = yaml("apisix/apisix.yaml");
    yaml("apisix/config.yaml");
    let nginx = read("nginx-wasmx/nginx.conf");
    let line = nginx.lines().find(|line| line.contains("proxy_wasm")).unwrap();
    let nginx = line
        .split_once('\'')
        .and_then(|(_, rest)| rest.rsplit_once('\''))
        .unwrap()
        .0;
    let of_kong = kong["services"][0]["filter_chains"][0]["filters"][0]["config"]
        .as_str()
        .unwrap();
    let of_apisix = apisix["routes"][0]["plugins"]["berth"]["conf"].as_str().unwrap();
    for (document, host) in [(nginx, Host::Nginx), (of_kong, Host::Kong), (of_apisix, Host::Apisix)] {
        let config = Config::parse(document.as_bytes()).unwrap_or_else(|errors| panic!("{document}: {errors:#?}"));
        assert_eq!(config.host, host);
    }
    let pods = ["10.0.0.1:8000", "10.0.0.2:8000"];
    let targets = kong["upstreams"][0]["targets"].as_array().unwrap();
    assert_eq!(targets.iter().map(|target| &target["target"]).collect::<Vec<_>>(), pods);
    let nodes = apisix["routes"][0]["upstream"]["nodes"].as_object().unwrap();
    assert_eq!(nodes.keys().collect::<Vec<_>>(), pods);
}

/// A variable of nginx for a header is also what a client sent with underscores, which nobody removes.
#[test]
fn no_function_reads_the_choice_from_a_header_that_a_client_can_imitate() {
    let folders = [
        "filter/cli/src/render",
        "kong-apisix/nginx-wasmx",
        "kong-apisix/kong",
        "kong-apisix/apisix",
    ];
    let entries = folders
        .iter()
        .flat_map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    let code = |file: &&PathBuf| {
        file.extension()
            .is_some_and(|kind| ["conf", "yaml"].iter().any(|known| kind == *known))
    };
    let (mut exact, mut seen) = (0, 0);
    for file in files.iter().filter(code) {
        let text = fs::read_to_string(file).unwrap();
        let code: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("--"))
            .collect();
        let code = code.join("\n");
        for imitable in ["http_x_", "http_@", "get_header("] {
            assert!(!code.contains(imitable), "{}: {imitable}", file.display());
        }
        exact += code.matches("ngx.req.get_headers(0)[\"").count();
        seen += code.matches("if type(list) ~= \"string\" then").count();
    }
    assert_eq!((exact, seen), (4, 4), "Kong's and APISIX's, as templates and rendered");
}

/// The functions keep the brackets, as the balancers of both want it, and so does the fallback.
#[test]
fn pods_by_ipv6_are_dialled_in_kong_and_apisix() {
    let document = r#"{"pools": [{"name": "p", "discovery": {"static": ["[fd00::1]:8000"]}}]}"#;
    for (host, group) in [
        ("kong", "      - target: \"[fd00::1]:8000\"\n"),
        ("apisix", "        \"[fd00::1]:8000\": 1\n"),
    ] {
        let output = render_text(document, &[host]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rendered = String::from_utf8(output.stdout).unwrap();
        assert!(
            rendered.contains(r#"list:match("^(%[?[%x:%.]+%]?):(%d+)")"#),
            "{rendered}"
        );
        assert!(rendered.contains(group), "{rendered}");
    }
}

/// After a trap APISIX passes requests as they came, and the function behind the filter still reads the header.
#[test]
fn apisix_strips_what_steers_before_the_filter() {
    #[track_caller]
    fn check(trust: &str, kept: &[&str]) {
        let document = format!(
            r#"{{"pools": [{{"name": "p", "discovery": {{"static": ["10.0.0.1:8000"]}}}}], "trust": {{"headers": [{trust}]}}}}"#
        );
        let output = render_text(&document, &["apisix"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let whole: serde_json::Value = serde_yaml_ng::from_slice(&output.stdout).unwrap();
        let removed = whole["routes"][0]["plugins"]["proxy-rewrite"]["headers"]["remove"].as_array();
        let removed: BTreeSet<&str> = removed.unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        let expected = names::STRIPPED
            .into_iter()
            .filter(|name| !kept.contains(name))
            .collect();
        assert_eq!(removed, expected);
    }
    check("", &[]);
    check(&format!("{:?}", names::SESSION), &[names::SESSION]);
}

/// Envoy whose capability restrictions leave out much answers as other proxies do.
#[test]
fn what_is_rendered_for_envoy_names_it() {
    let pool = |cluster: &str| {
        format!(
            r#"{{"pools": [{{"name": "p", "discovery": {{"envoy_admin": {{"cluster": "{cluster}", "admin": "prometheus_stats"}}}}}}]}}"#
        )
    };
    let istio = pool("outbound|8000||llama.default.svc.cluster.local");
    let way = |way| ["istio", "--gateway", "llama", "--way", way];
    let eg = pool("httproute/default/llama/rule/0");
    for (document, args) in [
        (&istio, &way("hand-over")[..]),
        (&istio, &way("hold")),
        (&eg, &["envoy-gateway", "--gateway", "llama"]),
        (&pool("llama"), &["envoy", "--dns", "llama:8000"]),
    ] {
        let output = render_text(document, args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rendered = String::from_utf8(output.stdout).unwrap().replace('\\', "");
        let configs = rendered.matches("\"pools\":").count();
        let named = rendered.matches("\"host\": \"envoy\"").count() + rendered.matches("\"host\":\"envoy\"").count();
        assert!(configs > 0, "{rendered}");
        assert_eq!(named, configs, "{rendered}");
    }
    let other = r#"{"host": "apisix", "pools": [{"name": "p", "discovery": {"static": ["10.0.0.1:8000"]}}]}"#;
    refuses(other, &["envoy"], "leave `host` out");
}

/// The clusters of what is rendered for Envoy, by name.
#[track_caller]
fn clusters(document: &str, args: &[&str]) -> (serde_json::Value, Vec<serde_json::Value>) {
    let output = render_text(document, &[&["envoy"], args].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let whole: serde_json::Value = serde_yaml_ng::from_slice(&output.stdout).unwrap();
    let clusters = whole.pointer("/static_resources/clusters").unwrap();
    let clusters = clusters.as_array().unwrap().clone();
    (whole, clusters)
}

#[test]
fn what_discovery_asks_is_a_cluster_of_what_is_rendered_for_envoy() {
    let pool = |name: &str, discovery: &str| format!(r#"{{"name": "{name}", "discovery": {discovery}}}"#);
    let json = |path: &str| format!(r#"{{"json": {{"cluster": "lists", "path": "{path}"}}}}"#);
    let api =
        r#"{"kubernetes": {"cluster": "api", "namespace": "n", "service": "s", "authority": "api.example:6443"}}"#;
    let two = format!(
        r#"{{"pools": [{}, {}]}}"#,
        pool("a", &json("/a")),
        pool("b", &json("/b"))
    );
    let dns = ["--dns", "pods:8000", "--list", "lists=registry.example:80"];
    let (whole, found) = clusters(&two, &dns);
    let lists: Vec<_> = found.iter().filter(|cluster| cluster["name"] == "lists").collect();
    assert_eq!((lists.len(), whole.get("node")), (1, None), "one for both pools");
    let address = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address";
    let dials = |cluster: &serde_json::Value| cluster.pointer(address).unwrap().clone();
    assert_eq!(
        dials(lists[0]),
        serde_json::json!({"address": "registry.example", "port_value": 80})
    );

    let one = format!(r#"{{"pools": [{}]}}"#, pool("a", api));
    let (whole, found) = clusters(&one, &["--dns", "pods:8000"]);
    let api = found.iter().find(|cluster| cluster["name"] == "api").unwrap();
    assert_eq!(
        dials(api),
        serde_json::json!({"address": "api.example", "port_value": 6443})
    );
    assert_eq!(api["transport_socket"]["typed_config"]["sni"], "api.example");
    assert!(whole["node"]["id"].is_string(), "the token comes by SDS");

    refuses(
        &two,
        &["envoy", "--dns", "pods:8000"],
        "say where with --list lists=name:port",
    );
}

/// Envoy refuses a key that stands twice.
#[test]
fn two_uses_of_one_variable_are_one_key() {
    #[track_caller]
    fn check(cluster: &str, args: &[&str], keys: &str, times: usize) {
        let document = format!(
            r#"{{"pools": [{{"name": "p",
                "discovery": {{"envoy_admin": {{"cluster": "{cluster}", "admin": "prometheus_stats"}}}},
                "routing": {{"affinity": {{"by": "cookie", "key": {{"env": "A"}}}}}},
                "scrape": {{"headers": {{"authorization": {{"env": "B"}}, "x-key": {{"env": "B"}}}}}}}}]}}"#
        );
        let output = render_text(&document, args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rendered = String::from_utf8(output.stdout).unwrap();
        assert_eq!(rendered.matches(keys).count(), times, "{rendered}");
    }
    let service = "outbound|8000||llama.default.svc.cluster.local";
    let plugin =
        "    env:\n      - { name: \"A\", valueFrom: HOST }\n      - { name: \"B\", valueFrom: HOST }\n  pluginConfig:";
    check(service, &["istio", "--gateway", "llama"], plugin, 1);
    let keys = r#"{ host_env_keys: ["A", "B"] }"#;
    check(service, &["istio", "--gateway", "llama", "--way", "hold"], keys, 1);
    let policy = r#"        hostKeys: ["A", "B"]"#;
    let route = "httproute/default/llama/rule/0";
    check(route, &["envoy-gateway", "--gateway", "llama"], policy, 1);
    // Service and filter.
    check("llama", &["envoy", "--dns", "llama:8000"], keys, 2);
}
