//! Events in, decisions out, in virtual time: the code of the wasm without a proxy.
