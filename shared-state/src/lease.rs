//! Who polls a pool: one lease per pool in shared data, for all root contexts of the process.
//!
//! ```text
//!             look: somebody else's, and it moves
//!          +-------------------------------------+
//!          v                                     |
//!      standing by --- absent: create ---------->+---> holding --- due: renew --+
//!          ^           expired, or still for     |        ^                     |
//!          |           as long: take over        |        +------- written -----+
//!          |           I am the better one       |        |
//!          +------- somebody was faster ---------+        |
//!          +------- another's, or the host refuses -------+
//! ```
//!
//! Every transition is one compare-and-swap, under both rules that hosts have:
//!
//! | write with | Envoy | WasmX |
//! |---|---|---|
//! | the token just read | only if unchanged | only if unchanged |
//! | no token | whatever is there | only if absent |
//! | a token of nothing | only if absent | never |
//!
//! So a lease that was read as absent is first written with a token of nothing; where that is refused
//! and the lease is absent still, the host is of the second kind, and it is written without a token.
//!
//! A thread may be stopped anywhere for any time. The holder therefore polls only while its last
//! renewal is younger than [`LEASE_RENEW`], and renews first otherwise; a renewal fails once somebody
//! took over. Two poll at once only where a better candidate, or a step of the wall clock, takes a
//! lease from a living holder: until that one's next renewal. Expiry goes by the wall clock or, should
//! that step back, by a token that was seen unchanged for as long.
//!
//! A holder that dies leaves its pods and pages to the next, and may have died of them. So a lease lasts [`LEASE`] after
//! its last renewal, but twice as long for each holder in a row before that let it expire, up to [`LEASE_MAX`]: one bad
//! page takes one VM a minute at most, not all within seconds. A lease that is given back, or held for
//! [`LEASE_PROVEN`], counts anew. A better candidate does not wait: there are few of them.
//!
//! Deliberately not here: what the holder does ([`crate::poll`]), and any tie to a thread: the main
//! thread's contexts cannot be told from the workers', and are not better.

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::limits::{LEASE, LEASE_LOOK, LEASE_MAX, LEASE_PATIENCE, LEASE_PROVEN, LEASE_RENEW};
use crate::sealed::{self, Kind};
use crate::store::{Cas, SharedData, StoreError, Stored};
use crate::units::{Millis, UnixMillis};

/// A token that no value has: Envoy counts writes from 1, and gets there after 2^32 of them.
const TOKEN_OF_NOTHING: Cas = Cas(u32::MAX);
/// Reads and writes of one look: where a creation is refused, once more, by the host's other way or over what is there
/// by then.
const TRIES: usize = 2;

/// A root context that may poll. What is compared is what all of a kind have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Random: nothing else tells the contexts of a process apart.
    pub nonce: u64,
    /// xxh64 of its config document.
    pub epoch: u64,
    /// When it was configured. Of two configs, the later one is the newer generation.
    pub born: UnixMillis,
    /// The companion service, or a context that the config names as poller.
    pub preferred: bool,
}

impl Candidate {
    /// Whether the lease should pass from `holder` to this one though it is alive.
    const fn outranks(&self, holder: &Self) -> bool {
        if self.preferred != holder.preferred {
            return self.preferred;
        }
        self.epoch != holder.epoch && self.born.0 > holder.born.0
    }
}

/// The lease as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Who has it.
    pub holder: Candidate,
    /// Open to all from then on; 0 = given back.
    pub expires: UnixMillis,
    /// How often in a row it ended by expiry before this holder, and not by being given back.
    pub expired: u32,
}

impl Lease {
    /// From a renewal until the lease is open to all: [`LEASE`], and twice as long for each end by expiry, up to
    /// [`LEASE_MAX`]. What a holder died of, a page for one, may be what the next one will die of.
    fn lasts(expired: u32) -> Millis {
        LEASE.doubled(expired, LEASE_MAX)
    }

    /// As a holder leaves it to the next: what is given back ended well.
    const fn ended(self) -> u32 {
        if self.expires.0 == 0 {
            0
        } else {
            self.expired.saturating_add(1)
        }
    }
}

/// One candidate's side of one pool's lease.
#[derive(Debug)]
pub struct Seat {
    key: String,
    me: Candidate,
    clock: Clock,
    /// As far as it knows; it asks again when due.
    holds: bool,
    /// When the lease is read next.
    due: Millis,
    /// First look.
    since: Option<Millis>,
    /// [`Lease::expired`] of a lease that it takes.
    expired: u32,
    /// Since when it has held without a break.
    held_since: Option<Millis>,
    /// The token as last seen, and since when it has been that one.
    seen: Option<(Option<Cas>, Millis)>,
    /// A token of nothing was refused: the host creates without one.
    plain_creates: bool,
}

/// A write that a look asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Write {
    value: Vec<u8>,
    cas: Option<Cas>,
}

impl Seat {
    /// A candidate for the pool whose lease has this key ([`crate::names::Keys`]). It holds nothing.
    #[must_use]
    pub fn new(key: String, me: Candidate) -> Self {
        Self {
            key,
            me,
            clock: Clock::default(),
            holds: false,
            due: Millis(0),
            since: None,
            expired: 0,
            held_since: None,
            seen: None,
            plain_creates: false,
        }
    }

    /// Whether it holds the lease as far as it knows.
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.holds
    }

    /// To be called on every tick: may this context poll now? Touches shared data once per
    /// [`LEASE_RENEW`] or [`LEASE_LOOK`].
    pub fn tick(&mut self, store: &dyn SharedData, now: UnixMillis) -> bool {
        if self.rests(now) {
            return self.holds;
        }
        for _ in 0..TRIES {
            let mut read = store.get(&self.key);
            if self.holds && is_torn(&read) {
                // Its own renewal, most likely: WasmX copies a value after it has let its lock go.
                read = store.get(&self.key);
            }
            let Some(write) = self.looked(read, now) else { break };
            let written = store.set(&self.key, &write.value, write.cas);
            if self.wrote(&write, written) {
                break;
            }
        }
        self.holds
    }

    /// Gives the lease back, so that nobody has to wait for its end.
    pub fn release(&mut self, store: &dyn SharedData) {
        if !self.holds {
            return;
        }
        self.stand_by();
        if let Ok(Some(stored)) = store.get(&self.key)
            && read(&stored).is_some_and(|lease| lease.holder.nonce == self.me.nonce)
            && let Some(write) = self.claim(UnixMillis(0), stored.cas)
        {
            // Somebody was faster, or it ends by itself.
            let _ = store.set(&self.key, &write.value, write.cas);
        }
    }

    /// Nothing is to be done yet.
    fn rests(&mut self, now: UnixMillis) -> bool {
        let steady = self.clock.read(now).steady;
        self.since.get_or_insert(steady);
        steady < self.due
    }

    /// The lease was read: what to write, if anything.
    fn looked(&mut self, stored: Result<Option<Stored>, StoreError>, now: UnixMillis) -> Option<Write> {
        let now = self.clock.read(now);
        self.due = now.steady + LEASE_LOOK;
        let stored = match stored {
            Ok(stored) => stored,
            // Without shared data nobody can be kept from polling, and no table can be published.
            Err(_) => return self.stand_by(),
        };
        let Some(stored) = stored else {
            let waited = now.steady.since(self.since.unwrap_or_default());
            if !self.me.preferred && !self.holds && waited < LEASE_PATIENCE {
                self.due = now.steady + LEASE_PATIENCE.since(waited);
                return None;
            }
            let token = (!self.plain_creates).then_some(TOKEN_OF_NOTHING);
            return self.renewed(token);
        };
        self.plain_creates = false;
        let still = self.still_since(stored.cas, now.steady);
        let open = match read(&stored) {
            Some(lease) if lease.holder.nonce == self.me.nonce => true,
            Some(lease) => {
                // It is another's now, whatever comes.
                self.stand_by();
                let over = lease.expires <= now.wall || still >= Lease::lasts(lease.expired);
                self.expired = if over { lease.ended() } else { lease.expired };
                over || self.me.outranks(&lease.holder)
            }
            // Foreign, torn, or a value that was emptied: nobody renews it, or it can be read next time.
            None => still >= LEASE,
        };
        if open {
            self.renewed(stored.cas)
        } else {
            self.stand_by()
        }
    }

    /// Its lease from now on. Who lives for [`LEASE_PROVEN`] did not die of what its predecessors did.
    fn renewed(&mut self, cas: Option<Cas>) -> Option<Write> {
        let now = self.clock.now();
        let proven = |since: Millis| now.steady.since(since) >= LEASE_PROVEN;
        if self.held_since.is_some_and(proven) {
            self.expired = 0;
        }
        self.claim(now.wall + Lease::lasts(self.expired), cas)
    }

    /// How the write went; `false` = the lease is to be read once more now.
    fn wrote(&mut self, write: &Write, written: Result<(), StoreError>) -> bool {
        let steady = self.clock.now().steady;
        match written {
            Ok(()) => {
                self.holds = true;
                self.held_since.get_or_insert(steady);
                self.due = steady + LEASE_RENEW;
                true
            }
            Err(StoreError::CasMismatch) if write.cas == Some(TOKEN_OF_NOTHING) => {
                self.plain_creates = true;
                false
            }
            Err(_) => {
                self.stand_by();
                true
            }
        }
    }

    const fn stand_by(&mut self) -> Option<Write> {
        self.holds = false;
        self.held_since = None;
        None
    }

    fn claim(&self, expires: UnixMillis, cas: Option<Cas>) -> Option<Write> {
        let lease = Lease {
            holder: self.me,
            expires,
            expired: self.expired,
        };
        let value = sealed::seal(Kind::Lease, &lease).ok()?;
        Some(Write { value, cas })
    }

    /// For how long this token has been seen.
    fn still_since(&mut self, token: Option<Cas>, steady: Millis) -> Millis {
        match self.seen {
            Some((seen, since)) if seen == token => steady.since(since),
            _ => {
                self.seen = Some((token, steady));
                Millis(0)
            }
        }
    }
}

/// There is a value, and it is no lease.
fn is_torn(stored: &Result<Option<Stored>, StoreError>) -> bool {
    matches!(stored, Ok(Some(stored)) if read(stored).is_none())
}

fn read(stored: &Stored) -> Option<Lease> {
    sealed::open(Kind::Lease, &stored.value).ok()
}

#[cfg(test)]
mod tests;
