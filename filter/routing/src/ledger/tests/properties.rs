//! A model beside the ledger: plain lists of requests, counted by brute force.

use super::*;
use crate::ledger::lesson::Lesson;
use proptest::prelude::*;

const PODS: [PodKey; 3] = [PodKey(1), PodKey(2), PodKey(3)];

#[derive(Clone, Copy, Debug)]
struct Request {
    view: usize,
    id: u64,
    pod: PodKey,
    streams: bool,
    sent: u64,
    answered: Option<u64>,
    ended: Option<u64>,
}

impl Request {
    /// Its prompt work was released then.
    fn released(&self, now: u64) -> Option<u64> {
        let due = self.sent + 100;
        let unseen = if !self.streams && due <= self.ended.unwrap_or(now) {
            Some(due)
        } else {
            self.ended
        };
        self.answered.or(unseen)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Sent { view: usize, pod: usize, streams: bool },
    FirstToken { request: usize },
    Moved { request: usize, pod: usize },
    Ended { request: usize, status: u16 },
    Heard { view: usize, pod: usize },
    Tick { view: usize },
    Sample { pod: usize },
    Wait { ms: u64 },
    Die { view: usize },
    Lose { times: u32 },
    Refuse { times: u32 },
    Erase { torn: bool },
}

fn calm() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..3_usize, 0..3_usize, any::<bool>()).prop_map(|(view, pod, streams)| Op::Sent { view, pod, streams }),
        3 => any::<prop::sample::Index>().prop_map(|at| Op::FirstToken { request: at.index(1 << 20) }),
        1 => (any::<prop::sample::Index>(), 0..3_usize)
            .prop_map(|(at, pod)| Op::Moved { request: at.index(1 << 20), pod }),
        3 => (any::<prop::sample::Index>(), prop::sample::select(vec![200, 400, 429, 500, 503]))
            .prop_map(|(at, status)| Op::Ended { request: at.index(1 << 20), status }),
        3 => (0..3_usize, 0..3_usize).prop_map(|(view, pod)| Op::Heard { view, pod }),
        1 => (0..3_usize).prop_map(|view| Op::Tick { view }),
        1 => (0..3_usize).prop_map(|pod| Op::Sample { pod }),
        3 => (0..400_u64).prop_map(|ms| Op::Wait { ms }),
    ]
}

fn stormy() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => calm(),
        1 => (0..3_usize).prop_map(|view| Op::Die { view }),
        1 => (0..9_u32).prop_map(|times| Op::Lose { times }),
        1 => (0..3_u32).prop_map(|times| Op::Refuse { times }),
        1 => any::<bool>().prop_map(|torn| Op::Erase { torn }),
    ]
}

/// Three views over one store, and the lists that say what is true.
struct World {
    store: Flaky,
    views: Vec<LedgerView>,
    alive: [bool; 3],
    requests: Vec<Request>,
    samples: [Option<u64>; 3],
    /// All that living and dead views heard of each pod.
    heard: [Heard; 3],
    now: u64,
}

impl World {
    fn new(strict: bool) -> Self {
        Self {
            store: Flaky {
                strict,
                ..Flaky::default()
            },
            views: (0..3).map(|n| LedgerView::new("p", 100 + n)).collect(),
            alive: [true; 3],
            requests: Vec::new(),
            samples: [None; 3],
            heard: [Heard::default(); 3],
            now: 1_000_000,
        }
    }

    /// A living view's request in flight, by a number that may be anything.
    fn pick(&self, number: usize) -> Option<usize> {
        let open: Vec<usize> = (0..self.requests.len())
            .filter(|at| self.requests[*at].ended.is_none() && self.alive[self.requests[*at].view])
            .collect();
        open.get(number % open.len().max(1)).copied()
    }

    fn run(&mut self, op: &Op) {
        let now = at(self.now);
        match *op {
            Op::Sent { view, pod, streams } if self.alive[view] => {
                let (id, pod) = (self.requests.len() as u64, PODS[pod]);
                self.requests.push(Request {
                    view,
                    id,
                    pod,
                    streams,
                    sent: self.now,
                    answered: None,
                    ended: None,
                });
                let sent = Sent {
                    streams,
                    adapter: Some(id % 5),
                    ..stream(id, pod)
                };
                self.views[view].refresh(&self.store, now);
                self.views[view].sent(&self.store, &sent, now);
            }
            Op::FirstToken { request } => {
                if let Some(n) = self.pick(request) {
                    let request = &mut self.requests[n];
                    if request.streams {
                        request.answered = request.answered.or(Some(self.now));
                    }
                    self.views[request.view].first_token(&self.store, request.id, request.streams, true, now);
                }
            }
            Op::Moved { request, pod } => {
                if let Some(n) = self.pick(request) {
                    let failed = self.requests[n].pod;
                    let request = &mut self.requests[n];
                    request.pod = PODS[pod];
                    self.views[request.view].moved(&self.store, request.id, &[failed], request.pod, now);
                }
            }
            Op::Ended { request, status } => {
                if let Some(n) = self.pick(request) {
                    let request = &mut self.requests[n];
                    request.ended = Some(self.now);
                    let outcome = Outcome::of_status(status, false);
                    self.views[request.view].ended(&self.store, request.id, outcome, now);
                }
            }
            Op::Heard { view, pod } if self.alive[view] => {
                let heard = heard_at(self.now);
                self.heard[pod] = self.heard[pod].or(heard);
                self.views[view].heard(&self.store, PODS[pod], heard, now);
            }
            Op::Tick { view } if self.alive[view] => {
                self.views[view].tick(&self.store, now);
            }
            Op::Sample { pod } => {
                self.samples[pod] = Some(self.now);
                for view in &mut self.views {
                    let facts = PODS.iter().zip(self.samples);
                    view.facts(facts.map(|(pod, sample)| PodFact {
                        sample_at: sample.map(at),
                        ..fact(*pod)
                    }));
                }
            }
            Op::Wait { ms } => self.now += ms,
            _ => self.harm(op),
        }
    }

    fn harm(&mut self, op: &Op) {
        match *op {
            Op::Die { view } => self.alive[view] = false,
            Op::Lose { times } => self.store.lose.set(times),
            Op::Refuse { times } => self.store.refuse.set(times),
            Op::Erase { torn } => {
                let inner = &self.store.inner;
                let value = inner
                    .get(&ledger_key("p"))
                    .unwrap()
                    .map_or(Vec::new(), |stored| stored.value);
                let left = if torn { &value[..value.len() / 2] } else { b"" };
                inner.set(&ledger_key("p"), left, None).unwrap();
            }
            _ => {}
        }
    }

    /// Every living view ticks for six seconds, without faults.
    fn settle(&mut self) {
        self.store.lose.set(0);
        self.store.refuse.set(0);
        for _ in 0..6 {
            self.now += 1001;
            for view in (0..3).filter(|view| self.alive[*view]) {
                self.views[view].tick(&self.store, at(self.now));
            }
        }
    }

    fn seen_by_a_newcomer(&self) -> Ledger {
        let mut newcomer = LedgerView::new("p", 999);
        newcomer.refresh(&self.store, at(self.now));
        newcomer.ledger().clone()
    }

    /// Nothing is told that nobody heard.
    fn was_heard(&self, ledger: &Ledger) -> bool {
        let mut pods = PODS.iter().zip(self.heard);
        pods.all(|(pod, heard)| heard.or(ledger.at(*pod).heard()) == heard)
    }

    /// What living views have at a pod, counted one by one.
    fn truth(&self, pod: PodKey, sample: Option<u64>) -> OwnLoad {
        let mut own = OwnLoad::default();
        for request in self.requests.iter().filter(|r| r.pod == pod && self.alive[r.view]) {
            let released = request.released(self.now);
            let since = sample.is_none_or(|sample| request.sent >= sample);
            if request.ended.is_none() {
                own.context_tokens = own.context_tokens + Tokens(1500);
                if released.is_none() {
                    own.unanswered += 1;
                    own.unanswered_tokens = own.unanswered_tokens + Tokens(1000);
                    let oldest = own
                        .oldest_unanswered
                        .map_or(u64::MAX, |(sent, _)| sent.0)
                        .min(request.sent);
                    own.oldest_unanswered = Some((at(oldest), Millis(100)));
                } else {
                    own.generating += 1;
                }
                if since {
                    own.sent_since += 1;
                    own.sent_since_tokens = own.sent_since_tokens + Tokens(1500);
                }
            }
            let waited = sample.is_some_and(|sample| released.is_none_or(|released| released >= sample));
            let short = |released: u64| released.saturating_sub(request.sent) < LEDGER_WAIT_MIN.0;
            let forgotten = request.ended.is_some() && released.is_some_and(short);
            own.unanswered_at_sample += u32::from(!since && waited && !forgotten);
        }
        own
    }
}

proptest! {
    #[test]
    fn without_faults_every_reader_sees_the_exact_truth(ops in prop::collection::vec(calm(), 1..60), strict: bool) {
        let mut world = World::new(strict);
        for op in &ops {
            world.run(op);
        }
        // Releases at a predicted time show with the next write.
        for view in &mut world.views {
            view.tick(&world.store, at(world.now));
        }
        let ledger = world.seen_by_a_newcomer();
        prop_assert!(world.was_heard(&ledger));
        for (pod, sample) in PODS.into_iter().zip(world.samples) {
            prop_assert_eq!(ledger.own(pod, None), world.truth(pod, None));
            if sample.is_some_and(|sample| world.now - sample < 10_000) {
                prop_assert_eq!(ledger.own(pod, sample.map(at)), world.truth(pod, sample));
            }
        }
    }

    #[test]
    fn after_faults_and_deaths_the_ledger_is_the_truth_of_the_living(
        ops in prop::collection::vec(stormy(), 1..80), strict: bool,
    ) {
        let mut world = World::new(strict);
        for op in &ops {
            world.run(op);
        }
        world.settle();
        let ledger = world.seen_by_a_newcomer();
        prop_assert!(world.was_heard(&ledger));
        for pod in PODS {
            prop_assert_eq!(ledger.own(pod, None), world.truth(pod, None));
        }
        while let Some(open) = world.pick(0) {
            world.run(&Op::Ended { request: 0, status: 200 });
            prop_assert!(world.requests[open].ended.is_some());
        }
        world.settle();
        world.settle();
        let ledger = world.seen_by_a_newcomer();
        for pod in PODS {
            prop_assert_eq!(ledger.own(pod, None), OwnLoad::default());
        }
        prop_assert!(ledger.pods.iter().all(|state| state.records.is_empty()));
        prop_assert_eq!(ledger.views.len(), 0);
    }

    #[test]
    fn any_ledger_survives_its_bytes_and_no_damage_is_believed(
        ops in prop::collection::vec(calm(), 1..40), flip in any::<prop::sample::Index>(), bit in 0..8_u32,
    ) {
        let mut world = World::new(false);
        for op in &ops {
            world.run(op);
        }
        let mut ledger = world.seen_by_a_newcomer();
        let bytes = ledger.encode().unwrap().to_vec();
        prop_assert_eq!(Ledger::decode(&bytes), Ok(ledger));
        let mut damaged = bytes.clone();
        damaged[flip.index(bytes.len())] ^= 1 << bit;
        prop_assert!(Ledger::decode(&damaged).is_err());
        prop_assert!(Ledger::decode(&bytes[..flip.index(bytes.len())]).is_err());
    }

    #[test]
    fn a_value_reads_and_is_written_on_alike_whatever_was_known_before_it(ops in prop::collection::vec(stormy(), 1..40)) {
        let mut world = World::new(false);
        let mut known = Ledger::default();
        for op in &ops {
            world.run(op);
            let stored = world.store.inner.get(&ledger_key("p")).unwrap();
            let value = stored.map(|stored| stored.value).unwrap_or_default();
            let before = known.clone();
            let read = known.update(value.clone());
            let mut anew = match Ledger::decode(&value) {
                Ok(anew) => anew,
                Err(error) => {
                    prop_assert_eq!(read, Err(error));
                    prop_assert_eq!(&known, &before);
                    continue;
                }
            };
            prop_assert_eq!(read, Ok(()));
            prop_assert_eq!(&known, &anew);
            prop_assert_eq!(anew.encode().unwrap(), &value);
            // Something happens, and all that was copied is encoded, too.
            let lesson = Lesson::Sent { pod: PODS[value.len() % 3], tokens: Tokens(7), sent_at: at(world.now) };
            for ledger in [&mut known, &mut anew] {
                ledger.learn(&lesson, at(world.now));
                ledger.drop_silent(at(world.now + 1_000 * (value.len() as u64 % 8)));
            }
            anew.pods.retain_mut(|_| true);
            prop_assert_eq!(known.encode().unwrap(), anew.encode().unwrap());
        }
    }

    #[test]
    fn no_bytes_can_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Ledger::decode(&bytes);
    }
}
