//! Who can serve a name, and how warm: step 2 of a decision.
//!
//! The models page says what may be asked for, the gauges what is in flight or in memory, the
//! ledger what was sent where. None of them is the whole truth: an adapter that only waits is in no
//! gauge, an idle one is in no activity list, an unloaded one may stay in memory, and a page is up to
//! an interval old. So absence from a page is a "no" only while the page is young.

use berth_shared_state::config::Pool;
use berth_shared_state::sample::{Engine, Level};
use berth_shared_state::snapshot::Snapshot;
use berth_shared_state::table::{Models, NameId, PodRow, Readiness};
use berth_shared_state::units::UnixMillis;
use xxhash_rust::xxh64::xxh64;

use super::PodFacts;
use crate::cost::{Fleet, HOST_ADAPTERS, Stage, Tier};

/// Models intervals after which a page's silence about a name says nothing.
const PAGE_INTERVALS: u64 = 2;
/// Slots of a pod in a pool that never says: vLLM's own default.
const MAX_LORA: u32 = 1;

/// Whether a pod answers for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Can {
    /// It answers for any name, with its base (llama.cpp). Beside pods that know their names it is no
    /// candidate for a name it does not list: an adapter must not silently become its base.
    AnyName,
    /// It would answer 404.
    No,
    /// It may: nobody knows.
    Maybe,
    /// Its models page was never read, but its gauges show the adapter.
    Likely,
    /// It does, or loads it.
    Yes,
}

/// One pod's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serving {
    /// Whether.
    pub can: Can,
    /// How warm.
    pub tier: Tier,
}

/// The name a request asks for.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    text: &'a str,
    id: Option<NameId>,
    key: u64,
}

impl<'a> Name<'a> {
    /// `id` is its place in the table's name list; `None` = no pod has ever said it.
    #[must_use]
    pub fn new(text: &'a str, id: Option<NameId>) -> Self {
        Self {
            text,
            id,
            key: adapter_key(text),
        }
    }

    /// Its key in the ledger.
    #[must_use]
    pub const fn key(&self) -> u64 {
        self.key
    }

    /// The text.
    #[must_use]
    pub const fn text(&self) -> &'a str {
        self.text
    }
}

/// Eight bytes that stand for an adapter's name in the ledger.
#[must_use]
pub fn adapter_key(name: &str) -> u64 {
    xxh64(name.as_bytes(), 0)
}

/// What a pod's models page says of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listed {
    Base,
    Adapter,
    /// Not there, and the page is young.
    Absent,
    /// Not there, but the page is old.
    AbsentOnce,
    NoPage,
}

fn listed(page: Option<&Models>, id: Option<NameId>, pool: &Pool, now: UnixMillis) -> Listed {
    let Some(page) = page else {
        return Listed::NoPage;
    };
    if let Some(id) = id {
        if page.bases.contains(&id) {
            return Listed::Base;
        }
        if page.adapters.iter().any(|(adapter, _)| *adapter == id) {
            return Listed::Adapter;
        }
    }
    let young = now.since(page.at).0 < pool.scrape.models_interval.0.saturating_mul(PAGE_INTERVALS);
    if young { Listed::Absent } else { Listed::AbsentOnce }
}

/// Whether an unknown name is refused: `None` = the engine is not known.
pub(super) fn enforces(pool: &Pool, row: &PodRow) -> Option<bool> {
    pool.engine.or(row.load.engine).map(Engine::enforces_names)
}

pub(super) fn configured(pool: &Pool, name: &str) -> bool {
    pool.models.iter().any(|model| model == name) || known_adapter(pool, name)
}

fn known_adapter(pool: &Pool, name: &str) -> bool {
    pool.adapters.known.iter().any(|(known, _)| known == name)
}

/// Whether a pod serves the name, and how warm.
#[must_use]
pub fn serving(
    pool: &Pool,
    pod: &PodFacts<'_>,
    stage: Stage,
    name: &Name<'_>,
    fleet: &Fleet,
    now: UnixMillis,
) -> Serving {
    let page = pod.row.models.as_ref();
    let listed = listed(page, name.id, pool, now);
    if listed == Listed::Base || enforces(pool, pod.row) == Some(false) {
        let known = listed == Listed::Base || configured(pool, name.text);
        return Serving {
            can: if known { Can::Yes } else { Can::AnyName },
            tier: Tier::Base,
        };
    }
    let warm = warmth(pod, stage, name, fleet);
    if listed == Listed::Adapter {
        return Serving {
            can: Can::Yes,
            tier: warm.unwrap_or(Tier::Registered),
        };
    }
    if configured(pool, name.text) {
        let adapter = known_adapter(pool, name.text);
        return Serving {
            can: Can::Maybe,
            tier: if adapter {
                warm.unwrap_or(Tier::Registered)
            } else {
                Tier::Base
            },
        };
    }
    let lora_off = pod.row.activity.as_ref().is_some_and(|active| active.max == Some(0));
    if pool.adapters.resolver && !lora_off {
        return Serving {
            can: Can::Yes,
            tier: warm.unwrap_or(Tier::Loadable),
        };
    }
    let can = match (listed, warm) {
        (Listed::NoPage, Some(Tier::Active | Tier::Resident)) => Can::Likely,
        // In flight on a newer page: loaded since. In memory only: unloaded, the weights stay.
        (Listed::Absent, Some(Tier::Active)) if pod.row.scraped_at > page.map(|page| page.at) => Can::Maybe,
        // Sent there since, and not answered with 404, which would have been forgotten.
        (Listed::Absent, Some(Tier::Recent | Tier::Host)) if sent_since(pod, name, page) => Can::Maybe,
        (Listed::Absent, _) => Can::No,
        _ => Can::Maybe,
    };
    Serving {
        can,
        tier: warm.unwrap_or(Tier::Unlisted),
    }
}

/// Whether a pod's row alone says [`Can::Yes`]. `configured`: the pool's config has the name.
pub(super) fn says_so(pool: &Pool, row: &PodRow, id: Option<NameId>, configured: bool) -> bool {
    let page = row.models.as_ref().zip(id);
    if page.is_some_and(|(page, id)| page.bases.contains(&id)) {
        return true;
    }
    if enforces(pool, row) == Some(false) {
        return configured;
    }
    if page.is_some_and(|(page, id)| page.adapters.iter().any(|(adapter, _)| *adapter == id)) {
        return true;
    }
    let lora_off = row.activity.as_ref().is_some_and(|active| active.max == Some(0));
    !configured && pool.adapters.resolver && !lora_off
}

/// Whether a pod would answer for the name with an adapter, as far as its row alone says: it is no [`Tier::Base`] there.
pub(super) fn needs_adapter(pool: &Pool, row: &PodRow, id: Option<NameId>, name: &str) -> bool {
    let page = row.models.as_ref().zip(id);
    if page.is_some_and(|(page, id)| page.bases.contains(&id)) || enforces(pool, row) == Some(false) {
        return false;
    }
    page.is_some_and(|(page, id)| page.adapters.iter().any(|(adapter, _)| *adapter == id))
        || known_adapter(pool, name)
        || !configured(pool, name)
}

/// The adapter was sent to the pod after its models page was read.
fn sent_since(pod: &PodFacts<'_>, name: &Name<'_>, page: Option<&Models>) -> bool {
    let mut sent = pod.recent_adapters.iter();
    sent.any(|(key, at)| *key == name.key && page.is_none_or(|page| *at > page.at))
}

/// The warmest sign of an adapter at a pod. Gauges count while they are read; where the engine says
/// what is in memory, its word is newer than our memory of anything sent before it.
fn warmth(pod: &PodFacts<'_>, stage: Stage, name: &Name<'_>, fleet: &Fleet) -> Option<Tier> {
    let read = stage != Stage::Unknown;
    let (active, resident) = (pod.row.activity.as_ref(), pod.row.resident.as_ref());
    let level = resident.filter(|_| read).zip(name.id).and_then(|(list, id)| {
        let of_it = list.iter().filter(|(adapter, _)| *adapter == id);
        of_it.map(|(_, level)| *level).max()
    });
    if pod.adapters_in_use.iter().any(|used| used.adapter == name.key) {
        return Some(Tier::Active);
    }
    let in_flight = active.filter(|_| read).zip(name.id);
    if in_flight.is_some_and(|(active, id)| active.running.contains(&id) || active.waiting.contains(&id)) {
        return Some(Tier::Active);
    }
    if level == Some(Level::Gpu) {
        return Some(Tier::Resident);
    }
    let slots = active
        .and_then(|active| active.max)
        .filter(|max| *max > 0)
        .or(fleet.max_lora());
    let slots = slots.unwrap_or(MAX_LORA) as usize;
    let said = resident.filter(|_| read).and(pod.row.scraped_at);
    let sent = rank(pod, name.key, said).filter(|rank| *rank < HOST_ADAPTERS.max(slots));
    match (sent, level) {
        (Some(rank), _) if rank < slots => Some(Tier::Recent),
        (Some(_), _) | (None, Some(Level::Cpu)) => Some(Tier::Host),
        _ => None,
    }
}

/// How many other adapters were used at a pod, as far as is known, since this one was after `said`; `None` = it was
/// not. What is in a slot, and what in memory, are the last that were used.
fn rank(pod: &PodFacts<'_>, adapter: u64, said: Option<UnixMillis>) -> Option<usize> {
    let (sent, seen) = (pod.recent_adapters, pod.seen_adapters);
    let last =
        |list: &[(u64, UnixMillis)], adapter: u64| list.iter().find(|(key, _)| *key == adapter).map(|(_, at)| *at);
    let at = last(sent, adapter).max(last(seen, adapter))?;
    if said.is_some_and(|said| at <= said) {
        return None;
    }
    let since = |(_, other): &&(u64, UnixMillis)| *other > at;
    let sent_since = sent.iter().filter(since);
    let seen_since = seen.iter().filter(since);
    let twice = |(key, _): &&(u64, UnixMillis)| last(sent, *key).is_none_or(|other| other <= at);
    Some(sent_since.count() + seen_since.filter(twice).count())
}

/// Whether a pool has a name, over all its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Its config or a ready pod names it.
    Named,
    /// Every ready pod was asked a moment ago, all refuse unknown names, and none has it.
    Absent,
    /// Neither is certain.
    Unknown,
}

/// Whether a pool has a name. Where several pools could serve a request, the first that has it
/// should decide, else the first that might: so a 404 needs the consent of all of them.
#[must_use]
pub fn naming(pool: &Pool, snapshot: &Snapshot, name: &str, now: UnixMillis) -> Naming {
    if configured(pool, name) {
        return Naming::Named;
    }
    let id = snapshot.id(name);
    let mut certain = snapshot.discovery_fresh(pool, now) && !pool.adapters.resolver;
    let mut ready = false;
    for row in snapshot.pods().iter().filter(|row| is_ready(row)) {
        ready = true;
        match listed(row.models.as_ref(), id, pool, now) {
            Listed::Base | Listed::Adapter => return Naming::Named,
            Listed::Absent => certain &= enforces(pool, row) == Some(true) && !shown_since(row, id),
            Listed::AbsentOnce | Listed::NoPage => certain = false,
        }
    }
    if ready && certain {
        Naming::Absent
    } else {
        Naming::Unknown
    }
}

/// The adapter is in flight on a page newer than the models page.
fn shown_since(row: &PodRow, id: Option<NameId>) -> bool {
    let newer = row.scraped_at > row.models.as_ref().map(|page| page.at);
    let shown = row.activity.as_ref().zip(id);
    newer && shown.is_some_and(|(active, id)| active.running.contains(&id) || active.waiting.contains(&id))
}

/// Discovery lets it take requests, or does not say.
pub(crate) fn is_ready(row: &PodRow) -> bool {
    !matches!(row.readiness, Readiness::NotReady | Readiness::Draining)
}

/// A pod's bid for an adapter. All proxies hash alike, so the highest bid is a home that they agree
/// on without talking (rendezvous hashing): what others sent is most likely warm there.
pub(super) fn bid(key: u64, row: &PodRow) -> u64 {
    let socket = row.address.socket();
    let mut bytes = [0; 18];
    let ip = match socket.ip() {
        core::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        core::net::IpAddr::V6(ip) => ip,
    };
    let parts = ip.octets().into_iter().chain(socket.port().to_be_bytes());
    for (to, from) in bytes.iter_mut().zip(parts) {
        *to = from;
    }
    xxh64(&bytes, key)
}
