//! Every string that crosses a boundary: headers, shared-data keys, properties, root ids, stats.
//!
//! One golden test spells the public ones literally, so that a rename is a visible act.

use crate::config::Pool;

/// The chosen pods, `ip:port` or an ordered list `ip:port,ip:port`. Envoy's override_host reads it.
pub const DESTINATION_ENDPOINT: &str = "x-gateway-destination-endpoint";
/// Restricts the candidates to the listed `ip:port`; honoured only from a trusted source.
pub const ENDPOINT_SUBSET: &str = "x-gateway-destination-endpoint-subset";
/// Envoy's original-destination header: a client's copy could steer the scrape cluster.
pub const ORIGINAL_DST_HOST: &str = "x-envoy-original-dst-host";
/// The client-facing model or adapter.
pub const MODEL_NAME: &str = "x-gateway-model-name";
/// The base model behind an adapter.
pub const BASE_MODEL_NAME: &str = "x-gateway-base-model-name";
/// The pool that serves a request, by its name in the config: where there are several, the proxy's routes lead by it.
pub const POOL: &str = "x-berth-pool";
/// Named priority of a request, and the alias that peers use.
pub const OBJECTIVE: [&str; 2] = ["x-gateway-inference-objective", "x-llm-d-inference-objective"];
/// Fairness flow of a request, and the alias that peers use.
pub const FAIRNESS_ID: [&str; 2] = ["x-gateway-inference-fairness-id", "x-llm-d-inference-fairness-id"];
/// How long the client will wait for the whole answer, in milliseconds.
pub const REQUEST_TIMEOUT_MS: &str = "x-gateway-request-timeout-ms";
/// Session identity for affinity.
pub const SESSION: &str = "x-session-id";
/// Begins the name of the cookie by which a session finds its pod; the pool's name follows.
pub const COOKIE_PREFIX: &str = "berth-";
/// Asks a pod to report its load in the answer, as `TEXT` or `JSON` (ORCA; vLLM, Triton).
pub const LOAD_FORMAT: &str = "endpoint-load-metrics-format";
/// The report. Removed from the answer unless the client asked for it.
pub const LOAD_REPORT: &str = "endpoint-load-metrics";
/// Why a request went where it went; only where the config allows it.
pub const DECISION: &str = "x-berth-decision";
/// Why Berth refused.
pub const REASON: &str = "x-berth-reason";

/// Headers that Berth sets or that could steer the proxy. A client's copy is removed on every path,
/// before any early return, unless `trust` names it.
pub const STRIPPED: [&str; 13] = [
    DESTINATION_ENDPOINT,
    ORIGINAL_DST_HOST,
    ENDPOINT_SUBSET,
    MODEL_NAME,
    BASE_MODEL_NAME,
    OBJECTIVE[0],
    OBJECTIVE[1],
    FAIRNESS_ID[0],
    FAIRNESS_ID[1],
    REQUEST_TIMEOUT_MS,
    SESSION,
    DECISION,
    POOL,
];

/// Steering inputs that `trust.headers` may name. The others of [`STRIPPED`] pick the pod itself or
/// are written by Berth: no hop is trusted with them.
pub const TRUSTABLE: [&str; 9] = [
    ENDPOINT_SUBSET,
    OBJECTIVE[0],
    OBJECTIVE[1],
    FAIRNESS_ID[0],
    FAIRNESS_ID[1],
    MODEL_NAME,
    BASE_MODEL_NAME,
    REQUEST_TIMEOUT_MS,
    SESSION,
];

/// Those of [`TRUSTABLE`] that a filter before Berth can tell, under one name each.
pub const TELLABLE: [&str; 6] = [
    ENDPOINT_SUBSET,
    OBJECTIVE[0],
    FAIRNESS_ID[0],
    MODEL_NAME,
    REQUEST_TIMEOUT_MS,
    SESSION,
];

/// Callout cluster that dials an exact pod, unless the config names another.
pub const SCRAPE_CLUSTER: &str = "berth_scrape";
/// Callout cluster that reaches Envoy's admin listener, unless the config names another.
pub const ADMIN_CLUSTER: &str = "berth_admin";

/// Root ids: which role a root context plays.
pub const ROOT_FILTER: &str = "berth_filter";
/// Root id of the companion service.
pub const ROOT_SERVICE: &str = "berth_service";

/// Filter state with the decision as `key=value;…`, for access logs (`%FILTER_STATE(wasm.berth:PLAIN)%`).
pub const STATE_DECISION: &str = "berth";
/// Filter state that asks a later filter to hold the headers until the body is complete.
pub const STATE_WAIT: &str = "berth_wait";
/// Filter state with the ordered endpoints, for a hand-over to a later filter.
pub const STATE_ENDPOINTS: &str = "berth_endpoints";
/// Filter state with the model, for a hand-over to a later filter.
pub const STATE_MODEL: &str = "berth_model";
/// Filter state with the form in which the pod is asked for a load report, for a hand-over to a later filter.
pub const STATE_REPORT: &str = "berth_report";

/// Variables of nginx that a filter writes where the configuration makes them (`set $berth_target "";`): the first of
/// the chosen pods, for `proxy_pass`, and the decision as `key=value;…`, for access logs.
pub const VARIABLE_TARGET: &str = "berth_target";
/// See [`VARIABLE_TARGET`].
pub const VARIABLE_DECISION: &str = "berth_decision";

/// Prefix of every shared-data key: project and schema version. The key space of an empty vm_id is
/// shared by all plugins of the process, so ours are told apart by it.
pub const KEY_PREFIX: &str = "berth/5/";

/// Shared-data keys of a pool's readings. Only contexts that would read the same pods in the same way
/// ([`Pool::source`]) share them: two configs may give the same name to different pools, and Istio puts all
/// plugins into one key space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The lease that decides who polls. Written under compare-and-swap.
    pub lease: String,
    /// The table. One writer: the poller.
    pub table: String,
    /// What pods reported in their answers. Written by every worker under compare-and-swap.
    pub reports: String,
    /// By which a worker asks the poller to read the models pages at once: it writes the time of asking
    /// there. One small value, any number of writers.
    pub refresh: String,
}

impl Keys {
    /// Those of this pool.
    #[must_use]
    pub fn of(pool: &Pool) -> Self {
        let source = pool.source();
        let key = |what: &str| format!("{KEY_PREFIX}{}/{source:016x}/{what}", pool.name);
        Self {
            lease: key("lease"),
            table: key("table"),
            reports: key("reports"),
            refresh: key("refresh"),
        }
    }
}

/// Shared-data key of a pool's ledger. Written by every worker under compare-and-swap. All configs share it:
/// it knows pods by their addresses, and their requests count whoever sent them.
#[must_use]
pub fn ledger_key(pool: &str) -> String {
    [KEY_PREFIX, pool, "/ledger"].concat()
}

/// Shared-data key of a page of a pool's prefix index. There is a fixed number of them, written by
/// every worker under compare-and-swap.
#[must_use]
pub fn prefix_key(pool: &str, page: u64) -> String {
    [KEY_PREFIX, pool, "/prefix/", &page.to_string()].concat()
}

/// Counter: how often a context of this process began to poll a pool.
pub const POLLERS_BEGUN: &str = "pollers_begun";

/// Counter: first attempts that did not reach the first pod of the list. Some, while pods come and go; all, where
/// nobody applies the choice.
pub const ELSEWHERE: &str = "elsewhere";

/// Counter: requests whose body was cut before the model, so that the pool's base was thought to be meant.
pub const MODEL_UNREAD: &str = "model_unread";

/// Gauge: Unix seconds of a pool's last table. Its age is what to alert on: the poller's death shows here.
pub const PUBLISHED_AT: &str = "published_at_seconds";

/// Name of a stat of one pool. Only configured names come in here.
#[must_use]
pub fn pool_stat(pool: &str, stat: &str) -> String {
    ["berth.pool.", pool, ".", stat].concat()
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// Two versions in one process would otherwise overwrite each other's values in turn.
    #[test]
    fn keys_change_with_the_schema() {
        assert_eq!(super::KEY_PREFIX, format!("berth/{}/", crate::sealed::SCHEMA));
    }
}
