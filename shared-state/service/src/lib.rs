//! The companion wasm service: one root, one timer, the poller.
//!
//! It runs as a bootstrap singleton on the proxy's main thread, shares its vm_id with the filter,
//! and does nothing but poll and publish. Where it is missing or has died, the filter's roots do that.

use std::rc::Rc;

use berth_shared_state::dialect::Dialect;
use berth_shared_state::limits::TICK;
use berth_shared_state_glue::export_vm;
use berth_shared_state_glue::host;
use berth_shared_state_glue::poller::{Part, PollerRoot, parse};
use berth_shared_state_glue::vm::{Resume, Vm};
use hashbrown::HashMap;

/// The service's VM.
#[derive(Default)]
struct Service {
    roots: HashMap<u32, PollerRoot>,
}

impl Vm for Service {
    fn configure(&mut self, root: u32, document: &[u8]) -> bool {
        let Some(config) = parse(document) else {
            return false;
        };
        if let Err(error) = host::set_tick(TICK) {
            log::error!("this host has no timers ({error}): pods cannot be polled");
            return false;
        }
        // Only Envoy starts services.
        let poller = PollerRoot::new(Rc::new(config), Part::Service, Dialect::Envoy);
        self.roots.insert(root, poller);
        true
    }

    fn tick(&mut self, root: u32) -> Vec<Resume> {
        if let Some(poller) = self.roots.get_mut(&root) {
            poller.tick();
        }
        Vec::new()
    }

    fn answered(&mut self, token: u32, headers: usize) {
        #[cfg(feature = "test-trap")]
        trap();
        for poller in self.roots.values_mut() {
            poller.answered(token, headers);
        }
    }

    fn deleted(&mut self, context: u32) {
        if let Some(mut poller) = self.roots.remove(&context) {
            poller.release();
        }
    }
}

/// A page with the status 418 traps the VM. For tests alone: what happens when the poller dies has to be seen in a
/// real proxy.
#[cfg(feature = "test-trap")]
fn trap() {
    use berth_shared_state_glue::host::{Map, header};
    if header(Map::CallAnswer, ":status").is_ok_and(|status| status == b"418") {
        log::error!("x-berth-test-trap: the service traps as it was asked to");
        core::arch::wasm32::unreachable()
    }
}

export_vm!(Service, Service::default());
