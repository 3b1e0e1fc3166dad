//! Public names, spelled literally, so that a rename is a visible act; and what the artifacts import.

use berth_shared_state::config::Config;
use berth_shared_state::names::{self, Keys};

#[test]
fn the_public_names_are_these() {
    assert_eq!(names::DESTINATION_ENDPOINT, "x-gateway-destination-endpoint");
    assert_eq!(names::ENDPOINT_SUBSET, "x-gateway-destination-endpoint-subset");
    assert_eq!(names::ORIGINAL_DST_HOST, "x-envoy-original-dst-host");
    assert_eq!(names::MODEL_NAME, "x-gateway-model-name");
    assert_eq!(names::BASE_MODEL_NAME, "x-gateway-base-model-name");
    assert_eq!(names::POOL, "x-berth-pool");
    assert_eq!(
        names::OBJECTIVE,
        ["x-gateway-inference-objective", "x-llm-d-inference-objective"]
    );
    assert_eq!(
        names::FAIRNESS_ID,
        ["x-gateway-inference-fairness-id", "x-llm-d-inference-fairness-id"]
    );
    assert_eq!(names::DECISION, "x-berth-decision");
    assert_eq!(names::REASON, "x-berth-reason");
    assert_eq!(
        (names::ROOT_FILTER, names::ROOT_SERVICE),
        ("berth_filter", "berth_service")
    );
    assert_eq!(names::STATE_DECISION, "berth");
    assert_eq!(names::STATE_ENDPOINTS, "berth_endpoints");
    assert_eq!(names::STATE_MODEL, "berth_model");
    assert_eq!((names::STATE_WAIT, names::STATE_REPORT), ("berth_wait", "berth_report"));
    assert_eq!(
        (names::VARIABLE_TARGET, names::VARIABLE_DECISION),
        ("berth_target", "berth_decision")
    );
    assert_eq!(names::ledger_key("llama"), "berth/5/llama/ledger");
    assert_eq!(names::prefix_key("llama", 3), "berth/5/llama/prefix/3");
    let pool = &Config::minimal(&["10.0.0.1:8000".parse().unwrap()]).unwrap().pools[0];
    let keys = Keys::of(pool);
    let source = format!("{:016x}", pool.source());
    for (key, what) in [
        (keys.lease, "lease"),
        (keys.table, "table"),
        (keys.reports, "reports"),
        (keys.refresh, "refresh"),
    ] {
        assert_eq!(key, format!("berth/5/pods/{source}/{what}"));
    }
    assert_eq!(
        (names::LOAD_FORMAT, names::LOAD_REPORT),
        ("endpoint-load-metrics-format", "endpoint-load-metrics")
    );
}

/// Host calls that all supported hosts define with equal types, and the WASI calls of Rust's std.
/// `proxy_get_metric` and `proxy_get_log_level` must never appear: nginx-family hosts define them
/// with another arity, and the module would not load.
const ALLOWED_IMPORTS: [&str; 28] = [
    "env.proxy_add_header_map_value",
    "env.proxy_call_foreign_function",
    "env.proxy_continue_stream",
    "env.proxy_define_metric",
    "env.proxy_get_buffer_bytes",
    "env.proxy_get_current_time_nanoseconds",
    "env.proxy_get_header_map_pairs",
    "env.proxy_get_header_map_value",
    "env.proxy_get_property",
    "env.proxy_get_shared_data",
    "env.proxy_http_call",
    "env.proxy_increment_metric",
    "env.proxy_log",
    "env.proxy_record_metric",
    "env.proxy_remove_header_map_value",
    "env.proxy_replace_header_map_value",
    "env.proxy_send_local_response",
    "env.proxy_set_buffer_bytes",
    "env.proxy_set_effective_context",
    "env.proxy_set_property",
    "env.proxy_set_shared_data",
    "env.proxy_set_tick_period_milliseconds",
    "wasi_snapshot_preview1.clock_time_get",
    "wasi_snapshot_preview1.environ_get",
    "wasi_snapshot_preview1.environ_sizes_get",
    "wasi_snapshot_preview1.fd_write",
    "wasi_snapshot_preview1.proc_exit",
    "wasi_snapshot_preview1.random_get",
];

#[test]
fn the_artifacts_import_only_what_every_host_defines() {
    for artifact in ["berth_filter.wasm", "berth_service.wasm"] {
        let imports = berth_tests_host::imports(&berth_tests_it::artifact(artifact)).expect("a wasm module");
        assert!(!imports.is_empty(), "{artifact} imports nothing: is it the right file?");
        for import in imports {
            assert!(
                ALLOWED_IMPORTS.contains(&import.as_str()),
                "{artifact} imports {import}"
            );
        }
        // By name and by type.
        for dialect in berth_tests_host::Dialect::ALL {
            let loads = berth_tests_host::loads(&berth_tests_it::artifact(artifact), dialect);
            assert!(loads.is_ok(), "{artifact} in {dialect:?}: {loads:?}");
        }
    }
}
