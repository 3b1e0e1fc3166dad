//! Deciding is total: no input, however absurd, is without an answer.

use berth_shared_state::config::{Caps, Routing};
use berth_shared_state::pod::PodAddress;
use berth_shared_state::snapshot::Freshness;
use berth_shared_state::table::{ActiveAdapters, Models, NameId};
use proptest::prelude::*;

use super::world::Pod;
use super::*;

fn adapters() -> impl Strategy<Value = Vec<NameId>> {
    prop::collection::vec((0_u16..8).prop_map(NameId), 0..4)
}

fn millis() -> impl Strategy<Value = UnixMillis> {
    prop_oneof![
        (0_u64..30_000).prop_map(ago),
        Just(UnixMillis(0)),
        Just(UnixMillis(u64::MAX))
    ]
}

fn own() -> impl Strategy<Value = OwnLoad> {
    let count = prop_oneof![0_u32..9, any::<u32>()];
    let tokens = prop_oneof![0_u64..9_000, any::<u64>()];
    let oldest = prop::option::of((millis(), any::<u64>().prop_map(Millis)));
    let counts = (count.clone(), count.clone(), count.clone(), count);
    (counts, tokens.clone(), tokens.clone(), tokens, oldest).prop_map(|(counts, a, b, c, oldest)| OwnLoad {
        unanswered: counts.0,
        unanswered_tokens: Tokens(a),
        generating: counts.1,
        context_tokens: Tokens(b),
        sent_since: counts.2,
        sent_since_tokens: Tokens(c),
        unanswered_at_sample: counts.3,
        oldest_unanswered: oldest,
    })
}

fn plain() -> impl Strategy<Value = Pod> {
    let gauges = (
        any::<Option<u32>>(),
        any::<Option<u32>>(),
        any::<Option<f32>>(),
        any::<Option<u64>>(),
        any::<u16>(),
        any::<Option<bool>>(),
    );
    let state = (
        prop::sample::select(vec![
            Readiness::Unknown,
            Readiness::Ready,
            Readiness::NotReady,
            Readiness::Draining,
        ]),
        prop::sample::select(vec![Trend::Live, Trend::Frozen, Trend::Stuck, Trend::Several]),
        prop::sample::select(vec![Status::Ok, Status::Suspect, Status::Unknown, Status::Reject]),
        prop::sample::select(vec![None, Some(Engine::Vllm), Some(Engine::LlamaCpp)]),
        prop::option::of(millis()),
        any::<u32>(),
    );
    let page = prop::option::of((millis(), adapters(), adapters(), any::<Option<u64>>()));
    let memory = (
        any::<Option<f64>>(),
        prop::option::of(millis()),
        prop::option::of((adapters(), adapters(), any::<Option<u32>>())),
        prop::option::of(adapters()),
    );
    (0_usize..9, gauges, state, page, own(), memory, any::<[f32; 3]>()).prop_map(
        |(index, gauges, state, page, own, memory, rates)| {
            let mut pod = world::idle(index);
            let load = &mut pod.row.load;
            (load.running, load.waiting, load.kv_mean) = (gauges.0, gauges.1, gauges.2);
            load.kv_capacity = gauges.3.map(Tokens);
            (load.engines, load.sleeping) = (gauges.4, gauges.5);
            (
                pod.row.readiness,
                pod.row.trend,
                pod.row.load.status,
                pod.row.load.engine,
            ) = (state.0, state.1, state.2, state.3);
            (pod.row.scraped_at, pod.row.failures) = (state.4, state.5);
            pod.row.last_error = Some(ScrapeError::Unreachable);
            pod.row.models = page.map(|(at, bases, adapters, longest)| Models {
                at,
                bases,
                adapters: adapters.into_iter().map(|id| (id, None)).collect(),
                max_model_len: longest.map(Tokens),
            });
            pod.row.activity = memory
                .2
                .map(|(running, waiting, max)| ActiveAdapters { running, waiting, max });
            pod.row.resident = memory.3.map(|ids| ids.into_iter().map(|id| (id, Level::Gpu)).collect());
            pod.row.rates.prompt_tokens = Some(rates[0]);
            pod.row.rates.requests = Some(rates[1]);
            pod.row.rates.cached_prompt_tokens = Some(rates[2]);
            pod.recent = vec![(adapter_key("sql"), ago(5))];
            Pod {
                own,
                rate: memory.0,
                avoided_until: memory.1,
                ..pod
            }
        },
    )
}

fn pod() -> impl Strategy<Value = Pod> {
    (plain(), adapters(), millis(), any::<bool>()).prop_map(|(mut pod, labels, since, session)| {
        (pod.row.labels, pod.row.since, pod.session) = (labels, since, session);
        pod
    })
}

fn world() -> impl Strategy<Value = World> {
    let subset = prop::option::of(prop_oneof![
        Just(String::new()),
        Just("10.0.0.1:8000, 10.0.0.2:8000,x".to_owned()),
        ".{0,40}"
    ]);
    (
        prop::collection::vec(pod(), 0..9),
        prop::option::of(millis()),
        any::<bool>(),
        any::<u32>(),
        subset,
        wishes(),
    )
        .prop_map(|(pods, at, resolver, rate, subset, wishes)| {
            let mut world = World {
                pods,
                subset,
                ..World::of(0)
            };
            world.discovery.at = at;
            world.pool.adapters.resolver = resolver;
            world.pool.routing = Routing {
                prefill_tokens_per_second: rate,
                ..wishes
            };
            world
        })
}

/// What an operator may ask for.
fn wishes() -> impl Strategy<Value = Routing> {
    let require = prop::option::of(prop::sample::select(vec!["role=decode", "zone=b", "tier=gold"]));
    let requests = prop::option::of(1_u32..20);
    let slow_start = prop::sample::select(vec![0, 1, 20_000, u64::MAX]);
    (require, any::<bool>(), requests, any::<Option<u64>>(), slow_start).prop_map(
        |(require, apart, requests, tokens, slow_start)| Routing {
            require: require.map(str::to_owned).into_iter().collect(),
            retry_apart: apart.then(|| "zone".to_owned()),
            caps: Caps {
                requests,
                tokens: tokens.map(Tokens),
            },
            slow_start: Millis(slow_start),
            ..world::pool().routing
        },
    )
}

/// May the pod be an endpoint at all?
fn eligible(world: &World, address: PodAddress) -> bool {
    let alive = |pod: &&Pod| !matches!(pod.row.readiness, Readiness::NotReady | Readiness::Draining);
    let inside = world
        .subset
        .as_ref()
        .is_none_or(|hint| hint.contains(&address.to_string()));
    inside && world.pods.iter().filter(alive).any(|pod| pod.row.address == address)
}

proptest! {
    #[test]
    fn every_input_has_an_answer(
        world in world(),
        model in prop::sample::select(vec![None, Some("llama"), Some("sql"), Some("ghost"), Some("")]),
        (prompt, exact, output, prompts) in any::<(u64, u64, u64, u32)>(),
        small in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let size = |tokens: u64| Tokens(if small { tokens % 4_096 } else { tokens });
        let ask = Ask { model, prompt: size(prompt), exact: size(exact), output: size(output), prompts, start: None };
        let decision = world.decide_with(ask, seed);
        prop_assert_eq!(&decision, &world.decide_with(ask, seed), "equal seeds, equal decisions");
        prop_assert!(serde_json::to_string(&decision.why).is_ok());
        prop_assert!(!explain::table(&decision.why).is_empty());
        let header = crate::header::decision(&decision);
        prop_assert!(header.len() <= 1_024 && header.bytes().all(|byte| byte.is_ascii_graphic()));
        match &decision.action {
            Action::Route { endpoints, .. } => {
                prop_assert!((1..=3).contains(&endpoints.len()));
                let mut distinct = endpoints.clone();
                distinct.sort_unstable();
                distinct.dedup();
                prop_assert_eq!(distinct.len(), endpoints.len());
                prop_assert!(endpoints.iter().all(|pod| eligible(&world, *pod)), "{:?}", endpoints);
                prop_assert!(decision.why.considered.iter().all(|one| one.cost.is_finite() && one.cost >= 0.0));
            }
            Action::Reply(refusal) => prop_assert!(matches!(refusal.status, 404 | 503)),
            Action::Pass(reason) => prop_assert_eq!(*reason, Reason::DiscoveryStale),
            Action::Hold => prop_assert!(false, "nobody asked for room"),
        }
    }

    /// Knowing less of a pod never makes it more attractive than an idle one.
    #[test]
    fn an_unread_pod_never_goes_before_an_idle_one(
        busy in prop::collection::vec((0_u32..50, 0_u32..50, 0_f32..1.0), 0..4),
        rate in prop::option::of(0.1_f64..1_000.0),
        prompt in 0_u64..50_000,
        seed in any::<u64>(),
    ) {
        let mut world = World::of(busy.len() + 2);
        world.pods[0].never_read().rate = rate;
        for (pod, (running, waiting, kv)) in world.pods[2..].iter_mut().zip(busy) {
            pod.load(running, waiting, kv);
        }
        let decision = world.decide_with(Ask { prompt: Tokens(prompt), ..ASK }, seed);
        prop_assert_ne!(first(&decision), 0);
        prop_assert_eq!(cost_of(&decision, 0).stage, Stage::Unknown);
        prop_assert_eq!(Freshness::Unknown, world.facts(&world.snapshot())[0].freshness);
    }
}
