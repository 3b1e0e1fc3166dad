//! Every option of the document: its unit, default, bounds and reason, once.
//!
//! The numbers stand in `limits.rs`, the names of headers and clusters in `names.rs`. Deliberately
//! not here: rules between two options (`relations.rs`).

use super::schema::{Field, Kind, List, Preset, Section};
use super::values::{CLUSTER, HEADER_NAME, MODEL_NAME, PATH, POOL_NAME, TextRule, VARIABLE};
use crate::limits;
use crate::names;

const fn field(key: &'static str, kind: Kind, preset: Preset, doc: &'static str) -> Field {
    Field { key, kind, preset, doc }
}

/// Names of [`crate::sample::Engine`].
pub(super) const ENGINES: [&str; 9] = [
    "vllm",
    "sglang",
    "trtllm",
    "triton",
    "lmdeploy",
    "llama-cpp",
    "tgi",
    "max",
    "nim",
];

/// Headers of a callout from which a cluster learns the pod to dial.
pub(super) const ADDRESS_HEADERS: [&str; 2] = [names::ORIGINAL_DST_HOST, names::DESTINATION_ENDPOINT];

/// What header names in `pools[].scrape.headers` must look like.
pub(super) static SCRAPE_HEADER: &TextRule = &HEADER_NAME;

/// The document.
pub(super) static DOCUMENT: Section = Section {
    path: "",
    doc: "The whole document: one JSON object, the same for the filter, the service and the command.",
    fields: &[
        field(
            "pools",
            Kind::List(&List {
                of: Kind::Section(&POOL),
                noun: "pools with different names",
                min: 1,
                max: limits::POOLS_MAX,
            }),
            Preset::Required,
            "The pools. A request goes to the pool that serves its model.",
        ),
        field(
            "trust",
            Kind::Section(&TRUST),
            Preset::Empty,
            "Which steering inputs are believed. Nothing by default: a client could pick its own pod or priority.",
        ),
        field(
            "body",
            Kind::Section(&BODY),
            Preset::Empty,
            "How much of a request body is looked at.",
        ),
        field(
            "status",
            Kind::Section(&STATUS),
            Preset::Empty,
            "What may be shown to clients.",
        ),
        field(
            "role",
            Kind::Choice(&["auto", "poller", "reader"]),
            Preset::Word("auto"),
            "Who scrapes the pods. `auto`: one context of the proxy process, whoever holds the lease. `poller`: this one may. `reader`: this one never does.",
        ),
        field(
            "host",
            Kind::Choice(&["auto", "envoy", "nginx", "kong", "apisix"]),
            Preset::Word("auto"),
            "The proxy around the wasm. `auto` asks the proxy; name it where that goes wrong.",
        ),
        field(
            "admission",
            Kind::Reserved("the hold queue is not in this version; leave `admission` out"),
            Preset::Empty,
            "Reserved for holding requests back until a pod has room.",
        ),
    ],
};

static POOL: Section = Section {
    path: "pools[]",
    doc: "One pool: pods that serve the same base models.",
    fields: &[
        field(
            "name",
            Kind::Text(&POOL_NAME),
            Preset::Required,
            "Unique. It stands in shared-data keys, metrics and logs.",
        ),
        field(
            "models",
            Kind::List(&List {
                of: Kind::Text(&MODEL_NAME),
                noun: "different model names",
                min: 0,
                max: limits::POOL_MODELS_MAX,
            }),
            Preset::Empty,
            "Base names that this pool serves, in addition to what its pods' /v1/models say. Empty: learned from the pods alone.",
        ),
        field(
            "engine",
            Kind::Choice(&ENGINES),
            Preset::Unset("detected per scrape"),
            "The model server. Name it where detection goes wrong.",
        ),
        field(
            "discovery",
            Kind::OneOf(&DISCOVERY),
            Preset::Required,
            "How the pods are found.",
        ),
        field(
            "scrape",
            Kind::Section(&SCRAPE),
            Preset::Empty,
            "How a pod's metrics are read.",
        ),
        field(
            "adapters",
            Kind::Section(&ADAPTERS),
            Preset::Empty,
            "How LoRA adapters behave.",
        ),
        field(
            "routing",
            Kind::Section(&ROUTING),
            Preset::Empty,
            "What the decision starts from.",
        ),
    ],
};

static DISCOVERY: Section = Section {
    path: "pools[].discovery",
    doc: "How the pods are found: exactly one of these.",
    fields: &[
        field(
            "static",
            Kind::List(&List {
                of: Kind::Address,
                noun: "different pods, each `ip:port`",
                min: 1,
                max: limits::PODS_MAX,
            }),
            Preset::Unset("another way is used"),
            "A fixed list, for example `10.0.0.1:8000` or `[fd00::1]:8000`. No DNS names: the proxy finds a pod by its exact address. A pod may stand in one pool only, since each pool counts its own requests.",
        ),
        field(
            "envoy_admin",
            Kind::Section(&ENVOY_ADMIN),
            Preset::Unset("another way is used"),
            "Envoy's own list of the hosts of a cluster, with their health.",
        ),
    ],
};

static ENVOY_ADMIN: Section = Section {
    path: "pools[].discovery.envoy_admin",
    doc: "Pods from `/clusters?format=json` of Envoy's admin listener. Only on Envoy.",
    fields: &[
        field(
            "cluster",
            Kind::Text(&CLUSTER),
            Preset::Required,
            "The cluster whose hosts are the pods.",
        ),
        field(
            "admin",
            Kind::Text(&CLUSTER),
            Preset::Word(names::ADMIN_CLUSTER),
            "The cluster that reaches the admin listener. The listener should be open to this proxy alone.",
        ),
        field(
            "interval",
            Kind::Duration {
                min: limits::SCRAPE_INTERVAL_MIN,
                max: limits::SCRAPE_INTERVAL_MAX,
            },
            Preset::Number(limits::SCRAPE_INTERVAL.0),
            "Time between two reads. A new pod gets its first request about this late; a page of many hosts costs the main thread time.",
        ),
    ],
};

static SCRAPE: Section = Section {
    path: "pools[].scrape",
    doc: "How a pod's metrics and models pages are read. One call is open per pod; calls are spread over the interval.",
    fields: &[
        field(
            "path",
            Kind::Text(&PATH),
            Preset::Unset("the engine's usual one, `/metrics` while it is unknown"),
            "Path of the metrics page.",
        ),
        field(
            "port",
            Kind::Count { min: 1, max: 65_535 },
            Preset::Unset("the pod's own"),
            "TCP port of the metrics page, where it is not the port that serves requests.",
        ),
        field(
            "interval",
            Kind::Duration {
                min: limits::SCRAPE_INTERVAL_MIN,
                max: limits::SCRAPE_INTERVAL_MAX,
            },
            Preset::Number(limits::SCRAPE_INTERVAL.0),
            "Time between two scrapes of one pod. Berth counts its own requests in between, so shorter ones gain little, and every proxy in front of a pod pays for them.",
        ),
        field(
            "timeout",
            Kind::Duration {
                min: limits::SCRAPE_TIMEOUT_MIN,
                max: limits::SCRAPE_TIMEOUT_MAX,
            },
            Preset::Number(limits::SCRAPE_TIMEOUT.0),
            "Patience for one answer. A busy engine answers slowly, so a short one makes loaded pods look unknown.",
        ),
        field(
            "models_interval",
            Kind::Duration {
                min: limits::MODELS_INTERVAL_MIN,
                max: limits::MODELS_INTERVAL_MAX,
            },
            Preset::Number(limits::MODELS_INTERVAL.0),
            "Time between two reads of /v1/models. An unknown model is answered with 404 only under pages younger than two of these.",
        ),
        field(
            "cluster",
            Kind::Text(&CLUSTER),
            Preset::Word(names::SCRAPE_CLUSTER),
            "The cluster of the proxy through which an exact pod is dialled; no route may lead to it. Where pods want mTLS: a second cluster of the same pods, with the override_host policy and a fallback that gives no host (envoy-config/full.yaml). Not the pool's own: its fallback would answer with another pod's page.",
        ),
        field(
            "address_header",
            Kind::Choice(&ADDRESS_HEADERS),
            Preset::Word(names::ORIGINAL_DST_HOST),
            "The header from which that cluster learns the pod: the first for an ORIGINAL_DST cluster, the second for one with the override_host policy.",
        ),
        field(
            "headers",
            Kind::Headers(&SCRAPE_HEADER_VALUE),
            Preset::Empty,
            r#"Headers of every scrape, at most 16, for example `{"authorization": {"env": "VLLM_API_KEY_HEADER"}}`. A value is a secret, so it comes from the VM's environment and is never printed."#,
        ),
        field(
            "tls",
            Kind::Bool,
            Preset::Bool(false),
            "Send `:scheme` https. nginx hosts turn TLS on by it; on Envoy the cluster's transport socket decides.",
        ),
    ],
};

static SCRAPE_HEADER_VALUE: Section = Section {
    path: "pools[].scrape.headers.*",
    doc: "Where the value of a header comes from. The keys of `headers` are header names in lower case.",
    fields: &[field(
        "env",
        Kind::Text(&VARIABLE),
        Preset::Required,
        "The variable whose value is the whole header value, for example `Bearer ...`. The proxy's configuration hands variables to the VM.",
    )],
};

static ADAPTERS: Section = Section {
    path: "pools[].adapters",
    doc: "How the LoRA adapters of this pool behave.",
    fields: &[
        field(
            "resolver",
            Kind::Bool,
            Preset::Bool(false),
            "The engines load adapters on first use (a resolver plugin): a name that no pod lists is routed by load, not answered with 404.",
        ),
        field(
            "cold_load",
            Kind::Duration {
                min: crate::units::Millis(0),
                max: limits::COLD_LOAD_MAX,
            },
            Preset::Number(limits::COLD_LOAD.0),
            "What it costs to send a request to a pod that does not hold its adapter. More than the load takes: the load stalls the batch and evicts another adapter. Where adapters come from a slow network volume, the time that takes.",
        ),
    ],
};

static ROUTING: Section = Section {
    path: "pools[].routing",
    doc: "What the decision starts from, before it has observed anything.",
    fields: &[
        field(
            "prefill_tokens_per_second",
            Kind::Count {
                min: 1,
                max: limits::PREFILL_TOKENS_PER_SECOND_MAX as u64,
            },
            Preset::Number(limits::PREFILL_TOKENS_PER_SECOND as u64),
            "Prompt tokens that a pod takes in per second. Replaced by what is observed, so it matters for the first requests only.",
        ),
        field(
            "expected_output_tokens",
            Kind::Count {
                min: 1,
                max: limits::EXPECTED_OUTPUT_TOKENS_MAX as u64,
            },
            Preset::Number(limits::EXPECTED_OUTPUT_TOKENS as u64),
            "Output tokens expected of a request that sets no bound. They must fit into the pod's KV cache beside the prompt.",
        ),
        field(
            "stale_after",
            Kind::Duration {
                min: limits::STALE_AFTER_MIN,
                max: limits::STALE_AFTER_MAX,
            },
            Preset::Unset("5 x `scrape.interval`, at least 5s"),
            "A reading older than this says nothing. At least 3 x `scrape.interval`, or one lost scrape makes a healthy pod unknown.",
        ),
        field(
            "prefix",
            Kind::Section(&PREFIX),
            Preset::Empty,
            "The memory of which pod was sent which prompts.",
        ),
    ],
};

static PREFIX: Section = Section {
    path: "pools[].routing.prefix",
    doc: "The memory of which pod was sent which prompts, by hashes of their blocks: a request whose prompt begins like an earlier one costs less where that one went. All workers of the process share it.",
    fields: &[
        field(
            "enabled",
            Kind::Bool,
            Preset::Bool(true),
            "Turn it off where the engines cache no prefixes.",
        ),
        field(
            "max_bytes",
            Kind::Size {
                min: limits::PREFIX_MIN_BYTES,
                max: limits::PREFIX_TOTAL_MAX_BYTES,
            },
            Preset::Number(limits::PREFIX_MAX_BYTES as u64),
            "Bytes of the proxy's shared data that it may take. It takes them as needed: 15 to 40 KB for a pod with 430,000 KV tokens. All pools of a process together take at most 64MiB, each an equal part.",
        ),
    ],
};

static TRUST: Section = Section {
    path: "trust",
    doc: "Which steering inputs are believed. Untrusted copies are removed from every request. Filter state and metadata of an earlier filter are not a source yet; they come later.",
    fields: &[field(
        "headers",
        Kind::List(&List {
            of: Kind::Choice(&names::TRUSTABLE),
            noun: "different names of steering headers",
            min: 0,
            max: names::TRUSTABLE.len(),
        }),
        Preset::Empty,
        "Request headers to believe. Name one only where a hop in front of this proxy sets or removes it on every request: otherwise clients steer.",
    )],
};

static BODY: Section = Section {
    path: "body",
    doc: "How much of a request body is looked at before deciding.",
    fields: &[field(
        "hold",
        Kind::Size {
            min: limits::BODY_HOLD_MIN_BYTES,
            max: limits::BODY_HOLD_MAX_BYTES,
        },
        Preset::Number(limits::BODY_HOLD_BYTES as u64),
        "Bytes held at most; a longer body is decided by its start. The proxy's own buffer must be larger, or it answers 413 first (Envoy's default is 1MiB).",
    )],
};

static STATUS: Section = Section {
    path: "status",
    doc: "What may be shown to clients.",
    fields: &[field(
        "decision_header",
        Kind::Bool,
        Preset::Bool(false),
        "Add `x-berth-decision` to responses. It names pods and their load, so it is not for strangers.",
    )],
};
