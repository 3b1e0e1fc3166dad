//! One pool in a view: the copy of its table, and its ledger.

use berth_shared_state::config::Pool;
use berth_shared_state::limits::{AVOID_MAX, TABLE_BYTES_PER_MILLI, VIEW_MAX_AGE};
use berth_shared_state::names::Keys;
use berth_shared_state::pod::{PodAddress, PodKey};
use berth_shared_state::sealed::{HEADER_BYTES, SealError};
use berth_shared_state::snapshot::Snapshot;
use berth_shared_state::store::{SharedData, StoreError};
use berth_shared_state::table;
use berth_shared_state::units::{Millis, Tokens, UnixMillis};

use crate::cost::HOME_SHARE;
use crate::decision::{PodFacts, PoolFacts};
use crate::ledger::{LedgerView, PodFact};
use crate::prefix::{Beginning, Beginnings, Chains, Found, Written};
use crate::view::prefix::PrefixView;
use crate::view::seen::Seen;
use crate::view::share::Share;
use crate::view::sizes::Sizes;

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

#[derive(Debug)]
pub(super) struct PoolView {
    table_key: String,
    pub ledger: LedgerView,
    pub error: Option<TableError>,
    pub prefix: Option<PrefixView>,
    share: Share,
    sizes: Sizes,
    seen: Seen,
    beginnings: Beginnings,
    snapshot: Option<Snapshot>,
    /// Ledger keys of the snapshot's pods, in their order.
    keys: Vec<PodKey>,
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
            share: if shares { Share::default() } else { Share::unseen() },
            sizes: Sizes::default(),
            seen: Seen::default(),
            beginnings: Beginnings::default(),
            snapshot: None,
            keys: Vec::new(),
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
        self.keys = table.pods.iter().map(|row| row.address.key()).collect();
        // What is in flight now, beside what the table shows. Where the ledger cannot be read, the copy serves.
        let _ = self.ledger.refresh(store, now);
        let counted_at = table.discovery.at;
        self.ledger
            .facts(table.pods.iter().zip(&self.keys).map(|(row, key)| PodFact {
                pod: *key,
                incarnation: row.incarnation,
                sample_at: row.gauges_at(),
                proxy_active: row.proxy_active.zip(counted_at),
            }));
        let (ledger, pods) = (self.ledger.ledger(), table.pods.iter().zip(&self.keys));
        self.share
            .add(pods.clone().map(|(row, key)| (row, ledger.own(*key, None))));
        self.sizes
            .add(table.pods.iter(), table.scrape_interval, table.written_at);
        if let Some(prefix) = &mut self.prefix {
            prefix.facts(pods, self.share.own());
        }
        let snapshot = Snapshot::new(table);
        self.seen.add(&snapshot);
        self.snapshot = Some(snapshot);
        Ok(true)
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

    /// How a prompt begins, as far as it tells where it lives.
    pub fn beginning(&mut self, chains: &Chains) -> Option<Beginning> {
        let popular = HOME_SHARE / self.keys.len().max(1) as f64;
        self.beginnings.beginning(chains, popular)
    }

    /// What is known of each pod of the table.
    pub fn pods(&self, pool: &Pool, now: UnixMillis) -> Vec<PodFacts<'_>> {
        let Some(snapshot) = &self.snapshot else {
            return Vec::new();
        };
        let ledger = self.ledger.ledger();
        let facts = snapshot.pods().iter().zip(&self.keys).map(|(row, key)| {
            let known = ledger.at(*key);
            PodFacts {
                row,
                freshness: snapshot.freshness(row, pool, now),
                own: known.own(row.gauges_at()),
                filled: known.filled(),
                cached: 0.0,
                rate: known.rate(),
                // Further ahead than any avoidance lasts: from before the clock stepped back.
                avoided_until: known.avoided_until().filter(|until| until.since(now) <= AVOID_MAX),
                adapters_in_use: known.adapters_in_use(),
                seen_adapters: self.seen.at(*key),
                recent_adapters: known.recent_adapters(row.incarnation),
            }
        });
        facts.collect()
    }

    /// Finds out what the pods hold of a prompt, and notes it in `pods`.
    pub fn look_up(&self, store: &dyn SharedData, chains: Option<&Chains>, pods: &mut [PodFacts<'_>]) -> Found {
        let (Some(prefix), Some(chains)) = (&self.prefix, chains) else {
            return Found::default();
        };
        let found = prefix.look_up(store, chains, pods);
        for (place, blocks) in &found.blocks {
            if let Some(pod) = pods.get_mut(*place) {
                pod.cached = chains.part(*blocks);
            }
        }
        found
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
            (Some(prefix), Some(pod)) => prefix.write(store, found, pod, takes, pods),
            _ => Written::default(),
        }
    }

    pub fn facts(&self) -> PoolFacts {
        PoolFacts {
            rate: self.ledger.ledger().pool_rate(),
            elsewhere: 1.0 - self.share.own(),
            repeated: self.beginnings.repeated(),
        }
    }
}
