//! The filter's stats that are there before anything happens, so that an alert on them can be written.

use berth_filter_routing::admission;
use berth_filter_routing::decision::Reason;
use berth_filter_routing::request::PassReason;
use berth_shared_state::config::Config;
use berth_shared_state::names;
use berth_shared_state_glue::host::MetricKind;
use berth_shared_state_glue::stats::Stats;

/// Why a request passes where the host does not deliver held bodies.
pub const NO_BODY_HOLD: &str = "no-body-hold";

/// Stat: bodies that the host announced and did not show.
pub const BODY_UNREADABLE: &str = "berth.body_unreadable";

/// Stat: questions for models that were answered here.
pub const MODELS_ANSWERED: &str = "berth.models_answered";

/// Stat: requests that named an objective that the config does not have.
pub const OBJECTIVES_UNKNOWN: &str = "berth.objectives_unknown";

/// The stats that people watch, known before anything happens.
pub fn known(config: &Config) -> Stats {
    let mut stats = Stats::default();
    let passes = PassReason::ALL.map(PassReason::as_str).into_iter();
    for reason in passes.chain([NO_BODY_HOLD]) {
        stats.define(MetricKind::Counter, &["berth.passed.", reason].concat());
    }
    stats.define(MetricKind::Counter, MODELS_ANSWERED);
    stats.define(MetricKind::Counter, BODY_UNREADABLE);
    stats.define(MetricKind::Gauge, "berth.no_body_hold");
    stats.define(MetricKind::Histogram, "berth.decision_us");
    for pool in &config.pools {
        let counter = |stat: &str| names::pool_stat(&pool.name, stat);
        stats.define(MetricKind::Counter, &counter("routed"));
        stats.define(MetricKind::Counter, &counter(names::ELSEWHERE));
        stats.define(MetricKind::Counter, &counter(names::MODEL_UNREAD));
        stats.define(MetricKind::Histogram, &counter("table_age_ms"));
        for reason in Reason::REPLIES {
            stats.define(MetricKind::Counter, &counter(&["replied.", reason.as_str()].concat()));
        }
        for reason in Reason::PASSES {
            stats.define(MetricKind::Counter, &counter(&["passed.", reason.as_str()].concat()));
        }
    }
    if config.admission.is_on() {
        know_bands(config, &mut stats);
    }
    stats
}

fn know_bands(config: &Config, stats: &mut Stats) {
    stats.define(MetricKind::Counter, OBJECTIVES_UNKNOWN);
    for pool in &config.pools {
        for priority in admission::priorities(&config.admission) {
            let stat = |what: &str| admission::stat(&pool.name, priority, what);
            stats.define(MetricKind::Counter, &stat("refused"));
            if config.admission.queue.is_some() {
                stats.define(MetricKind::Counter, &stat("held"));
                stats.define(MetricKind::Gauge, &stat("waiting"));
                stats.define(MetricKind::Gauge, &stat("waiting_tokens"));
            }
        }
        if config.admission.queue.is_some() {
            stats.define(MetricKind::Histogram, &names::pool_stat(&pool.name, "waited_ms"));
        }
    }
}
