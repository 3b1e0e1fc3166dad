//! The bytes, and what a reader may rely on.

use super::*;
use crate::limits::SEALED_MAX_BYTES;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn row(text: &str) -> PodRow {
    PodRow::unread(text.parse().unwrap(), UnixMillis(300))
}

const TEMPO: Tempo = Tempo {
    step: 10.0,
    token: 0.03,
};

const SLOW: Slow = Slow {
    times: 5.0,
    still_since: Some(UnixMillis(940)),
    again: UnixMillis(2_000),
};

/// A table with something in every list.
fn full() -> Table {
    Table {
        seq: 7,
        written_at: UnixMillis(1_000),
        config_epoch: 9,
        discovery: Discovered {
            at: Some(UnixMillis(900)),
            error: Some("late".into()),
        },
        scrape_interval: Millis(1_000),
        names: vec!["base".into(), "sql".into()],
        pods: vec![
            PodRow {
                name: Some("p0".into()),
                scraped_at: Some(UnixMillis(950)),
                load: Load {
                    engine: Some(Engine::Vllm),
                    status: Status::Ok,
                    running: Some(3),
                    kv_mean: Some(0.5),
                    kv_max: Some(1.0),
                    kv_capacity: Some(Tokens(4_096)),
                    engines: 1,
                    ..Load::UNKNOWN
                },
                rates: Rates {
                    requests: Some(1.5),
                    ..Rates::default()
                },
                tempo: Some(TEMPO),
                slow: Some(SLOW),
                activity: Some(ActiveAdapters {
                    running: vec![NameId(1)],
                    waiting: vec![],
                    max: Some(4),
                }),
                resident: Some(vec![(NameId(1), Level::Gpu)]),
                models: Some(Models {
                    at: UnixMillis(940),
                    bases: vec![NameId(0)],
                    adapters: vec![(NameId(1), Some(NameId(0)))],
                    max_model_len: Some(Tokens(8_192)),
                }),
                ..row("10.0.0.1:8000")
            },
            row("[fd00::1]:8000"),
        ],
    }
}

#[test]
fn gauges_are_as_old_as_the_newer_of_page_and_report() {
    let mut pod = row("10.0.0.1:8000");
    assert_eq!(pod.gauges_at(), None);
    pod.scraped_at = Some(UnixMillis(7));
    assert_eq!(pod.gauges_at(), Some(UnixMillis(7)));
    pod.reported_at = Some(UnixMillis(9));
    assert_eq!(pod.gauges_at(), Some(UnixMillis(9)));
}

#[test]
fn the_bytes_of_a_small_table_are_these() {
    let table = Table {
        seq: 1,
        written_at: UnixMillis(300),
        config_epoch: 2,
        discovery: Discovered { at: None, error: None },
        scrape_interval: Millis(1_000),
        names: vec!["m".into()],
        pods: vec![PodRow {
            models: Some(Models {
                at: UnixMillis(5),
                bases: vec![NameId(0)],
                adapters: vec![],
                max_model_len: None,
            }),
            load: Load {
                kv_mean: Some(0.5),
                ..Load::UNKNOWN
            },
            ..row("10.0.0.1:8000")
        }],
    };
    #[rustfmt::skip]
    let payload: &[u8] = &[
        1,                      // seq
        0xac, 0x02,             // written_at 300: 0x2c with the continuation bit, then 2
        2,                      // config_epoch
        0, 0,                   // discovery: at and error absent
        0xe8, 0x07,             // scrape_interval 1,000: 0x68 with the continuation bit, then 7
        1, 1, b'm',             // one name of one byte
        1,                      // one pod
        0, 10, 0, 0, 1, 0xc0, 0x3e, // IPv4, four bytes, port 8000 = 0x40 + 128 * 0x3e
        0,                      // no name
        0,                      // readiness Unknown
        0xac, 0x02,             // since
        0,                      // incarnation
        0,                      // never scraped
        0, 0,                   // no failures, no last error
        0,                      // Live
        0,                      // load: engine unknown,
        3,                      // status Unknown, the fourth variant,
        0, 0, 0,                // running, waiting, deferred absent,
        1, 0, 0, 0, 0x3f,       // kv_mean 0.5 as little-endian f32,
        0, 0,                   // kv_max, kv_capacity absent,
        0,                      // engines
        0,                      // sleeping absent
        0, 0, 0, 0, 0,          // five rates absent
        0, 0,                   // no tempo, not slow
        0,                      // no labels
        0, 0,                   // activity and residency absent
        1, 5,                   // models, read at 5:
        1, 0,                   // one base, name 0
        0,                      // no adapters
        0,                      // no longest context
        0,                      // proxy_active absent
        0,                      // reported_at absent
        0, 0,                   // started_at, generated absent
    ];
    let bytes = encode(&table).unwrap();
    let (header, found) = bytes.split_at(20);
    assert_eq!(found, payload);
    assert_eq!(&header[..8], b"BRTH\x05\x00\x01\x00", "magic, schema 5, kind 1");
    assert_eq!(header[8..12], (payload.len() as u32).to_le_bytes());
    assert_eq!(header[12..], xxhash_rust::xxh64::xxh64(payload, 0).to_le_bytes());
    assert_eq!(decode(&bytes), Ok(table));
}

#[test]
fn a_table_comes_back_as_it_was() {
    assert_eq!(decode(&encode(&full()).unwrap()), Ok(full()));
    assert_eq!(decode(&encode(&Table::default()).unwrap()), Ok(Table::default()));
}

#[test]
fn every_cut_is_detected() {
    let bytes = encode(&full()).unwrap();
    for length in 0..bytes.len() {
        assert!(decode(&bytes[..length]).is_err(), "cut at {length}");
    }
}

#[test]
fn every_flipped_bit_is_detected() {
    let bytes = encode(&full()).unwrap();
    for at in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[at / 8] ^= 1 << (at % 8);
        assert!(decode(&damaged).is_err(), "bit {at}");
    }
}

/// A well-sealed table that a reader must still refuse (or, at the bound, take).
#[track_caller]
fn check(sound: bool, change: impl FnOnce(&mut Table)) {
    let mut table = full();
    change(&mut table);
    let found = decode(&encode(&table).unwrap());
    assert_eq!(found, if sound { Ok(table) } else { Err(SealError::Damaged) });
}

#[test]
fn an_index_into_nothing_is_refused() {
    check(false, |t| {
        t.pods[0].activity.as_mut().unwrap().running = vec![NameId(2)]
    });
    check(false, |t| {
        t.pods[0].activity.as_mut().unwrap().waiting = vec![NameId(2)]
    });
    check(false, |t| t.pods[0].resident = Some(vec![(NameId(2), Level::Cpu)]));
    check(false, |t| t.pods[0].models.as_mut().unwrap().bases = vec![NameId(2)]);
    check(false, |t| {
        t.pods[0].models.as_mut().unwrap().adapters = vec![(NameId(2), None)]
    });
    check(false, |t| {
        t.pods[0].models.as_mut().unwrap().adapters = vec![(NameId(1), Some(NameId(2)))]
    });
    check(true, |t| {
        t.pods[0].models.as_mut().unwrap().adapters = vec![(NameId(1), Some(NameId(1)))]
    });
}

#[test]
fn a_usage_that_is_no_fraction_is_refused() {
    for kv in [-0.1, 1.1, f32::NAN, f32::INFINITY] {
        check(false, |t| t.pods[0].load.kv_mean = Some(kv));
        check(false, |t| t.pods[0].load.kv_max = Some(kv));
    }
    check(true, |t| t.pods[0].load.kv_mean = Some(0.0));
}

#[test]
fn a_rate_that_is_no_rate_is_refused() {
    for rate in [-0.1, f32::NAN, f32::INFINITY] {
        check(false, |t| t.pods[0].rates.prompt_tokens = Some(rate));
        check(false, |t| t.pods[0].rates.cached_prompt_tokens = Some(rate));
        check(false, |t| t.pods[0].rates.generation_tokens = Some(rate));
        check(false, |t| t.pods[0].rates.requests = Some(rate));
        check(false, |t| t.pods[0].rates.preemptions = Some(rate));
        check(false, |t| t.pods[0].slow = Some(Slow { times: rate, ..SLOW }));
    }
}

#[test]
fn a_tempo_that_nothing_can_be_divided_by_is_refused() {
    for millis in [0.0, -0.1, 1e-40, f32::NAN, f32::INFINITY] {
        check(false, |t| t.pods[0].tempo = Some(Tempo { step: millis, ..TEMPO }));
        check(false, |t| t.pods[0].tempo = Some(Tempo { token: millis, ..TEMPO }));
    }
}

#[test]
fn a_start_or_a_counter_that_is_no_number_is_refused() {
    for number in [f64::NAN, f64::INFINITY] {
        check(false, |t| t.pods[0].started_at = Some(number));
        check(false, |t| t.pods[0].generated = Some(number));
    }
    check(true, |t| t.pods[0].started_at = Some(1.8e9));
}

#[test]
fn an_address_that_nobody_can_dial_is_refused() {
    for ip in ["10.0.0.0", "[fd00::]"] {
        let with = |port: u16| PodAddress::new(format!("{ip}:{port}").parse().unwrap());
        check(false, |t| t.pods = vec![PodRow::unread(with(0), UnixMillis(1))]);
        check(true, |t| t.pods = vec![PodRow::unread(with(1), UnixMillis(1))]);
    }
}

#[test]
fn pods_out_of_order_or_twice_are_refused() {
    check(false, |t| t.pods.reverse());
    check(false, |t| t.pods[1].address = t.pods[0].address);
}

#[test]
fn the_bounds_hold_and_one_more_is_refused() {
    let pods = |n: usize| {
        (1..=n)
            .map(|i| row(&format!("10.0.{}.{}:80", i / 256, i % 256)))
            .collect()
    };
    check(true, |t| t.pods = pods(PODS_MAX));
    check(false, |t| t.pods = pods(PODS_MAX + 1));
    check(true, |t| t.names = vec![String::new(); NAMES_MAX]);
    check(false, |t| t.names = vec![String::new(); NAMES_MAX + 1]);
    check(true, |t| t.names[0] = "n".repeat(NAME_MAX_BYTES));
    check(false, |t| t.names[0] = "n".repeat(NAME_MAX_BYTES + 1));
    check(true, |t| t.pods[0].name = Some("n".repeat(TEXT_MAX_BYTES)));
    check(false, |t| t.pods[0].name = Some("n".repeat(TEXT_MAX_BYTES + 1)));
    check(true, |t| t.discovery.error = Some("n".repeat(TEXT_MAX_BYTES)));
    check(false, |t| t.discovery.error = Some("n".repeat(TEXT_MAX_BYTES + 1)));
    let models = |t: &mut Table, n| t.pods[0].models.as_mut().unwrap().adapters = vec![(NameId(1), None); n];
    check(true, |t| models(t, ADAPTERS_PER_POD_MAX));
    check(false, |t| models(t, ADAPTERS_PER_POD_MAX + 1));
    check(true, |t| {
        t.pods[0].resident = Some(vec![(NameId(1), Level::Gpu); ADAPTERS_PER_POD_MAX])
    });
    check(false, |t| {
        t.pods[0].resident = Some(vec![(NameId(1), Level::Gpu); ADAPTERS_PER_POD_MAX + 1])
    });
    let running = |t: &mut Table, n| t.pods[0].activity.as_mut().unwrap().running = vec![NameId(1); n];
    check(true, |t| running(t, ADAPTERS_PER_POD_MAX));
    check(false, |t| running(t, ADAPTERS_PER_POD_MAX + 1));
}

#[test]
fn a_table_too_large_for_shared_data_is_not_made() {
    let table = Table {
        names: vec!["n".repeat(SEALED_MAX_BYTES)],
        ..Table::default()
    };
    assert!(matches!(encode(&table), Err(SealError::TooLarge(bytes)) if bytes > SEALED_MAX_BYTES));
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use super::*;
    use proptest::prelude::*;

    fn ids() -> impl Strategy<Value = Vec<NameId>> {
        prop::collection::vec((0..4u16).prop_map(NameId), 0..5)
    }

    prop_compose! {
        fn pods()(
            addresses in prop::collection::btree_set((any::<u32>(), 1..=u16::MAX), 0..8),
            kv in prop::option::of(0.0f32..=1.0),
            rate in prop::option::of(0.0f32..1e9),
            counts in any::<(Option<u32>, u32, Option<u32>, u64)>(),
            running in ids(),
            bases in prop::option::of(ids()),
        ) -> Vec<PodRow> {
            let socket = |(ip, port): (u32, u16)| core::net::SocketAddr::from((ip.to_be_bytes(), port));
            addresses.into_iter().map(|address| PodRow {
                failures: counts.1,
                proxy_active: counts.2,
                load: Load { running: counts.0, kv_max: kv, ..Load::UNKNOWN },
                rates: Rates { generation_tokens: rate, ..Rates::default() },
                activity: Some(ActiveAdapters { running: running.clone(), waiting: vec![], max: counts.0 }),
                models: bases.clone().map(|bases| Models {
                    at: UnixMillis(counts.3), bases, adapters: vec![], max_model_len: None,
                }),
                ..PodRow::unread(PodAddress::new(socket(address)), UnixMillis(counts.3))
            }).collect()
        }
    }

    proptest! {
        #[test]
        fn any_sound_table_comes_back(seq: u64, at: u64, pods in pods(), names in prop::collection::vec("[a-z:/]{0,9}", 4..6)) {
            let table = Table { seq, written_at: UnixMillis(at), names, pods, ..Table::default() };
            prop_assert_eq!(decode(&encode(&table).unwrap()), Ok(table));
        }

        #[test]
        fn any_bytes_are_refused_or_sound(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(decode(&bytes).is_err());
        }

        /// Damage that a checksum cannot see: the payload is foreign, the seal is right.
        #[test]
        fn a_well_sealed_foreign_payload_never_panics(at in 0usize..400, value: u8, tail in 0usize..9) {
            let mut payload = encode(&full()).unwrap().split_off(20);
            let length = payload.len();
            payload[at % length] = value;
            payload.truncate(length - tail);
            let mut bytes = b"BRTH\x02\x00\x01\x00".to_vec();
            bytes.extend((payload.len() as u32).to_le_bytes());
            bytes.extend(xxhash_rust::xxh64::xxh64(&payload, 0).to_le_bytes());
            bytes.extend(payload);
            if let Ok(table) = decode(&bytes) {
                prop_assert!(is_sound(&table));
            }
        }
    }
}
