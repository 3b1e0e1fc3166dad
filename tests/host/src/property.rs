//! Properties and filter state of a stream.
//!
//! A property comes from, in this order: what the test set, the header maps that are open in this phase, the plugin,
//! filter state. CEL values deeper than that (metadata, node, listener) exist only if a test sets them.
//!
//! In an nginx module a property is a variable of nginx. WasmX knows some of Envoy's names beside them; two of those must
//! not be touched, since reading them is reading freed or foreign memory.

use crate::abi::{Headers, LogLevel, MapKind, Status};
use crate::dialect::Dialect;
use crate::stream::StreamData;
use crate::vm::VmState;
use std::net::SocketAddr;

/// Filter state objects that the foreign function can build: it needs a factory of the same name.
const KNOWN_OBJECTS: [&str; 5] = [
    "envoy.network.transport_socket.original_dst_address",
    "envoy.upstream.dynamic_host",
    "envoy.upstream.dynamic_port",
    "envoy.network.upstream_server_name",
    "envoy.ratelimit.hits_addend",
];

/// `path` has its parts separated by NUL, as the ABI has it.
pub(crate) fn get(state: &VmState, path: &str) -> Result<Vec<u8>, Status> {
    if !state.process.borrow().properties {
        return Err(Status::InternalFailure);
    }
    let parts: Vec<&str> = path.split('\0').collect();
    match state.dialect {
        Dialect::Envoy => {}
        Dialect::WasmX => return of_wasmx(state, path, &parts),
        Dialect::Apisix => {
            let stream = state.stream().ok_or(Status::BadArgument)?;
            let value = stream.borrow().variables.get(path).cloned();
            return value.ok_or(Status::NotFound);
        }
    }
    let stream = state.stream();
    if let Some(stream) = &stream
        && let Some(value) = of_stream(&stream.borrow(), path, &parts)
    {
        return Ok(value);
    }
    let plugin = state.plugin();
    match (parts.as_slice(), plugin) {
        (["plugin_name"], Some(plugin)) => Ok(plugin.name.clone().into_bytes()),
        (["plugin_root_id"], Some(plugin)) => Ok(plugin.root_id.clone().into_bytes()),
        (["plugin_vm_id"], _) => Ok(state.key.vm_id.clone().into_bytes()),
        _ => Err(Status::NotFound),
    }
}

/// Of the names that are no variables, WasmX has those about the request and the response.
fn of_wasmx(state: &VmState, path: &str, parts: &[&str]) -> Result<Vec<u8>, Status> {
    let Some(stream) = state.stream() else {
        return match (parts, state.plugin()) {
            (["plugin_name" | "plugin_root_id"], _) if state.configuration.is_some() => {
                state.fault(&format!("{} is read where it is a null pointer", parts.join(".")));
                Err(Status::InternalFailure)
            }
            (["plugin_name"], Some(plugin)) => Ok(plugin.name.clone().into_bytes()),
            // No getter fails that is not there (`ngx_proxy_wasm_properties_get`).
            ([_], _) => Err(Status::NotFound),
            _ => Err(Status::InternalFailure),
        };
    };
    let stream = stream.borrow();
    let value = match parts {
        ["ngx", name] => return stream.variables.get(*name).cloned().ok_or(Status::NotFound),
        ["upstream", "address" | "port"] => {
            state.fault(&format!("{} is read past its end", parts.join(".")));
            None
        }
        ["request", ..] | ["response", "code" | "headers", ..] => of_stream(&stream, path, parts),
        _ => None,
    };
    value.ok_or_else(|| {
        let text = format!("no such property: {}", parts.join("."));
        state.log(LogLevel::Error, &text, true);
        Status::NotFound
    })
}

/// Writes a variable: in WasmX one that the configuration made, in APISIX the one for the body, or one that there is.
pub(crate) fn set_variable(state: &VmState, path: &str, value: Vec<u8>) -> Result<(), Status> {
    let name = match state.dialect {
        Dialect::WasmX => path.strip_prefix("ngx\0").ok_or(Status::NotFound)?,
        _ => path,
    };
    let stream = state.stream().ok_or(Status::InternalFailure)?;
    let mut stream = stream.borrow_mut();
    let made = name == crate::stream::WANTS_BODY || stream.plugin.variables.iter().any(|made| made == name);
    match stream.variables.get_mut(name) {
        Some(known) if made => {
            *known = value;
            Ok(())
        }
        _ => Err(Status::NotFound),
    }
}

fn of_stream(stream: &StreamData, path: &str, parts: &[&str]) -> Option<Vec<u8>> {
    if let Some(value) = stream.properties.get(path) {
        return Some(value.clone());
    }
    match parts {
        ["request", rest @ ..] => of_request(stream, rest),
        ["response", rest @ ..] => of_response(stream, rest),
        ["filter_state", name] => stream.filter_state.get(*name).cloned(),
        [name] => stream.filter_state.get(&format!("wasm.{name}")).cloned(),
        _ => None,
    }
}

fn of_request(stream: &StreamData, parts: &[&str]) -> Option<Vec<u8>> {
    if parts == ["time"] {
        return Some((stream.started.as_nanos() as i64).to_le_bytes().to_vec());
    }
    let headers = stream.readable(MapKind::RequestHeaders)?;
    let get = |name: &str| headers.bytes(name).map(<[u8]>::to_vec);
    match parts {
        ["headers", name] => get(name),
        ["path"] => get(":path"),
        ["url_path"] => {
            let path = headers.bytes(":path")?;
            path.split(|byte| *byte == b'?').next().map(<[u8]>::to_vec)
        }
        ["method"] => get(":method"),
        ["host"] => get(":authority"),
        ["scheme"] => get(":scheme"),
        ["id"] => get("x-request-id"),
        ["useragent"] => get("user-agent"),
        ["referer"] => get("referer"),
        _ => None,
    }
}

fn of_response(stream: &StreamData, parts: &[&str]) -> Option<Vec<u8>> {
    match parts {
        ["code"] => {
            let status = stream.response.headers.as_ref().and_then(status_of)?;
            Some(i64::from(status).to_le_bytes().to_vec())
        }
        ["code_details"] => stream.details.clone().map(String::into_bytes),
        ["headers", name] => {
            let headers = stream.readable(MapKind::ResponseHeaders)?;
            headers.bytes(name).map(<[u8]>::to_vec)
        }
        _ => None,
    }
}

pub(crate) fn status_of(headers: &Headers) -> Option<u32> {
    std::str::from_utf8(headers.bytes(":status")?).ok()?.parse().ok()
}

/// The foreign function `set_envoy_filter_state`; its argument is a message {1: path, 2: value, 3: span}.
pub(crate) fn set_envoy_filter_state(state: &VmState, args: &[u8]) -> Result<(), Status> {
    let fields = decode_message(args).ok_or(Status::BadArgument)?;
    let text = |number: u64| {
        let found = fields.iter().rev().find(|(field, _)| *field == number);
        found.map_or(String::new(), |(_, bytes)| String::from_utf8_lossy(bytes).into_owned())
    };
    let (path, value) = (text(1), text(2));
    if !KNOWN_OBJECTS.contains(&path.as_str()) {
        return Err(Status::NotFound);
    }
    if path == KNOWN_OBJECTS[0] && value.parse::<SocketAddr>().is_err() {
        return Err(Status::BadArgument);
    }
    let stream = state.stream().ok_or(Status::NotFound)?;
    let mut stream = stream.borrow_mut();
    stream.filter_state.insert(path, value.into_bytes());
    Ok(())
}

/// Field numbers and bytes of a protobuf message that has only varints and byte strings.
fn decode_message(mut bytes: &[u8]) -> Option<Vec<(u64, Vec<u8>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = take_varint(&mut bytes)?;
        match tag & 7 {
            0 => {
                take_varint(&mut bytes)?;
            }
            2 => {
                let size = usize::try_from(take_varint(&mut bytes)?).ok()?;
                let (value, rest) = bytes.split_at_checked(size)?;
                fields.push((tag >> 3, value.to_vec()));
                bytes = rest;
            }
            _ => return None,
        }
    }
    Some(fields)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_gives_its_byte_fields() {
        let message = b"\x0a\x01a\x12\x02bc\x18\x02";
        let fields = decode_message(message).expect("valid");
        assert_eq!(fields, [(1, b"a".to_vec()), (2, b"bc".to_vec())]);
    }

    #[test]
    fn a_cut_message_gives_nothing() {
        for cut in [&b"\x0a"[..], b"\x0a\x05ab", b"\x18", b"\x18\xff", b"\x0d\0\0\0\0"] {
            assert_eq!(decode_message(cut), None, "{cut:?}");
        }
    }
}
