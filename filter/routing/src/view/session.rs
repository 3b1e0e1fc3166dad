//! Whose session a request belongs to, and what the pod that served it last holds of it.
//!
//! By a trusted header: the prefix index remembers who was sent a session's context, as if that were a prompt that no
//! other session begins with; it is shared by the workers of a process, forgets with the pods' caches, and is voided by
//! a restart. Proxies agree on a pod by the session's hash. By a cookie: the client brings what is to be known.
//! Either way it ends as a part of the prompt that a pod is believed to hold. Deliberately not here: what that is worth.

use std::borrow::Cow;

use berth_shared_state::config::{Affinity, Pool};
use berth_shared_state::pod::PodAddress;
use berth_shared_state::store::SharedData;
use berth_shared_state::table::PodRow;
use berth_shared_state::units::{Millis, Tokens, UnixMillis};
use xxhash_rust::xxh64::xxh64;

use super::pool::{PoolView, at_place};
use super::{Request, View};
use crate::cookie::{Claim, Sealer};
use crate::decision::{Ask, Drawn, PodFacts};
use crate::prefix::{Beginning, Chains, Found, seed};

/// The session of a request.
#[derive(Debug)]
pub(super) enum Session<'a> {
    /// It has none, or sessions do not count.
    None,
    /// By a trusted header: what stands for its context.
    Header { key: u64, context: Chains },
    /// By what the client's cookie claims.
    Cookie {
        cookies: &'a str,
        max_age: Millis,
        prompt: Tokens,
    },
}

impl Session<'_> {
    /// Where it lives, as far as proxies agree: they see the same sessions.
    pub fn start(&self) -> Option<Beginning> {
        match self {
            Self::Header { key, .. } => Some(Beginning { key: *key, share: 0.0 }),
            Self::None | Self::Cookie { .. } => None,
        }
    }
}

impl PoolView {
    /// The session of a request to this pool.
    pub fn session<'a>(&self, pool: &Pool, request: &Request<'a>, ask: &Ask<'_>) -> Session<'a> {
        let steering = request.steering;
        match (&pool.routing.affinity, &steering.session) {
            (Affinity::Session, Some(session)) => {
                // Another model, or another salt, shares nothing of the cache.
                let salt = request.facts.cache_salt.as_deref().unwrap_or_default();
                let key = xxh64(session.as_bytes(), seed(ask.model.unwrap_or_default(), salt));
                Session::Header {
                    key,
                    context: Chains::of_session(key, ask.prompt, ask.prompt + ask.output),
                }
            }
            (Affinity::Cookie { max_age, .. }, _) if !steering.cookies.is_empty() => Session::Cookie {
                cookies: &steering.cookies,
                max_age: *max_age,
                prompt: ask.prompt,
            },
            _ => Session::None,
        }
    }

    /// Finds the pods that served a session, and what they hold of this request.
    pub fn join(&self, store: &dyn SharedData, session: &Session<'_>, now: UnixMillis) -> Joined {
        match session {
            Session::None => Joined::default(),
            Session::Header { context, .. } => {
                let found = self.look_up(store, Some(context));
                let parts = found
                    .blocks
                    .iter()
                    .map(|(place, blocks)| (*place, context.part(*blocks)));
                Joined {
                    parts: parts.collect(),
                    found,
                    claimed: false,
                }
            }
            Session::Cookie {
                cookies,
                max_age,
                prompt,
            } => {
                let mut joined = Joined {
                    claimed: true,
                    ..Joined::default()
                };
                if let Some(sealer) = &self.sealer
                    && let Some(claim) = sealer.read(cookies, *max_age, now)
                    && let Some(place) = self.keys.iter().position(|pod| *pod == claim.pod)
                    && self.room(place).is_some_and(|(row, _)| !restarted(row, &claim))
                {
                    let part = claim.tokens.0 as f64 / prompt.0.max(1) as f64;
                    joined.parts.push((place, part.min(1.0)));
                }
                joined
            }
        }
    }
}

impl View {
    /// Seals the cookies of a pool, by its place in the config, with this secret. False: it is too short.
    pub fn seal(&mut self, pool: usize, secret: &[u8]) -> bool {
        let (Some(view), Some(pool)) = (self.pools.get_mut(pool), self.config.pools.get(pool)) else {
            return false;
        };
        view.sealer = Sealer::new(secret, &pool.name);
        view.sealer.is_some()
    }

    /// The `set-cookie` of an answer by this pod, where the pool's sessions go by cookies.
    #[must_use]
    pub fn cookie(&self, id: u64, serving: PodAddress, now: UnixMillis) -> Option<String> {
        let routed = self.routed.get(&id)?;
        let pool = self.config.pools.get(routed.pool)?;
        let sealer = self.pools.get(routed.pool)?.sealer.as_ref()?;
        cookie(pool, sealer, serving, routed.context?, routed.secure, now)
    }
}

/// What was found of a session.
#[derive(Debug, Default)]
pub(super) struct Joined {
    /// As the prefix index has it.
    pub found: Found,
    /// The pods that served it, by their place in the table, and the part of the prompt that they hold for it.
    parts: Vec<(usize, f64)>,
    /// That is what the client says. A cookie may be copied, and come with another prompt.
    claimed: bool,
}

impl Joined {
    /// Who holds how many blocks of the prompt; who served the session comes before all others.
    pub fn held<'a>(&self, found: &'a Found) -> Cow<'a, [(usize, u32)]> {
        if self.parts.is_empty() {
            return Cow::Borrowed(&found.blocks);
        }
        let these = self.parts.iter().map(|(place, _)| (*place, u32::MAX));
        Cow::Owned(these.chain(found.blocks.iter().copied()).collect())
    }

    /// Notes it in the pods that were drawn.
    pub fn note(&self, pods: &mut [PodFacts<'_>], drawn: Option<&Drawn>) {
        for (place, part) in &self.parts {
            if let Some(pod) = at_place(pods, drawn, *place) {
                pod.session = true;
                let held = if self.claimed {
                    &mut pod.claimed
                } else {
                    &mut pod.cached
                };
                *held = held.max(*part);
            }
        }
    }
}

/// Whether a pod's process began after the cookie was issued. A second is rounded off.
fn restarted(row: &PodRow, claim: &Claim) -> bool {
    row.started_at
        .is_some_and(|started| started * 1_000.0 >= (claim.at.0 + 1_000) as f64)
}

/// The `set-cookie` of a session whose context is at this pod now.
fn cookie(
    pool: &Pool,
    sealer: &Sealer,
    serving: PodAddress,
    context: Tokens,
    secure: bool,
    now: UnixMillis,
) -> Option<String> {
    let Affinity::Cookie { max_age, .. } = &pool.routing.affinity else {
        return None;
    };
    let value = sealer.issue(serving.key(), context, now);
    let seconds = max_age.0.div_ceil(1_000);
    let secure = if secure { "; Secure" } else { "" };
    let name = sealer.name();
    Some(format!(
        "{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
    ))
}
