//! Pods that the Kubernetes API or a plain list names, coming and going under traffic.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use berth_tests_e2e::client::Client;
use berth_tests_e2e::envoy::{free_port, root, scratch, validate};
use berth_tests_e2e::rig::{Rig, Setup};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::pages::{Asked, Pages};
use crate::support::{CHAT, ENDPOINT, ENDPOINTS, busy, chat, full, goes_to, idle, knows, lands, logged, pods, routed};

const TOKEN: &str = "Bearer first-token";
const PATH: &str = "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dllama&limit=20";

/// An endpoint of a slice of its own: name, port, (ready, serving, terminating).
fn slice(name: &str, port: u16, [ready, serving, terminating]: [bool; 3]) -> Value {
    json!({
        "metadata": {"name": format!("llama-{name}"), "labels": {"kubernetes.io/service-name": "llama"}},
        "addressType": "IPv4",
        "endpoints": [{
            "addresses": ["127.0.0.1"], "targetRef": {"kind": "Pod", "namespace": "prod", "name": name},
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        }],
        "ports": [{"name": "metrics", "port": 9, "protocol": "TCP"}, {"name": "http", "port": port, "protocol": "TCP"}],
    })
}

const READY: [bool; 3] = [true, true, false];
const TERMINATING: [bool; 3] = [false, true, true];

/// The API: one slice a page, for who has the token.
fn api(token: &str, slices: Vec<Value>) -> impl Fn(&Asked) -> (u16, String) + Send + 'static {
    let token = token.to_owned();
    move |asked| {
        if asked.authorization != token {
            return (401, json!({"kind": "Status", "code": 401}).to_string());
        }
        let page = match asked.path.strip_prefix(PATH) {
            Some("") => 0,
            Some(rest) => match rest.strip_prefix("&continue=page").and_then(|page| page.parse().ok()) {
                Some(page) => page,
                None => return (400, rest.to_owned()),
            },
            None => return (404, asked.path.clone()),
        };
        let mut list = json!({"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1",
                              "metadata": {"resourceVersion": "7"}, "items": []});
        if let Some(slice) = slices.get(page) {
            list["items"] = json!([slice]);
        }
        if page + 1 < slices.len() {
            list["metadata"]["continue"] = json!(format!("page{}", page + 1));
        }
        (200, list.to_string())
    }
}

/// A rig whose proxy knows all pods, and whose pool learns from `pages` which are there.
async fn rig(
    name: &str,
    pages: &Pages,
    discovery: Value,
    edit: impl FnOnce(Setup) -> Setup,
) -> Result<(Rig, Vec<u16>)> {
    let mut three = pods(3);
    for pod in &mut three {
        pod.port = free_port()?.port();
    }
    let ports = three.iter().map(|pod| pod.port).collect();
    let list = format!("lists={}", pages.address);
    let setup = Setup::new(name, three)
        .pool(json!({ "discovery": discovery }))
        .render(&["--dns", "127.0.0.1:1", "--list", &list])
        .edit(ENDPOINT, ENDPOINTS)
        .unread();
    Ok((edit(setup).start().await?, ports))
}

/// Requests one after the other until it is stopped: who answered, or the status.
struct Traffic {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Result<Vec<String>>>,
}

impl Traffic {
    fn start(client: Client) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut served = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let answer = client.post(CHAT, &chat("llama", "traffic", 20, 1)).await?;
                served.push(match answer.status {
                    200 => answer.pod().to_owned(),
                    other => format!("{other} {}", answer.text()),
                });
            }
            Ok(served)
        });
        Self { stop, task }
    }

    /// Every request was answered by one of these.
    async fn ends_well(self, pods: &[&str]) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let served = self.task.await??;
        let lost = served.iter().find(|who| !pods.contains(&who.as_str()));
        ensure!(lost.is_none(), "{lost:?} among {} answers", served.len());
        Ok(())
    }
}

fn pin(rig: &Rig) -> Result<()> {
    rig.pod("a")?.pin(idle());
    rig.pod("b")?.pin(busy());
    rig.pod("c")?.pin(full());
    Ok(())
}

#[tokio::test]
async fn the_pods_of_a_kubernetes_service_come_and_go_under_traffic() -> Result<()> {
    let server = Pages::start(|_| (500, String::new())).await?;
    let discovery = json!({"kubernetes": {
        "cluster": "lists", "namespace": "prod", "service": "llama", "ports": ["http"], "interval": "200ms",
        "headers": {"authorization": {"env": "KUBERNETES_AUTHORIZATION"}}, "allow": ["127.0.0.0/8"],
    }});
    let (rig, ports) = rig("kubernetes", &server, discovery, |setup| {
        setup.variable("KUBERNETES_AUTHORIZATION", TOKEN)
    })
    .await?;
    pin(&rig)?;
    let of = |which: &[(usize, [bool; 3])]| {
        let names = ["a", "b", "c"];
        let slices = which.iter().map(|(pod, state)| slice(names[*pod], ports[*pod], *state));
        api(TOKEN, slices.collect())
    };
    server.answer(of(&[(1, READY), (2, READY)]));
    knows(&rig, 2).await?;
    goes_to(&rig, "b").await?;
    let traffic = Traffic::start(rig.client());

    // The idle one joins, in a slice of its own on the last page.
    server.answer(of(&[(1, READY), (2, READY), (0, READY)]));
    knows(&rig, 3).await?;
    goes_to(&rig, "a").await?;

    // It terminates: it is still listed and still answers, and gets nothing new.
    server.answer(of(&[(1, READY), (2, READY), (0, TERMINATING)]));
    goes_to(&rig, "b").await?;
    let publishes = rig.stat("publishes").await?;
    rig.until("tables that say so", async || {
        Ok(rig.stat("publishes").await? >= publishes + 3)
    })
    .await?;
    for _ in 0..5 {
        ensure!(lands(&rig.client(), &chat("llama", "draining", 50, 1)).await? == "b");
    }
    server.answer(of(&[(1, READY), (2, READY)]));
    knows(&rig, 2).await?;

    // Whatever the API says now, the pods stay.
    for (status, body, line) in [
        (403, "{}", "lacks `list` on endpointslices"),
        (200, "<html>", "not a list of EndpointSlices"),
        (
            200,
            r#"{"kind":"EndpointSliceList","items":[]}"#,
            "no EndpointSlice belongs",
        ),
        (500, "", "status 500"),
    ] {
        server.answer(move |_| (status, body.to_owned()));
        logged(&rig, line).await?;
        ensure!(rig.stat("pods").await? == 2);
        routed(&rig.client(), &chat("llama", "still", 10, 1)).await?;
    }
    server.answer(of(&[(1, READY), (0, READY)]));
    knows(&rig, 2).await?;
    goes_to(&rig, "a").await?;
    ensure!(rig.envoy.log_text().contains("discovery works again"));
    ensure!(rig.stat("discovery_failures").await? >= 4);
    traffic.ends_well(&["a", "b", "c"]).await
}

/// Somebody's certificate.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----
MIIBgTCCASegAwIBAgIUJ71zV355VkrWk0f60mZ914mmzQAwCgYIKoZIzj0EAwIw
FTETMBEGA1UEAwwKYmVydGggdGVzdDAgFw0yNjExMzAxMzMxMjRaGA8yMTI2MTEw
NjEzMzEyNFowFTETMBEGA1UEAwwKYmVydGggdGVzdDBZMBMGByqGSM49AgEGCCqG
SM49AwEHA0IABKFn0UHI1TVdr1Ycd4XlnSSzoOPVJ17UC2IaWrsLoDAtx8cF8Kq8
0f3AP4SwNP1yNd3/AHBfZC7ZG+WTiC3/XP6jUzBRMB0GA1UdDgQWBBTlCAS6KO9X
BV2aLcwwee53zBgzKDAfBgNVHSMEGDAWgBTlCAS6KO9XBV2aLcwwee53zBgzKDAP
BgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIQDc9QELTAym8y3EjVIp
jx0MYMvQJyql0xTEhc+TRglWnAIgf8qmzTjEXRzwjqv4Cutlsmd3IqLKw5Jij1/x
nwKUlRw=
-----END CERTIFICATE-----
";

/// The rendered cluster of the Kubernetes API without TLS, and at another address.
fn plain(cluster: &str, address: SocketAddr) -> Result<String> {
    let at = |ip: &str, port: u16| format!("address: {ip}, port_value: {port}");
    let (from, to) = (at("\"kubernetes.default.svc\"", 443), at("127.0.0.1", address.port()));
    ensure!(cluster.contains(&from));
    let (before, rest) = cluster.split_once("      transport_socket:").context("no TLS")?;
    let (_, after) = rest
        .split_once("      typed_extension_protocol_options:")
        .context("no options")?;
    Ok(format!("{before}      typed_extension_protocol_options:{after}").replace(&from, &to))
}

/// Service account tokens are renewed every hour. The cluster itself reads them from their file.
#[tokio::test]
async fn the_cluster_for_the_kubernetes_api_takes_a_renewed_token_from_its_file() -> Result<()> {
    let server = Pages::start(|_| (500, String::new())).await?;
    let folder = scratch("token")?;
    let file = folder.join("token");
    let write = |token: &str| -> Result<()> {
        let new = folder.join("new");
        fs::write(&new, token)?;
        fs::rename(&new, &file).context("cannot replace the token")
    };
    write("first-token")?;
    let text = |file: &str| fs::read_to_string(root().join("envoy-config").join(file));
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    let secret = folder.join("kubernetes-token.yaml");
    let here = |text: String| text.replace(account, &folder.display().to_string());
    fs::write(&secret, here(text("kubernetes-token.yaml")?))?;
    // As it is rendered: the example with the names of the config.
    let quoted = |text: &str| format!("\"{text}\"");
    let mut cluster = text("kubernetes-api.yaml")?;
    let secret = secret.display().to_string();
    for (name, by) in [
        ("envoy-config/kubernetes-token.yaml", secret.as_str()),
        ("kubernetes_api", "kubernetes_api"),
        ("kubernetes.default.svc", "kubernetes.default.svc"),
    ] {
        cluster = cluster.replace(name, &quoted(by));
    }
    let lines = cluster.lines().filter(|line| !line.starts_with('#'));
    let cluster: String = lines.map(|line| format!("    {line}\n")).collect();
    let plain = plain(&cluster, server.address)?;
    let discovery = json!({"kubernetes": {
        "cluster": "kubernetes_api", "namespace": "prod", "service": "llama", "ports": ["http"], "interval": "200ms",
        "allow": ["127.0.0.0/8"],
    }});
    let (rig, ports) = rig("token-rig", &server, discovery, |setup| {
        setup.render(&["--token", &secret]).edit(&cluster, &plain)
    })
    .await?;
    // As it stands, with TLS, Envoy takes it too.
    let (running, with_tls) = (
        fs::read_to_string(rig.folder.join("envoy.yaml"))?,
        folder.join("tls.yaml"),
    );
    ensure!(running.contains(&plain));
    fs::write(folder.join("ca.crt"), CERTIFICATE)?;
    fs::write(&with_tls, running.replace(&plain, &here(cluster)))?;
    validate(&with_tls).await?;
    server.answer(api(TOKEN, vec![slice("a", ports[0], READY)]));
    knows(&rig, 1).await?;
    server.answer(api(
        "Bearer second-token",
        vec![slice("a", ports[0], READY), slice("b", ports[1], READY)],
    ));
    logged(&rig, "the token in discovery.headers is missing or old").await?;
    write("second-token")?;
    knows(&rig, 2).await
}

#[tokio::test]
async fn the_pods_of_a_plain_list_come_and_go_under_traffic() -> Result<()> {
    let server = Pages::start(|_| (503, String::new())).await?;
    let discovery = json!({"json": {
        "cluster": "lists", "path": "/pods.json", "interval": "200ms", "allow": ["127.0.0.0/8"],
    }});
    let (rig, ports) = rig("json-list", &server, discovery, |setup| setup).await?;
    pin(&rig)?;
    let at = |pod: usize| format!("127.0.0.1:{}", ports[pod]);
    let list = |pods: Value| {
        let page = pods.to_string();
        move |asked: &Asked| match asked.path.as_str() {
            "/pods.json" => (200, page.clone()),
            other => (404, other.to_owned()),
        }
    };
    server.answer(list(json!([at(1), {"address": at(2), "name": "c"}])));
    knows(&rig, 2).await?;
    goes_to(&rig, "b").await?;
    let traffic = Traffic::start(rig.client());
    server.answer(list(json!([at(0), at(1), at(2)])));
    goes_to(&rig, "a").await?;
    server.answer(list(json!([{"address": at(0), "ready": false}, at(1), at(2)])));
    goes_to(&rig, "b").await?;
    server.answer(list(json!([at(1), "10.255.255.1:80"])));
    knows(&rig, 1).await?;
    let line = "1 addresses are refused, 10.255.255.1:80 for example";
    ensure!(rig.envoy.log_text().contains(line));
    ensure!(rig.stat("addresses_refused").await? == 1);
    for (body, line) in [("{}", "not a JSON list of pods"), (r#"["pod-b:80"]"#, "is not ip:port")] {
        server.answer(move |_| (200, body.to_owned()));
        logged(&rig, line).await?;
        ensure!(rig.stat("pods").await? == 1);
    }
    server.answer(list(json!([at(0), at(1)])));
    goes_to(&rig, "a").await?;
    traffic.ends_well(&["a", "b", "c"]).await
}
