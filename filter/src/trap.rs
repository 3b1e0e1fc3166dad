//! A header that traps the VM, and a page that does. Compiled only with the feature `test-trap`, into files of their own:
//! what happens to the others when a worker's VM dies has to be seen in a real proxy.

use berth_shared_state_glue::host::{Map, header};

/// The header.
const TRAP: &str = "x-berth-test-trap";

/// Traps where the request asks for it.
pub fn on(headers: &[(&str, &[u8])]) {
    if headers.iter().any(|(name, _)| *name == TRAP) {
        core::arch::wasm32::unreachable()
    }
}

/// Traps where a pod's page has this status: the VM that polls dies.
pub fn on_answer() {
    if header(Map::CallAnswer, ":status").is_ok_and(|status| status == b"419") {
        log::error!("x-berth-test-trap: the poller in the filter traps as it was asked to");
        core::arch::wasm32::unreachable()
    }
}
