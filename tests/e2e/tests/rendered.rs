//! Configurations that users get: rendered, and those in envoy-config/.

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use berth_tests_e2e::client::Client;
use berth_tests_e2e::envoy::{Envoy, free_port, render, root, scratch, validate};
use berth_tests_simulator::server::{Fault, Simulator};
use serde_json::{Value, json};

use crate::support::{CHAT, chat, pod};

#[tokio::test]
async fn what_is_rendered_is_valid() -> Result<()> {
    let folder = scratch("rendered")?;
    let (gateway, admin) = (free_port()?, free_port()?);
    let fixed = json!({"pools": [{"name": "llama", "discovery": {"static": ["10.0.0.1:8000", "[fd00::1]:8000"]}}]});
    let found = json!({"pools": [{
        "name": "llama",
        "discovery": {"envoy_admin": {"cluster": "outbound|8000||llama.ns.svc", "admin": "my-admin"}},
        "scrape": {"headers": {"authorization": {"env": "KEY"}}, "cluster": "my-scrape"},
    }]});
    let both = json!({"pools": [fixed["pools"][0], {
        "name": "qwen",
        "discovery": {"envoy_admin": {"cluster": "qwen_pods"}},
        "scrape": {"cluster": "qwen_scrape", "address_header": "x-gateway-destination-endpoint"},
    }]});
    let asked = |discovery: Value| json!({"pools": [{"name": "llama", "discovery": discovery}]});
    let listed = asked(json!({"json": {"cluster": "lists", "path": "/pods"}}));
    let dns = ["--dns", "llama.default.svc.cluster.local:8000"];
    let list = [&dns[..], &["--list", "lists=registry.example:80"]].concat();
    let cases: [(&str, &Value, &[&str]); 6] = [
        ("list", &listed, &list),
        ("both", &both, &["--dns", "qwen=qwen.default.svc.cluster.local:8000"]),
        ("static", &fixed, &[]),
        ("forward", &fixed, &["--forward", "/health", "--timeout", "30"]),
        ("admin", &found, &["--dns", "llama.default.svc.cluster.local:8000"]),
        ("plain", &fixed, &["--without-berth"]),
    ];
    for (name, config, args) in cases {
        let file = folder.join(format!("{name}.json"));
        fs::write(&file, config.to_string())?;
        let yaml = folder.join(format!("{name}.yaml"));
        fs::write(&yaml, render(&file, gateway, admin, args).await?)?;
        validate(&yaml).await.context(name)?;
    }
    Ok(())
}

/// Starts an example with its addresses exchanged for these.
async fn example(name: &str, replaced: &[(&str, String)], environment: &[(&str, &str)]) -> Result<Envoy> {
    let (gateway, admin) = (free_port()?, free_port()?);
    let mut yaml = fs::read_to_string(root().join("envoy-config").join(name))?;
    let port = |address: SocketAddr| address.port().to_string();
    let fixed = [
        ("port_value: 8080", format!("port_value: {}", port(gateway))),
        ("dist/", format!("{}/", root().join("dist").display())),
    ];
    for (from, to) in fixed.iter().chain(replaced) {
        ensure!(yaml.contains(from), "{name} has no {from:?}");
        yaml = yaml.replace(from, to);
    }
    if yaml.contains("admin:\n") {
        yaml = yaml.replace("port_value: 9901", &format!("port_value: {}", port(admin)));
    } else {
        yaml.push_str(&format!(
            "admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }}\n",
            admin.port()
        ));
    }
    Envoy::start(&scratch(name)?, &yaml, gateway, admin, environment).await
}

/// Waits until requests are routed by what the pods' pages say.
async fn routes(envoy: &Envoy) -> Result<()> {
    let last = RefCell::new(None);
    envoy
        .until("a decision on fresh readings", async || {
            let answer = envoy.client().post(CHAT, &chat("llama", "example", 10, 1)).await?;
            let fresh = answer.status == 200 && answer.decision("reading") == "fresh";
            last.replace(Some(answer));
            Ok(fresh)
        })
        .await
        .with_context(|| format!("the last answer was {:?}", last.take()))
}

#[tokio::test]
async fn the_minimal_example_routes() -> Result<()> {
    let pods = [
        Simulator::start(pod("a", &[])).await?,
        Simulator::start(pod("b", &[])).await?,
    ];
    let mut replaced = Vec::new();
    for (ip, pod) in ["10.0.0.1", "10.0.0.2"].iter().zip(&pods) {
        let port = pod.address().port();
        replaced.push((format!("{ip}:8000"), format!("127.0.0.1:{port}")));
        replaced.push((
            format!("address: {ip}, port_value: 8000"),
            format!("address: 127.0.0.1, port_value: {port}"),
        ));
    }
    let replaced: Vec<(&str, String)> = replaced.iter().map(|(from, to)| (from.as_str(), to.clone())).collect();
    let envoy = example("minimal.yaml", &replaced, &[]).await?;
    routes(&envoy).await?;
    // Retries walk the list.
    for pod in &pods {
        pod.set_fault(Fault::InferenceStatus {
            status: 503,
            times: Some(1),
        })
        .await;
    }
    let answer = envoy.client().post(CHAT, &chat("llama", "retry", 10, 1)).await?;
    assert_eq!(answer.status, 200);
    assert_eq!(envoy.client().post("/pause", &json!({})).await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn the_full_example_routes() -> Result<()> {
    let mut one = pod("a", &["sql"]);
    one.authorization = Some("Bearer my-key".to_owned());
    let pod = Simulator::start(one).await?;
    let folder = scratch("full-log")?;
    let log = folder.join("access.log");
    let replaced = [
        (
            "address: llama-pods.default.svc.cluster.local, port_value: 8000",
            format!("address: 127.0.0.1, port_value: {}", pod.address().port()),
        ),
        ("/dev/stdout", log.display().to_string()),
    ];
    let envoy = example("full.yaml", &replaced, &[("SCRAPE_AUTHORIZATION", "Bearer my-key")]).await?;
    routes(&envoy).await?;
    let answer = Client::http2(envoy.gateway)
        .post(CHAT, &chat("sql", "h2", 10, 1))
        .await?;
    assert_eq!((answer.status, answer.pod()), (200, "a"), "{}", answer.text());
    assert_eq!(envoy.client().post("/update_weights", &json!({})).await?.status, 404);
    envoy
        .until("the access log", async || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            Ok(text
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok())
                .any(|line| {
                    line["berth"]
                        .as_str()
                        .is_some_and(|why| why.starts_with("pod=127.0.0.1:"))
                        && line["status"] == 200
                }))
        })
        .await?;
    assert_eq!(
        envoy.stat("wasmcustom.berth.pool.llama.scrape_failures").await?,
        Some(0)
    );
    Ok(())
}
