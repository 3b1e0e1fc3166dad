//! One pool in a view: the copy of its table, and its ledger.

use berth_shared_state::config::{Caps, Pool};
use berth_shared_state::limits::{AVOID_MAX, TABLE_BYTES_PER_MILLI, VIEW_MAX_AGE};
use berth_shared_state::names::Keys;
use berth_shared_state::pod::{PodAddress, PodKey};
use berth_shared_state::sealed::{HEADER_BYTES, SealError};
use berth_shared_state::snapshot::{Ages, Snapshot};
use berth_shared_state::store::{SharedData, StoreError};
use berth_shared_state::table::{self, PodRow, Table};
use berth_shared_state::units::{Millis, Tokens, UnixMillis};
use fastrand::Rng;
use hashbrown::HashMap;

use crate::cookie::Sealer;
use crate::cost::HOME_SHARE;
use crate::decision::{Ask, Drawn, Field, Part, PodFacts, PoolFacts, Wish, at_cap};
use crate::ledger::{LedgerView, PodFact, StepTimes, Synced};
use crate::limits::{DRAW_ABOVE, FIELD_MAX_AGE};
use crate::prefix::{Beginning, Beginnings, Chains, Found, Written, seed};
use crate::view::Request;
use crate::view::prefix::{self, PrefixView};
use crate::view::seen::Seen;
use crate::view::share::{Share, ShareAtPod};
use crate::view::sizes::Sizes;
use crate::view::slow::slow;

/// Why a table is not current. The last good copy stays, and ages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// No poller has written one, or the host lost it.
    Absent,
    /// It cannot be opened.
    Unreadable(SealError),
    /// The host refused to read it.
    Refused(StoreError),
}

/// A pod when its gauges were read.
#[derive(Clone, Copy, Debug, Default)]
struct Then {
    read_at: Option<UnixMillis>,
    scraped_at: Option<UnixMillis>,
    /// KV tokens of what this proxy had in flight there.
    context: Tokens,
    share: ShareAtPod,
    /// What the streams of this worker show of its engine's steps.
    steps: StepTimes,
}

#[derive(Debug)]
pub(super) struct PoolView {
    table_key: String,
    pub ledger: LedgerView,
    pub error: Option<TableError>,
    pub prefix: Option<PrefixView>,
    /// Seals the cookies of sessions.
    pub sealer: Option<Sealer>,
    share: Share,
    sizes: Sizes,
    seen: Seen,
    beginnings: Beginnings,
    snapshot: Option<Snapshot>,
    /// Ledger keys of the snapshot's pods, in their order.
    pub keys: Vec<PodKey>,
    /// The pods as their gauges were read, in the order of the table.
    then: Vec<Then>,
    /// What all pods have in common, and each pod's fill, where they are many; and when it was reckoned.
    field: Option<(UnixMillis, Field)>,
    filled: Vec<Tokens>,
    head: Vec<u8>,
    read_at: Option<UnixMillis>,
    max_age: Millis,
}

impl PoolView {
    /// `shares` = workers see each other in shared data.
    pub fn new(pool: &Pool, pools: usize, nonce: u64, shares: bool) -> Self {
        Self {
            table_key: Keys::of(pool).table,
            ledger: LedgerView::new(&pool.name, nonce),
            error: None,
            prefix: PrefixView::new(pool, pools),
            sealer: None,
            share: if shares { Share::default() } else { Share::unseen() },
            sizes: Sizes::default(),
            seen: Seen::default(),
            beginnings: Beginnings::default(),
            snapshot: None,
            keys: Vec::new(),
            then: Vec::new(),
            field: None,
            filled: Vec::new(),
            head: Vec::new(),
            read_at: None,
            max_age: VIEW_MAX_AGE,
        }
    }

    pub const fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    /// Reads the table again if the copy is old; a large one is read less often, so that copying it
    /// never costs much. Decodes only a changed one; true when it did.
    pub fn refresh(&mut self, store: &dyn SharedData, now: UnixMillis) -> Result<bool, TableError> {
        if self.read_at.is_some_and(|at| at <= now && now.since(at) < self.max_age) {
            return Ok(false);
        }
        self.read_at = Some(now);
        let mut read = self.read(store, now);
        if matches!(read, Err(TableError::Unreadable(_))) && self.snapshot.is_none() {
            // Torn, most likely: WasmX copies a value after it has let its lock go. An older copy would serve till then.
            read = self.read(store, now);
        }
        self.error = read.err();
        read
    }

    fn read(&mut self, store: &dyn SharedData, now: UnixMillis) -> Result<bool, TableError> {
        let stored = store.get(&self.table_key).map_err(TableError::Refused)?;
        let value = stored
            .map(|stored| stored.value)
            .filter(|value| !value.is_empty())
            .ok_or(TableError::Absent)?;
        self.max_age = VIEW_MAX_AGE + Millis((value.len() / TABLE_BYTES_PER_MILLI) as u64);
        // It holds the length and the checksum of the rest: equal heads are equal tables.
        let head = value.get(..HEADER_BYTES).unwrap_or_default();
        if head == self.head && self.snapshot.is_some() {
            return Ok(false);
        }
        let table = table::decode(&value).map_err(TableError::Unreadable)?;
        self.head = head.to_vec();
        self.name_keys(&table);
        // What is in flight now, beside what the table shows. Where the ledger cannot be read, the copy serves.
        let _ = self.ledger.refresh(store, now);
        let counted_at = table.discovery.at;
        self.ledger
            .facts(table.pods.iter().zip(&self.keys).map(|(row, key)| PodFact {
                pod: *key,
                incarnation: row.incarnation,
                // The page is the older of the two that are compared with: what both show may be folded.
                sample_at: row.scraped_at,
                proxy_active: row.proxy_active.zip(counted_at),
                generated: row.generated,
            }));
        let (ledger, pods) = (self.ledger.ledger(), table.pods.iter().zip(&self.keys));
        self.share
            .add(pods.clone().zip(&mut self.then).map(|((row, key), then)| {
                let own = ledger.own(*key, row.gauges_at());
                // A table comes with each pod's page; the others' are those of before.
                if then.read_at != row.gauges_at() {
                    then.read_at = row.gauges_at();
                    then.context = Tokens(own.context_tokens.0.saturating_sub(own.sent_since_tokens.0));
                }
                // A report tells of what waits, and the rest is still the page's.
                if then.scraped_at != row.scraped_at {
                    then.scraped_at = row.scraped_at;
                    then.share.add(row, &own);
                }
                (row, own)
            }));
        self.sizes
            .add(table.pods.iter(), table.scrape_interval, table.written_at);
        if let Some(prefix) = &mut self.prefix {
            prefix.facts(pods, self.share.own());
        }
        let snapshot = Snapshot::new(table);
        self.seen.add(&snapshot, &self.keys);
        self.snapshot = Some(snapshot);
        self.field = None;
        self.filled.clear();
        Ok(true)
    }

    /// The pods' keys, and what is known of those that stay. Mostly the pods are those of the last table, and each key is a
    /// hash of a text.
    fn name_keys(&mut self, table: &Table) {
        let before = self.snapshot.as_ref().map_or(&[][..], Snapshot::pods);
        let before = before.iter().map(|row| row.address);
        if !before.eq(table.pods.iter().map(|row| row.address)) {
            let before: HashMap<PodKey, Then> = self.keys.drain(..).zip(self.then.drain(..)).collect();
            self.keys = table.pods.iter().map(|row| row.address.key()).collect();
            let then = self.keys.iter().map(|key| before.get(key).copied().unwrap_or_default());
            self.then = then.collect();
        }
    }

    /// What the streams of this worker show of a pod's steps; `None` = it is not in the table.
    pub fn steps(&mut self, pod: PodAddress) -> Option<&mut StepTimes> {
        let place = self.place(pod)?;
        Some(&mut self.then.get_mut(place)?.steps)
    }

    /// A token of a stream from a pod came, so long after the one before it.
    pub fn token(&mut self, store: &dyn SharedData, pod: PodAddress, gap: Millis, now: UnixMillis) -> Synced {
        let Some(place) = self.place(pod) else {
            return Synced::Idle;
        };
        let (Some(then), Some(key)) = (self.then.get_mut(place), self.keys.get(place)) else {
            return Synced::Idle;
        };
        then.steps.token(gap, now);
        // Other workers ask for it only to know what other proxies do.
        if self.share.own() < 1.0 {
            self.ledger.heard(store, *key, then.steps.heard(), now)
        } else {
            Synced::Idle
        }
    }

    fn place(&self, pod: PodAddress) -> Option<usize> {
        let rows = self.snapshot.as_ref()?.pods();
        rows.binary_search_by_key(&pod, |row| row.address).ok()
    }

    /// ASCII bytes per token, as far as it shows.
    pub fn bytes_per_token(&self) -> f64 {
        self.sizes.bytes_per_token(self.ledger.ledger().asked())
    }

    /// Tokens of an answer where the client sets no lower bound.
    pub fn expected_output(&self, pool: &Pool) -> Tokens {
        let configured = Tokens(pool.routing.expected_output_tokens.into());
        self.sizes.output().unwrap_or(configured)
    }

    /// The prompt as the prefix index knows it; `None` where there is no index, or nothing of it is ever cached.
    pub fn chains(&self, pool: &Pool, request: &Request<'_>, model: Option<&str>) -> Option<Chains> {
        let counts = self.prefix.is_some() && pool.routing.prefix.enabled && prefix::is_cached(request.facts);
        let salt = request.facts.cache_salt.as_deref().unwrap_or_default();
        counts.then(|| request.prompt.chains(seed(model.unwrap_or_default(), salt)))
    }

    /// How a prompt begins, as far as it tells where it lives.
    pub fn beginning(&mut self, chains: &Chains) -> Option<Beginning> {
        let popular = HOME_SHARE / self.keys.len().max(1) as f64;
        self.beginnings.beginning(chains, popular)
    }

    /// Reckons what all pods have in common, where they are many and it is time.
    pub fn look_over(&mut self, pool: &Pool, now: UnixMillis) {
        let fresh = |at: UnixMillis| at <= now && now.since(at) < FIELD_MAX_AGE;
        let few = self.keys.len() <= DRAW_ABOVE;
        if few || self.field.as_ref().is_some_and(|(at, _)| fresh(*at)) {
            return;
        }
        let pods = self.pods(pool, None, now);
        let filled = pods.iter().map(|pod| pod.filled).collect();
        let facts = self.reckoned();
        let field = self
            .snapshot
            .as_ref()
            .map(|snapshot| (now, Field::new(pool, snapshot, &pods, &self.keys, facts)));
        self.field = field;
        self.filled = filled;
    }

    /// Some pods for a request, where they are many; `None` = all. `held`: who holds how many blocks of its prompt.
    pub fn draw(
        &mut self,
        pool: &Pool,
        ask: &Ask<'_>,
        held: &[(usize, u32)],
        rng: &mut Rng,
        now: UnixMillis,
    ) -> Option<Drawn> {
        let (_, field) = self.field.as_mut()?;
        let wish = Wish {
            pool,
            snapshot: self.snapshot.as_ref()?,
            ask,
            held,
        };
        let drawn = field.draw(&wish, rng)?;
        let caps = &pool.routing.caps;
        // Another one may be below its cap.
        let full = |drawn| self.pods(pool, Some(drawn), now).iter().all(|pod| at_cap(pod, caps));
        let full = *caps != Caps::default() && full(&drawn);
        (!full).then_some(drawn)
    }

    /// What a decision is told of the pods that were not drawn.
    pub fn part<'a>(&'a self, drawn: Option<&'a Drawn>) -> Option<Part<'a>> {
        let (_, field) = self.field.as_ref()?;
        drawn.map(|drawn| Part { field, drawn })
    }

    /// What is known of each pod of the table, or of those drawn.
    pub fn pods(&self, pool: &Pool, drawn: Option<&Drawn>, now: UnixMillis) -> Vec<PodFacts<'_>> {
        let Some(snapshot) = &self.snapshot else {
            return Vec::new();
        };
        let common = (snapshot.ages(pool), self.share.own());
        let known = |place| self.pod(snapshot, common, place, now);
        let mut pods = Vec::with_capacity(drawn.map_or(self.keys.len(), |drawn| drawn.places.len()));
        match drawn {
            None => pods.extend((0..self.keys.len()).filter_map(known)),
            Some(drawn) => pods.extend(drawn.places.iter().filter_map(|place| known(*place as usize))),
        }
        pods
    }

    /// `share`: this proxy's part of the pool's load.
    fn pod<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        (ages, share): (Ages, f64),
        place: usize,
        now: UnixMillis,
    ) -> Option<PodFacts<'a>> {
        let (row, key) = (snapshot.pods().get(place)?, *self.keys.get(place)?);
        let then = self.then.get(place)?;
        let known = self.ledger.ledger().at(key);
        let own = known.own(row.gauges_at());
        let at_page = if row.reported_at.is_some() {
            known.own(row.scraped_at)
        } else {
            own
        };
        let freshness = ages.freshness(row, now);
        let pod = PodFacts {
            row,
            freshness,
            own,
            shown: at_page.in_flight_at_sample(),
            filled: known.filled(),
            sent_at: known.sent_at(),
            context_then: then.context,
            own_part: then.share.own(share),
            heard: then.steps.with(known.heard(), self.ledger.told_every()),
            late: then.steps.late(now),
            cached: 0.0,
            session: false,
            claimed: 0.0,
            rate: known.rate(),
            slow: slow(row, freshness, &own, known.answered_sent_at(), now),
            // Further ahead than any avoidance lasts: from before the clock stepped back.
            avoided_until: known.avoided_until().filter(|until| until.since(now) <= AVOID_MAX),
            adapters_in_use: known.adapters_in_use(),
            seen_adapters: self.seen.at(place),
            recent_adapters: known.recent_adapters(row.incarnation),
        };
        #[cfg(feature = "lab")]
        let pod = crate::lab::as_heard(pod);
        Some(pod)
    }

    /// Finds out what the pods hold of a prompt.
    pub fn look_up(&self, store: &dyn SharedData, chains: Option<&Chains>) -> Found {
        let (Some(prefix), Some(chains)) = (&self.prefix, chains) else {
            return Found::default();
        };
        prefix.look_up(store, chains, |place| self.room(place))
    }

    /// Notes that a pod is sent the prompt that was looked up.
    pub fn write(
        &self,
        store: &dyn SharedData,
        found: Found,
        pod: Option<&PodAddress>,
        takes: Tokens,
        pods: &[PodFacts<'_>],
    ) -> Written {
        let pod = pods.iter().find(|known| Some(&known.row.address) == pod);
        match (&self.prefix, pod) {
            (Some(prefix), Some(pod)) => prefix.write(store, found, pod, takes, |place| self.room(place)),
            _ => Written::default(),
        }
    }

    /// A pod's row, and the KV tokens that it was sent.
    pub fn room(&self, place: usize) -> Option<(&PodRow, Tokens)> {
        let row = self.snapshot.as_ref()?.pods().get(place)?;
        let known = || Some(self.ledger.ledger().at(*self.keys.get(place)?).filled());
        Some((row, self.filled.get(place).copied().or_else(known)?))
    }

    /// The adapter goes where it was just sent.
    pub fn sent_adapter(&mut self, adapter: Option<u64>, pod: PodAddress) {
        let (Some((_, field)), Some(adapter), Some(snapshot)) = (&mut self.field, adapter, &self.snapshot) else {
            return;
        };
        let place = snapshot.pods().binary_search_by_key(&pod, |row| row.address);
        if let Some(place) = place.ok().and_then(|place| u32::try_from(place).ok()) {
            field.sent(adapter, pod.key(), place);
        }
    }

    pub fn facts(&self) -> PoolFacts {
        self.field
            .as_ref()
            .map_or_else(|| self.reckoned(), |(_, field)| field.facts)
    }

    fn reckoned(&self) -> PoolFacts {
        PoolFacts {
            rate: self.ledger.ledger().pool_rate(),
            prompt: self.sizes.prompt(),
            elsewhere: 1.0 - self.share.own(),
            repeated: self.beginnings.repeated(),
            found: self.sizes.found(),
            early: self.sizes.early(),
        }
    }
}

/// The pod at a place of the table, if it was drawn.
pub(super) fn at_place<'a, 'b>(
    pods: &'a mut [PodFacts<'b>],
    drawn: Option<&Drawn>,
    place: usize,
) -> Option<&'a mut PodFacts<'b>> {
    let at = match drawn {
        None => place,
        Some(drawn) => drawn.places.iter().position(|drawn| *drawn as usize == place)?,
    };
    pods.get_mut(at)
}
