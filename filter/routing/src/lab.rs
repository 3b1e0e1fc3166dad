//! Leaving terms of the cost out, so that the lab can say what each is worth. Only with the feature `lab`, which no
//! shipped build has; the choice is per thread, so that runs side by side do not disturb each other.

use core::cell::RefCell;

use berth_shared_state::units::Millis;

use crate::cost::Terms;
use crate::decision::PodFacts;
use crate::ledger::Heard;

std::thread_local! {
    static WITHOUT: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The name of what is heard of the engines' steps, which is a part of `queue` and of `overdue` and no term.
pub const HEARD: &str = "heard";

/// From now on these terms are 0 in this thread. Names as in [`Terms::named`], and [`HEARD`]; unknown ones do nothing.
pub fn leave_out(names: &[String]) {
    WITHOUT.with_borrow_mut(|without| *without = names.to_vec());
}

/// A pod without what was heard of it, where that is left out.
pub(crate) fn as_heard(mut pod: PodFacts<'_>) -> PodFacts<'_> {
    if WITHOUT.with_borrow(|without| without.iter().any(|name| name == HEARD)) {
        (pod.heard, pod.late) = (Heard::default(), Millis(0));
    }
    pod
}

/// The terms without those left out.
pub(crate) fn masked(mut terms: Terms) -> Terms {
    WITHOUT.with_borrow(|without| {
        for name in without {
            if let Some(term) = by_name(&mut terms, name) {
                *term = 0.0;
            }
        }
    });
    terms
}

fn by_name<'a>(terms: &'a mut Terms, name: &str) -> Option<&'a mut f64> {
    Some(match name {
        "queue" => &mut terms.queue,
        "prefill" => &mut terms.prefill,
        "away" => &mut terms.away,
        "harm" => &mut terms.harm,
        "memory" => &mut terms.memory,
        "adapter" => &mut terms.adapter,
        "answer" => &mut terms.answer,
        "overdue" => &mut terms.overdue,
        "failed" => &mut terms.failed,
        "stuck" => &mut terms.stuck,
        "warming" => &mut terms.warming,
        "unseen" => &mut terms.unseen,
        "uncertainty" => &mut terms.uncertainty,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::tests::world::World;

    #[test]
    fn every_named_term_can_be_left_out() {
        let full = Terms {
            queue: 1.0,
            prefill: 1.0,
            away: 1.0,
            harm: 1.0,
            memory: 1.0,
            adapter: 1.0,
            answer: 1.0,
            overdue: 1.0,
            failed: 1.0,
            stuck: 1.0,
            warming: 1.0,
            unseen: 1.0,
            uncertainty: 1.0,
        };
        for (name, _) in full.named() {
            leave_out(&[name.to_owned()]);
            assert!((masked(full).total() - full.total() + 1.0).abs() < 1e-9, "{name}");
        }
        leave_out(&[]);
    }

    #[test]
    fn what_is_heard_can_be_left_out_and_is_no_term() {
        let mut world = World::of(1);
        world.pods[0].late = Millis(100);
        let snapshot = world.snapshot();
        let pod = || as_heard(world.facts(&snapshot)[0]).late;
        assert_eq!(pod(), Millis(100));
        leave_out(&[HEARD.to_owned()]);
        assert_eq!(pod(), Millis(0));
        assert!(Terms::default().named().iter().all(|(name, _)| *name != HEARD));
        leave_out(&[]);
    }
}
