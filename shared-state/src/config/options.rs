//! Every option of the document: its unit, default, bounds and reason, once.
//!
//! The numbers stand in `limits.rs`, the names of headers and clusters in `names.rs`. Deliberately
//! not here: rules between two options (`relations.rs`).

mod admission;
mod discovery;
mod routing;

use super::schema::{Field, Kind, List, Preset, Section};
use super::values::{CLUSTER, HEADER_NAME, MODEL_NAME, PATH, PROPERTY_KEY, ROUTE, SHORT_NAME, TextRule, VARIABLE};
use crate::limits;
use crate::names;
use admission::ADMISSION;
use discovery::DISCOVERY;
use routing::{LABELLED, ROUTING};

const fn field(key: &'static str, kind: Kind, preset: Preset, doc: &'static str) -> Field {
    Field { key, kind, preset, doc }
}

/// Time between two reads of a page: a scrape, or a list of pods.
const INTERVAL: Kind = Kind::Duration {
    min: limits::SCRAPE_INTERVAL_MIN,
    max: limits::SCRAPE_INTERVAL_MAX,
};

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

/// What header names in `headers` must look like, of a scrape and of a discovery.
pub(super) static CALL_HEADER: &TextRule = &HEADER_NAME;

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
            "models",
            Kind::Section(&MODELS),
            Preset::Empty,
            "What clients are told about models.",
        ),
        field(
            "rewrites",
            Kind::List(&List {
                of: Kind::Section(&REWRITE),
                noun: "rewrites of different names",
                min: 0,
                max: limits::REWRITES_MAX,
            }),
            Preset::Empty,
            "Aliases and canaries: names that clients use, and the models or adapters that stand behind them. One is applied per request: the one of the exact name, else the one of `*`.",
        ),
        field("poll", Kind::Section(&POLL), Preset::Empty, "What polling may cost."),
        field(
            "role",
            Kind::Choice(&["auto", "service", "poller", "reader"]),
            Preset::Word("auto"),
            "Who scrapes the pods. `auto`: one context of the proxy process, whoever holds the lease: the companion service, or a worker's filter where there is none or it died. `service`: the companion service alone. `poller`: as `auto`, but this context comes before others. `reader`: this one never does.",
        ),
        field(
            "host",
            Kind::Choice(&["auto", "envoy", "nginx", "kong", "apisix"]),
            Preset::Word("auto"),
            "The proxy around the wasm. `auto`: found out by what it answers. Under one that is named and is not Envoy, options that it cannot do are refused. kong-apisix/ says what each can do.",
        ),
        field(
            "admission",
            Kind::Section(&ADMISSION),
            Preset::Empty,
            "Who goes first, who waits and who is sent away when the pods are full.",
        ),
    ],
};

static POOL: Section = Section {
    path: "pools[]",
    doc: "One pool: pods that serve the same base models.",
    fields: &[
        field(
            "name",
            Kind::Text(&SHORT_NAME),
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
            "routes",
            Kind::List(&List {
                of: Kind::Text(&ROUTE),
                noun: "different route names",
                min: 0,
                max: limits::POOL_ROUTES_MAX,
            }),
            Preset::Empty,
            "Names of Envoy routes (`name:` of the route) whose requests go to this pool whatever model they name: one pool for a virtual host, a listener or a team. What the pool does not have is 404 there, though another has it.",
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
            "What the decision starts from, and what an operator wants of it.",
        ),
        field(
            "labels",
            Kind::List(&List {
                of: Kind::Section(&LABELLED),
                noun: "labels",
                min: 0,
                max: limits::LABELS_CONFIGURED_MAX,
            }),
            Preset::Empty,
            "Labels of pods, besides those that discovery brings: `zone` and `node` of Kubernetes, `zone` of `envoy_admin`, `labels` of a JSON list. `routing.require` and `routing.retry_apart` look at them.",
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
            INTERVAL,
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
            "The cluster of the proxy through which an exact pod is dialled; no route may lead to it. nginx and kong dial the pod themselves and need none. Where pods want mTLS: a second cluster of the same pods, with the override_host policy and a fallback that gives no host (envoy-config/full.yaml). Not the pool's own: its fallback would answer with another pod's page.",
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
        field(
            "in_band",
            Kind::Bool,
            Preset::Bool(true),
            "Ask pods to report queue and KV usage in their answers (vLLM does, where the answer is no stream): they are newer than what was scraped. The report is removed from the answer unless the client asked for it. Off: no header is added or removed.",
        ),
    ],
};

static SCRAPE_HEADER_VALUE: Section = header_value("pools[].scrape.headers.*");

const fn header_value(path: &'static str) -> Section {
    Section {
        path,
        doc: "Where the value of a header comes from. The keys of `headers` are header names in lower case.",
        fields: &[ENV],
    }
}

const ENV: Field = field(
    "env",
    Kind::Text(&VARIABLE),
    Preset::Required,
    "The variable whose value is the whole header value, for example `Bearer ...`. The proxy's configuration hands variables to the VM.",
);

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
            "known",
            Kind::List(&List {
                of: Kind::Section(&KNOWN_ADAPTER),
                noun: "adapters",
                min: 0,
                max: limits::ADAPTERS_PER_POD_MAX,
            }),
            Preset::Empty,
            "Adapters of this pool, besides those that its pods list: for engines that list none, and while nothing was read yet.",
        ),
        field(
            "cold_load",
            Kind::Duration {
                min: crate::units::Millis(0),
                max: limits::COLD_LOAD_MAX,
            },
            Preset::Number(limits::COLD_LOAD.0),
            "What it costs to send a request to a pod that does not hold its adapter. More than the load takes: the load stalls the batch and evicts another adapter. Where adapters come from a slow network volume, the time that takes: a pod that is silent for longer looks as if it hung.",
        ),
    ],
};

static KNOWN_ADAPTER: Section = Section {
    path: "pools[].adapters.known[]",
    doc: "An adapter that this pool serves whatever its pods list.",
    fields: &[
        field("name", Kind::Text(&MODEL_NAME), Preset::Required, "Its name."),
        field(
            "base",
            Kind::Text(&MODEL_NAME),
            Preset::Unset("the pool's base, if it is known to have one only"),
            "The base model behind it, for `x-gateway-base-model-name`.",
        ),
    ],
};

static TRUST: Section = Section {
    path: "trust",
    doc: "Which steering inputs are believed. Untrusted copies are removed from every request.",
    fields: &[
        field(
            "headers",
            Kind::List(&List {
                of: Kind::Choice(&names::TRUSTABLE),
                noun: "different names of steering headers",
                min: 0,
                max: names::TRUSTABLE.len(),
            }),
            Preset::Empty,
            "Request headers to believe. Name one only where a hop in front of this proxy sets or removes it on every request: otherwise clients steer.",
        ),
        field(
            "filters",
            Kind::List(&List {
                of: Kind::Section(&TOLD),
                noun: "objects with different `input`",
                min: 0,
                max: names::TELLABLE.len(),
            }),
            Preset::Empty,
            "What filters before Berth in the same proxy found out, such as the tenant in a verified token. Where one says nothing of a request, a trusted header may.",
        ),
    ],
};

static TOLD: Section = Section {
    path: "trust.filters[]",
    doc: "A steering input, and where an earlier filter leaves it. Clients cannot write there.",
    fields: &[
        field(
            "input",
            Kind::Choice(&names::TELLABLE),
            Preset::Required,
            "Which input, by the name of its header. Each once.",
        ),
        field(
            "from",
            Kind::OneOf(&TOLD_FROM),
            Preset::Required,
            "Where it stands. Texts only: a list, a truth value, or a whole number of up to 12 digits in metadata says nothing. Envoy gives a number as 8 bytes, and those of a long fraction may look like a text.",
        ),
    ],
};

static TOLD_FROM: Section = Section {
    path: "trust.filters[].from",
    doc: "Dynamic metadata or filter state of the request.",
    fields: &[
        field(
            "metadata",
            Kind::List(&List {
                of: Kind::Text(&PROPERTY_KEY),
                noun: "keys",
                min: 2,
                max: limits::METADATA_KEYS_MAX,
            }),
            Preset::Unset("unless it is the one"),
            "Dynamic metadata: the filter's namespace, then the keys below it. For example `[\"envoy.filters.http.jwt_authn\", \"token\", \"tenant\"]` with `payload_in_metadata: token`.",
        ),
        field(
            "filter_state",
            Kind::Text(&PROPERTY_KEY),
            Preset::Unset("unless it is the one"),
            "An object of filter state that is a text, by its key: what the set_filter_state filter makes with `envoy.string`.",
        ),
    ],
};

static MODELS: Section = Section {
    path: "models",
    doc: "What clients are told about models.",
    fields: &[
        field(
            "list",
            Kind::Bool,
            Preset::Bool(true),
            "Answer `GET /v1/models` and `GET /v1/models/{name}` from what all pods list, with adapters and rewrites, without asking one. Off, or while nothing is known: the request passes to a pod of the first pool.",
        ),
        field(
            "near_names",
            Kind::Bool,
            Preset::Bool(false),
            "Name the nearest listed model in the 404 for an unknown one. Off: strangers learn no names by guessing.",
        ),
        field(
            "hidden",
            Kind::List(&List {
                of: Kind::Text(&MODEL_NAME),
                noun: "different names",
                min: 0,
                max: limits::HIDDEN_NAMES_MAX,
            }),
            Preset::Empty,
            "Names that are neither listed nor suggested, such as the targets of a rewrite. Requests for them are served nevertheless.",
        ),
    ],
};

static REWRITE: Section = Section {
    path: "rewrites[]",
    doc: "One name, and what stands behind it. The name in the request's body is replaced, and in the answer restored; every other byte stays. A body whose name is not read in time (beyond `body.hold`), or that names its adapter in `adapter_id` or `lora_path`, is left as it is.",
    fields: &[
        field(
            "from",
            Kind::Text(&MODEL_NAME),
            Preset::Required,
            "The name that clients use; `*` is every name without a rewrite of its own.",
        ),
        field(
            "to",
            Kind::List(&List {
                of: Kind::Section(&TARGET),
                noun: "targets",
                min: 1,
                max: limits::REWRITE_TARGETS_MAX,
            }),
            Preset::Required,
            "One target, or several that share the requests by weight.",
        ),
        field(
            "sticky",
            Kind::Choice(&["none", "session", "user"]),
            Preset::Word("none"),
            "Requests of one `session` (the header x-session-id, which `trust` must name) or one `user` (the body's field) get the same target while the weights stand; those without one are dealt by chance.",
        ),
    ],
};

static TARGET: Section = Section {
    path: "rewrites[].to[]",
    doc: "A target of a rewrite. It is not rewritten again.",
    fields: &[
        field(
            "model",
            Kind::Text(&MODEL_NAME),
            Preset::Required,
            "A model or adapter, as its pods call it.",
        ),
        field(
            "weight",
            Kind::Count {
                min: 1,
                max: limits::REWRITE_WEIGHT_MAX as u64,
            },
            Preset::Unset("all targets get equal parts"),
            "Its part of the requests. Either all targets of a rewrite have one or none.",
        ),
    ],
};

static BODY: Section = Section {
    path: "body",
    doc: "How a request body is looked at before deciding, and how much of it.",
    fields: &[
        field(
            "mode",
            Kind::Choice(&["hold", "hand-over"]),
            Preset::Word("hold"),
            "Who holds the headers until the pod is chosen. `hold`: Berth; Envoy needs `allow_on_headers_stop_iteration`. `hand-over`: a Lua filter behind Berth, which takes the choice from filter state; for hosts that do not let that flag be set, such as Istio's WasmPlugin (istio/hand-over). There Berth changes nothing of a request once its headers went by, so it is for one pool and without rewrites.",
        ),
        field(
            "hold",
            Kind::Size {
                min: limits::BODY_HOLD_MIN_BYTES,
                max: limits::BODY_HOLD_MAX_BYTES,
            },
            Preset::Number(limits::BODY_HOLD_BYTES as u64),
            "Bytes held at most; a longer body is decided by its start. Envoy's `request_body_buffer_limit` must be 2MiB larger: with its default of 1MiB some bodies above 1MiB are answered with 413, most of those that declare no length. With `hand-over` the Lua filter keeps the whole body: one that declares more than this passes unread, one that declares nothing and outgrows Envoy's limit is answered with 413.",
        ),
    ],
};

static POLL: Section = Section {
    path: "poll",
    doc: "What polling for this config may cost the proxy and the pods behind it.",
    fields: &[field(
        "budget_per_second",
        Kind::Count {
            min: 1,
            max: limits::POLL_BUDGET_MAX as u64,
        },
        Preset::Number(limits::POLL_BUDGET as u64),
        "Metrics and models pages that this config has read per second, over all pods; each pool gets an equal share, so it is at least the number of pools. Another config of the same proxy has a budget of its own. With more pods than that allows, each is read less often, the gauge `scrape_interval_ms` shows how often, and readings count for as much longer. Models pages get half of it at most; where that makes them older than two `models_interval`, unknown models are routed instead of answered with 404.",
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
