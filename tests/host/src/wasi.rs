//! The part of WASI preview 1 that proxy-wasm-cpp-host offers: clocks, random bytes, environment, writing to the log.
//!
//! There are no files and no arguments. Calls about files answer with an error; leaving the program is a trap.

use crate::abi::LogLevel;
use crate::hostcalls::{Fault, Guest, read, write, write_u32};
use crate::vm::VmState;
use wasmtime::Linker;

const MODULE: &str = "wasi_snapshot_preview1";

const SUCCESS: u32 = 0;
const EBADF: u32 = 8;
const EFAULT: u32 = 21;
const ENOSYS: u32 = 52;
const ENOTSUP: u32 = 58;

/// Largest `random_get`, in bytes.
const RANDOM_LIMIT: u32 = 64 * 1024;

pub(crate) fn link(linker: &mut Linker<VmState>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "clock_time_get", clock_time_get)?;
    linker.func_wrap(MODULE, "random_get", random_get)?;
    linker.func_wrap(MODULE, "environ_sizes_get", environ_sizes_get)?;
    linker.func_wrap(MODULE, "environ_get", environ_get)?;
    linker.func_wrap(MODULE, "args_sizes_get", args_sizes_get)?;
    linker.func_wrap(MODULE, "args_get", |_: u32, _: u32| SUCCESS)?;
    linker.func_wrap(MODULE, "fd_write", fd_write)?;
    linker.func_wrap(MODULE, "fd_read", |_: u32, _: u32, _: u32, _: u32| ENOSYS)?;
    linker.func_wrap(MODULE, "fd_seek", |_: u32, _: i64, _: u32, _: u32| EBADF)?;
    linker.func_wrap(MODULE, "fd_close", |_: u32| EBADF)?;
    linker.func_wrap(MODULE, "fd_fdstat_get", |_: u32, _: u32| EBADF)?;
    linker.func_wrap(MODULE, "fd_prestat_get", |_: u32, _: u32| EBADF)?;
    linker.func_wrap(MODULE, "fd_prestat_dir_name", |_: u32, _: u32, _: u32| EBADF)?;
    linker.func_wrap(MODULE, "sched_yield", || SUCCESS)?;
    linker.func_wrap(MODULE, "proc_exit", |code: u32| -> wasmtime::Result<()> {
        wasmtime::bail!("the guest called proc_exit({code})")
    })?;
    Ok(())
}

fn errno(done: Result<(), Fault>) -> wasmtime::Result<u32> {
    match done {
        Ok(()) => Ok(SUCCESS),
        Err(Fault::Status(_)) => Ok(EFAULT),
        Err(Fault::Trap(error)) => Err(error),
    }
}

fn clock_time_get(mut guest: Guest<'_>, id: u32, _precision: u64, time_at: u32) -> wasmtime::Result<u32> {
    let time = {
        let process = guest.data().process.borrow();
        match id {
            _ if !process.wasi_clock => return Ok(ENOSYS),
            0 => process.clock.now(),
            1 => process.clock.monotonic(),
            _ => return Ok(ENOTSUP),
        }
    };
    let nanoseconds = (time.as_nanos() as u64).to_le_bytes();
    errno(write(&mut guest, time_at, &nanoseconds))
}

fn random_get(mut guest: Guest<'_>, at: u32, size: u32) -> wasmtime::Result<u32> {
    if size > RANDOM_LIMIT {
        return Ok(EFAULT);
    }
    let mut bytes = Vec::with_capacity(size as usize + 8);
    while bytes.len() < size as usize {
        let word = guest.data().process.borrow_mut().random();
        bytes.extend(word.to_le_bytes());
    }
    bytes.truncate(size as usize);
    errno(write(&mut guest, at, &bytes))
}

fn environment(guest: &Guest<'_>) -> Vec<Vec<u8>> {
    let env = &guest.data().key.env;
    env.iter()
        .map(|(key, value)| format!("{key}={value}\0").into_bytes())
        .collect()
}

fn environ_sizes_get(mut guest: Guest<'_>, count_at: u32, size_at: u32) -> wasmtime::Result<u32> {
    let entries = environment(&guest);
    let size: usize = entries.iter().map(Vec::len).sum();
    let done = write_u32(&mut guest, count_at, entries.len() as u32)
        .and_then(|()| write_u32(&mut guest, size_at, size as u32));
    errno(done)
}

fn environ_get(mut guest: Guest<'_>, mut list_at: u32, mut at: u32) -> wasmtime::Result<u32> {
    for entry in environment(&guest) {
        let done = write_u32(&mut guest, list_at, at).and_then(|()| write(&mut guest, at, &entry));
        if done.is_err() {
            return errno(done);
        }
        list_at += 4;
        at += entry.len() as u32;
    }
    Ok(SUCCESS)
}

fn args_sizes_get(mut guest: Guest<'_>, count_at: u32, size_at: u32) -> wasmtime::Result<u32> {
    errno(write_u32(&mut guest, count_at, 0).and_then(|()| write_u32(&mut guest, size_at, 0)))
}

/// Standard output is logged as info, standard error as error; one trailing newline goes.
fn fd_write(mut guest: Guest<'_>, fd: u32, slices: u32, count: u32, written_at: u32) -> wasmtime::Result<u32> {
    let level = match fd {
        1 => LogLevel::Info,
        2 => LogLevel::Error,
        _ => return Ok(EBADF),
    };
    let gather = || -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::new();
        for index in 0..count {
            let entry = read(&guest, slices + index * 8, 8)?;
            let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| entry[at + i]));
            bytes.extend(read(&guest, word(0), word(4))?);
        }
        Ok(bytes)
    };
    let bytes = match gather() {
        Ok(bytes) => bytes,
        Err(fault) => return errno(Err(fault)),
    };
    if !bytes.is_empty() {
        let text = String::from_utf8_lossy(&bytes);
        guest.data().log(level, text.strip_suffix('\n').unwrap_or(&text), false);
    }
    errno(write_u32(&mut guest, written_at, bytes.len() as u32))
}
