//! Aliases and canaries: which model stands behind the name that a client uses, and the body that says so.
//!
//! One rewrite is applied per request, and its target is not rewritten again. Deliberately not here: whether any pool
//! has the target (the decision says so), and the answer ([`crate::restore`]).

use berth_shared_state::config::{Rewrite, Sticky, Target};
use fastrand::Rng;
use xxhash_rust::xxh64::xxh64;

use crate::request::ModelAt;

/// Who sends a request, as far as its rewrite may ask.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sender<'a> {
    /// The session, from a trusted header.
    pub session: Option<&'a str>,
    /// The user that the body names.
    pub user: Option<&'a str>,
}

/// The target for a name; `None` = it stays what it is.
#[must_use]
pub fn target<'c>(rewrites: &'c [Rewrite], name: &str, sender: Sender<'_>, rng: &mut Rng) -> Option<&'c str> {
    let of = |from: Option<&str>| rewrites.iter().find(|rewrite| rewrite.from.as_deref() == from);
    let rewrite = of(Some(name)).or_else(|| of(None))?;
    let key = match rewrite.sticky {
        Sticky::None => None,
        Sticky::Session => sender.session,
        Sticky::User => sender.user,
    };
    // All proxies deal alike, and the same user differently for each name.
    let dealt = match key {
        Some(key) => xxh64(key.as_bytes(), xxh64(name.as_bytes(), 0)),
        None => rng.u64(..),
    };
    let target = share(&rewrite.to, dealt)?;
    (target != name).then_some(target)
}

/// The target whose part of the whole range holds this number. Parts lie in the order of the config: when a weight
/// grows, only those at its borders move.
fn share(targets: &[Target], dealt: u64) -> Option<&str> {
    let all: u64 = targets.iter().map(|target| u64::from(target.weight)).sum();
    let mut point = (u128::from(dealt) * u128::from(all)) >> 64;
    let found = targets.iter().find(|target| {
        let weight = u128::from(target.weight);
        let here = point < weight;
        point = point.saturating_sub(weight);
        here
    });
    found.map(|target| target.model.as_str())
}

/// A body up to the end of its model's name, with the target in its place: `start` are the bytes up to that end. What
/// comes behind stays as it is. `None` = fewer bytes than that.
#[must_use]
pub fn patched(start: &[u8], at: ModelAt, target: &str) -> Option<Vec<u8>> {
    if start.len() != at.end {
        return None;
    }
    let mut body = start.get(..at.start)?.to_vec();
    if at.quoted {
        body.extend(serde_json::to_vec(target).ok()?);
    } else {
        body.extend(target.bytes());
    }
    Some(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_shared_state::config::Config;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NOBODY: Sender<'_> = Sender {
        session: None,
        user: None,
    };

    fn rewrites(rules: &str) -> Vec<Rewrite> {
        let pools = r#"[{"name": "a", "discovery": {"static": ["10.0.0.1:80"]}}]"#;
        let trust = r#"{"headers": ["x-session-id"]}"#;
        let document = format!(r#"{{"pools": {pools}, "trust": {trust}, "rewrites": {rules}}}"#);
        Config::parse(document.as_bytes()).unwrap().rewrites
    }

    #[test]
    fn the_exact_name_comes_before_all_others() {
        let rules = rewrites(
            r#"[{"from": "*", "to": [{"model": "rest"}]}, {"from": "gpt", "to": [{"model": "llama"}]},
                {"from": "keep", "to": [{"model": "keep"}]}]"#,
        );
        let of = |name| target(&rules, name, NOBODY, &mut Rng::with_seed(1));
        assert_eq!(of("gpt"), Some("llama"));
        assert_eq!(of("gpt2"), Some("rest"));
        assert_eq!(of("llama"), Some("rest"), "no exact rewrite");
        assert_eq!(
            (of("rest"), of("keep")),
            (None, None),
            "what becomes itself is not rewritten"
        );
        let none = rewrites("[]");
        assert_eq!(target(&none, "gpt", NOBODY, &mut Rng::with_seed(1)), None);
        let exact = rewrites(r#"[{"from": "gpt", "to": [{"model": "llama"}]}]"#);
        assert_eq!(target(&exact, "GPT", NOBODY, &mut Rng::with_seed(1)), None);
    }

    /// Of `count` requests those to `b`.
    #[track_caller]
    fn check(weights: &str, count: u32, expected: core::ops::RangeInclusive<u32>) {
        let rules = rewrites(weights);
        let mut rng = Rng::with_seed(7);
        let mut to_b = 0;
        for _ in 0..count {
            to_b += u32::from(target(&rules, "a", NOBODY, &mut rng) == Some("b"));
        }
        assert!(expected.contains(&to_b), "{to_b} of {count}");
    }

    #[test]
    fn targets_share_the_requests_by_weight() {
        // Three standard deviations around the mean.
        let weighted = r#"[{"from": "a", "to": [{"model": "b", "weight": 70}, {"model": "c", "weight": 30}]}]"#;
        check(weighted, 2_000, 1_338..=1_462);
        let alike = r#"[{"from": "a", "to": [{"model": "b"}, {"model": "c"}]}]"#;
        check(alike, 2_000, 932..=1_068);
    }

    #[test]
    fn the_whole_range_is_dealt_out() {
        let target = |model: &str, weight| Target {
            model: model.to_owned(),
            weight,
        };
        let targets = [target("b", 1), target("c", 2), target("d", 1)];
        let quarter = 1 << 62;
        for (dealt, expected) in [
            (0, "b"),
            (quarter - 1, "b"),
            (quarter, "c"),
            (3 * quarter - 1, "c"),
            (3 * quarter, "d"),
            (u64::MAX, "d"),
        ] {
            assert_eq!(share(&targets, dealt), Some(expected), "{dealt}");
        }
    }

    #[test]
    fn a_session_or_a_user_stays_with_its_target() {
        let rules = rewrites(
            r#"[{"from": "s", "sticky": "session", "to": [{"model": "b"}, {"model": "c"}]},
                {"from": "u", "sticky": "user", "to": [{"model": "b"}, {"model": "c"}]}]"#,
        );
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..64 {
            let (session, user) = (format!("s{number}"), format!("u{number}"));
            let sender = Sender {
                session: Some(&session),
                user: Some(&user),
            };
            let of = |name, seed| target(&rules, name, sender, &mut Rng::with_seed(seed));
            let first = (of("s", 1), of("u", 1));
            assert!((2..20).all(|seed| (of("s", seed), of("u", seed)) == first));
            seen.insert(first);
        }
        assert_eq!(seen.len(), 4, "both targets, for each name on its own");
        let mut rng = Rng::with_seed(3);
        let strangers: std::collections::BTreeSet<_> = (0..64).map(|_| target(&rules, "u", NOBODY, &mut rng)).collect();
        assert_eq!(strangers.len(), 2, "chance decides for those without a name");
    }

    #[test]
    fn a_growing_canary_keeps_its_users() {
        let at = |stable, canary| {
            let rules = format!(
                r#"[{{"from": "a", "sticky": "user", "to": [{{"model": "b", "weight": {stable}}}, {{"model": "c", "weight": {canary}}}]}}]"#
            );
            let rules = rewrites(&rules);
            let with = |user: &u32| {
                let user = user.to_string();
                let sender = Sender {
                    user: Some(&user),
                    ..NOBODY
                };
                target(&rules, "a", sender, &mut Rng::with_seed(1)) == Some("c")
            };
            (0..200).filter(with).collect::<Vec<u32>>()
        };
        let (few, more) = (at(90, 10), at(70, 30));
        assert!(!few.is_empty() && few.len() < more.len());
        assert!(few.iter().all(|user| more.contains(user)));
    }

    #[test]
    fn only_the_name_changes_in_a_body() {
        let at = |start, end, quoted| ModelAt { start, end, quoted };
        let body = br#"{"model": "gpt""#;
        let text = |patched: Option<Vec<u8>>| patched.map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(
            text(patched(body, at(10, 15, true), "llama")).as_deref(),
            Some(r#"{"model": "llama""#)
        );
        assert_eq!(
            text(patched(body, at(10, 15, true), r#"a"b\"#)).as_deref(),
            Some(r#"{"model": "a\"b\\""#)
        );
        assert_eq!(
            text(patched(b"--x\r\n\r\ngpt", at(7, 10, false), "llama")).as_deref(),
            Some("--x\r\n\r\nllama")
        );
        assert_eq!(patched(body, at(10, 16, true), "llama"), None, "bytes are missing");
    }
}
