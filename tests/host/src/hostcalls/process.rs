//! Host calls about the process: log, time, ticks, shared data, metrics, callouts, contexts.

use super::{Answered, Fault, Guest, expose, give, read, read_text, write, write_u32};
use crate::abi::{LogLevel, Status, decode_pairs};
use crate::callouts::{Caller, Callout};
use crate::dialect::Dialect;
use crate::metrics::MetricKind;
use crate::vm::VmState;
use std::time::Duration;
use wasmtime::Linker;

/// Ids of Envoy's HTTP callouts are multiples of this (`kCallIdIncrement`); the rest are gRPC.
const TOKEN_STEP: u32 = 4;

pub(super) fn link(linker: &mut Linker<VmState>, dialect: Dialect) -> wasmtime::Result<()> {
    expose!(linker,
        "proxy_log" => log, (level: u32, text: u32, size: u32);
        "proxy_get_current_time_nanoseconds" => get_current_time, (time_at: u32);
        "proxy_set_tick_period_milliseconds" => set_tick_period, (period: u32);
        "proxy_set_effective_context" => set_effective_context, (context: u32);
        "proxy_get_shared_data" => get_shared_data,
            (key: u32, key_size: u32, value_at: u32, size_at: u32, cas_at: u32);
        "proxy_set_shared_data" => set_shared_data,
            (key: u32, key_size: u32, value: u32, value_size: u32, cas: u32);
        "proxy_define_metric" => define_metric, (kind: u32, name: u32, name_size: u32, id_at: u32);
        "proxy_increment_metric" => increment_metric, (id: u32, offset: i64);
        "proxy_record_metric" => record_metric, (id: u32, value: u64);
    );
    if dialect == Dialect::Envoy {
        expose!(linker, "proxy_get_log_level" => get_log_level, (level_at: u32););
    }
    if dialect == Dialect::Apisix {
        // Its second argument is a number there, where all others have a place.
        expose!(linker, "proxy_get_metric" => get_metric_wide, (id: u32, value_at: u64););
    } else {
        expose!(linker, "proxy_get_metric" => get_metric, (id: u32, value_at: u32););
    }
    linker.func_wrap("env", "proxy_http_call", http_call)?;
    Ok(())
}

fn log(guest: &mut Guest<'_>, level: u32, text: u32, size: u32) -> Answered {
    let level = LogLevel::from_abi(level).ok_or(Status::BadArgument)?;
    let text = read_text(guest, text, size)?;
    guest.data().log(level, &text, false);
    Ok(())
}

fn get_log_level(guest: &mut Guest<'_>, level_at: u32) -> Answered {
    let level = guest.data().process.borrow().log_level;
    write_u32(guest, level_at, level as u32)
}

fn get_current_time(guest: &mut Guest<'_>, time_at: u32) -> Answered {
    let now = guest.data().process.borrow().clock.now();
    write(guest, time_at, &(now.as_nanos() as u64).to_le_bytes())
}

fn set_tick_period(guest: &mut Guest<'_>, period: u32) -> Answered {
    let period = Duration::from_millis(period.into());
    if guest.data().dialect == Dialect::WasmX && !period.is_zero() {
        let root = guest.data().root();
        if !guest.data_mut().ticking.insert(root) {
            return Err(super::trap(guest, "the tick period is already set").into());
        }
        // A timer of an instance that trapped is nobody's, and goes on beside the new one.
        let state = guest.data();
        state.process.borrow_mut().clock.add_timer(state.uid, root, period);
        return Ok(());
    }
    let state = guest.data();
    let mut process = state.process.borrow_mut();
    process.clock.set_timer(state.uid, state.root(), period);
    Ok(())
}

fn set_effective_context(guest: &mut Guest<'_>, context: u32) -> Answered {
    let state = guest.data_mut();
    if !state.contexts.contains_key(&context) {
        return Err(Status::BadArgument.into());
    }
    state.effective = context;
    Ok(())
}

fn get_shared_data(
    guest: &mut Guest<'_>,
    key: u32,
    key_size: u32,
    value_at: u32,
    size_at: u32,
    cas_at: u32,
) -> Answered {
    let key = read_text(guest, key, key_size)?;
    let state = guest.data();
    let found = state.process.borrow_mut().shared.read(&state.key.vm_id, &key);
    let (value, cas) = found.ok_or(Status::NotFound)?;
    give(guest, &value, value_at, size_at)?;
    write_u32(guest, cas_at, cas)
}

fn set_shared_data(guest: &mut Guest<'_>, key: u32, key_size: u32, value: u32, value_size: u32, cas: u32) -> Answered {
    let key = read_text(guest, key, key_size)?;
    let value = read(guest, value, value_size)?;
    let state = guest.data();
    if state.dialect == Dialect::WasmX && value.len() > state.process.borrow().zone {
        let why = format!("{} bytes for {key} do not fit the zone", value.len());
        return Err(super::trap(guest, &why).into());
    }
    let mut process = state.process.borrow_mut();
    process.shared.set(&state.key.vm_id, &key, &value, cas)?;
    Ok(())
}

fn define_metric(guest: &mut Guest<'_>, kind: u32, name: u32, size: u32, id_at: u32) -> Answered {
    let kind = MetricKind::from_abi(kind).ok_or(Status::BadArgument)?;
    let name = read_text(guest, name, size)?;
    let state = guest.data_mut();
    let process = state.process.clone();
    let mut process = process.borrow_mut();
    let id = process.metrics.define(&mut state.metric_ids, kind, &name);
    write_u32(guest, id_at, id)
}

fn metric(guest: &Guest<'_>, id: u32) -> Result<(MetricKind, String), Status> {
    guest.data().metric_ids.resolve(id).ok_or(Status::NotFound)
}

fn increment_metric(guest: &mut Guest<'_>, id: u32, offset: i64) -> Answered {
    let metric = metric(guest, id)?;
    let mut process = guest.data().process.borrow_mut();
    process.metrics.increment(metric, offset)?;
    Ok(())
}

fn record_metric(guest: &mut Guest<'_>, id: u32, value: u64) -> Answered {
    let metric = metric(guest, id)?;
    let mut process = guest.data().process.borrow_mut();
    process.metrics.record(metric, value);
    Ok(())
}

fn get_metric(guest: &mut Guest<'_>, id: u32, value_at: u32) -> Answered {
    let (kind, name) = metric(guest, id)?;
    let value = guest.data().process.borrow().metrics.get(kind, &name);
    let value = value.ok_or(Status::BadArgument)?;
    write(guest, value_at, &value.to_le_bytes())
}

fn get_metric_wide(_: &mut Guest<'_>, _: u32, _: u64) -> Answered {
    Ok(())
}

/// Who may call now, by the dialect's rules.
fn caller(guest: &Guest<'_>) -> Result<Caller, Fault> {
    let state = guest.data();
    let stream = state.stream();
    let step = state.export;
    let in_request =
        stream.is_some() && ["proxy_on_request_headers", "proxy_on_request_body", ANSWERED].contains(&step);
    let of_root = Caller {
        vm: state.uid,
        context: state.root(),
        dialect: state.dialect,
    };
    match (state.dialect, stream) {
        (Dialect::Envoy, _) => Ok(of_root),
        (Dialect::WasmX, None) if ["proxy_on_tick", ANSWERED].contains(&step) => Ok(of_root),
        (Dialect::WasmX, _) if !in_request => {
            Err(super::trap(guest, &format!("no HTTP call may be sent from {step}")).into())
        }
        (Dialect::Apisix, None) => Err(Status::BadArgument.into()),
        (_, Some(stream)) => {
            let mut stream = stream.borrow_mut();
            if state.dialect == Dialect::Apisix && stream.calls > 0 {
                return Err(Status::InternalFailure.into());
            }
            stream.calls += 1;
            Ok(Caller {
                context: state.acting(),
                ..of_root
            })
        }
        (Dialect::WasmX, None) => Ok(of_root),
    }
}

const ANSWERED: &str = "proxy_on_http_call_response";

#[expect(clippy::too_many_arguments, reason = "the ABI's arity")]
fn http_call(
    mut guest: Guest<'_>,
    cluster: u32,
    cluster_size: u32,
    headers: u32,
    headers_size: u32,
    body: u32,
    body_size: u32,
    trailers: u32,
    trailers_size: u32,
    timeout: u32,
    token_at: u32,
) -> wasmtime::Result<u32> {
    super::admit(&mut guest, "proxy_http_call")?;
    let guest = &mut guest;
    let mut dispatch = || -> Answered {
        let cluster = read_text(guest, cluster, cluster_size)?;
        let mut headers = decode_pairs(&read(guest, headers, headers_size)?);
        let body = read(guest, body, body_size)?;
        let trailers = decode_pairs(&read(guest, trailers, trailers_size)?);
        // As in Envoy the token is written first, to test the address.
        write_u32(guest, token_at, 0)?;
        let timeout = i32::try_from(timeout).map_err(|_| Status::BadArgument)?;
        if !body.is_empty() {
            headers.set("content-length", body.len().to_string());
        }
        let from = caller(guest)?;
        let state = guest.data_mut();
        let plugin = state.plugin().ok_or(Status::BadArgument)?;
        let token = state.last_token + TOKEN_STEP;
        let process = state.process.clone();
        let process = &mut *process.borrow_mut();
        let callout = Callout {
            plugin: plugin.name.clone(),
            thread: state.key.thread,
            cluster,
            headers,
            body,
            trailers,
            timeout: (timeout > 0).then(|| Duration::from_millis(timeout as u64)),
            at: process.clock.now(),
        };
        let callouts = &mut process.callouts;
        callouts.dispatch(&mut process.clock, from, token, callout)?;
        state.last_token = token;
        write_u32(guest, token_at, token)
    };
    super::status(dispatch())
}
