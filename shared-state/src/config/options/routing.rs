//! What a decision starts from, and what an operator wants of it.

use super::super::schema::{Kind, List, Preset, Section};
use super::super::values::{LABEL, LABEL_NAME, PODS, VARIABLE};
use super::field;
use crate::limits;

pub(super) static ROUTING: Section = Section {
    path: "pools[].routing",
    doc: "What the decision starts from, before it has observed anything, and what an operator wants of it.",
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
            "Output tokens expected of a request that sets no bound. They must fit into the pod's KV cache beside the prompt. Replaced by the mean of what the engines count, so it matters for the first requests only.",
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
            "affinity",
            Kind::Section(&AFFINITY),
            Preset::Empty,
            "Whose requests cost less at the pod that served them last.",
        ),
        field(
            "require",
            Kind::List(&List {
                of: Kind::Text(&LABEL),
                noun: "different labels, each `name=value`",
                min: 0,
                max: limits::LABELS_PER_POD_MAX,
            }),
            Preset::Empty,
            r#"Only pods with all of these labels get requests, for example `["role=decode"]`. A pod that says nothing of a label gets requests only where none is known to have it; where all ready pods have another value: 503."#,
        ),
        field(
            "retry_apart",
            Kind::Text(&LABEL_NAME),
            Preset::Unset("retries take the next by cost"),
            "A label that names failure domains, such as `zone` or `node`: the pods that retries take stand in other ones than those before, if that costs less than a second more.",
        ),
        field(
            "max_requests",
            Kind::Count {
                min: 1,
                max: limits::CAP_REQUESTS_MAX as u64,
            },
            Preset::Unset("no cap"),
            "Requests at one pod, running and queued, this proxy's and those that its page shows of others. A pod that has them gets no more while another is below; where all have them the cheapest gets it, with a note. Proxies that do not talk may exceed it by what they send between two scrapes.",
        ),
        field(
            "max_tokens",
            Kind::Count {
                min: 1,
                max: limits::CAP_TOKENS_MAX,
            },
            Preset::Unset("no cap"),
            "KV tokens in use at one pod: contexts of this proxy's requests, and what its page shows of others. As `max_requests`; the request that reaches it is let in whole.",
        ),
        field(
            "slow_start",
            Kind::Duration {
                min: crate::units::Millis(0),
                max: limits::SLOW_START_MAX,
            },
            Preset::Number(limits::SLOW_START.0),
            "Time in which the share of a new or restarted pod grows from a tenth to a whole one: it costs ten times as much at first. 0ms, off: engines are warm when they say that they are ready, and an empty prefix cache is in the price already. For engines that compile on their first requests.",
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
            "Turn it off where the engines cache no prefixes. It is off under the hosts nginx and kong: their shared memory is small.",
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

static AFFINITY: Section = Section {
    path: "pools[].routing.affinity",
    doc: "A pod that served a session last is believed to hold its context: what of the prompt is likely there costs nothing at that pod, and what it costs elsewhere is the whole advantage. So a session leaves a pod where waiting costs more than computing its context anew.",
    fields: &[
        field(
            "by",
            Kind::Choice(&["none", "session", "cookie"]),
            Preset::Word("none"),
            "What tells sessions apart. `session`: the header x-session-id, or what a filter told in its place, which `trust` must name; workers share a memory of who served whom, proxies agree on a pod by the session's hash. `cookie`: one that Berth sets in answers and that says, sealed, who served last; workers and proxies need nothing else. It is for clients that keep cookies.",
        ),
        field(
            "key",
            Kind::Section(&AFFINITY_KEY),
            Preset::Unset("needed with `cookie`"),
            "The secret that seals the cookie: the same for all proxies of a pool.",
        ),
        field(
            "max_age",
            Kind::Duration {
                min: limits::AFFINITY_MAX_AGE_MIN,
                max: limits::AFFINITY_MAX_AGE_MAX,
            },
            Preset::Number(limits::AFFINITY_MAX_AGE.0),
            "How long a cookie counts. A cache turns over in minutes.",
        ),
    ],
};

static AFFINITY_KEY: Section = Section {
    path: "pools[].routing.affinity.key",
    doc: "Where the secret comes from. It is never printed.",
    fields: &[field(
        "env",
        Kind::Text(&VARIABLE),
        Preset::Required,
        "The variable with the secret, any text of 16 bytes or more. Without it no cookie is set or believed, and the log says so.",
    )],
};

pub(super) static LABELLED: Section = Section {
    path: "pools[].labels[]",
    doc: "A label, and the pods that have it.",
    fields: &[
        field(
            "label",
            Kind::Text(&LABEL),
            Preset::Required,
            "`name=value`, for example `role=decode` or `zone=eu-1a`.",
        ),
        field(
            "pods",
            Kind::List(&List {
                of: Kind::Text(&PODS),
                noun: "different pods (`ip:port`) or ranges of their addresses (`10.0.1.0/24`)",
                min: 1,
                max: limits::PODS_MAX,
            }),
            Preset::Required,
            "Which pods: `ip:port`, or a range of addresses such as `10.0.1.0/24`.",
        ),
    ],
};
