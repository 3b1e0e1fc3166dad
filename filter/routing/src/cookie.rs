//! The cookie by which a session finds the pod that served it last.
//!
//! ```text
//!  berth-<pool>=<issued at, Unix seconds>.<tokens of the context>.<pod>.<seal>       numbers in hex
//!  seal = SipHash-2-4 of pod, time and tokens, under a key made of the secret and the pool's name
//!  pod  = the pod's key, xor SipHash-2-4 of the seal under the same key
//! ```
//! The seal is what hides the pod (a synthetic initialisation vector, RFC 5297): a client learns no address, and a
//! reader needs two hashes, however many pods there are. It holds everything, so proxies and workers share nothing but
//! the secret.
//!
//! What a forger gains: without the secret one attempt in 2^64 is believed. Who copies another client's cookie, or keeps
//! an old one, makes one pod cheaper for his own requests while it counts, by what a context of that length costs; that
//! pod still wins only while it is not busy. He hides no load: what he sends is booked, and let in, as if nothing of it
//! were cached. Nothing of a session can be read through it.
//! Deliberately not here: where the secret comes from, and what the claim is worth.

use core::hash::Hasher as _;
use std::fmt::Write as _;

use berth_shared_state::limits::AFFINITY_KEY_MIN_BYTES;
use berth_shared_state::names::COOKIE_PREFIX;
use berth_shared_state::pod::PodKey;
use berth_shared_state::units::{Millis, Tokens, UnixMillis};
use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128, SipHasher24 as SipHasher128};

use crate::limits::COOKIE_VALUE_MAX_BYTES;

/// Digits of a pod and of a seal.
const WHOLE_DIGITS: usize = 16;

/// Seals cookies of one pool, and reads them.
#[derive(Clone)]
pub struct Sealer {
    name: String,
    key: [u8; 16],
}

impl core::fmt::Debug for Sealer {
    /// Without the key.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sealer")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What a cookie says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// When it was issued: whole seconds.
    pub at: UnixMillis,
    /// Tokens of the session's context then.
    pub tokens: Tokens,
    /// Where that context is.
    pub pod: PodKey,
}

impl Sealer {
    /// Under this secret; `None` = it is too short to be one.
    #[must_use]
    pub fn new(secret: &[u8], pool: &str) -> Option<Self> {
        if secret.len() < AFFINITY_KEY_MIN_BYTES {
            return None;
        }
        let mut hasher = SipHasher128::new();
        hasher.write(secret);
        hasher.write_u8(0);
        hasher.write(pool.as_bytes());
        Some(Self {
            name: [COOKIE_PREFIX, pool].concat(),
            key: hasher.finish128().as_bytes(),
        })
    }

    /// The cookie's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value for a session whose context of so many tokens is at a pod.
    #[must_use]
    pub fn issue(&self, pod: PodKey, tokens: Tokens, now: UnixMillis) -> String {
        let seconds = now.0 / 1_000;
        let mut value = String::with_capacity(COOKIE_VALUE_MAX_BYTES);
        let seal = self.seal(pod, seconds, tokens);
        let hidden = pod.0 ^ self.veil(seal);
        // Writing to a string does not fail.
        let _ = write!(value, "{seconds:x}.{:x}.{hidden:016x}.{seal:016x}", tokens.0);
        value
    }

    /// What the pool's cookie among these says: the value of a `cookie` header. `None` = there is none that was sealed
    /// with this secret, or it is older than `max_age`, or from the future.
    #[must_use]
    pub fn read(&self, cookies: &str, max_age: Millis, now: UnixMillis) -> Option<Claim> {
        let mut pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
        let (_, value) = pairs.find(|(name, _)| *name == self.name)?;
        if value.len() > COOKIE_VALUE_MAX_BYTES {
            return None;
        }
        let mut parts = value.split('.');
        let (seconds, tokens) = (number(parts.next()?)?, Tokens(number(parts.next()?)?));
        let (hidden, seal) = (whole(parts.next()?)?, whole(parts.next()?)?);
        let pod = PodKey(hidden ^ self.veil(seal));
        let at = UnixMillis(seconds.checked_mul(1_000)?);
        let counts = parts.next().is_none() && at <= now && now.since(at) <= max_age;
        (counts && self.seal(pod, seconds, tokens) == seal).then_some(Claim { at, tokens, pod })
    }

    fn seal(&self, pod: PodKey, seconds: u64, tokens: Tokens) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        for number in [pod.0, seconds, tokens.0] {
            hasher.write(&number.to_le_bytes());
        }
        hasher.finish()
    }

    /// What hides the pod. A hash of another length than the seal's.
    fn veil(&self, seal: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(&seal.to_le_bytes());
        hasher.finish()
    }
}

/// A number with all its digits.
fn whole(text: &str) -> Option<u64> {
    number(text).filter(|_| text.len() == WHOLE_DIGITS)
}

/// A number in hex, as it is written: no sign, no capitals.
fn number(text: &str) -> Option<u64> {
    let digits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if !text.bytes().all(digits) {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_issued_is_read_as_it_was(pod: u64, tokens: u64, now: u64, around in "[ -~]{0,20}") {
            let sealer = Sealer::new(b"sixteen bytes or", "p").unwrap();
            let value = sealer.issue(PodKey(pod), Tokens(tokens), UnixMillis(now));
            let cookies = format!("{};berth-p={value};{around}", around.replace("berth-p", ""));
            let claim = sealer.read(&cookies, Millis(1_000), UnixMillis(now)).unwrap();
            let at = UnixMillis(now / 1_000 * 1_000);
            prop_assert_eq!(claim, Claim { at, tokens: Tokens(tokens), pod: PodKey(pod) });
        }

        #[test]
        fn no_text_is_believed(text in ".{0,80}", parts in "[0-9a-f.]{0,60}") {
            let sealer = Sealer::new(b"sixteen bytes or", "p").unwrap();
            for value in [text, parts] {
                let claim = sealer.read(&format!("berth-p={value}"), Millis(u64::MAX), UnixMillis(u64::MAX));
                prop_assert_eq!(claim, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    const SECRET: &[u8] = b"sixteen bytes or";
    const NOW: UnixMillis = UnixMillis(1_700_000_000_500);
    const AGE: Millis = Millis(300_000);
    const POD: PodKey = PodKey(7);

    fn sealer() -> Sealer {
        Sealer::new(SECRET, "llama").unwrap()
    }

    fn cookie() -> String {
        format!("berth-llama={}", sealer().issue(POD, Tokens(4_096), NOW))
    }

    #[track_caller]
    fn check(cookies: &str, now: UnixMillis, believed: bool) {
        let claim = Claim {
            at: UnixMillis(NOW.0 / 1_000 * 1_000),
            tokens: Tokens(4_096),
            pod: POD,
        };
        assert_eq!(sealer().read(cookies, AGE, now), believed.then_some(claim), "{cookies}");
    }

    #[test]
    fn what_was_issued_is_believed_as_it_was() {
        check(&cookie(), NOW, true);
        check(&format!("a=b; {}; c=d", cookie()), NOW, true);
    }

    /// Cookies of one moment and one length, of pods whose keys differ in a bit.
    #[test]
    fn two_cookies_do_not_tell_what_two_pods_have_in_common() {
        let hidden = |pod: u64| {
            let value = sealer().issue(PodKey(pod), Tokens(4_096), NOW);
            u64::from_str_radix(value.split('.').nth(2).unwrap(), 16).unwrap()
        };
        assert_ne!(hidden(7) ^ hidden(6), 1);
        assert_ne!(hidden(7), 7);
    }

    #[test]
    fn a_cookie_counts_as_long_as_the_config_says() {
        let issued = 1_700_000_000_000;
        check(&cookie(), UnixMillis(issued + AGE.0), true);
        check(&cookie(), UnixMillis(issued + AGE.0 + 1), false);
        check(&cookie(), UnixMillis(issued - 1), false);
    }

    #[test]
    fn another_secret_or_pool_seals_otherwise() {
        let read = |secret: &[u8], pool: &str| {
            let other = Sealer::new(secret, pool).unwrap();
            let cookies = cookie().replace("berth-llama", other.name());
            other.read(&cookies, AGE, NOW).is_some()
        };
        assert!(read(SECRET, "llama"));
        assert!(!read(SECRET, "qwen"));
        assert!(!read(b"sixteen bytes oR", "llama"));
        // A name's end is not a secret's.
        assert!(!read(b"sixteen bytes orllama", ""));
    }

    #[test]
    fn a_secret_has_sixteen_bytes() {
        assert!(Sealer::new(&SECRET[..15], "llama").is_none());
        assert!(Sealer::new(SECRET, "llama").is_some());
        assert!(!format!("{:?}", sealer()).contains("key"));
    }

    #[test]
    fn no_changed_byte_is_believed() {
        let cookie = cookie();
        for at in "berth-llama=".len()..cookie.len() {
            for other in ["0", "f", "A", ".", "-", " ", "\u{e9}"] {
                let mut changed = cookie.clone();
                changed.replace_range(at..=at, other);
                if changed != cookie {
                    check(&changed, NOW, false);
                }
            }
            check(cookie.get(..at).unwrap(), NOW, false);
        }
        check(&format!("{cookie}0"), NOW, false);
        check(&format!("{cookie}.0"), NOW, false);
        check(&cookie.replace('=', "=0"), NOW, true);
        check("", NOW, false);
        check("berth-llama", NOW, false);
        check("berth-llama=..", NOW, false);
        check(&format!("berth-llama={}", "f".repeat(1_000)), NOW, false);
    }

    /// A value that other proxies read: it may change only together with its name.
    #[test]
    fn the_value_is_this() {
        let value = sealer().issue(POD, Tokens(4_096), NOW);
        assert!(value.starts_with("6553f100.1000."), "{value}");
        let longest = sealer().issue(PodKey(u64::MAX), Tokens(u64::MAX), UnixMillis(u64::MAX));
        assert!(longest.len() <= COOKIE_VALUE_MAX_BYTES, "{longest}");
    }
}
