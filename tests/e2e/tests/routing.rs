//! The right pod: every way in which a request names its model and its size. The four stories are scenarios.

use anyhow::{Result, ensure};
use berth_tests_e2e::rig::{Rig, Setup};
use berth_tests_simulator::server::Pinned;
use serde_json::{Value, json};

use crate::support::{CHAT, JSON, arrived, chat, full, idle, pod, routed};

/// Every inference path, with a body that names the adapter `sql`.
fn paths() -> Vec<(&'static str, Value)> {
    let text = json!({"model": "sql", "input": "text"});
    let rank = json!({"model": "sql", "query": "q", "documents": ["a", "b"]});
    let messages = json!({"model": "sql", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]});
    let prompt = json!({"model": "sql", "prompt": "Hello", "max_tokens": 4});
    vec![
        (CHAT, messages.clone()),
        ("/v1/completions", prompt.clone()),
        ("/v1/responses", text.clone()),
        ("/v1/messages", messages.clone()),
        ("/v1/messages/count_tokens", messages),
        ("/v1/embeddings", text.clone()),
        ("/v1/pooling", text.clone()),
        ("/pooling", text.clone()),
        ("/v1/classify", text.clone()),
        ("/classify", text),
        ("/v1/rerank", rank.clone()),
        ("/v2/rerank", rank.clone()),
        ("/rerank", rank),
        ("/v1/score", json!({"model": "sql", "text_1": "a", "text_2": "b"})),
        ("/score", json!({"model": "sql", "text_1": "a", "text_2": "b"})),
        ("/tokenize", prompt),
        ("/detokenize", json!({"model": "sql", "tokens": [1, 2]})),
        ("/generate", json!({"text": "Hello", "lora_path": "sql"})),
        (
            "/generate_stream",
            json!({"inputs": "Hello", "parameters": {"adapter_id": "sql"}}),
        ),
    ]
}

fn with_adapter(pinned: Pinned) -> Pinned {
    Pinned {
        adapters_running: Some(vec!["sql".to_owned()]),
        ..pinned
    }
}

/// A pod twice as large as the others, named `large`. Without prefixes: the pinned load looks like that of other proxies,
/// and where a prompt's home is depends on ports.
async fn rig(name: &str) -> Result<Rig> {
    let mut pods = vec![pod("a", &["sql"]), pod("b", &["sql"]), pod("c", &[]), pod("large", &[])];
    pods[3].engine.num_gpu_blocks = 12_000;
    let pool = json!({"routing": {"prefix": {"enabled": false}}});
    Setup::new(name, pods).pool(pool).start().await
}

#[tokio::test]
async fn every_inference_path_is_held_and_routed() -> Result<()> {
    let rig = rig("paths").await?;
    let client = rig.client();
    // Only b serves the adapter and is free.
    rig.pin(&[
        ("a", with_adapter(full())),
        ("b", with_adapter(idle())),
        ("c", idle()),
        ("large", idle()),
    ])
    .await?;
    for (path, body) in paths() {
        // Several content types that mean JSON, among them none.
        for content in ["application/json; charset=utf-8", "application/vnd.api+json", ""] {
            let headers = [("content-type", content)];
            let headers = if content.is_empty() { &[][..] } else { &headers };
            let answer = client
                .send("POST", path, headers, body.to_string().into_bytes())
                .await?;
            ensure!(
                answer.pod() == "b" && answer.decision("pod") == rig.pod("b")?.address().to_string(),
                "{path} ({content:?}): pod {:?}, {:?}",
                answer.pod(),
                answer.headers
            );
        }
        assert_eq!(rig.received("b", path)?.len(), 3, "{path}");
        let headers = &rig.received("b", path)?[0].headers;
        ensure!(
            headers.contains(&("x-gateway-model-name".to_owned(), "sql".to_owned())),
            "{path}: the pod is not told the model: {headers:?}"
        );
    }
    assert_eq!(rig.stat("routed").await?, 3 * paths().len() as u64);

    // A query, and the two slashes that clients with a wrong base URL send.
    for path in ["/v1/chat/completions?x=1", "//v1/chat/completions"] {
        let answer = client.post(path, &chat("sql", "q", 2, 2)).await?;
        assert_eq!((answer.status, answer.pod()), (200, "b"), "{path}");
    }

    // The model after a long array of messages.
    let turns: Vec<Value> = (0..2_000)
        .map(|turn| json!({"role": "user", "content": format!("turn {turn} with \"model\": \"llama\" inside")}))
        .collect();
    let body = format!(r#"{{"messages": {}, "max_tokens": 2, "model": "sql"}}"#, json!(turns));
    let answer = client.send("POST", CHAT, &[JSON], body.into_bytes()).await?;
    assert_eq!((answer.status, answer.pod()), (200, "b"));
    Ok(())
}

#[tokio::test]
async fn token_arrays_are_counted_as_tokens() -> Result<()> {
    let rig = rig("tokens").await?;
    let client = rig.client();
    // 30,000 tokens in 60 KB of text: by bytes they would look like 15,000 and fit c's 28,800.
    // Nobody runs anything, so that nobody else seems to send and the room alone decides.
    let part = |kv| Pinned {
        running: Some(0.0),
        waiting: Some(0.0),
        kv_usage: Some(kv),
        ..Pinned::default()
    };
    rig.pin(&[
        ("a", part(0.99)),
        ("b", part(0.99)),
        ("c", part(0.55)),
        ("large", part(0.8)),
    ])
    .await?;
    let body = json!({"prompt": vec![7; 30_000], "max_tokens": 2, "model": "llama"});
    let answer = client.post("/v1/completions", &body).await?;
    assert_eq!((answer.status, answer.pod()), (200, "large"));
    // The same number of bytes as text goes to the pod with the lower percentage.
    let body = json!({"prompt": "7,".repeat(30_000), "max_tokens": 2, "model": "llama"});
    let answer = client.post("/v1/completions", &body).await?;
    assert_eq!((answer.status, answer.pod()), (200, "c"));
    assert_eq!(arrived(&rig, "/v1/completions"), 2);
    assert!(routed(&client, &chat("llama", "plain", 2, 2)).await.is_ok());
    Ok(())
}
