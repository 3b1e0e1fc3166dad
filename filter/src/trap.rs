//! A header that traps the VM. Compiled only with the feature `test-trap`, into files of their own:
//! what happens to the others when a worker's VM dies has to be seen in a real proxy.

/// The header.
const TRAP: &str = "x-berth-test-trap";

/// Traps where the request asks for it.
pub fn on(headers: &[(&str, &[u8])]) {
    if headers.iter().any(|(name, _)| *name == TRAP) {
        core::arch::wasm32::unreachable()
    }
}
