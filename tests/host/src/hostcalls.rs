//! The `proxy_*` imports: reading arguments from the guest's memory and writing results back.
//!
//! Written after `exports.cc` of proxy-wasm-cpp-host; where a dialect differs, its rule stands beside it. Not imitated on
//! purpose: gRPC, shared queues, DNS and a few more. They can be imported, since the SDK's traits drag them in, but calling
//! one is a trap that names it.

use crate::abi::Status;
use crate::dialect::{Dialect, Stub};
use crate::vm::VmState;
use wasmtime::{Caller, FuncType, Linker, ValType};

mod http;
mod process;

pub(crate) type Guest<'a> = Caller<'a, VmState>;

/// Why a host call did not succeed.
pub(crate) enum Fault {
    /// The guest gets this status.
    Status(Status),
    /// The guest ends here.
    Trap(wasmtime::Error),
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<wasmtime::Error> for Fault {
    fn from(error: wasmtime::Error) -> Self {
        Self::Trap(error)
    }
}

pub(crate) type Answered = Result<(), Fault>;

/// Exposes functions of the form `fn(&mut Guest, u32, …) -> Answered` as imports of `env`.
macro_rules! expose {
    ($linker:ident, $($name:literal => $function:path, ($($arg:ident: $kind:ty),*);)*) => {
        $($linker.func_wrap(
            "env",
            $name,
            |mut guest: $crate::hostcalls::Guest<'_>, $($arg: $kind),*| -> wasmtime::Result<u32> {
                match $crate::hostcalls::admit(&mut guest, $name)? {
                    Some(status) => Ok(status as u32),
                    None => $crate::hostcalls::status($function(&mut guest, $($arg),*)),
                }
            },
        )?;)*
    };
}
pub(crate) use expose;

/// Every import that a module may have.
pub(crate) fn linker(dialect: Dialect) -> wasmtime::Result<Linker<VmState>> {
    let mut linker = Linker::new(crate::engine::engine());
    process::link(&mut linker, dialect)?;
    http::link(&mut linker)?;
    crate::wasi::link(&mut linker)?;
    for (name, arguments) in dialect.not_imitated() {
        let arguments = std::iter::repeat_n(ValType::I32, arguments);
        let kind = FuncType::new(crate::engine::engine(), arguments, [ValType::I32]);
        linker.func_new("env", name, kind, move |mut guest, _, results| {
            let status = admit(&mut guest, name)?.unwrap_or(Status::Unimplemented);
            results[0] = wasmtime::Val::I32(status as i32);
            Ok(())
        })?;
    }
    Ok(linker)
}

/// Whether a call goes through: `Some` = it does nothing and answers this.
pub(crate) fn admit(guest: &mut Guest<'_>, name: &str) -> wasmtime::Result<Option<Status>> {
    let state = guest.data();
    // While the module initialises only logging is open (`setRestrictedCallback`).
    if state.starting && name != "proxy_log" {
        wasmtime::bail!("{name} is restricted during _initialize");
    }
    match state.dialect.stub(name) {
        None => Ok(None),
        Some(Stub::Answers(status)) => Ok(Some(status)),
        Some(Stub::Trap) => Err(trap(guest, &format!("this host does not imitate {name}"))),
    }
}

/// A trap that the guest brought about by a call that this host does not stand.
pub(crate) fn trap(guest: &Guest<'_>, why: &str) -> wasmtime::Error {
    if guest.data().dialect.is_nginx() {
        guest.data().fault(why);
    }
    wasmtime::format_err!("{why}")
}

pub(crate) fn status(answered: Answered) -> wasmtime::Result<u32> {
    match answered {
        Ok(()) => Ok(Status::Ok as u32),
        Err(Fault::Status(status)) => Ok(status as u32),
        Err(Fault::Trap(error)) => Err(error),
    }
}

pub(crate) fn read(guest: &Guest<'_>, at: u32, size: u32) -> Result<Vec<u8>, Fault> {
    let memory = guest.data().memory.ok_or(Status::InvalidMemoryAccess)?;
    let start = at as usize;
    let bytes = memory.data(guest).get(start..start + size as usize);
    Ok(bytes.ok_or(Status::InvalidMemoryAccess)?.to_vec())
}

pub(crate) fn read_text(guest: &Guest<'_>, at: u32, size: u32) -> Result<String, Fault> {
    let bytes = read(guest, at, size)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub(crate) fn write(guest: &mut Guest<'_>, at: u32, bytes: &[u8]) -> Answered {
    let memory = guest.data().memory.ok_or(Status::InvalidMemoryAccess)?;
    let written = memory.write(guest, at as usize, bytes);
    written.map_err(|_| Status::InvalidMemoryAccess.into())
}

pub(crate) fn write_u32(guest: &mut Guest<'_>, at: u32, value: u32) -> Answered {
    write(guest, at, &value.to_le_bytes())
}

/// Copies `bytes` into memory that the guest allocates, and tells it where (`copyToPointerSize`). Nothing = null.
pub(crate) fn give(guest: &mut Guest<'_>, bytes: &[u8], pointer_at: u32, size_at: u32) -> Answered {
    let mut pointer = 0;
    if !bytes.is_empty() {
        let malloc = guest.data().malloc.clone().ok_or(Status::InvalidMemoryAccess)?;
        pointer = malloc.call(&mut *guest, bytes.len() as u32)?;
        write(guest, pointer, bytes)?;
    }
    write_u32(guest, pointer_at, pointer)?;
    write_u32(guest, size_at, bytes.len() as u32)
}
