//! The imports, as Proxy-Wasm ABI 0.2.1 defines them. This list is an allow-list: a test over the
//! artifacts fails when another one appears, because one unknown import keeps a whole module from
//! loading on nginx-family hosts.
#![allow(unsafe_code)]
#![allow(clippy::too_many_arguments, reason = "the ABI has them")]

#[cfg(target_arch = "wasm32")]
#[link(wasm_import_module = "env")]
unsafe extern "C" {
    pub fn proxy_log(level: u32, text: *const u8, size: usize) -> u32;
    pub fn proxy_get_current_time_nanoseconds(time: *mut u64) -> u32;
    pub fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
    pub fn proxy_get_buffer_bytes(kind: u32, start: usize, max: usize, data: *mut *mut u8, size: *mut usize) -> u32;
    pub fn proxy_set_buffer_bytes(kind: u32, start: usize, length: usize, data: *const u8, size: usize) -> u32;
    pub fn proxy_get_header_map_pairs(kind: u32, data: *mut *mut u8, size: *mut usize) -> u32;
    pub fn proxy_get_header_map_value(
        kind: u32,
        key: *const u8,
        key_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    pub fn proxy_replace_header_map_value(
        kind: u32,
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    pub fn proxy_add_header_map_value(
        kind: u32,
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    pub fn proxy_remove_header_map_value(kind: u32, key: *const u8, key_size: usize) -> u32;
    pub fn proxy_get_property(path: *const u8, path_size: usize, data: *mut *mut u8, size: *mut usize) -> u32;
    pub fn proxy_set_property(path: *const u8, path_size: usize, value: *const u8, value_size: usize) -> u32;
    pub fn proxy_call_foreign_function(
        name: *const u8,
        name_size: usize,
        arguments: *const u8,
        arguments_size: usize,
        results: *mut *mut u8,
        results_size: *mut usize,
    ) -> u32;
    pub fn proxy_get_shared_data(
        key: *const u8,
        key_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
        cas: *mut u32,
    ) -> u32;
    pub fn proxy_set_shared_data(key: *const u8, key_size: usize, value: *const u8, value_size: usize, cas: u32)
    -> u32;
    pub fn proxy_http_call(
        upstream: *const u8,
        upstream_size: usize,
        headers: *const u8,
        headers_size: usize,
        body: *const u8,
        body_size: usize,
        trailers: *const u8,
        trailers_size: usize,
        timeout: u32,
        token: *mut u32,
    ) -> u32;
    pub fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_size: usize,
        body: *const u8,
        body_size: usize,
        headers: *const u8,
        headers_size: usize,
        grpc_status: i32,
    ) -> u32;
    pub fn proxy_continue_stream(kind: u32) -> u32;
    pub fn proxy_set_effective_context(context: u32) -> u32;
    pub fn proxy_define_metric(kind: u32, name: *const u8, name_size: usize, id: *mut u32) -> u32;
    pub fn proxy_increment_metric(id: u32, by: i64) -> u32;
    pub fn proxy_record_metric(id: u32, value: u64) -> u32;
}

// WASI's clocks, for a host that has no clock of its own. std's own would panic where there is none either.
#[cfg(target_os = "wasi")]
#[link(wasm_import_module = "wasi_snapshot_preview1")]
unsafe extern "C" {
    pub fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u32;
}
#[cfg(not(target_os = "wasi"))]
pub unsafe fn clock_time_get(_: u32, _: u64, _: *mut u64) -> u32 {
    52
}

/// Natively there is no host: every call answers "unimplemented", so that the workspace links.
#[cfg(not(target_arch = "wasm32"))]
mod native {
    macro_rules! absent {
        ($($name:ident($($arg:ident: $type:ty),*);)*) => {
            $(pub unsafe fn $name($(_: $type),*) -> u32 { 12 })*
        };
    }
    absent! {
        proxy_log(level: u32, text: *const u8, size: usize);
        proxy_get_current_time_nanoseconds(time: *mut u64);
        proxy_set_tick_period_milliseconds(period: u32);
        proxy_get_buffer_bytes(kind: u32, start: usize, max: usize, data: *mut *mut u8, size: *mut usize);
        proxy_set_buffer_bytes(kind: u32, start: usize, length: usize, data: *const u8, size: usize);
        proxy_get_header_map_pairs(kind: u32, data: *mut *mut u8, size: *mut usize);
        proxy_get_header_map_value(kind: u32, key: *const u8, ks: usize, data: *mut *mut u8, size: *mut usize);
        proxy_replace_header_map_value(kind: u32, key: *const u8, ks: usize, value: *const u8, vs: usize);
        proxy_add_header_map_value(kind: u32, key: *const u8, ks: usize, value: *const u8, vs: usize);
        proxy_remove_header_map_value(kind: u32, key: *const u8, ks: usize);
        proxy_get_property(path: *const u8, ps: usize, data: *mut *mut u8, size: *mut usize);
        proxy_set_property(path: *const u8, ps: usize, value: *const u8, vs: usize);
        proxy_call_foreign_function(name: *const u8, ns: usize, args: *const u8, size: usize, results: *mut *mut u8,
                                    rs: *mut usize);
        proxy_get_shared_data(key: *const u8, ks: usize, data: *mut *mut u8, size: *mut usize, cas: *mut u32);
        proxy_set_shared_data(key: *const u8, ks: usize, value: *const u8, vs: usize, cas: u32);
        proxy_http_call(up: *const u8, us: usize, h: *const u8, hs: usize, b: *const u8, bs: usize, t: *const u8,
                        ts: usize, timeout: u32, token: *mut u32);
        proxy_send_local_response(status: u32, d: *const u8, ds: usize, b: *const u8, bs: usize, h: *const u8,
                                  hs: usize, grpc: i32);
        proxy_continue_stream(kind: u32);
        proxy_set_effective_context(context: u32);
        proxy_define_metric(kind: u32, name: *const u8, ns: usize, id: *mut u32);
        proxy_increment_metric(id: u32, by: i64);
        proxy_record_metric(id: u32, value: u64);
    }
}
#[cfg(not(target_arch = "wasm32"))]
pub use native::*;
