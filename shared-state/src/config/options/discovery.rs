//! How pods are found.

use super::super::schema::{Field, Kind, List, Preset, Section};
use super::super::values::{AUTHORITY, CLUSTER, KUBERNETES_NAME, PATH, PORT, RANGE};
use super::{INTERVAL, field, header_value};
use crate::limits;
use crate::names;

pub(super) static DISCOVERY: Section = Section {
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
            "Envoy's own list of the hosts of a cluster, with their health: what a headless Service's name resolves to (STRICT_DNS), what a control plane sends (EDS).",
        ),
        field(
            "kubernetes",
            Kind::Section(&KUBERNETES),
            Preset::Unset("another way is used"),
            "The EndpointSlices of a Service, from the Kubernetes API.",
        ),
        field(
            "json",
            Kind::Section(&JSON),
            Preset::Unset("another way is used"),
            "A JSON list of pods from any HTTP endpoint.",
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
            INTERVAL,
            Preset::Number(limits::SCRAPE_INTERVAL.0),
            "Time between two reads. A new pod gets its first request about this late; a page of many hosts costs the main thread time.",
        ),
        ALLOW,
    ],
};

static KUBERNETES: Section = Section {
    path: "pools[].discovery.kubernetes",
    doc: "Pods from the EndpointSlices (`discovery.k8s.io/v1`) of a Service. A ready endpoint gets requests, one that terminates ends those it has. The token needs `list` on `endpointslices` in the namespace. The proxy's own cluster must know the pods too: Berth picks among its hosts.",
    fields: &[
        ASKED,
        field(
            "namespace",
            Kind::Text(&KUBERNETES_NAME),
            Preset::Required,
            "The Service's namespace.",
        ),
        field(
            "service",
            Kind::Text(&KUBERNETES_NAME),
            Preset::Required,
            "The Service's name. Its slices list the pods also where it has a virtual address.",
        ),
        field(
            "ports",
            Kind::List(&List {
                of: Kind::Text(&PORT),
                noun: "different ports, each by its name in the slices or by the pod's number",
                min: 0,
                max: limits::PORTS_PER_POD_MAX,
            }),
            Preset::Empty,
            r#"Which port of an endpoint is a pod, for example `["http"]` or `["8000", "8001"]`: each one is a pod of its own (data-parallel ranks). Empty: the only port there is. A number need not stand in the slice; it is the pod's port, not the Service's."#,
        ),
        field(
            "prefer",
            Kind::Choice(&["ipv4", "ipv6"]),
            Preset::Word("ipv4"),
            "Which address counts where a pod has both (dual stack). It must be the one that the proxy's cluster has.",
        ),
        field(
            "authority",
            Kind::Text(&AUTHORITY),
            Preset::Word("kubernetes.default.svc"),
            "`:authority` of the call.",
        ),
        asked_headers(&KUBERNETES_HEADER),
        LISTED_EVERY,
        ALLOW,
    ],
};

static KUBERNETES_HEADER: Section = header_value("pools[].discovery.kubernetes.headers.*");

static JSON: Section = Section {
    path: "pools[].discovery.json",
    doc: r#"Pods from `["10.0.0.1:8000", {"address": "10.0.0.2:8000", "name": "pod-b", "ready": false, "labels": {"role": "decode"}}]`: texts and objects may be mixed, and all but `address` left out. An entry that is no `ip:port` makes the list unusable. The proxy's own cluster must know the pods too."#,
    fields: &[
        ASKED,
        field(
            "path",
            Kind::Text(&PATH),
            Preset::Required,
            "Path of the list, with its query.",
        ),
        field(
            "authority",
            Kind::Text(&AUTHORITY),
            Preset::Word("localhost"),
            "`:authority` of the call: the server's host name, where it looks at it.",
        ),
        asked_headers(&JSON_HEADER),
        LISTED_EVERY,
        ALLOW,
    ],
};

static JSON_HEADER: Section = header_value("pools[].discovery.json.headers.*");

const ASKED: Field = field(
    "cluster",
    Kind::Text(&CLUSTER),
    Preset::Required,
    "The cluster of the proxy that reaches the endpoint, with its TLS. Under the hosts nginx and kong: `ip:port`, in plain text.",
);

const LISTED_EVERY: Field = field(
    "interval",
    INTERVAL,
    Preset::Number(limits::DISCOVERY_INTERVAL.0),
    "Time between two reads. A new pod gets its first request about this late, and one that left its last. Every proxy asks the endpoint this often.",
);

static RANGES: List = List {
    of: Kind::Text(&RANGE),
    noun: "different ranges of addresses, such as `10.0.0.0/8`",
    min: 0,
    max: limits::RANGES_MAX,
};

const ALLOW: Field = field(
    "allow",
    Kind::List(&RANGES),
    Preset::Empty,
    "Addresses outside are refused, and the log says so. Empty: all may be pods but multicast and reserved ones, and loopback and link-local ones that a name or a list brought. The latter may by a range of their own (`127.0.0.0/8`).",
);

const fn asked_headers(value: &'static Section) -> Field {
    field(
        "headers",
        Kind::Headers(value),
        Preset::Empty,
        r#"Headers of every call, at most 16, for example `{"authorization": {"env": "KUBERNETES_AUTHORIZATION"}}`. The values come from the VM's environment and are read at its start: a token that is renewed is better added by the cluster itself (README.md)."#,
    )
}
