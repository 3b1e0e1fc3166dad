//! Requests that wait for room: who goes now, and what the stats say of the rest. Who may go is the view's to say.

use berth_filter_routing::admission;
use berth_filter_routing::ledger::Outcome;
use berth_shared_state_glue::host;
use berth_shared_state_glue::vm::{self, Resume};
use hashbrown::HashMap;

use super::Gateway;
use crate::stream::Stream;

impl Gateway {
    /// Lets go who may go now of those who wait: for one pool, or for all. Not while a callback of a stream is to be
    /// answered: an answer to another stream would stop that one.
    pub fn release(&mut self, pool: Option<usize>, streams: &mut HashMap<u32, Stream>) -> Vec<Resume> {
        if !self.view.anybody_waits() {
            return Vec::new();
        }
        let gone = match pool {
            Some(pool) => self.view.release_pool(&*self.store, pool, host::now()),
            None => self.view.release(&*self.store, host::now()),
        };
        let mut resumed = Vec::new();
        for (id, decision) in gone {
            self.count(&decision);
            if decision.refresh_models {
                self.ask_for_models(&decision.why.pool);
            }
            let id = u32::try_from(id).unwrap_or_default();
            let stream = streams.get_mut(&id).filter(|_| host::set_context(id).is_ok());
            match stream.map(|stream| stream.go(self, &decision)) {
                Some(vm::Action::Continue) => resumed.push(Resume(id)),
                Some(vm::Action::Pause) => {}
                // It vanished without a word.
                None => self.ended(id, Outcome::Abandoned),
            }
        }
        resumed
    }

    /// Says what waits, at all workers. Who has said so goes on until nothing does; a worker that knows of nobody reads
    /// nothing.
    pub(super) fn show_waiting(&mut self) {
        let here = self.view.anybody_waits();
        if !here && !self.showed_waiting {
            return;
        }
        self.view.refresh_waiting(&*self.store, host::now());
        self.showed_waiting = here;
        for (index, pool) in self.config.pools.iter().enumerate() {
            let waiting = self.view.waiting(index);
            self.showed_waiting |= !waiting.is_empty();
            for priority in admission::priorities(&self.config.admission) {
                let band = waiting
                    .iter()
                    .find(|band| band.priority == priority)
                    .copied()
                    .unwrap_or_default();
                let stat = |what: &str| admission::stat(&pool.name, priority, what);
                self.stats.gauge(&stat("waiting"), band.requests.into());
                self.stats.gauge(&stat("waiting_tokens"), band.tokens.0);
            }
        }
    }
}
