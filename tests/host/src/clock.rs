//! Virtual time: nothing here waits. Events run in order of their time, and of their making where times are equal.
//!
//! Also the tick timers, one per root context. As in Envoy they are one-shot and armed again after the callback.

use std::collections::BTreeMap;
use std::time::Duration;

/// Names one instance of a VM; never used twice, so that events of a dead VM reach nobody.
pub(crate) type VmUid = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Tick { vm: VmUid, root: u32 },
    CalloutDone { vm: VmUid, token: u32 },
}

type EventKey = (Duration, u64);

struct Timer {
    period: Duration,
    armed: EventKey,
}

pub(crate) struct Clock {
    start: Duration,
    now: Duration,
    made: u64,
    events: BTreeMap<EventKey, Event>,
    /// More than one only where an instance died and its timer did not (WasmX).
    timers: BTreeMap<(VmUid, u32), Vec<Timer>>,
}

impl Clock {
    /// `start` is the unix time of the process's start.
    pub(crate) fn new(start: Duration) -> Self {
        Self {
            start,
            now: start,
            made: 0,
            events: BTreeMap::new(),
            timers: BTreeMap::new(),
        }
    }

    /// Unix time.
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    /// Time since the process started; what WASI's monotonic clock shows.
    pub(crate) fn monotonic(&self) -> Duration {
        self.now - self.start
    }

    pub(crate) fn schedule(&mut self, after: Duration, event: Event) {
        self.arm(after, event);
    }

    fn arm(&mut self, after: Duration, event: Event) -> EventKey {
        self.made += 1;
        let key = (self.now + after, self.made);
        self.events.insert(key, event);
        key
    }

    /// Sets, moves or (with zero) stops the timer of a root context.
    pub(crate) fn set_timer(&mut self, vm: VmUid, root: u32, period: Duration) {
        for timer in self.timers.remove(&(vm, root)).unwrap_or_default() {
            self.events.remove(&timer.armed);
        }
        if !period.is_zero() {
            self.add_timer(vm, root, period);
        }
    }

    /// One more timer of a root context, beside those that it has.
    pub(crate) fn add_timer(&mut self, vm: VmUid, root: u32, period: Duration) {
        let armed = self.arm(period, Event::Tick { vm, root });
        self.timers.entry((vm, root)).or_default().push(Timer { period, armed });
    }

    /// Arms the timer that has fired anew after its callback, unless it was stopped there.
    pub(crate) fn rearm(&mut self, vm: VmUid, root: u32) {
        let mut timers = self.timers.remove(&(vm, root)).unwrap_or_default();
        for timer in &mut timers {
            if !self.events.contains_key(&timer.armed) {
                timer.armed = self.arm(timer.period, Event::Tick { vm, root });
            }
        }
        if !timers.is_empty() {
            self.timers.insert((vm, root), timers);
        }
    }

    /// Forgets the timers of a VM.
    pub(crate) fn drop_timers(&mut self, vm: VmUid) {
        let roots: Vec<u32> = self
            .timers
            .range((vm, 0)..=(vm, u32::MAX))
            .map(|(key, _)| key.1)
            .collect();
        for root in roots {
            self.set_timer(vm, root, Duration::ZERO);
        }
    }

    /// The next event that is due by `until`, with the clock set to its time; at the end the clock shows `until`.
    pub(crate) fn next_due(&mut self, until: Duration) -> Option<Event> {
        match self.events.first_key_value() {
            Some((key, _)) if key.0 <= until => {
                let (key, event) = self.events.pop_first()?;
                self.now = self.now.max(key.0);
                Some(event)
            }
            _ => {
                self.now = self.now.max(until);
                None
            }
        }
    }

    /// Time until the next event.
    pub(crate) fn until_next(&self) -> Option<Duration> {
        let (key, _) = self.events.first_key_value()?;
        Some(key.0.saturating_sub(self.now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn drain(clock: &mut Clock, until: Duration) -> Vec<(Duration, Event)> {
        let mut seen = Vec::new();
        while let Some(event) = clock.next_due(until) {
            seen.push((clock.monotonic(), event));
        }
        seen
    }

    #[test]
    fn events_run_by_time_and_then_by_age() {
        let mut clock = Clock::new(10 * MS);
        let event = |token| Event::CalloutDone { vm: 1, token };
        clock.schedule(2 * MS, event(1));
        clock.schedule(MS, event(2));
        clock.schedule(MS, event(3));
        clock.schedule(5 * MS, event(4));
        let seen = drain(&mut clock, 13 * MS);
        assert_eq!(seen, [(MS, event(2)), (MS, event(3)), (2 * MS, event(1))]);
        assert_eq!(clock.now(), 13 * MS);
        assert_eq!(clock.until_next(), Some(2 * MS));
    }

    #[test]
    fn a_timer_fires_once_until_it_is_armed_again() {
        let mut clock = Clock::new(Duration::ZERO);
        let tick = Event::Tick { vm: 1, root: 1 };
        clock.set_timer(1, 1, 3 * MS);
        assert_eq!(drain(&mut clock, 10 * MS), [(3 * MS, tick)]);
        clock.rearm(1, 1);
        assert_eq!(drain(&mut clock, 20 * MS), [(13 * MS, tick)]);
    }

    #[test]
    fn setting_a_timer_again_moves_it_and_zero_stops_it() {
        let mut clock = Clock::new(Duration::ZERO);
        clock.set_timer(1, 1, 3 * MS);
        clock.set_timer(1, 1, 7 * MS);
        assert_eq!(drain(&mut clock, 6 * MS), []);
        clock.set_timer(1, 1, Duration::ZERO);
        assert_eq!(drain(&mut clock, 60 * MS), []);
        clock.rearm(1, 1);
        assert_eq!(clock.until_next(), None);
    }
}
