//! Every bound and default, with its unit and reason, once.

use crate::units::Millis;

/// Largest sealed value in shared data. All vm_ids share one mutex in Envoy, so a large value holds
/// everybody up: 1 MiB costs about 105 us to read.
pub const SEALED_MAX_BYTES: usize = 1 << 20;

/// Pods in one pool.
pub const PODS_MAX: usize = 4096;
/// Pools in one config.
pub const POOLS_MAX: usize = 64;
/// Distinct model and adapter names in one table.
pub const NAMES_MAX: usize = 4096;
/// Bytes of one model or adapter name; a longer one is not a header value either.
pub const NAME_MAX_BYTES: usize = 256;
/// Bytes of a text for people in the table: a pod's name, an error of the discovery.
pub const TEXT_MAX_BYTES: usize = 256;
/// Adapters listed for one pod.
pub const ADAPTERS_PER_POD_MAX: usize = 1024;

/// Time between two scrapes of one pod. Own accounting makes shorter ones worth little
/// (DESIGN.md), and every gateway in front of a pod pays it.
pub const SCRAPE_INTERVAL: Millis = Millis(1_000);
/// Shortest scrape interval a config may ask for.
pub const SCRAPE_INTERVAL_MIN: Millis = Millis(200);
/// Time between two reads of a pod's /v1/models.
pub const MODELS_INTERVAL: Millis = Millis(10_000);
/// One scrape may take this long. A busy engine answers slowly.
pub const SCRAPE_TIMEOUT: Millis = Millis(1_000);
/// A reading is fresh for this many scrape intervals: one lost scrape and a slow answer fit in.
pub const FRESH_INTERVALS: u64 = 3;
/// Largest answer of a discovery. An Envoy before 1.38 lists all clusters, at 0.7 KB per host; the
/// host itself cuts at 32 MiB.
pub const DISCOVERY_PAGE_MAX_BYTES: usize = 16 << 20;
/// Largest metrics page that is read. Real vLLM pages are 48 to 83 KB.
pub const PAGE_MAX_BYTES: usize = 4 << 20;

/// A copy of shared data older than this is read again before a decision.
pub const VIEW_MAX_AGE: Millis = Millis(2);
/// Root contexts tick this often: less would burn CPU in idle proxies.
pub const TICK: Millis = Millis(100);

/// Bytes of a request body held by default, under Envoy's 1 MiB stream buffer.
pub const BODY_HOLD_BYTES: usize = 768 << 10;
/// Bytes held where the rendered routes raise `request_body_buffer_limit`.
pub const BODY_HOLD_RENDERED_BYTES: usize = 16 << 20;
