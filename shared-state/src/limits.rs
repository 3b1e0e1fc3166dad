//! Every bound and default, with its unit and reason, once.

use crate::units::Millis;

/// Largest sealed value in shared data. All vm_ids share one mutex in Envoy, so a large value holds
/// everybody up: 1 MiB costs about 105 us to read.
pub const SEALED_MAX_BYTES: usize = 1 << 20;

/// Pods in one pool.
pub const PODS_MAX: usize = 4096;
/// Pools in one config.
pub const POOLS_MAX: usize = 64;
/// Base names that a config may give a pool. Pods list their own, so this is for aliases.
pub const POOL_MODELS_MAX: usize = 64;
/// Bytes of a config document: [`POOLS_MAX`] full pools of 24-byte addresses are 6 MiB.
pub const DOCUMENT_MAX_BYTES: usize = 8 << 20;
/// Nesting of a config document. The deepest option stands at depth 6.
pub const DOCUMENT_DEPTH_MAX: usize = 16;
/// Errors reported for one document. Nobody reads more, and a log line per key of a wrong file is worse.
pub const CONFIG_ERRORS_MAX: usize = 256;
/// Characters of a value that an error message repeats.
pub const SHOWN_VALUE_MAX_CHARS: usize = 60;
/// Bytes of a config key that is compared with known keys, or shown as it is.
pub const KEY_MAX_BYTES: usize = 64;
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
/// Longest scrape interval. Beyond it a reading says nothing about a queue that turns over in seconds.
pub const SCRAPE_INTERVAL_MAX: Millis = Millis(60_000);
/// Time between two reads of a pod's /v1/models.
pub const MODELS_INTERVAL: Millis = Millis(10_000);
/// Shortest time between two reads of /v1/models: the page changes by hand, not by load.
pub const MODELS_INTERVAL_MIN: Millis = Millis(1_000);
/// Longest time between two reads of /v1/models. An unknown name is refused only under pages younger
/// than two intervals.
pub const MODELS_INTERVAL_MAX: Millis = Millis(600_000);
/// One scrape may take this long. A busy engine answers slowly.
pub const SCRAPE_TIMEOUT: Millis = Millis(1_000);
/// A reading is fresh for this many scrape intervals: one lost scrape and a slow answer fit in.
pub const FRESH_INTERVALS: u64 = 3;
/// Largest models page that is read: 1024 entries of 1 KB.
pub const MODELS_PAGE_MAX_BYTES: usize = 1 << 20;
/// A pod is first read within this time, or within one interval if that is shorter.
pub const FIRST_READ_WITHIN: Millis = Millis(1_000);
/// Calls of one pool without an answer. Envoy's circuit breaker of a cluster stands at 1024.
pub const CALLS_OPEN_MAX: usize = 512;
/// A call is given up this long after its timeout: the host should have answered with a 504.
pub const CALL_GRACE: Millis = Millis(500);
/// A failing pod is still read at least every so many intervals ...
pub const BACKOFF_INTERVALS_MAX: u64 = 8;
/// ... and at least this often (or once per interval, if that is longer).
pub const BACKOFF_MAX: Millis = Millis(30_000);
/// Models pages are read on demand at most this often: clients choose model names.
pub const MODELS_REFRESH_MIN: Millis = Millis(2_000);
/// Patience for an answer of the discovery: an admin page with all clusters is slow.
pub const DISCOVERY_TIMEOUT: Millis = Millis(5_000);
/// A table without news is published this often, so that readers see a live poller.
pub const PUBLISH_HEARTBEAT: Millis = Millis(3_000);
/// Least time between two tables; a large one has one more millisecond for each [`TABLE_BYTES_PER_MILLI`], as for its
/// readers: the thread that polls serves requests too, and writes every pod's row each time.
pub const PUBLISH_MIN: Millis = Millis(100);
/// Equal pages under load before a pod counts as frozen: that many scrapes ...
pub const FROZEN_SCRAPES: u32 = 10;
/// ... and this long, since one long prefill step moves nothing either.
pub const FROZEN_AFTER: Millis = Millis(15_000);
/// Pages with a queue and nothing running before a pod counts as stuck: that many scrapes ...
pub const STUCK_SCRAPES: u32 = 5;
/// ... and this long.
pub const STUCK_AFTER: Millis = Millis(10_000);
/// Pages of a process that started before the last page's one, until several pods must be behind the address. One or
/// two can be a clock that was set back.
pub const SEVERAL_RETURNS: u32 = 3;
/// Pages in a row without such a return until they are forgotten. Of two pods that are dealt out by chance every
/// fourth page is a return: 20 pages without one are a chance of 0.3 %.
pub const SEVERAL_QUIET: u32 = 20;
/// Weight of the latest scrape in a rate: about the last six scrapes count.
pub const RATE_WEIGHT: f32 = 0.3;
/// Time between two pages that show a pod's tempo, at least: a step of the engine may take a good part of a second.
pub const TEMPO_SPAN_MIN: Millis = Millis(800);
/// Spans between pages before a pod has a usual tempo.
pub const TEMPO_SPANS_MIN: u32 = 5;
/// Spans of which a tempo is made, at last: older ones count less and less.
pub const TEMPO_SPANS: f64 = 50.0;
/// Weight of a span in which the pod was slow: one that stays slow has another usual tempo after an hour or so. Till then
/// it counts as so many times slower, which it is.
pub const TEMPO_WEIGHT_SLOW: f64 = 0.1;
/// Prompt tokens that are computed in the time of a step, where a pod's pages do not tell: two operations a weight
/// against two bytes, at half of the arithmetic and four fifths of the bandwidth, are 100 on an A100, 180 on an H100 and
/// 250 on an L4.
pub const TOKENS_PER_STEP: f64 = 150.0;
/// A pod is slow when it takes this multiple of its usual time. Batches that fill up, longer contexts and speculation
/// that fails make two to three.
pub const SLOW_FROM: f64 = 4.0;
/// And not any more below this multiple.
pub const SLOW_CLEARS: f64 = 2.0;
/// Prompt tokens of one step, at most, as engines are configured: vLLM takes 2,048 to 8,192. While it lasts no page moves.
pub const TOKENS_AT_ONCE: f64 = 8_192.0;
/// No pod is told to be slower: the price ends at a hundred times, and counters that lie make numbers that no table holds.
pub const SLOW_TIMES_MAX: f64 = 1e6;
/// A slow pod where nothing runs shows nothing: after this time a request tries it ...
pub const SLOW_TRIED_AFTER: Millis = Millis(30_000);
/// ... and after twice the time each time that it is slow still, up to this: a trial costs a client its patience.
pub const SLOW_TRIED_AFTER_MAX: Millis = Millis(240_000);
/// Good answers in a row before a failure is forgotten and its end is logged, so that a flapping pod
/// does not fill the log.
pub const RECOVERED_AFTER: u32 = 3;
/// Log lines of one pool within [`LOG_WINDOW`]; the rest is counted.
pub const LOG_LINES_MAX: u32 = 32;
/// See [`LOG_LINES_MAX`].
pub const LOG_WINDOW: Millis = Millis(10_000);
/// Largest answer of a discovery. An Envoy before 1.38 lists all clusters, at 0.7 KB per host; the
/// host itself cuts at 32 MiB.
pub const DISCOVERY_PAGE_MAX_BYTES: usize = 16 << 20;
/// Least patience for one scrape: below it a busy engine looks dead.
pub const SCRAPE_TIMEOUT_MIN: Millis = Millis(50);
/// Most patience for one scrape: one call is open per pod, so a hanging pod is unread this long.
pub const SCRAPE_TIMEOUT_MAX: Millis = Millis(10_000);
/// Extra headers of one call, a scrape or a read of the pods: authentication, and a few a gateway in between may want.
pub const CALL_HEADERS_MAX: usize = 16;
/// Bytes of the path of a call: a metrics page, or a list of pods.
pub const PATH_MAX_BYTES: usize = 1024;
/// Bytes of a cluster name. Istio's are the longest seen, below 200.
pub const CLUSTER_MAX_BYTES: usize = 256;
/// Bytes of the name of an environment variable.
pub const VARIABLE_MAX_BYTES: usize = 128;
/// Bytes of a header name in a config.
pub const HEADER_NAME_MAX_BYTES: usize = 64;
/// A reading older than this many scrape intervals says nothing, unless configured.
pub const STALE_AFTER_INTERVALS: u64 = 5;
/// Fewer intervals than this, and one lost scrape makes a healthy pod unknown.
pub const STALE_AFTER_INTERVALS_MIN: u64 = 3;
/// Shortest time a reading may be believed, from the shortest interval.
pub const STALE_AFTER_MIN: Millis = Millis(STALE_AFTER_INTERVALS_MIN * SCRAPE_INTERVAL_MIN.0);
/// Readings up to this age are used even under short scrape intervals.
pub const STALE_AFTER_FLOOR: Millis = Millis(5_000);
/// Longest time a reading may be believed: it allows ten intervals of the longest kind.
pub const STALE_AFTER_MAX: Millis = Millis(600_000);

/// What a cold adapter costs. More than a load from a local disk (170 ms on an H100, tests/simulator): it stalls the
/// batch and evicts another adapter. In the lab 1 and 2 s are alike; 0.5 and 5 s are worse.
pub const COLD_LOAD: Millis = Millis(2_000);
/// Highest price of a cold adapter: beyond it every warm pod wins anyway.
pub const COLD_LOAD_MAX: Millis = Millis(600_000);
/// Prefill rate of a pod before anything was observed, in tokens per second: the order of one data
/// centre GPU with a model of 7 to 8 billion parameters. Replaced by what is observed.
pub const PREFILL_TOKENS_PER_SECOND: u32 = 8_000;
/// Highest prefill rate, in tokens per second: a thousand such GPUs behind one address.
pub const PREFILL_TOKENS_PER_SECOND_MAX: u32 = 8_000_000;
/// Output tokens expected of a request that names no bound: a chat answer.
pub const EXPECTED_OUTPUT_TOKENS: u32 = 256;
/// Most output tokens expected: the longest contexts served today.
pub const EXPECTED_OUTPUT_TOKENS_MAX: u32 = 1 << 20;
/// Largest metrics page that is read. Real vLLM pages are 48 to 83 KB.
pub const PAGE_MAX_BYTES: usize = 4 << 20;
/// Wanted series of one metrics page (LoRA clocks, of which only the newest is kept, not counted):
/// about 25 for each data-parallel engine and process behind one address.
pub const SERIES_PER_PAGE_MAX: usize = 16_384;

/// A copy of shared data older than this is read again before a decision.
pub const VIEW_MAX_AGE: Millis = Millis(2);
/// A table may be one more millisecond old for each so many bytes: 1 MiB costs 105 us to copy, and is
/// copied every 130 ms, under a thousandth of the time.
pub const TABLE_BYTES_PER_MILLI: usize = 8 << 10;
/// Pods named in one decision: the pick and what a retry takes next. Later ones would be stale.
pub const ENDPOINTS_MAX: usize = 3;
/// Addresses read from a subset hint: as many as a pool has pods.
pub const SUBSET_MAX: usize = PODS_MAX;
/// Bytes of the `x-berth-decision` header, far below what any proxy allows for all headers.
pub const DECISION_HEADER_MAX_BYTES: usize = 1024;

/// Root contexts tick this often: less would burn CPU in idle proxies.
pub const TICK: Millis = Millis(100);

/// Bytes of a request body held by default, under Envoy's 1 MiB stream buffer.
pub const BODY_HOLD_BYTES: usize = 768 << 10;
/// Least that may be held: below it not even the model's name is likely to be inside.
pub const BODY_HOLD_MIN_BYTES: usize = 4 << 10;
/// Bytes held of a body whose declared length is over the hold bound. It can never be read whole, so more would only
/// keep it waiting, and where the proxy's buffer was not enlarged it would meet 413 more often: of 120 bodies of 1.5 and
/// 6 MiB over HTTP/1.1 in Envoy's default buffer of 1 MiB 30 did when up to 768 or 512 KiB were held, none with 64 KiB.
/// Seldom is not never: one read of a busy Envoy can bring more than 1 MiB.
pub const BODY_START_BYTES: usize = 64 << 10;
/// Most that may be held: wasm memory ends at 1 GiB and many requests are held at once.
pub const BODY_HOLD_MAX_BYTES: usize = 64 << 20;
/// Bytes held where the rendered routes raise `request_body_buffer_limit`.
pub const BODY_HOLD_RENDERED_BYTES: usize = 16 << 20;
/// How far the proxy's buffer must be larger than what is held. A body is let go with the piece that reaches the
/// bound, and Envoy answers 413 when that piece does not fit: it reads up to 1 MiB at once.
pub const BODY_HOLD_MARGIN_BYTES: usize = 2 << 20;

/// Workers that may share one ledger. Envoy starts one per CPU.
pub const LEDGER_VIEWS_MAX: usize = 256;
/// A worker that is silent for longer is taken for dead: its requests no longer count. Five
/// heartbeats, so that a busy worker is not mistaken for a dead one.
pub const LEDGER_VIEW_SILENT: Millis = Millis(5_000);
/// A worker with requests in flight writes at least this often.
pub const LEDGER_HEARTBEAT: Millis = Millis(1_000);
/// Events older than this are folded into sums even where no scrape has shown them.
pub const LEDGER_HORIZON: Millis = Millis(10_000);
/// A wait that was shorter is not remembered once its request is gone: whether a scrape, which takes
/// milliseconds itself, counted it as waiting is chance. Very fast servers would fill the ledger.
pub const LEDGER_WAIT_MIN: Millis = Millis(10);
/// Records of all workers in one ledger, about 20 bytes each: 80 KiB are read in about 10 us.
/// Beyond it each worker folds its older records into two sums per pod.
pub const LEDGER_ENTRIES_MAX: usize = 4096;
/// Requests one worker follows. Beyond it the oldest is forgotten.
pub const LEDGER_IN_FLIGHT_MAX: usize = 65_536;
/// What its streams show of the engines' steps a worker tells the others this often, if nothing else is written: two steps of a
/// large engine. A large ledger has one more millisecond for each [`TABLE_BYTES_PER_MILLI`].
pub const STEPS_TOLD_EVERY: Millis = Millis(50);
/// Attempts of one compare-and-swap. What is not written now goes with the next operation.
pub const LEDGER_TRIES: usize = 4;
/// Things to remember about pods that wait for a write that succeeds.
pub const LEDGER_PENDING_MAX: usize = 256;
/// A request older than this is taken for leaked. Longer than proxies let a stream live.
pub const LEDGER_ENTRY_MAX_AGE: Millis = Millis(30 * 60_000);
/// The proxy's own count must be below the ledger's for this long before a request is dropped:
/// one that the proxy is retrying elsewhere is moved only when it is answered.
pub const LEDGER_EXCESS_PATIENCE: Millis = Millis(15_000);
/// Memory of a pod that left the table.
pub const POD_FORGOTTEN_AFTER: Millis = Millis(5 * 60_000);
/// Adapters remembered for one pod: beyond the slots and the host cache of real deployments.
pub const ADAPTERS_REMEMBERED: usize = 32;
/// Adapters remembered over all pods, about 16 bytes each.
pub const ADAPTERS_REMEMBERED_TOTAL: usize = 8192;

/// Bytes of one pool's prefix index, where the config does not say. They are used as they are
/// filled: a pod with 430,000 KV tokens takes about 15 to 40 KB.
pub const PREFIX_MAX_BYTES: usize = 8 << 20;
/// Least bytes of one pool's prefix index: a large GPU takes 15 to 40 KB of it, and there are a hundred pages to meet in.
pub const PREFIX_MIN_BYTES: usize = 1 << 20;
/// Bytes of all prefix indexes of one process: with several pools each gets its part at most. Keys of
/// shared data cannot be deleted, so this is what Berth may ever hold.
pub const PREFIX_TOTAL_MAX_BYTES: usize = 64 << 20;

/// A pod that failed is avoided this long. A dead pod answers fast, so it looks idle.
pub const AVOID_FIRST: Millis = Millis(3_000);
/// Longest avoidance after repeated failures.
pub const AVOID_MAX: Millis = Millis(30_000);
/// Two different requests must meet a 5xx within this time before the pod is blamed for it.
pub const ERROR_PAIR_WINDOW: Millis = Millis(10_000);
const _: () = assert!(STALE_AFTER_INTERVALS >= STALE_AFTER_INTERVALS_MIN);
const _: () = assert!(STALE_AFTER_INTERVALS * SCRAPE_INTERVAL_MAX.0 <= STALE_AFTER_MAX.0);
const _: () = assert!(BODY_HOLD_MIN_BYTES <= BODY_HOLD_BYTES && BODY_HOLD_RENDERED_BYTES <= BODY_HOLD_MAX_BYTES);
/// A learned prefill rate that no answer confirmed for this long is forgotten: a pod that once looked
/// slow would get no requests that could show otherwise. Seen with two equal vLLMs, of which one got
/// 6 of 330 requests after a slow start.
pub const RATE_FORGOTTEN_AFTER: Millis = Millis(30_000);
/// Models pages that are read on demand are spread over this time per pod, up to [`MODELS_REFRESH_MIN`] ...
pub const REFRESH_SPREAD: Millis = Millis(10);
/// ... but a handful of pods, which this much would cover, is asked at once.
pub const REFRESH_AT_ONCE: Millis = Millis(200);

/// A lease that its holder has not renewed for this long is open to all. Short of [`STALE_AFTER_FLOOR`]
/// by more than a look, so that readings are still believed when the next poller begins.
pub const LEASE: Millis = Millis(3_000);
/// Longest time that an unrenewed lease lasts, after several holders in a row have died: one more VM per minute may
/// follow them, and a proxy of eight workers still reads its pods again if only a few died of something else.
pub const LEASE_MAX: Millis = Millis(60_000);
/// Who held a lease for this long did not die of what its predecessors died of: every page was read often.
pub const LEASE_PROVEN: Millis = Millis(60_000);
/// The holder renews this often: two renewals may be lost to a busy thread. Also how long two may poll
/// when a better candidate takes over from one that is alive.
pub const LEASE_RENEW: Millis = Millis(1_000);
/// Who stands by looks at the lease this often: one read of 60 bytes, about 4 us.
pub const LEASE_LOOK: Millis = Millis(1_000);
/// Who is not preferred leaves a lease that nobody ever had alone for this long: a companion service,
/// which starts after the filter, takes it meanwhile.
pub const LEASE_PATIENCE: Millis = Millis(300);
const _: () = assert!(LEASE_RENEW.0 * 3 <= LEASE.0 && LEASE.0 + LEASE_LOOK.0 < STALE_AFTER_FLOOR.0);
/// Reads of pods' pages per second that one config may ask for, over all its pools. A page of 48 KB takes the polling
/// thread 1.8 million wasm instructions (docs/bench.md), so this is estimated at a third of one core; 450 pods
/// are read every second with it.
pub const POLL_BUDGET: u32 = 500;
/// Highest budget: all pods of a full pool ([`PODS_MAX`]) five times a second.
pub const POLL_BUDGET_MAX: u32 = 20_000;
/// Models pages get at most this part of the budget: one of so many.
pub const POLL_BUDGET_MODELS_PART: u64 = 2;
/// What may be sent at once after a pause: the budget of this time.
pub const POLL_BURST: Millis = Millis(500);
/// Bytes of a load report in a header. vLLM's is 90 long, Triton's a few hundred.
pub const REPORT_MAX_BYTES: usize = 1024;
/// Most queued requests that are believed: more than any engine lets in.
pub const WAITING_MAX: u32 = 1_000_000;
/// A report that old is not passed on any more: scrapes are newer.
pub const REPORT_FORGOTTEN_AFTER: Millis = Millis(10_000);
/// Tries to write over a value where the host wants its token: its few writers write seldom.
pub const PUT_TRIES: usize = 4;

/// Rewrites in one config: an alias for each of hundreds of models.
pub const REWRITES_MAX: usize = 1024;
/// Targets of one rewrite: a canary has two.
pub const REWRITE_TARGETS_MAX: usize = 16;
/// Largest weight of a target, as peers have it.
pub const REWRITE_WEIGHT_MAX: u32 = 1_000_000;
/// Routes of the proxy that lead to one pool.
pub const POOL_ROUTES_MAX: usize = 64;
/// Keys from a filter's namespace in dynamic metadata down to a value: a claim of a token lies three or four deep.
pub const METADATA_KEYS_MAX: usize = 8;
/// Names that the list of models leaves out.
pub const HIDDEN_NAMES_MAX: usize = 1024;
/// Models in an answer to GET /v1/models: the names of one full table, about 1 MB.
pub const MODELS_LISTED_MAX: usize = NAMES_MAX;
/// The list of models is made anew when it is older: clients ask for it seldom, pages are read every 10 s.
pub const MODELS_LIST_MAX_AGE: Millis = Millis(1_000);
/// Names of nearly the same length that are compared with an unknown one: 1 ms at most.
pub const NEAR_NAMES_MAX: usize = 256;
/// Time between two reads of a list of pods from elsewhere: every proxy asks the same API.
pub const DISCOVERY_INTERVAL: Millis = Millis(2_000);
/// Addresses that one discovery may bring, before they are cut to [`PODS_MAX`]: a pod may stand in several slices.
pub const DISCOVERED_MAX: usize = 4 * PODS_MAX;
/// EndpointSlices asked for at once. A slice has 100 endpoints of some 500 bytes, 1000 at most: 10 MB.
pub const SLICES_PER_PAGE: usize = 20;
/// EndpointSlices taken from one answer. What stands between Berth and the API may not know `limit`.
pub const SLICES_PER_ANSWER_MAX: usize = 1024;
/// Endpoints of one EndpointSlice; the API allows no more.
pub const ENDPOINTS_PER_SLICE_MAX: usize = 1000;
/// Ports of one EndpointSlice; the API allows 100.
pub const PORTS_PER_SLICE_MAX: usize = 100;
/// Pages of one list: a full pool in slices of four endpoints.
pub const LIST_PAGES_MAX: usize = 64;
/// Bytes of the token that leads to the next page. The API's are a few hundred.
pub const CONTINUE_MAX_BYTES: usize = 4096;
/// Ports of one pod that are pods of their own: data-parallel ranks on one machine.
pub const PORTS_PER_POD_MAX: usize = 64;
/// Ranges of addresses in `allow`: a cluster has a few for its pods.
pub const RANGES_MAX: usize = 64;
/// Bytes of a Kubernetes name: a DNS label or subdomain.
pub const KUBERNETES_NAME_MAX_BYTES: usize = 253;

/// Labels kept of one pod: those that the config asks for.
pub const LABELS_PER_POD_MAX: usize = 8;
/// Bytes of a label's name, and of its value: Kubernetes' bound of a value, which its zones and most nodes keep.
pub const LABEL_PART_MAX_BYTES: usize = 63;
/// Labels that one config gives to pods: each value of a few names.
pub const LABELS_CONFIGURED_MAX: usize = 256;
/// Labels read of one entry of a list of pods. Kubernetes objects have a dozen.
pub const LABELS_READ_MAX: usize = 64;
/// Most requests that a pod may be capped at: above what any engine batches.
pub const CAP_REQUESTS_MAX: u32 = 65_536;
/// Most KV tokens that a pod may be capped at: a thousand large GPUs behind one address.
pub const CAP_TOKENS_MAX: u64 = 1 << 30;
/// A new pod gets its whole share from the start: engines warm up before they say that they are ready, and an empty
/// cache is in the price.
pub const SLOW_START: Millis = Millis(0);
/// Longest time in which the share of a new pod grows: beyond it no engine is cold.
pub const SLOW_START_MAX: Millis = Millis(10 * 60_000);
/// How long a cookie counts: as long as peers keep a session in mind (300 s).
pub const AFFINITY_MAX_AGE: Millis = Millis(5 * 60_000);
/// Shortest time that a cookie may count: the next question of a person takes seconds.
pub const AFFINITY_MAX_AGE_MIN: Millis = Millis(1_000);
/// Longest time that a cookie may count: no cache holds a session for a day.
pub const AFFINITY_MAX_AGE_MAX: Millis = Millis(24 * 60 * 60_000);
/// Bytes of a secret that seals cookies, at least: less can be guessed.
pub const AFFINITY_KEY_MIN_BYTES: usize = 16;
/// A request that was sent to see whether a pod works again keeps others from it for this long. An answer that is no
/// stream takes seconds; after that another one may try.
pub const PROBE_PATIENCE: Millis = Millis(10_000);
const _: () = assert!(PROBE_PATIENCE.0 <= AVOID_MAX.0);
/// Named priorities of one config: a platform has a handful.
pub const OBJECTIVES_MAX: usize = 32;
/// Lowest and highest priority: room for any numbering by hand, in two bytes of the ledger.
pub const PRIORITY_MIN: i16 = -10_000;
/// See [`PRIORITY_MIN`].
pub const PRIORITY_MAX: i16 = 10_000;
/// Predicted wait for the begin of a prefill beyond which a pod is full. Own: twice the scrape interval, so that
/// one old gauge sends nobody away, and the work of that time keeps a pod busy until the next tick lets more go.
pub const PATIENCE: Millis = Millis(2_000);
/// Shortest patience: a tick. With less a pod could run dry between two.
pub const PATIENCE_MIN: Millis = TICK;
/// Longest patience: an overload of ten minutes is no queue any more.
pub const PATIENCE_MAX: Millis = Millis(600_000);
/// Requests that wait at one pool and worker: seconds of work for a hundred pods.
pub const QUEUE_REQUESTS: usize = 1_000;
/// Most that may be configured. The VM keeps 1 to 2 KB of each, and 16 KB more of a prompt of 129,024 tokens: its hashes.
/// That counts as bytes, too, so [`QUEUE_BYTES`] bounds both.
pub const QUEUE_REQUESTS_MAX: usize = 10_000;
/// Bytes that wait at one pool and worker: bodies, which the proxy keeps, and what the VM keeps beside each. A thousand
/// prompts of 16,000 tokens. A proxy may need as much times its pools and its workers.
pub const QUEUE_BYTES: usize = 64 << 20;
/// Least that may be configured: one of the longest bodies that are held unless the config says otherwise, and what is
/// kept beside it.
pub const QUEUE_BYTES_MIN: usize = BODY_HOLD_BYTES + (256 << 10);
/// Most that may be configured.
pub const QUEUE_BYTES_MAX: usize = 1 << 30;
/// Longest wait: what people bear before they ask again.
pub const QUEUE_WAIT: Millis = Millis(30_000);
/// Shortest that may be configured: a few ticks.
pub const QUEUE_WAIT_MIN: Millis = Millis(500);
/// Longest that may be configured: below five minutes, Envoy's `stream_idle_timeout` unless it is told another, which would
/// end it anyhow. Where that is off, as in Istio, a route's `idle_timeout` must stand in for it: nothing else ends what
/// waits in a VM that trapped.
pub const QUEUE_WAIT_MAX: Millis = Millis(240_000);
