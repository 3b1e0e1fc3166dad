//! Who polls a pool: one lease per pool in shared data, for all root contexts of the process.
//!
//! ```text
//!             look: somebody else's, and it moves
//!          +-------------------------------------+
//!          v                                     |
//!      standing by --- absent: create ---------->+---> holding --- due: renew --+
//!          ^           expired, or still for     |        ^                     |
//!          |           one LEASE: take over      |        +------- written -----+
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
//! that step back, by a token that was seen unchanged for one [`LEASE`].
//!
//! Deliberately not here: what the holder does ([`crate::poll`]), and any tie to a thread: the main
//! thread's contexts cannot be told from the workers', and are not better.

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::limits::{LEASE, LEASE_LOOK, LEASE_PATIENCE, LEASE_RENEW};
use crate::sealed::{self, Kind};
use crate::store::{Cas, SharedData, StoreError, Stored};
use crate::units::{Millis, UnixMillis};

/// A token that no value has: Envoy counts writes from 1, and gets there after 2^32 of them.
const TOKEN_OF_NOTHING: Cas = Cas(u32::MAX);
/// Reads and writes of one look: the two ways of creating, and a last read.
const TRIES: usize = 3;

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
            let read = store.get(&self.key);
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
        if !core::mem::take(&mut self.holds) {
            return;
        }
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
        if self.since.is_none() {
            self.since = Some(steady);
            self.due = steady;
        }
        steady < self.due
    }

    /// The lease was read: what to write, if anything.
    fn looked(&mut self, stored: Result<Option<Stored>, StoreError>, now: UnixMillis) -> Option<Write> {
        let now = self.clock.read(now);
        self.due = now.steady + LEASE_LOOK;
        let expires = now.wall + LEASE;
        let stored = match stored {
            Ok(stored) => stored,
            // Without shared data nobody can be kept from polling, and no table can be published.
            Err(_) => return self.stand_by(),
        };
        let Some(stored) = stored else {
            let waited = Millis(now.steady.0.saturating_sub(self.since.unwrap_or_default().0));
            if !self.me.preferred && !self.holds && waited < LEASE_PATIENCE {
                self.due = now.steady + Millis(LEASE_PATIENCE.0 - waited.0);
                return None;
            }
            let token = (!self.plain_creates).then_some(TOKEN_OF_NOTHING);
            return self.claim(expires, token);
        };
        self.plain_creates = false;
        let still = self.still_since(stored.cas, now.steady);
        let mine = match read(&stored) {
            Some(lease) if lease.holder.nonce == self.me.nonce => true,
            Some(lease) => {
                // It is another's now, whatever comes.
                self.holds = false;
                lease.expires <= now.wall || still >= LEASE || self.me.outranks(&lease.holder)
            }
            // Foreign, torn, or a value that was emptied: nobody renews it, or it can be read next time.
            None => still >= LEASE,
        };
        if mine {
            self.claim(expires, stored.cas)
        } else {
            self.stand_by()
        }
    }

    /// How the write went; `false` = the lease is to be read once more now.
    fn wrote(&mut self, write: &Write, written: Result<(), StoreError>) -> bool {
        let steady = self.clock.now().steady;
        match written {
            Ok(()) => {
                self.holds = true;
                self.due = steady + LEASE_RENEW;
                true
            }
            Err(StoreError::CasMismatch) if write.cas == Some(TOKEN_OF_NOTHING) => {
                self.plain_creates = true;
                false
            }
            Err(_) => {
                self.holds = false;
                true
            }
        }
    }

    fn stand_by(&mut self) -> Option<Write> {
        self.holds = false;
        None
    }

    fn claim(&self, expires: UnixMillis, cas: Option<Cas>) -> Option<Write> {
        let lease = Lease {
            holder: self.me,
            expires,
        };
        let value = sealed::seal(Kind::Lease, &lease).ok()?;
        Some(Write { value, cas })
    }

    /// For how long this token has been seen.
    fn still_since(&mut self, token: Option<Cas>, steady: Millis) -> Millis {
        match self.seen {
            Some((seen, since)) if seen == token => Millis(steady.0.saturating_sub(since.0)),
            _ => {
                self.seen = Some((token, steady));
                Millis(0)
            }
        }
    }
}

fn read(stored: &Stored) -> Option<Lease> {
    sealed::open(Kind::Lease, &stored.value).ok()
}

#[cfg(test)]
mod tests;
