//! What admission promises, with margins: the numbers themselves are in docs/lab.md.

use berth_tests_lab::overload::{Class, Setting, long_answers, priorities, tenants};

const SEED: u64 = 11;

fn tokens(classes: &[Class; 2]) -> f64 {
    classes.iter().map(|class| class.tokens as f64).sum()
}

fn good(classes: &[Class; 2]) -> usize {
    classes.iter().map(|class| class.good).sum()
}

#[test]
fn the_high_priority_keeps_its_first_token_and_the_pods_their_work() {
    let off = priorities(Setting::Off, SEED);
    let shed = priorities(Setting::Shed, SEED);
    let queue = priorities(Setting::Queue, SEED);
    for (name, classes) in [("shed", &shed), ("queue", &queue)] {
        let [chat, _] = classes;
        assert_eq!(chat.answered, chat.count, "{name}");
        assert!(chat.mean() < off[0].mean() / 3.0, "{name}: {}", chat.mean());
        assert!(chat.p99() < off[0].p99() / 2.0, "{name}: {}", chat.p99());
        assert!(tokens(classes) > 0.95 * tokens(&off), "{name}: {}", tokens(classes));
        assert!(good(classes) >= good(&off), "{name}");
    }
    let part = |class: &Class| class.answered as f64 / class.count as f64;
    assert!(part(&shed[1]) > 0.5 && part(&shed[1]) < 0.95, "{}", part(&shed[1]));
    assert!(part(&queue[1]) > 0.95, "who waits is answered when the others are gone");
}

#[test]
fn where_memory_is_what_lacks_the_high_priority_is_served_well_and_nothing_stays_idle() {
    let off = long_answers(Setting::Off, SEED);
    for setting in [Setting::Shed, Setting::Queue] {
        let classes = long_answers(setting, SEED);
        let [chat, _] = &classes;
        assert_eq!(chat.answered, chat.count, "{}", setting.name());
        assert!(
            chat.mean() < off[0].mean() / 10.0,
            "{}: {}",
            setting.name(),
            chat.mean()
        );
        assert!(
            chat.good as f64 > 0.75 * chat.count as f64,
            "{}: {}",
            setting.name(),
            chat.good
        );
        assert!(tokens(&classes) > 0.95 * tokens(&off), "{}", setting.name());
    }
}

#[test]
fn tenants_of_which_one_asks_for_ten_times_as_much_get_equal_tokens() {
    let off = tenants(Setting::Off, SEED);
    let queue = tenants(Setting::Queue, SEED);
    let part = |[small, large]: &[Class; 2]| small.tokens as f64 / (small.tokens + large.tokens) as f64;
    assert!(part(&off) < 0.15, "{}", part(&off));
    assert!((0.43..0.57).contains(&part(&queue)), "{}", part(&queue));
    assert!(tokens(&queue) > 0.95 * tokens(&off));
}
