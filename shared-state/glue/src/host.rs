//! What the host can be asked, each call returning `Result`.
//!
//! Any status is possible on any call and on any host, so none is treated as impossible.
#![allow(unsafe_code)]

use core::fmt;
use core::ptr::null_mut;

use berth_shared_state::dialect::{Dialect, Probe};
use berth_shared_state::store::{Cas, SharedData, StoreError, Stored};
use berth_shared_state::units::{Millis, UnixMillis};

use crate::abi;
use crate::memory::adopt;

/// A Proxy-Wasm status other than OK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostError(pub u32);

/// Nothing is stored under that name.
pub const NOT_FOUND: HostError = HostError(1);
/// What the host gave cannot be read.
pub const PARSE_FAILURE: HostError = HostError(4);
const CAS_MISMATCH: u32 = 8;

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host status {}", self.0)
    }
}

/// Result of a host call.
pub type HostResult<T> = Result<T, HostError>;

/// A header map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Map {
    /// The request's headers.
    Request = 0,
    /// The response's headers.
    Response = 2,
    /// Headers of the answer to a callout.
    CallAnswer = 6,
}

/// A byte buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Buffer {
    /// The request body held so far.
    RequestBody = 0,
    /// The current piece of the response body.
    ResponseBody = 1,
    /// Body of the answer to a callout.
    CallAnswer = 4,
    /// This root's configuration.
    PluginConfiguration = 7,
}

/// A metric's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MetricKind {
    /// Only rises.
    Counter = 0,
    /// Is set.
    Gauge = 1,
    /// A distribution.
    Histogram = 2,
}

/// A defined metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric(u32);

pub(crate) const fn done(status: u32) -> HostResult<()> {
    if status == 0 { Ok(()) } else { Err(HostError(status)) }
}

/// Writes a line to the host's log. Levels as in the ABI: 1 debug, 2 info, 3 warn, 4 error.
pub fn log(level: u32, text: &str) {
    // SAFETY: pointer and length describe a live string.
    let _ = unsafe { abi::proxy_log(level, text.as_ptr(), text.len()) };
}

/// The wall clock.
#[must_use]
pub fn now() -> UnixMillis {
    UnixMillis(now_nanos() / 1_000_000)
}

/// The wall clock in nanoseconds: the host's, else WASI's; zero where there is none.
#[must_use]
pub fn now_nanos() -> u64 {
    own_clock().unwrap_or_else(|_| {
        let mut nanos = 0;
        // SAFETY: out pointer to a local. Clock 0 is the wall's; a precision of 1 asks for the best.
        let status = unsafe { abi::clock_time_get(0, 1, &raw mut nanos) };
        if status == 0 { nanos } else { 0 }
    })
}

fn own_clock() -> HostResult<u64> {
    let mut nanos = 0;
    // SAFETY: out pointer to a local.
    done(unsafe { abi::proxy_get_current_time_nanoseconds(&raw mut nanos) }).map(|()| nanos)
}

/// What tells which proxy this is. To be asked while a root is configured.
#[must_use]
pub fn probe() -> Probe {
    let status = |answer: Result<(), HostError>| answer.map_or_else(|HostError(status)| status, |()| 0);
    Probe {
        clock: status(own_clock().map(drop)),
        variable: status(property(&["ngx", "pid"]).map(drop)),
        absent: status(property(&["berth"]).map(drop)),
    }
}

/// Asks for `on_tick` at this period; zero stops it.
///
/// # Errors
/// Hosts without timers.
pub fn set_tick(period: Millis) -> HostResult<()> {
    // SAFETY: no pointers.
    done(unsafe { abi::proxy_set_tick_period_milliseconds(u32::try_from(period.0).unwrap_or(u32::MAX)) })
}

/// Bytes `start..start + max` of a buffer; empty when there are none.
///
/// # Errors
/// When the host refuses; an absent buffer is [`NOT_FOUND`].
pub fn buffer(kind: Buffer, start: usize, max: usize) -> HostResult<Vec<u8>> {
    let (mut data, mut size) = (null_mut(), 0);
    // SAFETY: out pointers to locals; the result is adopted.
    let status = unsafe { abi::proxy_get_buffer_bytes(kind as u32, start, max, &raw mut data, &raw mut size) };
    adopt(status, data, size)
}

/// Puts other bytes in the place of the first `length` of a body. Envoy changes a body nowhere but at its start.
///
/// # Errors
/// When there is no such body now.
pub fn replace_start(kind: Buffer, length: usize, bytes: &[u8]) -> HostResult<()> {
    // SAFETY: live slice.
    done(unsafe { abi::proxy_set_buffer_bytes(kind as u32, 0, length, bytes.as_ptr(), bytes.len()) })
}

/// All headers of a map, as bytes: values need not be UTF-8.
///
/// # Errors
/// When the map does not exist in this phase.
pub fn headers(map: Map) -> HostResult<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut data, mut size) = (null_mut(), 0);
    // SAFETY: out pointers to locals; the result is adopted.
    let status = unsafe { abi::proxy_get_header_map_pairs(map as u32, &raw mut data, &raw mut size) };
    let bytes = adopt(status, data, size)?;
    if bytes.is_empty() {
        Ok(Vec::new())
    } else {
        parse_pairs(&bytes).ok_or(PARSE_FAILURE)
    }
}

/// The request's headers with its method and path, which some hosts give only when asked for them by name.
///
/// # Errors
/// When the map does not exist in this phase.
pub fn request_headers() -> HostResult<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut all = headers(Map::Request)?;
    for name in [":method", ":path"] {
        if !all.iter().any(|(known, _)| known == name.as_bytes())
            && let Ok(value) = header(Map::Request, name)
        {
            all.push((name.into(), value));
        }
    }
    Ok(all)
}

/// One header; several with the same name come joined by the host.
///
/// # Errors
/// [`NOT_FOUND`] when it is absent, others when the map does not exist in this phase.
pub fn header(map: Map, name: &str) -> HostResult<Vec<u8>> {
    let (mut data, mut size) = (null_mut(), 0);
    // SAFETY: live string, out pointers to locals; the result is adopted.
    let status =
        unsafe { abi::proxy_get_header_map_value(map as u32, name.as_ptr(), name.len(), &raw mut data, &raw mut size) };
    adopt(status, data, size)
}

/// Sets a header, replacing all of its copies.
///
/// # Errors
/// When the map cannot be written in this phase.
pub fn set_header(map: Map, name: &str, value: &[u8]) -> HostResult<()> {
    // SAFETY: live slices.
    done(unsafe {
        abi::proxy_replace_header_map_value(map as u32, name.as_ptr(), name.len(), value.as_ptr(), value.len())
    })
}

/// Adds a header beside its other copies.
///
/// # Errors
/// When the map cannot be written in this phase.
pub fn add_header(map: Map, name: &str, value: &[u8]) -> HostResult<()> {
    // SAFETY: live slices.
    done(unsafe { abi::proxy_add_header_map_value(map as u32, name.as_ptr(), name.len(), value.as_ptr(), value.len()) })
}

/// Removes all copies of a header.
///
/// # Errors
/// When the map cannot be written in this phase.
pub fn remove_header(map: Map, name: &str) -> HostResult<()> {
    // SAFETY: live string.
    done(unsafe { abi::proxy_remove_header_map_value(map as u32, name.as_ptr(), name.len()) })
}

/// A property, by its path.
///
/// # Errors
/// [`NOT_FOUND`] when it has no value now.
pub fn property(path: &[&str]) -> HostResult<Vec<u8>> {
    let path = path.join("\0");
    let (mut data, mut size) = (null_mut(), 0);
    // SAFETY: live string, out pointers to locals; the result is adopted.
    let status = unsafe { abi::proxy_get_property(path.as_ptr(), path.len(), &raw mut data, &raw mut size) };
    adopt(status, data, size)
}

/// A variable of nginx.
///
/// # Errors
/// [`NOT_FOUND`] when there is none of this name, and on Envoy.
pub fn variable(dialect: Dialect, name: &str) -> HostResult<Vec<u8>> {
    property(&dialect.variable(name).ok_or(NOT_FOUND)?)
}

/// Writes a variable of nginx that its configuration made.
///
/// # Errors
/// [`NOT_FOUND`] when it did not, and on Envoy.
pub fn set_variable(dialect: Dialect, name: &str, value: &[u8]) -> HostResult<()> {
    set_property(&dialect.variable(name).ok_or(NOT_FOUND)?, value)
}

/// A property that is an integer: eight bytes, little endian.
#[must_use]
pub fn property_integer(path: &[&str]) -> Option<u64> {
    let bytes = property(path).ok()?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Writes filter state `wasm.<name>`.
///
/// # Errors
/// Outside of a stream.
pub fn set_state(name: &str, value: &[u8]) -> HostResult<()> {
    set_property(&[name], value)
}

/// Writes a property, by its path.
///
/// # Errors
/// Outside of a stream, and where there is nothing of this name to be written.
pub fn set_property(path: &[&str], value: &[u8]) -> HostResult<()> {
    let path = path.join("\0");
    // SAFETY: live slices.
    done(unsafe { abi::proxy_set_property(path.as_ptr(), path.len(), value.as_ptr(), value.len()) })
}

/// Has a cluster of type ORIGINAL_DST dial this address for the stream. Only Envoy knows how, and there this comes before
/// any header.
///
/// # Errors
/// Outside of a stream, and on other hosts.
pub fn set_destination(address: &str) -> HostResult<()> {
    const FUNCTION: &str = "set_envoy_filter_state";
    const OBJECT: &str = "envoy.network.transport_socket.original_dst_address";
    // Envoy's SetEnvoyFilterStateArguments: 1 is the object's name, 2 its value. Both are shorter than 128 bytes.
    let mut arguments = Vec::with_capacity(OBJECT.len() + address.len() + 4);
    for (tag, text) in [(0x0a, OBJECT), (0x12, address)] {
        arguments.push(tag);
        arguments.push(u8::try_from(text.len()).unwrap_or_default());
        arguments.extend_from_slice(text.as_bytes());
    }
    let (mut results, mut size) = (null_mut(), 0);
    // SAFETY: live slices, and two places that the host writes to.
    let status = unsafe {
        abi::proxy_call_foreign_function(
            FUNCTION.as_ptr(),
            FUNCTION.len(),
            arguments.as_ptr(),
            arguments.len(),
            &raw mut results,
            &raw mut size,
        )
    };
    adopt(status, results, size).map(drop)
}

/// Answers the client from here.
///
/// # Errors
/// When the response has begun.
pub fn reply(status: u16, headers: &[(&str, &str)], body: &[u8], details: &str) -> HostResult<()> {
    let headers = serialize_pairs(headers);
    // SAFETY: live slices.
    done(unsafe {
        abi::proxy_send_local_response(
            u32::from(status),
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            -1,
        )
    })
}

/// Lets a paused request go on. Only for a stream that is paused, and never inside its own callback.
///
/// # Errors
/// When the stream is gone.
pub fn resume_request(stream: u32) -> HostResult<()> {
    set_context(stream)?;
    // SAFETY: no pointers. 0 is the request direction.
    done(unsafe { abi::proxy_continue_stream(0) })
}

/// Makes the next calls speak of this stream.
///
/// # Errors
/// When the stream is gone.
pub fn set_context(context: u32) -> HostResult<()> {
    // SAFETY: no pointers.
    done(unsafe { abi::proxy_set_effective_context(context) })
}

/// Starts an HTTP call; its answer comes to `Vm::answered` with the returned token.
///
/// # Errors
/// The cluster is unknown (2), or the call failed at once (10): no answer will come.
pub fn call(cluster: &str, headers: &[(&str, &str)], timeout: Millis) -> HostResult<u32> {
    let headers = serialize_pairs(headers);
    let trailers = serialize_pairs(&[]);
    let mut token = 0;
    // Zero means "no timeout" to Envoy, and a negative one is refused.
    let timeout = timeout.0.clamp(1, 0x7fff_ffff) as u32;
    // SAFETY: live slices, out pointer to a local.
    let status = unsafe {
        abi::proxy_http_call(
            cluster.as_ptr(),
            cluster.len(),
            headers.as_ptr(),
            headers.len(),
            null_mut(),
            0,
            trailers.as_ptr(),
            trailers.len(),
            timeout,
            &raw mut token,
        )
    };
    done(status).map(|()| token)
}

/// Defines a metric; the same name is the same metric in every VM of the process.
///
/// # Errors
/// When the host has no metrics.
pub fn define_metric(kind: MetricKind, name: &str) -> HostResult<Metric> {
    let mut id = 0;
    // SAFETY: live string, out pointer to a local.
    let status = unsafe { abi::proxy_define_metric(kind as u32, name.as_ptr(), name.len(), &raw mut id) };
    done(status).map(|()| Metric(id))
}

impl Metric {
    /// Adds to a counter. Zero is not sent: Envoy refuses it.
    pub fn add(self, by: u64) {
        if by > 0 {
            // SAFETY: no pointers.
            let _ = unsafe { abi::proxy_increment_metric(self.0, i64::try_from(by).unwrap_or(i64::MAX)) };
        }
    }

    /// Sets a gauge, or records a value of a histogram.
    pub fn record(self, value: u64) {
        // SAFETY: no pointers.
        let _ = unsafe { abi::proxy_record_metric(self.0, value) };
    }
}

/// The host's shared data.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostStore;

impl SharedData for HostStore {
    fn get(&self, key: &str) -> Result<Option<Stored>, StoreError> {
        let (mut data, mut size, mut cas) = (null_mut(), 0, 0);
        // SAFETY: live string, out pointers to locals; the result is adopted.
        let status =
            unsafe { abi::proxy_get_shared_data(key.as_ptr(), key.len(), &raw mut data, &raw mut size, &raw mut cas) };
        let cas = (cas != 0).then_some(Cas(cas));
        match adopt(status, data, size) {
            Ok(value) => Ok(Some(Stored { value, cas })),
            Err(NOT_FOUND) => Ok(None),
            Err(HostError(status)) => Err(StoreError::Host(status)),
        }
    }

    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> Result<(), StoreError> {
        let cas = cas.map_or(0, |Cas(cas)| cas);
        // SAFETY: live slices.
        let status = unsafe { abi::proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas) };
        match status {
            0 => Ok(()),
            CAS_MISMATCH => Err(StoreError::CasMismatch),
            status => Err(StoreError::Host(status)),
        }
    }
}

/// Header pairs as the ABI lays them out: count, sizes, then NUL-terminated names and values.
fn serialize_pairs(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut out = (pairs.len() as u32).to_le_bytes().to_vec();
    for (name, value) in pairs {
        out.extend((name.len() as u32).to_le_bytes());
        out.extend((value.len() as u32).to_le_bytes());
    }
    for (name, value) in pairs {
        out.extend([name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
    }
    out
}

fn parse_pairs(bytes: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let word = |bytes: &[u8], at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
    let count = word(bytes, 0)?;
    let mut at = 4 + count.checked_mul(8)?;
    let mut pairs = Vec::with_capacity(count.min(1024));
    for index in 0..count {
        let (name, value) = (word(bytes, 4 + index * 8)?, word(bytes, 8 + index * 8)?);
        let name_end = at.checked_add(name)?;
        let value_end = name_end.checked_add(value)?.checked_add(1)?;
        pairs.push((
            bytes.get(at..name_end)?.to_vec(),
            bytes.get(name_end + 1..value_end)?.to_vec(),
        ));
        at = value_end + 1;
    }
    Some(pairs)
}

/// Sends `log` records to the host.
struct HostLog;

impl log::Log for HostLog {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        let level = match record.level() {
            log::Level::Error => 4,
            log::Level::Warn => 3,
            log::Level::Info => 2,
            log::Level::Debug | log::Level::Trace => 1,
        };
        log(level, &record.args().to_string());
    }

    fn flush(&self) {}
}

/// Routes the `log` macros to the host; once per VM.
pub fn start_logging() {
    // A second call finds a logger in place, which is the same one.
    let _ = log::set_logger(&HostLog);
    log::set_max_level(log::LevelFilter::Debug);
}
