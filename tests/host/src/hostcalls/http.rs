//! Host calls about a stream: header maps, bodies, properties, local replies, resuming.
//!
//! A map that is not open to the guest in this phase gives BadArgument for single values and no pairs at all, exactly as
//! `Context::getMap` and `getHeaderMapPairs` do: the SDK turns the former into a panic.

use super::{Answered, Fault, Guest, expose, give, read, read_text, write_u32};
use crate::abi::{BufferKind, Headers, LogLevel, MapKind, Status, decode_pairs, encode_pairs};
use crate::dialect::Dialect;
use crate::property;
use crate::stream::Direction;
use crate::vm::{Action, LocalReply, VmState};
use wasmtime::Linker;

pub(super) fn link(linker: &mut Linker<VmState>) -> wasmtime::Result<()> {
    expose!(linker,
        "proxy_get_header_map_pairs" => get_pairs, (kind: u32, pairs_at: u32, size_at: u32);
        "proxy_set_header_map_pairs" => set_pairs, (kind: u32, pairs: u32, size: u32);
        "proxy_get_header_map_value" => get_value,
            (kind: u32, key: u32, key_size: u32, value_at: u32, size_at: u32);
        "proxy_add_header_map_value" => add_value,
            (kind: u32, key: u32, key_size: u32, value: u32, value_size: u32);
        "proxy_replace_header_map_value" => replace_value,
            (kind: u32, key: u32, key_size: u32, value: u32, value_size: u32);
        "proxy_remove_header_map_value" => remove_value, (kind: u32, key: u32, key_size: u32);
        "proxy_get_buffer_bytes" => get_buffer,
            (kind: u32, start: u32, length: u32, bytes_at: u32, size_at: u32);
        "proxy_set_buffer_bytes" => set_buffer,
            (kind: u32, start: u32, length: u32, bytes: u32, size: u32);
        "proxy_get_property" => get_property, (path: u32, path_size: u32, value_at: u32, size_at: u32);
        "proxy_set_property" => set_property, (path: u32, path_size: u32, value: u32, value_size: u32);
        "proxy_continue_stream" => continue_stream, (kind: u32);
        "proxy_close_stream" => close_stream, (kind: u32);
        "proxy_send_local_response" => send_local_response,
            (code: u32, details: u32, details_size: u32, body: u32, body_size: u32,
             headers: u32, headers_size: u32, grpc: i32);
        "proxy_call_foreign_function" => call_foreign_function,
            (name: u32, name_size: u32, args: u32, args_size: u32, result_at: u32, size_at: u32);
    );
    Ok(())
}

/// A copy of the map if the guest may read it now (`getConstMap`). `Ok(None)` = not in this phase.
fn readable(state: &VmState, kind: u32) -> Result<Option<Headers>, Status> {
    let Some(kind) = MapKind::from_abi(kind) else {
        // The gRPC maps exist and are never there.
        return if kind <= 7 { Ok(None) } else { Err(Status::BadArgument) };
    };
    Ok(match kind {
        MapKind::CalloutHeaders | MapKind::CalloutTrailers => match &state.callout {
            Some((context, response)) if state.hears(*context) && kind == MapKind::CalloutHeaders => {
                Some(response.headers.clone())
            }
            _ => None,
        },
        _ => state
            .stream()
            .and_then(|stream| stream.borrow().readable(kind).cloned()),
    })
}

/// Edits a map that the guest may change now (`getMap`); changed request headers clear the route cache.
fn edit(guest: &mut Guest<'_>, kind: u32, change: impl FnOnce(&mut Headers)) -> Answered {
    let kind = MapKind::from_abi(kind).ok_or(Status::BadArgument)?;
    let stream = guest.data().stream().ok_or(Status::BadArgument)?;
    let mut stream = stream.borrow_mut();
    let too_late = match kind {
        MapKind::RequestHeaders => stream.response.headers.is_some(),
        _ => stream.has_answered(),
    };
    if stream.dialect.is_nginx() && too_late {
        drop(stream);
        // The status is OK nevertheless.
        let text = "cannot change headers: they were sent";
        guest.data().log(LogLevel::Error, text, true);
        return Ok(());
    }
    change(stream.writable(kind).ok_or(Status::BadArgument)?);
    if kind == MapKind::RequestHeaders {
        stream.route_cache_clears += 1;
    }
    Ok(())
}

fn get_pairs(guest: &mut Guest<'_>, kind: u32, pairs_at: u32, size_at: u32) -> Answered {
    let mut headers = readable(guest.data(), kind)?.unwrap_or_default();
    if guest.data().dialect == Dialect::Apisix {
        // It knows method, path and status by their names alone.
        headers.drop_pseudo();
    }
    give(guest, &encode_pairs(&headers), pairs_at, size_at)
}

fn set_pairs(guest: &mut Guest<'_>, kind: u32, pairs: u32, size: u32) -> Answered {
    let pairs = decode_pairs(&read(guest, pairs, size)?);
    edit(guest, kind, |headers| *headers = pairs)
}

fn get_value(guest: &mut Guest<'_>, kind: u32, key: u32, key_size: u32, value_at: u32, size_at: u32) -> Answered {
    let key = read_text(guest, key, key_size)?;
    let state = guest.data();
    if state.dialect == Dialect::WasmX && kind == 6 && key == ":dispatch_status" {
        return give(guest, state.dispatch_status.as_bytes(), value_at, size_at);
    }
    let Some(headers) = readable(state, kind)? else {
        let logging = state.stream().is_some_and(|stream| stream.borrow().logging);
        let status = if logging { Status::NotFound } else { Status::BadArgument };
        return Err(status.into());
    };
    if state.dialect == Dialect::WasmX && key == ":authority" && kind == 0 {
        // What nginx calls itself.
        return give(guest, b"localhost:80", value_at, size_at);
    }
    let value = headers.bytes(&key).ok_or(Status::NotFound)?;
    give(guest, value, value_at, size_at)
}

fn add_value(guest: &mut Guest<'_>, kind: u32, key: u32, key_size: u32, value: u32, value_size: u32) -> Answered {
    let key = read_text(guest, key, key_size)?;
    let value = read(guest, value, value_size)?;
    if is_authority(guest, kind, &key)? {
        return Ok(());
    }
    edit(guest, kind, |headers| headers.add(&key, value))
}

fn replace_value(guest: &mut Guest<'_>, kind: u32, key: u32, key_size: u32, value: u32, value_size: u32) -> Answered {
    let key = read_text(guest, key, key_size)?;
    let value = read(guest, value, value_size)?;
    if is_authority(guest, kind, &key)? {
        return Ok(());
    }
    edit(guest, kind, |headers| headers.set(&key, value))
}

fn remove_value(guest: &mut Guest<'_>, kind: u32, key: u32, key_size: u32) -> Answered {
    let key = read_text(guest, key, key_size)?;
    edit(guest, kind, |headers| headers.remove(&key))
}

/// No nginx module lets a filter write `:authority`: WasmX complains and says OK.
fn is_authority(guest: &Guest<'_>, kind: u32, key: &str) -> Result<bool, Status> {
    if kind != 0 || key != ":authority" {
        return Ok(false);
    }
    match guest.data().dialect {
        Dialect::Envoy => Ok(false),
        Dialect::WasmX => {
            guest
                .data()
                .log(LogLevel::Error, "cannot set read-only \":authority\"", true);
            Ok(true)
        }
        Dialect::Apisix => Err(Status::BadArgument),
    }
}

/// A copy of a buffer; `None` = there is no such buffer now.
fn buffer(state: &VmState, kind: u32) -> Result<Option<Vec<u8>>, Status> {
    let Some(kind) = BufferKind::from_abi(kind) else {
        return if kind <= 8 { Ok(None) } else { Err(Status::BadArgument) };
    };
    let body = |direction| match state.stream() {
        Some(stream) if stream.borrow().is_spooled(direction) => Vec::new(),
        Some(stream) => stream.borrow().side(direction).body().to_vec(),
        None => Vec::new(),
    };
    Ok(match kind {
        BufferKind::RequestBody => Some(body(Direction::Request)),
        BufferKind::ResponseBody => Some(body(Direction::Response)),
        BufferKind::VmConfiguration => Some(state.key.vm_configuration.clone()),
        BufferKind::PluginConfiguration => {
            let plugin = state.configuration.as_ref();
            plugin.map(|plugin| plugin.configuration.clone())
        }
        BufferKind::CalloutBody => match &state.callout {
            Some((context, response)) if state.hears(*context) => Some(response.body.clone()),
            _ => None,
        },
    })
}

fn get_buffer(guest: &mut Guest<'_>, kind: u32, start: u32, length: u32, bytes_at: u32, size_at: u32) -> Answered {
    let bytes = buffer(guest.data(), kind)?.ok_or(Status::NotFound)?;
    if guest.data().dialect == Dialect::WasmX {
        // It looks at no start.
        let part = bytes.get(..(length as usize).min(bytes.len())).unwrap_or_default();
        if part.is_empty() {
            return Err(Status::NotFound.into());
        }
        return give(guest, part, bytes_at, size_at);
    }
    let start = start as usize;
    let end = start.saturating_add(length as usize).min(bytes.len());
    match bytes.get(start..end) {
        Some(part) if !part.is_empty() => give(guest, part, bytes_at, size_at),
        _ => Ok(()),
    }
}

fn set_buffer(guest: &mut Guest<'_>, kind: u32, start: u32, length: u32, bytes: u32, size: u32) -> Answered {
    let bytes = read(guest, bytes, size)?;
    let direction = match BufferKind::from_abi(kind) {
        Some(BufferKind::RequestBody) => Direction::Request,
        Some(BufferKind::ResponseBody) => Direction::Response,
        _ => return Err(Status::BadArgument.into()),
    };
    let stream = guest.data().stream().ok_or(Status::BadArgument)?;
    if guest.data().dialect == Dialect::WasmX {
        return set_buffer_in_wasmx(guest, direction, start as usize, length as usize, bytes);
    }
    let mut stream = stream.borrow_mut();
    let body = stream.side_mut(direction).body_mut().ok_or(Status::BadArgument)?;
    // `Buffer::copyFrom`: what lies at the start is replaced, what comes behind the end is added.
    if start == 0 {
        let end = (length as usize).min(body.len());
        body.splice(..end, bytes);
    } else if start as usize >= body.len() {
        body.extend(bytes);
    } else {
        return Err(Status::BadArgument.into());
    }
    Ok(())
}

/// All behind `start` is replaced by the first `length` bytes; without a length they come before what is there.
fn set_buffer_in_wasmx(
    guest: &mut Guest<'_>,
    direction: Direction,
    start: usize,
    length: usize,
    mut bytes: Vec<u8>,
) -> Answered {
    let stream = guest.data().stream().ok_or(Status::BadArgument)?;
    let mut stream = stream.borrow_mut();
    if direction == Direction::Request && stream.response.headers.is_some() {
        return Err(super::trap(guest, "cannot set the request body: there is a response").into());
    }
    let body = stream.side_mut(direction).body_mut().ok_or(Status::BadArgument)?;
    if start == 0 && length == 0 {
        bytes.append(body);
        *body = bytes;
    } else {
        let length = if length == 0 { bytes.len() } else { length };
        bytes.truncate(length);
        body.truncate(start);
        body.append(&mut bytes);
    }
    let size = body.len();
    if let (Direction::Request, Some(headers)) = (direction, &mut stream.request.headers) {
        headers.set("content-length", size.to_string());
    }
    Ok(())
}

fn get_property(guest: &mut Guest<'_>, path: u32, path_size: u32, value_at: u32, size_at: u32) -> Answered {
    let path = read_text(guest, path, path_size)?;
    let value = property::get(guest.data(), &path)?;
    give(guest, &value, value_at, size_at)
}

fn set_property(guest: &mut Guest<'_>, path: u32, path_size: u32, value: u32, value_size: u32) -> Answered {
    let path = read_text(guest, path, path_size)?;
    let value = read(guest, value, value_size)?;
    if guest.data().dialect.is_nginx() {
        property::set_variable(guest.data(), &path, value)?;
        return Ok(());
    }
    let stream = guest.data().stream().ok_or(Status::NotFound)?;
    let mut stream = stream.borrow_mut();
    stream.filter_state.insert(format!("wasm.{path}"), value);
    Ok(())
}

/// Request 0, response 1; the rest are network streams.
fn continue_stream(guest: &mut Guest<'_>, kind: u32) -> Answered {
    let direction = match kind {
        0 => Direction::Request,
        1 => Direction::Response,
        2 => return Ok(()),
        3 => return Err(Status::Unimplemented.into()),
        _ => return Err(Status::BadArgument.into()),
    };
    let state = guest.data_mut();
    if let Some(stream) = state.stream() {
        // Whatever the direction: `Context::continueStream` withdraws the request's maps.
        let side = &mut stream.borrow_mut().request;
        side.headers_open = false;
        side.trailers_open = false;
        state.actions.push_back(Action::Resume(stream.clone(), direction));
    }
    Ok(())
}

fn close_stream(guest: &mut Guest<'_>, kind: u32) -> Answered {
    if kind > 3 {
        return Err(Status::BadArgument.into());
    }
    let state = guest.data_mut();
    if let (Some(stream), true) = (state.stream(), kind < 2) {
        state.actions.push_back(Action::Reset(stream));
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the ABI's arity")]
fn send_local_response(
    guest: &mut Guest<'_>,
    code: u32,
    details: u32,
    details_size: u32,
    body: u32,
    body_size: u32,
    headers: u32,
    headers_size: u32,
    _grpc_status: i32,
) -> Answered {
    let details = read_text(guest, details, details_size)?;
    let reply = LocalReply {
        status: code,
        headers: decode_pairs(&read(guest, headers, headers_size)?),
        body: read(guest, body, body_size)?,
        details: details.replace(char::is_whitespace, "_"),
    };
    let state = guest.data_mut();
    if let Some(stream) = state.stream() {
        state.actions.push_back(Action::Reply(stream, reply));
    }
    state.stop_iteration = true;
    Ok(())
}

fn call_foreign_function(
    guest: &mut Guest<'_>,
    name: u32,
    name_size: u32,
    args: u32,
    args_size: u32,
    result_at: u32,
    size_at: u32,
) -> Answered {
    let name = read_text(guest, name, name_size)?;
    let args = read(guest, args, args_size)?;
    if guest.data().dialect == Dialect::WasmX {
        return Err(super::trap(guest, &format!("unknown foreign function {name}")).into());
    }
    let done = match name.as_str() {
        "set_envoy_filter_state" => property::set_envoy_filter_state(guest.data(), &args),
        "clear_route_cache" => {
            if let Some(stream) = guest.data().stream() {
                stream.borrow_mut().route_cache_clears += 1;
            }
            Ok(())
        }
        _ => return Err(Status::NotFound.into()),
    };
    // None of these has a result.
    for at in [result_at, size_at] {
        if at != 0 {
            write_u32(guest, at, 0)?;
        }
    }
    done.map_err(Fault::from)
}
