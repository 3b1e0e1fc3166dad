//! Options of admission: who goes first, who waits, and who is sent away when the pods are full.

use super::field;
use crate::config::schema::{Kind, List, Preset, Section};
use crate::config::values::SHORT_NAME;
use crate::limits;

/// Waiting that a request would bear.
const PATIENCE: Kind = Kind::Duration {
    min: limits::PATIENCE_MIN,
    max: limits::PATIENCE_MAX,
};

pub(super) static ADMISSION: Section = Section {
    path: "admission",
    doc: "Who goes first when the pods of a pool are full. A pool is full for a request when no pod would begin with its prompt within `patience`, or has room in its KV cache for prompt and answer; an idle pod is never full. Without objectives and without a queue nothing of this costs anything.",
    fields: &[
        field(
            "objectives",
            Kind::List(&List {
                of: Kind::Section(&OBJECTIVE),
                noun: "objectives with different names",
                min: 0,
                max: limits::OBJECTIVES_MAX,
            }),
            Preset::Empty,
            "Named priorities. A request names one in `x-gateway-inference-objective` (or `x-llm-d-inference-objective`), which `trust` must name. Without one, or with a name that is not here, its priority is 0.",
        ),
        field(
            "patience",
            PATIENCE,
            Preset::Number(limits::PATIENCE.0),
            "Predicted time until a pod begins with a prompt, beyond which the pod is full. More than a scrape interval, so that one old gauge sends nobody away.",
        ),
        field(
            "queue",
            Kind::Section(&QUEUE),
            Preset::Empty,
            "Where requests wait in the proxy until a pod has room.",
        ),
    ],
};

static OBJECTIVE: Section = Section {
    path: "admission.objectives[]",
    doc: "A priority and its name.",
    fields: &[
        field(
            "name",
            Kind::Text(&SHORT_NAME),
            Preset::Required,
            "Unique. Clients and filters name it; metrics name its priority, which several may share.",
        ),
        field(
            "priority",
            Kind::Integer {
                min: limits::PRIORITY_MIN as i64,
                max: limits::PRIORITY_MAX as i64,
            },
            Preset::Integer(0),
            "The higher goes first. Below 0 a request is sheddable: while its pool is full it is answered with 429 and `retry-after`; with a queue it waits first. The others are never shed without a queue.",
        ),
        field(
            "patience",
            PATIENCE,
            Preset::Unset("`admission.patience`"),
            "Its own patience.",
        ),
    ],
};

static QUEUE: Section = Section {
    path: "admission.queue",
    doc: "Requests that wait in the proxy, one queue per pool and worker. Between priorities the higher goes first; within one, tenants (`x-gateway-inference-fairness-id`, which `trust` must name) share by tokens; within a tenant, first come, first served. When it is full, the youngest of the lowest priority gives way, and within a priority the youngest of the tenant with most tokens waiting: 429.",
    fields: &[
        field(
            "enabled",
            Kind::Bool,
            Preset::Bool(false),
            "Hold requests of every priority while their pool is full. Envoy with `body.mode` `hold` only: nothing else can hold a request and let it go.",
        ),
        field(
            "max_requests",
            Kind::Count {
                min: 1,
                max: limits::QUEUE_REQUESTS_MAX as u64,
            },
            Preset::Number(limits::QUEUE_REQUESTS as u64),
            "Requests that wait at one pool and worker at most.",
        ),
        field(
            "max_bytes",
            Kind::Size {
                min: limits::QUEUE_BYTES_MIN,
                max: limits::QUEUE_BYTES_MAX,
            },
            Preset::Number(limits::QUEUE_BYTES as u64),
            "Bytes of their bodies at most, which the proxy keeps meanwhile, and of what Berth keeps beside each: 1 to 18 KB. The proxy may need as much times pools times workers.",
        ),
        field(
            "band_requests",
            Kind::Count {
                min: 1,
                max: limits::QUEUE_REQUESTS_MAX as u64,
            },
            Preset::Unset("`max_requests`"),
            "The same for the requests of one priority.",
        ),
        field(
            "band_bytes",
            Kind::Size {
                min: limits::QUEUE_BYTES_MIN,
                max: limits::QUEUE_BYTES_MAX,
            },
            Preset::Unset("`max_bytes`"),
            "The same for those of one priority.",
        ),
        field(
            "max_wait",
            Kind::Duration {
                min: limits::QUEUE_WAIT_MIN,
                max: limits::QUEUE_WAIT_MAX,
            },
            Preset::Number(limits::QUEUE_WAIT.0),
            "A request that waited this long is answered with 429; sooner where a trusted `x-gateway-request-timeout-ms` says less.",
        ),
    ],
};
