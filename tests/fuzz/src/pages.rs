//! Pages that pods and the proxy answer with.

use berth_shared_state::config::{Family, PortOf, Service};
use berth_shared_state::discovery::endpoint_slices::Listing;
use berth_shared_state::discovery::{self, DiscoveryError, Found, envoy_admin, json_list, range};
use berth_shared_state::limits::{
    ADAPTERS_PER_POD_MAX, DISCOVERED_MAX, NAME_MAX_BYTES, PAGE_MAX_BYTES, PODS_MAX, TEXT_MAX_BYTES,
};
use berth_shared_state::metrics::{self, Hints};
use berth_shared_state::models::{self, Model};
use berth_shared_state::sample::{Engine, Sample, Status};
use berth_shared_state::units::{Tokens, UnixMillis};

use crate::{check_line, choices};

const ENGINES: [Engine; 9] = [
    Engine::Vllm,
    Engine::Sglang,
    Engine::Trtllm,
    Engine::Triton,
    Engine::Lmdeploy,
    Engine::LlamaCpp,
    Engine::Tgi,
    Engine::Max,
    Engine::Nim,
];

/// First byte: the configured engine (low half, 0 = none), known adapters (16), the time (32).
pub fn metrics(data: &[u8]) {
    let ([how], page) = choices(data);
    let known_adapters = if how & 16 == 0 { Vec::new() } else { adapters_of(page) };
    let hints = Hints {
        engine: usize::from(how & 15)
            .checked_sub(1)
            .and_then(|index| ENGINES.get(index).copied()),
        known_adapters: &known_adapters,
        now: UnixMillis(u64::from(how & 32 != 0) * 1_790_000_000_000),
    };
    let sample = metrics::read(page, hints);
    check_sample(&sample);
    if sample.status == Status::Reject || page.len() > PAGE_MAX_BYTES / 2 {
        return;
    }
    // A comment in front, so that the first line of neither decides what kind of page it is.
    let plain = [b"#\n", page, b"\n"].concat();
    let mut lines: Vec<&[u8]> = page.split(|&byte| byte == b'\n').collect();
    lines.reverse();
    let backwards = [b"#\n", &lines.join(&b'\n')[..], b"\n"].concat();
    let forwards = metrics::read(&plain, hints);
    assert_eq!(forwards, metrics::read(&backwards, hints), "the order of lines matters");
    let twice = metrics::read(&[&plain[..], page, b"\n"].concat(), hints);
    if twice.status != Status::Reject {
        assert_eq!(forwards, twice, "a line that is repeated counts twice");
    }
}

/// Names with and without commas, taken from the page itself.
fn adapters_of(page: &[u8]) -> Vec<String> {
    let page = String::from_utf8_lossy(page);
    let Some((_, list)) = page.split_once("running_lora_adapters=\"") else {
        return Vec::new();
    };
    let list = list.split(['"', '\n']).next().unwrap_or_default();
    let commas = list.match_indices(',').map(|(at, _)| list[..at].to_owned());
    commas.chain([list.to_owned()]).collect()
}

fn check_sample(sample: &Sample) {
    let knows_nothing = Sample {
        engine: sample.engine,
        ..Sample::empty(sample.status, sample.reason)
    };
    match sample.status {
        Status::Ok => assert!(sample.running.is_some() && sample.reason.is_none()),
        Status::Partial | Status::Suspect => check_line(sample.reason.expect("a reason")),
        Status::Unknown => assert_eq!(*sample, knows_nothing, "an unknown page has fields"),
        Status::Reject => {
            assert_eq!(*sample, knows_nothing, "a rejected page has fields");
            assert_eq!(sample.engine, None, "a rejected page has an engine");
        }
    }
    assert_eq!(sample.reason.is_some(), sample.status != Status::Ok);
    for kv in [sample.kv_mean, sample.kv_max].into_iter().flatten() {
        assert!((0.0..=1.0).contains(&kv), "KV usage {kv}");
    }
    assert_eq!(sample.kv_mean.is_some(), sample.kv_max.is_some());
    assert!(
        sample.kv_mean <= sample.kv_max.map(|max| max + 1e-9),
        "a mean above the largest"
    );
    assert_ne!(sample.kv_capacity, Some(Tokens(0)), "no room at all is unknown");
    let counters = &sample.counters;
    let counters = [
        counters.prompt_tokens,
        counters.cached_prompt_tokens,
        counters.generation_tokens,
        counters.preemptions,
        counters.requests,
    ];
    for counter in counters.into_iter().flatten() {
        assert!(counter.is_finite() && counter >= 0.0, "a counter of {counter}");
    }
    assert!(sample.started_at.is_none_or(|at| at.is_finite() && at > 0.0));
    if let Some(activity) = &sample.activity {
        check_names(&activity.running.iter().map(String::as_str).collect::<Vec<_>>());
        check_names(&activity.waiting.iter().map(String::as_str).collect::<Vec<_>>());
    }
    if let Some(resident) = &sample.resident {
        check_names(&resident.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>());
    }
}

/// Sorted, distinct, and within the bounds.
fn check_names(names: &[&str]) {
    assert!(names.len() <= ADAPTERS_PER_POD_MAX);
    assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    assert!(names.iter().all(|name| (1..=NAME_MAX_BYTES).contains(&name.len())));
}

/// The whole input is the page.
pub fn models(data: &[u8]) {
    let list = match models::read(data) {
        Ok(list) => list,
        Err(error) => return check_line(&error.to_string()),
    };
    assert!(list.len() <= ADAPTERS_PER_POD_MAX);
    for (index, model) in list.iter().enumerate() {
        let names = [Some(&model.id), model.parent.as_ref()];
        assert!(
            { names }
                .into_iter()
                .flatten()
                .all(|name| (1..=NAME_MAX_BYTES).contains(&name.len()))
        );
        assert!(
            list[..index].iter().all(|other| other.id != model.id),
            "{} twice",
            model.id
        );
        assert_ne!(model.parent.as_ref(), Some(&model.id));
        assert_ne!(model.max_model_len, Some(Tokens(0)));
    }
    assert_eq!(
        models::read(page_of(&list).as_bytes()),
        Ok(list),
        "written and read again"
    );
}

fn page_of(list: &[Model]) -> String {
    let entry = |model: &Model| {
        serde_json::json!({
            "id": model.id, "parent": model.parent, "max_model_len": model.max_model_len,
        })
    };
    serde_json::json!({"data": list.iter().map(entry).collect::<Vec<_>>()}).to_string()
}

/// The first line is the cluster's name, the rest is the page.
pub fn discovery(data: &[u8]) {
    let mut parts = data.splitn(2, |&byte| byte == b'\n');
    let cluster = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let path = envoy_admin::path(&cluster);
    assert!(
        path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#'),
        "{path}"
    );
    assert_eq!(path.matches(['?', '&']).count(), 2, "a query of two parts: {path}");
    let found = match envoy_admin::read(parts.next().unwrap_or_default(), &cluster) {
        Ok(found) => found,
        Err(error) => {
            if let DiscoveryError::NoSuchCluster(name) = &error {
                assert!(cluster.starts_with(name.as_str()) && name.chars().count() <= 64);
            }
            return check_line(&error.to_string());
        }
    };
    check_found(&found);
    assert!(found.iter().all(|pod| pod.proxy_active.is_some()));
}

fn check_found(found: &[Found]) {
    assert!(
        found.is_sorted_by(|a, b| a.address < b.address),
        "ordered, each pod once"
    );
    for pod in found {
        assert_eq!(
            pod.address.to_string().parse(),
            Ok(pod.address),
            "an address that can be dialled"
        );
        assert!(
            pod.name
                .as_ref()
                .is_none_or(|name| (1..=TEXT_MAX_BYTES).contains(&name.len()))
        );
    }
    assert_eq!(discovery::one_per_address(found.to_vec()), found);
    let mut admitted = found.to_vec();
    match discovery::admit(&mut admitted, &[]) {
        Ok(refused) => assert_eq!(admitted.len() + refused.map_or(0, |refused| refused.count), found.len()),
        Err(error) => check_line(&error.to_string()),
    }
    let special = |pod: &Found| range::refusal(pod.address.socket().ip(), &[]).is_some();
    assert!(!admitted.iter().any(special), "loopback and the like are no pods");
    let left_out = discovery::cut(&mut admitted);
    assert!(admitted.len() <= PODS_MAX && (left_out == 0 || admitted.len() == PODS_MAX));
}

/// Pages of one list, parted by zero bytes. First byte: the ports (low bits) and the family (4).
pub fn slices(data: &[u8]) {
    let ([how], data) = choices(data);
    let (name, number) = (|| PortOf::Name("http".to_owned()), PortOf::Number);
    let service = Service {
        namespace: "prod".to_owned(),
        name: "llama".to_owned(),
        ports: match how & 3 {
            0 => Vec::new(),
            1 => vec![name()],
            2 => vec![number(8000), number(8001)],
            _ => vec![name(), number(8001)],
        },
        prefer: if how & 4 == 0 { Family::Ipv4 } else { Family::Ipv6 },
    };
    let mut listing = Listing::default();
    let first = listing.path(&service);
    for page in data.split(|&byte| byte == 0).take(64) {
        let path = listing.path(&service);
        let token = path.strip_prefix(&first).expect("the same list");
        let token = token.strip_prefix("&continue=").unwrap_or(token);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~%".contains(&byte);
        assert!(token.bytes().all(plain), "a token is one value of the query: {token}");
        match listing.add(page, &service) {
            Ok(Some(found)) => {
                check_found(&found);
                assert!(found.len() <= DISCOVERED_MAX);
                assert_eq!(listing.path(&service), first, "the next list begins at its start");
            }
            Ok(None) => assert_ne!(listing.path(&service), first, "there is another page"),
            Err(error) => {
                check_line(&error.to_string());
                assert_eq!(listing.path(&service), first, "after an error the list begins anew");
            }
        }
    }
}

/// The whole input is the list.
pub fn pod_list(data: &[u8]) {
    let found = match json_list::read(data) {
        Ok(found) => found,
        Err(error) => return check_line(&error.to_string()),
    };
    check_found(&found);
    assert!(found.len() <= DISCOVERED_MAX);
    let texts: Vec<String> = found.iter().map(|pod| pod.address.to_string()).collect();
    let again = json_list::read(serde_json::json!(texts).to_string().as_bytes()).expect("a list");
    let addresses = |pods: &[Found]| pods.iter().map(|pod| pod.address).collect::<Vec<_>>();
    assert_eq!(addresses(&again), addresses(&found), "written and read again");
}
