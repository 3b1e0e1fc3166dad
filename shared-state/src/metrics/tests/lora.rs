//! Adapters: the log of those in flight, and the gauges of those in memory.

use super::*;
use crate::limits::{ADAPTERS_PER_POD_MAX, NAME_MAX_BYTES};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn lora(labels: &str, value: &str) -> String {
    format!("vllm:lora_requests_info{{{labels}}} {value}\n")
}

pub fn both(running: &str, value: &str) -> String {
    lora(
        &format!("max_lora=\"2\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{running}\""),
        value,
    )
}

#[track_caller]
fn check_running(lines: &[String], now_seconds: u64, wanted: &[&str]) {
    for reversed in [false, true] {
        let mut lines = lines.to_vec();
        if reversed {
            lines.reverse();
        }
        let hints = Hints {
            now: UnixMillis(now_seconds * 1000),
            ..Hints::default()
        };
        let sample = read(lines.concat().as_bytes(), hints);
        assert_eq!(sample.activity.unwrap().running, names(wanted));
    }
}

#[test]
fn clocks_summed_over_processes_are_repaired_when_the_time_is_known() {
    // Two processes wrote "a" at about 1000 s, one wrote "b" at 1001 s.
    let lines = [both("a", "2000.5"), both("b", "1001")];
    check_running(&lines, 1001, &["b"]);
    check_running(&lines, 0, &["a"]);
    // 1.5 x now and just above it: one clock that is ahead, or two that are behind.
    let lines = [both("a", "1500"), both("b", "1001")];
    check_running(&lines, 1000, &["a"]);
    let lines = [both("a", "1500.5"), both("b", "1001")];
    check_running(&lines, 1000, &["b"]);
}

#[test]
fn clocks_a_fraction_of_a_second_apart_are_told_apart() {
    check_running(&[both("a", "1.7960228e9"), both("b", "1.7960228001e9")], 0, &["b"]);
}

#[test]
fn equal_clocks_go_to_the_longer_list_and_then_to_the_text() {
    check_running(&[both("z", "1e9"), both("a,b", "1e9")], 0, &["a", "b"]);
    check_running(&[both("a", "1e9"), both("b", "1e9")], 0, &["b"]);
    check_running(&[both("", "1e9"), both("a", "1e9")], 0, &["a"]);
}

#[test]
fn a_clock_that_is_no_time_is_no_entry() {
    for bad in ["NaN", "+Inf", "0", "-1", "x"] {
        assert_eq!(vllm(&both("a", bad)).activity, None);
    }
}

#[test]
fn a_pid_label_does_not_matter_for_the_newest() {
    let with = |pid: u8, name: &str, value: &str| {
        lora(
            &format!("max_lora=\"2\",pid=\"{pid}\",running_lora_adapters=\"{name}\",waiting_lora_adapters=\"\""),
            value,
        )
    };
    check_running(&[with(1, "a", "1000.0"), with(2, "b", "1000.5")], 1001, &["b"]);
}

#[test]
fn slots_are_unknown_unless_a_label_or_a_gauge_tells_them() {
    let bare = lora("running_lora_adapters=\"a\",waiting_lora_adapters=\"\"", "1e9");
    assert_eq!(vllm(&bare).activity.unwrap().max, None);
    assert_eq!(
        vllm(&format!("{bare}vllm:max_gpu_lora_adapters 4\n"))
            .activity
            .unwrap()
            .max,
        Some(4)
    );
    assert_eq!(vllm(&both("a", "1e9")).activity.unwrap().max, Some(2));
}

#[track_caller]
fn check_split(list: &str, known: &[&str], wanted: &[&str]) {
    let known = names(known);
    let hints = Hints {
        known_adapters: &known,
        ..Hints::default()
    };
    let sample = read(both(list, "1e9").as_bytes(), hints);
    assert_eq!(sample.activity.unwrap().running, names(wanted));
}

#[test]
fn a_comma_belongs_to_the_longest_known_name_that_fits() {
    check_split("a,b,c", &[], &["a", "b", "c"]);
    check_split("a,b,c", &["a,b", "c"], &["a,b", "c"]);
    check_split("a,b,c", &["a,b", "a,b,c", "a"], &["a,b,c"]);
    check_split("a,bc", &["a,b"], &["a", "bc"]);
    check_split("x,a,b", &["a,b"], &["a,b", "x"]);
    check_split(" a,b ,c", &["a,b"], &["a,b", "c"]);
    check_split(",,a,", &[], &["a"]);
    check_split("a,a", &[], &["a"]);
    check_split(r#"a,b \"c\" d"#, &["a,b \"c\" d"], &["a,b \"c\" d"]);
}

#[test]
fn adapter_lists_and_names_have_bounds() {
    let list = |n: usize| (0..n).map(|i| format!("n{i:05}")).collect::<Vec<_>>().join(",");
    let running = |n| vllm(&both(&list(n), "1e9")).activity.unwrap().running.len();
    assert_eq!(running(ADAPTERS_PER_POD_MAX), ADAPTERS_PER_POD_MAX);
    assert_eq!(running(ADAPTERS_PER_POD_MAX + 1), ADAPTERS_PER_POD_MAX);
    check_split(&"x".repeat(NAME_MAX_BYTES), &[], &["x".repeat(NAME_MAX_BYTES).as_str()]);
    check_split(&"x".repeat(NAME_MAX_BYTES + 1), &[], &[]);
}

#[track_caller]
fn check_resident(lines: &str, wanted: Option<&[(&str, Level)]>) {
    let wanted = wanted.map(|list| list.iter().map(|&(n, level)| (n.to_owned(), level)).collect::<Vec<_>>());
    assert_eq!(vllm(lines).resident, wanted);
}

#[test]
fn residency_is_what_the_gauges_say_and_zero_is_absent() {
    let loaded = |name: &str, level: &str, value: u8| {
        format!("vllm:lora_adapter_loaded{{adapter_name=\"{name}\",level=\"{level}\",pinned=\"false\"}} {value}\n")
    };
    check_resident("", None);
    check_resident(&loaded("a", "gpu", 0), Some(&[]));
    check_resident(
        &[loaded("b", "cpu", 1), loaded("a", "gpu", 1)].concat(),
        Some(&[("a", Level::Gpu), ("b", Level::Cpu)]),
    );
    // In a slot and in the host cache, or evicted from one of them.
    check_resident(
        &[loaded("a", "gpu", 1), loaded("a", "cpu", 1)].concat(),
        Some(&[("a", Level::Gpu)]),
    );
    check_resident(
        &[loaded("a", "gpu", 0), loaded("a", "cpu", 1)].concat(),
        Some(&[("a", Level::Cpu)]),
    );
    check_resident(
        "vllm:num_gpu_loaded_lora_adapters 0\nvllm:num_cpu_loaded_lora_adapters 0\n",
        Some(&[]),
    );
    check_resident("vllm:num_gpu_loaded_lora_adapters 1\n", None);
}

#[test]
fn an_activity_without_lora_has_no_slots() {
    let off = lora(
        "max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"",
        "1.0",
    );
    assert_eq!(
        vllm(&off).activity,
        Some(Activity {
            max: Some(0),
            ..Activity::default()
        })
    );
}
