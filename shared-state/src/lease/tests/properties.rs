//! Several candidates under any schedule: reads and writes interleave, threads stop, contexts die, the
//! wall clock steps.

use super::*;
use proptest::prelude::*;

/// One thing that happens.
#[derive(Clone, Debug)]
enum Happens {
    /// Time passes, and everybody that is neither dead nor stopped ticks, in this order.
    Pass {
        millis: u64,
        order: u64,
    },
    /// A thread stops in the middle of a look: after its read, before its write.
    Stop {
        who: usize,
    },
    /// It goes on: the write happens now.
    GoOn {
        who: usize,
    },
    Die {
        who: usize,
    },
    /// Its root is deleted: it gives the lease back.
    Leave {
        who: usize,
    },
    /// A new context in its place, of this generation.
    Begin {
        who: usize,
        generation: u64,
        preferred: bool,
    },
}

fn happens() -> impl Strategy<Value = Happens> {
    let who = 0..4_usize;
    prop_oneof![
        12 => (1..400_u64, any::<u64>()).prop_map(|(millis, order)| Happens::Pass { millis, order }),
        1 => (1_000..9_000_u64, any::<u64>()).prop_map(|(millis, order)| Happens::Pass { millis, order }),
        2 => who.clone().prop_map(|who| Happens::Stop { who }),
        3 => who.clone().prop_map(|who| Happens::GoOn { who }),
        1 => who.clone().prop_map(|who| Happens::Die { who }),
        1 => who.clone().prop_map(|who| Happens::Leave { who }),
        1 => (who, 1..4_u64, prop::bool::weighted(0.3))
            .prop_map(|(who, generation, preferred)| Happens::Begin { who, generation, preferred }),
    ]
}

/// A context.
struct Context {
    seat: Seat,
    /// What it read and has not written yet.
    stopped: Option<Option<Write>>,
    polls: bool,
}

struct World {
    store: Shared,
    now: u64,
    contexts: Vec<Option<Context>>,
    nonces: u64,
    /// For how long more than one has polled.
    together: u64,
    longest: u64,
}

impl World {
    fn new(rules: Rules) -> Self {
        Self {
            store: Shared::new(rules),
            now: 0,
            contexts: Vec::from_iter((0..4).map(|_| None)),
            nonces: 0,
            together: 0,
            longest: 0,
        }
    }

    fn happen(&mut self, what: &Happens) {
        match what {
            Happens::Pass { millis, order } => self.pass(*millis, *order),
            Happens::Stop { who } => {
                let now = at(self.now);
                if let Some(context) = self.living(*who)
                    && context.stopped.is_none()
                    && !context.seat.rests(now)
                {
                    let stored = self.store.get("lease");
                    let context = self.living(*who).expect("it lives");
                    context.stopped = Some(context.seat.looked(stored, now));
                }
            }
            Happens::GoOn { who } => self.go_on(*who),
            Happens::Die { who } => self.contexts[*who] = None,
            Happens::Leave { who } => {
                if let Some(mut context) = self.contexts[*who].take() {
                    context.seat.release(&self.store);
                }
            }
            Happens::Begin {
                who,
                generation,
                preferred,
            } => {
                self.nonces += 1;
                self.contexts[*who] = Some(Context {
                    seat: candidate(self.nonces, *generation, *generation * 1_000, *preferred),
                    stopped: None,
                    polls: false,
                });
            }
        }
        self.watch(0);
    }

    fn living(&mut self, who: usize) -> Option<&mut Context> {
        self.contexts[who].as_mut()
    }

    fn go_on(&mut self, who: usize) {
        let Some(context) = self.contexts[who].as_mut() else {
            return;
        };
        let Some(write) = context.stopped.take() else { return };
        if let Some(write) = write {
            let written = self.store.set("lease", &write.value, write.cas);
            context.seat.wrote(&write, written);
        }
        // It read the clock before it stopped. What it does now takes no more than a callback.
        context.polls = false;
    }

    fn pass(&mut self, mut millis: u64, order: u64) {
        while millis > 0 {
            let step = millis.min(100);
            millis -= step;
            self.now += step;
            self.watch(step);
            for place in 0..4 {
                let who = (place + order as usize) % 4;
                let Some(context) = self.contexts[who].as_mut() else {
                    continue;
                };
                if context.stopped.is_none() {
                    context.polls = context.seat.tick(&self.store, at(self.now));
                }
            }
        }
    }

    /// A stopped thread sends nothing.
    fn polling(&self) -> usize {
        let all = self.contexts.iter().flatten();
        { all }
            .filter(|context| context.stopped.is_none() && context.polls)
            .count()
    }

    fn watch(&mut self, passed: u64) {
        self.together = if self.polling() > 1 { self.together + passed } else { 0 };
        self.longest = self.longest.max(self.together);
    }
}

fn check(rules: Rules, events: &[Happens]) -> Result<(), TestCaseError> {
    let mut world = World::new(rules);
    for event in events {
        world.happen(event);
    }
    // Two poll only while a better one takes over from a living holder; three in a row may do so.
    prop_assert!(world.longest <= LEASE.0, "{} ms together", world.longest);
    // All that are stopped go on, or are dead; one that lives polls in the end, and only one.
    for who in 0..4 {
        world.go_on(who);
    }
    let lasts = world.store.lease().map_or(LEASE, |lease| Lease::lasts(lease.expired));
    world.pass(lasts.0 + 2 * LEASE_LOOK.0, 0);
    let lives = world.contexts.iter().flatten().count();
    prop_assert_eq!(world.polling(), lives.min(1));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn one_polls_except_within_one_lease_and_one_does_in_the_end(
        events in prop::collection::vec(happens(), 1..120)
    ) {
        check(Rules::Envoy, &events)?;
        check(Rules::WasmX, &events)?;
    }

    #[test]
    fn any_stored_bytes_end_in_one_holder(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let store = Shared::new(Rules::Envoy);
        store.put(Some(&bytes));
        let mut a = seat(1);
        prop_assert!(holds_first(&mut a, &store, 0, 10_000) <= LEASE.0 + LEASE_LOOK.0);
    }

    /// Contexts come one after the other; each holds for a while and then dies or leaves. The next one waits by how
    /// many died in a row without having held for a minute, and never longer than [`LEASE_MAX`] and a look.
    #[test]
    fn deaths_in_a_row_slow_the_next_one_down_and_nothing_else_does(
        lives in prop::collection::vec((0..150_000_u64, prop::bool::weighted(0.8)), 1..10)
    ) {
        for rules in [Rules::Envoy, Rules::WasmX] {
            let store = Shared::new(rules);
            let (mut now, mut deaths, mut nonce) = (0, 0_u32, 0);
            for (stays, dies) in &lives {
                nonce += 1;
                let mut context = seat(nonce);
                let from = now;
                now = holds_first(&mut context, &store, from, LEASE_MAX.0 + LEASE_LOOK.0);
                let most = if deaths == 0 { LEASE.0 } else { (LEASE.0 << (deaths - 1)).min(LEASE_MAX.0) };
                prop_assert!(now - from <= most + LEASE_LOOK.0, "{} ms after {deaths}", now - from);
                let began = now;
                while now < began + stays {
                    now += 100;
                    prop_assert!(context.tick(&store, at(now)));
                }
                // Renewals are a second apart, so between 60 and 61 s it may go either way.
                prop_assume!(!(60_000..=61_000).contains(&(now - began)));
                let proven = now - began > LEASE_PROVEN.0;
                if !dies {
                    context.release(&store);
                    deaths = 0;
                } else {
                    deaths = if proven { 1 } else { deaths + 1 };
                }
            }
        }
    }

    /// The wall clock steps anywhere at any time: one polls again within the same bound.
    #[test]
    fn after_any_step_of_the_clock_one_polls_again(
        steps in prop::collection::vec((0..200_000_u64, 100..9_000_u64), 1..12)
    ) {
        for rules in [Rules::Envoy, Rules::WasmX] {
            let store = Shared::new(rules);
            let mut seats = [seat(1), seat(2), seat(3)];
            for (to, stays) in &steps {
                let mut last = 0;
                for millis in (0..stays + LEASE.0 + 2 * LEASE_LOOK.0).step_by(100) {
                    last = seats.iter_mut().filter_map(|seat| seat.tick(&store, at(to + millis)).then_some(())).count();
                }
                prop_assert_eq!(last, 1);
            }
        }
    }
}
