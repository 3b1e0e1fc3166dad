//! Every bound and constant of the reader half, with its unit and reason, once.

use berth_shared_state::limits::NAME_MAX_BYTES;
use berth_shared_state::units::Millis;

/// Nesting of a JSON body that is followed. Real bodies stay below 20 (tool schemas); one bit per
/// level fits a machine word.
pub const BODY_DEPTH_MAX: u32 = u64::BITS;
/// Bytes kept of a JSON key. The longest key that means something has 22.
pub const KEY_MAX_BYTES: usize = 32;
/// Bytes kept of a string value such as `model`: what a header may carry, and what the table holds.
pub const KEPT_MAX_BYTES: usize = NAME_MAX_BYTES;
/// Bytes of a JSON number or literal. 20 digits hold a u64; a longer one is no size of ours.
pub const SCALAR_MAX_BYTES: usize = 32;
/// Bytes of a multipart boundary (RFC 2046, 5.1.1).
pub const BOUNDARY_MAX_BYTES: usize = 70;
/// Bytes kept of one header line of a multipart part; the field name stands before a long file name.
pub const PART_LINE_MAX_BYTES: usize = 512;

/// ASCII bytes per token where no rate was learned: the usual 4 characters of English text
/// (<https://help.openai.com/en/articles/4936856-what-are-tokens-and-how-to-count-them>).
pub const ASCII_BYTES_PER_TOKEN: f64 = 4.0;
/// Other UTF-8 bytes per token: one CJK character has 3 bytes and costs about one token.
pub const OTHER_BYTES_PER_TOKEN: f64 = 3.0;
/// A learned rate outside of this range is an error of measurement: source code needs 2 to 3 bytes
/// per token, large vocabularies reach 5 to 6 on prose.
pub const BYTES_PER_TOKEN_RANGE: core::ops::RangeInclusive<f64> = 1.0..=16.0;
/// Requests after which older ones count half, in sums from which the length of tokens and answers is
/// learned: some minutes of a busy pool.
pub const SIZES_KEPT_REQUESTS: f64 = 1_000.0;
/// Prompt tokens that count as looked up in the engines' caches and found before any were, in multiples of the pods' KV
/// memory: caches must fill before they show what repeats. With a quarter it is as good, with none proxies do not agree
/// while they fill.
pub const FOUND_AT_FIRST: f64 = 0.5;
/// Requests of all proxies after which it shows whether engines find anything: where prompts repeat, some did by then. 50 are
/// too few for several hundred prefixes; with 300, prompts that share nothing go by their hash for longer.
pub const FOUND_EARLY: f64 = 100.0;
/// Their sums are halved beyond so many times the pods' KV memory.
pub const FOUND_KEPT: f64 = 4.0;
/// Requests on either side before such a sum says something.
pub const SIZES_MIN_REQUESTS: f64 = 50.0;
/// A learned length counts where it differs by more than this factor. Prompts have long tails, and the two
/// means are of the same requests at different times: smaller differences come and go (lab, `mooncake`).
pub const SIZES_DIFFER: f64 = 1.25;
/// Tokens of one image, audio clip, video or file. A 1024 x 1024 image costs 576 (LLaVA 1.5, any
/// size), 765 (OpenAI, 85 + 4 x 170), 1369 (Qwen2-VL, one per 28 x 28 pixels); 30 s of audio cost
/// 1500 encoder frames (Whisper). The size in bytes says little, so it is one number.
pub const MEDIA_TOKENS: u64 = 1024;
/// Tokens a chat template puts around one message: ChatML has two markers and two line feeds.
/// The role itself is counted as text.
pub const MESSAGE_TOKENS: u64 = 4;
/// Output bound of /v1/completions where the client gives none (OpenAI's documented default, also
/// vLLM's).
pub const COMPLETIONS_MAX_OUTPUT: u64 = 16;

/// Tokens of one block of a prefix: what the reference picker uses at least. Engines have 16; a
/// match is at most this much too short.
pub const PREFIX_BLOCK_TOKENS: usize = 64;
/// Blocks of one request that are hashed: 129,024 tokens, the longest contexts usually served (the
/// reference picker stops at 131,072), and the end of a span.
pub const PREFIX_BLOCKS_MAX: usize = 2016;
/// Prompts of one request with a chain of their own.
pub const PREFIX_PROMPTS_MAX: usize = 16;
/// Pages that one request reads at most, over all its prompts.
pub const PREFIX_SPANS_MAX: usize = 8;
/// Bytes of one page. A copy of 8 KiB costs a proxy little more than one of a hundred bytes, and
/// holds about 80 runs of 40 blocks.
pub const PREFIX_PAGE_MAX_BYTES: usize = 8 << 10;
/// Pods known to hold one run: more share nothing by one more.
pub const PREFIX_HOLDERS_MAX: usize = 128;
/// Attempts of one compare-and-swap of a page. A lost one loses an entry of a memory.
pub const PREFIX_TRIES: usize = 3;
/// KV tokens of a pod in a pool where nobody says. Own: between a small GPU with a model of 8 billion
/// parameters (60,000) and a large one (430,000).
pub const PREFIX_CAPACITY_UNKNOWN: u64 = 200_000;
/// An entry is written again when it has aged by this part of a pod's cache.
pub const PREFIX_RENEW_PART: u32 = 8;
/// Beginnings of prompts that are counted to find the popular ones: any that is more than one in so many is found.
pub const PREFIX_BEGINNINGS: usize = 256;
/// Places for longer ones that may tell later. Four of each request go there, so one that one request in twenty has is mostly
/// still there when it comes again.
pub const PREFIX_BEGINNINGS_AHEAD: usize = 512;
/// Requests after which their counts are halved: some four times as many as there are counts, so that a share is
/// more than noise.
pub const PREFIX_BEGINNINGS_WINDOW: u32 = 1024;
/// Bytes of the value of a session's cookie: four numbers in hex and three dots.
pub const COOKIE_VALUE_MAX_BYTES: usize = 4 * 16 + 3;
/// Bytes of `cookie` headers that are kept of a request, those of Berth alone: a cookie for each of a full config's
/// pools.
pub const COOKIES_MAX_BYTES: usize = 8 << 10;

/// Pods up to which a decision looks at all of them: some 4 us.
pub const DRAW_ABOVE: usize = 64;
/// Pods of a large pool that a decision looks at besides those that are known to be good for it. The best of 32 is among
/// the best 3 of 100.
pub const DRAWN_AT_RANDOM: usize = 32;
/// Holders of the prompt among them: those of its longest part.
pub const DRAWN_HOLDERS_MAX: usize = 16;
/// Holders of the adapter among them.
pub const DRAWN_ADAPTER_MAX: usize = 8;
/// Homes of a popular beginning among them.
pub const DRAWN_HOMES_MAX: usize = 4;
/// All that are drawn at once: with the two homes of the adapter.
pub const DRAWN_MAX: usize =
    DRAWN_AT_RANDOM + DRAWN_HOLDERS_MAX + DRAWN_ADAPTER_MAX + DRAWN_HOMES_MAX + crate::cost::ADAPTER_HOMES as usize;
/// Points of a ring that a key is hashed to ([`crate::decision`]): the paper's number for a peak of 1.05.
pub const HOME_PROBES: u64 = 21;
/// Pods behind such a point that are asked whether they serve the request.
pub const HOME_STEPS: usize = 8;
/// What is reckoned of all pods of a large pool is reckoned anew with each table, and when it is older than this.
pub const FIELD_MAX_AGE: Millis = Millis(1_000);
/// Flows of one band that are told apart: tenants that wait at the same time. Choosing the next looks at each.
pub const QUEUE_FLOWS_MAX: usize = 256;
/// Requests of one pool that one release lets go at most: each is a decision, and other streams of the worker wait meanwhile.
pub const RELEASE_MAX: usize = 64;
/// Requests of one band that one release finds no room for before it turns to the next band.
pub const RELEASE_BLOCKED_MAX: usize = 8;
/// And of one flow: behind one that fits nowhere there may be others that do, and another release asks other ones.
pub const RELEASE_BLOCKED_FLOW_MAX: usize = 2;
/// A request that is the next to go and finds no room for this long keeps a pod from other workers, too. Before that
/// the pods' own pace lets it go; and ten ticks, so that all have read of it.
pub const BLOCKED_PATIENCE: Millis = Millis(1_000);
/// A pool that was full has room again when it has it with this part of the patience, and for a request larger by as
/// much: otherwise every request that ends would let one in, and the next would be sent away.
pub const RESUME_PART: f64 = 0.8;
/// Requests that a pod has room for are counted up to this many: more says nothing more.
pub const ROOM_MAX: f64 = 1_000.0;
/// Bounds of `retry-after` in seconds. A second is a scrape; who is told more than a minute leaves for good.
pub const RETRY_AFTER_RANGE: core::ops::RangeInclusive<u64> = 1..=60;
