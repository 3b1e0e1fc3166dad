//! Sessions that go by a cookie. Those that go by a header are scenarios.

use anyhow::{Context, Result, ensure};
use berth_tests_e2e::client::{Answer, Client};
use berth_tests_e2e::rig::{Rig, Setup};
use berth_tests_simulator::server::Fault;
use serde_json::json;

use crate::support::{CHAT, JSON, busy, chat, idle, logged, pods};

const VARIABLE: &str = "SESSION_SECRET";

fn setup(name: &str) -> Setup {
    // Without prefixes: where a prompt's home is depends on ports.
    let affinity = json!({"by": "cookie", "key": {"env": VARIABLE}, "max_age": "10m"});
    Setup::new(name, pods(3)).pool(json!({"routing": {"affinity": affinity, "prefix": {"enabled": false}}}))
}

/// 2,000 tokens of prompt, with these cookies. Each on a connection of its own, so that any worker gets it.
async fn asks(rig: &Rig, name: &str, cookies: &str) -> Result<Answer> {
    let body = chat("llama", name, 2_000, 1).to_string().into_bytes();
    let headers = [JSON, ("cookie", cookies)];
    let headers = if cookies.is_empty() { &headers[..1] } else { &headers };
    Client::new(rig.envoy.gateway).send("POST", CHAT, headers, body).await
}

/// The cookie that an answer sets, without its attributes.
fn set(answer: &Answer) -> Result<&str> {
    let (cookie, attributes) = answer
        .header("set-cookie")
        .split_once("; ")
        .with_context(|| format!("no cookie: {:?}", answer.headers))?;
    ensure!(
        attributes == "Path=/; Max-Age=600; HttpOnly; SameSite=Lax",
        "{attributes}"
    );
    ensure!(cookie.starts_with("berth-demo="), "{cookie}");
    Ok(cookie)
}

#[tokio::test]
async fn a_cookie_leads_a_session_back_to_its_pod() -> Result<()> {
    let rig = setup("cookie")
        .variable(VARIABLE, "a secret of some length")
        .start()
        .await?;
    let first = asks(&rig, "first", "").await?;
    let (pod, cookie) = (first.pod().to_owned(), set(&first)?.to_owned());
    ensure!(!first.header("set-cookie").contains("127.0.0.1"), "{:?}", first.headers);
    // Its pod is the only busy one now: others stay away from it.
    let pins: Vec<_> = ["a", "b", "c"]
        .map(|name| (name, if name == pod { busy() } else { idle() }))
        .into();
    rig.pin(&pins).await?;
    for (number, cookies) in [&cookie, &format!("a=b; {cookie}"), &format!("{cookie};c=d")]
        .iter()
        .enumerate()
    {
        let answer = asks(&rig, &format!("again {number}"), cookies).await?;
        ensure!(answer.pod() == pod, "{:?}", answer.headers);
        assert_eq!(answer.decision("note"), "session");
        set(&answer)?;
    }
    // A client without it, with one that was changed, and with one of another pool.
    let mut changed = cookie.clone();
    let last = changed.pop();
    changed.push(if last == Some('0') { '1' } else { '0' });
    for (name, cookies) in [
        ("none", ""),
        ("changed", &changed),
        ("foreign", &cookie.replace("berth-demo", "berth-other")),
    ] {
        let answer = asks(&rig, name, cookies).await?;
        ensure!(
            answer.pod() != pod && answer.status == 200,
            "{name}: {:?}",
            answer.headers
        );
        set(&answer)?;
    }
    // Who did not serve is not remembered.
    rig.pod(&pod)?
        .set_fault(Fault::InferenceStatus {
            status: 400,
            times: None,
        })
        .await;
    let answer = asks(&rig, "refused", &cookie).await?;
    assert_eq!(
        (answer.status, answer.pod(), answer.header("set-cookie")),
        (400, pod.as_str(), "")
    );
    Ok(())
}

#[tokio::test]
async fn without_a_secret_there_are_no_cookies() -> Result<()> {
    for (name, secret) in [("no-secret", None), ("short-secret", Some("fifteen bytes.."))] {
        let setup = setup(name);
        let setup = match secret {
            Some(secret) => setup.variable(VARIABLE, secret),
            None => setup,
        };
        let rig = setup.start().await?;
        let answer = asks(&rig, "first", "berth-demo=1.1.0000000000000000").await?;
        assert_eq!((answer.status, answer.header("set-cookie")), (200, ""));
        logged(&rig, "the variable SESSION_SECRET holds no secret of 16 bytes").await?;
    }
    Ok(())
}
