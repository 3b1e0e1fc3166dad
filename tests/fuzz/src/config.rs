//! The config document.

use std::collections::BTreeSet;

use berth_shared_state::config::{Config, ConfigError, Discovery, Pool};
use berth_shared_state::limits::{
    BODY_HOLD_MAX_BYTES, BODY_HOLD_MIN_BYTES, CONFIG_ERRORS_MAX, PODS_MAX, POOLS_MAX, SCRAPE_INTERVAL_MAX,
    SCRAPE_INTERVAL_MIN, SHOWN_VALUE_MAX_CHARS,
};
use berth_shared_state::names::TRUSTABLE;
use berth_shared_state::poll::{Effect, Event, HeaderValue, Poller};
use berth_shared_state::table;
use serde_json::Value;

use crate::check_line;
use crate::world::NOW;

/// The whole input is the document.
pub fn config(data: &[u8]) {
    let parsed = Config::parse(data);
    assert_eq!(parsed, Config::parse(data), "parsed twice");
    match parsed {
        Ok(config) => check_config(&config, data),
        Err(errors) => {
            assert!(
                (1..=CONFIG_ERRORS_MAX + 1).contains(&errors.len()),
                "{} errors",
                errors.len()
            );
            errors.iter().for_each(check_error);
        }
    }
}

fn check_error(error: &ConfigError) {
    check_line(&error.path);
    check_line(&error.rule);
    check_line(&error.to_string());
    // Escapes of one character take up to ten: \u{10ffff}.
    assert!(
        error.value.chars().count() <= SHOWN_VALUE_MAX_CHARS * 10 + 16,
        "{error}"
    );
}

fn check_config(config: &Config, document: &[u8]) {
    let value: Value = serde_json::from_slice(document).expect("what is accepted is JSON");
    let pretty = serde_json::to_vec_pretty(&value).expect("JSON");
    let again = Config::parse(&pretty).expect("spaces and the order of keys change nothing");
    assert_eq!(again.pools, config.pools);
    assert_eq!((again.trust, again.body), (config.trust.clone(), config.body.clone()));
    assert!(
        config
            .trust
            .headers
            .iter()
            .all(|name| TRUSTABLE.contains(&name.as_str()))
    );
    assert!((BODY_HOLD_MIN_BYTES..=BODY_HOLD_MAX_BYTES).contains(&config.body.hold_bytes));
    let names: BTreeSet<&str> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
    assert_eq!(names.len(), config.pools.len(), "two pools of one name");
    assert!((1..=POOLS_MAX).contains(&names.len()));
    config.pools.iter().for_each(|pool| check_pool(pool, config.epoch));
}

fn check_pool(pool: &Pool, epoch: u64) {
    let (interval, stale_after) = (pool.scrape.interval, pool.routing.stale_after);
    assert!((SCRAPE_INTERVAL_MIN..=SCRAPE_INTERVAL_MAX).contains(&interval));
    assert!(
        stale_after.0 >= 3 * interval.0,
        "one lost scrape makes a healthy pod unknown"
    );
    assert!(pool.routing.prefill_tokens_per_second > 0);
    if let Discovery::Static(pods) = &pool.discovery {
        assert!((1..=PODS_MAX).contains(&pods.len()));
        assert!(pods.iter().all(|pod| pod.to_string().parse() == Ok(*pod)));
    }
    // A config that is accepted can be polled with.
    for effect in Poller::new(pool, epoch, 7).on(Event::Tick, NOW) {
        match effect {
            Effect::Publish { bytes } => {
                let table = table::decode(&bytes).expect("a table that readers accept");
                if let Discovery::Static(pods) = &pool.discovery {
                    let shown: BTreeSet<_> = table.pods.iter().map(|row| row.address).collect();
                    assert_eq!(shown, pods.iter().copied().collect(), "the pods that were configured");
                }
            }
            Effect::Call(call) => {
                assert!(call.timeout.0 > 0 && call.path.starts_with('/'));
                let texts = call.headers.iter().filter_map(|(name, value)| match value {
                    HeaderValue::Text(text) => Some([name, text]),
                    HeaderValue::Variable(_) => None,
                });
                let mut visible = texts.flatten().chain([&call.path, &call.authority, &call.cluster]);
                assert!(visible.all(|text| text.bytes().all(|byte| byte.is_ascii_graphic())));
            }
            Effect::Log { text, .. } => check_line(&text),
            Effect::Count { .. } => {}
        }
    }
}
