//! Hand-computed cases. A step takes 1,000 µs, a prompt token 10 µs, a decoding sequence 100 µs more; a step computes at
//! most 1,024 prompt tokens; an adapter takes 1,000 µs from CPU memory and 10,000 µs more from disk.

use super::Clairvoyant;
use crate::client::{Job, finish};
use crate::fleet::{BASE_MODEL, Fleet, Pod};
use crate::world::{Asked, Router, START, request};
use berth_tests_simulator::chain::Segment;
use berth_tests_simulator::engine::{Adapter, EngineConfig, Micros, StepCost};

const COST: StepCost = StepCost {
    base_ns: 1_000_000,
    prefill_token_ns: 10_000,
    decode_sequence_ns: 100_000,
    adapter_from_cpu: 1_000,
    adapter_from_disk: 10_000,
};

fn config() -> EngineConfig {
    EngineConfig {
        max_num_batched_tokens: 1024,
        num_gpu_blocks: 1001,
        max_loras: 1,
        max_cpu_loras: 1,
        cost: COST,
        ..EngineConfig::h100()
    }
}

fn job(at: Micros, segments: &[(u64, u32)], output_tokens: u32) -> Job {
    let prompt = segments.iter().map(|&(id, tokens)| Segment { id, tokens }).collect();
    Job {
        at,
        prompt,
        output_tokens,
        ..Job::default()
    }
}

/// Jobs before the one asked about are already on these pods; all times count from [`START`].
fn pick(mut router: Clairvoyant, jobs: Vec<Job>, placed: &[usize], configs: Vec<EngineConfig>) -> usize {
    let jobs = finish(jobs, 1);
    let pods = configs.into_iter().map(|config| Pod::new(config, false)).collect();
    let mut fleet = Fleet {
        pods,
        adapters: vec![Adapter::from(BASE_MODEL)],
        discovery: 0,
    };
    for (index, pod) in placed.iter().enumerate() {
        let at = jobs[index].at + START;
        fleet.pods[*pod].engine.submit(request(index, &jobs[index]), at);
        let _ = fleet.pods[*pod].engine.step(at);
    }
    let id = placed.len();
    let now = jobs[id].at + START;
    // As in a run, steps that have ended have been taken.
    fleet.pods.iter_mut().for_each(|pod| drop(pod.engine.step(now)));
    router.pick(
        &Asked {
            id,
            job: &jobs[id],
            jobs: &jobs,
            worker: 0,
        },
        &mut fleet,
        now,
    )[0]
}

fn greedy() -> Clairvoyant {
    Clairvoyant::greedy(1)
}

#[test]
fn greedy_prefers_the_pod_that_is_done_first() {
    // Pod 0 computes 1,000 tokens until 11,000 µs, pod 1 500 until 6,000 µs.
    let jobs = vec![job(0, &[(1, 1000)], 1), job(0, &[(2, 500)], 1), job(10, &[(3, 100)], 1)];
    assert_eq!(pick(greedy(), jobs, &[0, 1], vec![config(); 2]), 1);
}

#[test]
fn greedy_weighs_a_cached_prefix_against_a_queue_to_the_microsecond() {
    // Pod 0 has the prefix of 640 tokens and then computes `busy` tokens from 20,000 µs on.
    // There: wait for 1,000 + 10 x busy, then 1,000 + 160 x 10; pod 1: 1,000 + 800 x 10 = 9,000.
    let jobs = |busy| {
        vec![
            job(0, &[(1, 640)], 1),
            job(20_000, &[(2, busy)], 1),
            job(20_000, &[(1, 640), (3, 160)], 1),
        ]
    };
    assert_eq!(
        pick(greedy(), jobs(530), &[0, 0], vec![config(); 2]),
        0,
        "8,900 beats 9,000"
    );
    assert_eq!(
        pick(greedy(), jobs(550), &[0, 0], vec![config(); 2]),
        1,
        "9,000 beats 9,100"
    );
}

#[test]
fn greedy_knows_that_a_step_joins_late_arrivals() {
    // Pod 0 decodes: the newcomer waits for the rest of a step of 1,100 µs; pod 1 is idle.
    let jobs = vec![job(0, &[(1, 16)], 1000), job(5_000, &[(2, 100)], 1)];
    assert_eq!(pick(greedy(), jobs, &[0], vec![config(); 2]), 1);
}

#[test]
fn greedy_pays_an_adapters_load_only_where_it_is_not() {
    let with = |job: Job| Job {
        adapter: Some(Adapter::from("a")),
        ..job
    };
    // Loaded on pod 0, which computes 900 tokens until 10,000 µs after; the load on pod 1 would take 11,000 µs.
    let jobs = vec![
        with(job(0, &[(1, 16)], 1)),
        job(50_000, &[(2, 900)], 1),
        with(job(50_000, &[(3, 16)], 1)),
    ];
    assert_eq!(pick(greedy(), jobs, &[0, 0], vec![config(); 2]), 0);
    let jobs = vec![
        with(job(0, &[(1, 16)], 1)),
        job(50_000, &[(2, 1024)], 1),
        job(50_000, &[(3, 16)], 1),
    ];
    assert_eq!(
        pick(greedy(), jobs, &[0, 0], vec![config(); 2]),
        1,
        "the base needs no adapter"
    );
}

#[test]
fn greedy_knows_who_is_fast() {
    let slow = EngineConfig {
        cost: StepCost {
            prefill_token_ns: 20_000,
            ..COST
        },
        ..config()
    };
    let jobs = vec![job(0, &[(1, 100)], 1)];
    assert_eq!(pick(greedy(), jobs, &[], vec![slow, config()]), 1);
}

#[test]
fn greedy_breaks_a_tie_by_kv_in_use() {
    // Both decode in steps of 1,100 µs; their first tokens came at 2,600 and 7,000, four steps apart: they stay in step.
    let jobs = || {
        vec![
            job(0, &[(1, 160)], 1000),
            job(0, &[(2, 600)], 1000),
            job(50_000, &[(3, 16)], 1),
        ]
    };
    for seed in 0..8 {
        assert_eq!(
            pick(Clairvoyant::greedy(seed), jobs(), &[0, 1], vec![config(); 2]),
            0,
            "seed {seed}"
        );
        assert_eq!(
            pick(Clairvoyant::greedy(seed), jobs(), &[1, 0], vec![config(); 2]),
            1,
            "seed {seed}"
        );
    }
}

#[test]
fn lookahead_keeps_the_pod_with_the_prefix_free_for_who_needs_it() {
    // A prefix of 960 tokens is on pod 0. Now comes a stranger of 1,000 tokens, and 100 µs later somebody with that prefix.
    // Both pods are idle and alike for the stranger, so greedy may take either. On pod 0 it would hold the other up by
    // 11,000 µs; on pod 1 nobody is hurt.
    let jobs = || {
        vec![
            job(0, &[(1, 960)], 1),
            job(50_000, &[(2, 1000)], 1),
            job(50_100, &[(1, 960), (3, 64)], 1),
        ]
    };
    for seed in 0..8 {
        assert_eq!(
            pick(Clairvoyant::lookahead(seed), jobs(), &[0], vec![config(); 2]),
            1,
            "seed {seed}"
        );
    }
}
