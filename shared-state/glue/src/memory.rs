//! Bytes that the host places in this VM: it asks for room, writes all of it, and says where it is.
#![allow(unsafe_code)]

use core::ptr::{NonNull, null_mut};
use std::alloc::{Layout, alloc};

use crate::host::{HostResult, done};

/// Room for bytes that the host is about to place in this VM; null where there is none, and then its call fails. They are
/// not zeroed: the table of a large pool would be written twice each time it is read.
#[must_use]
pub fn allocate(size: usize) -> *mut u8 {
    match Layout::array::<u8>(size) {
        // SAFETY: the layout has a size.
        Ok(layout) if size > 0 => unsafe { alloc(layout) },
        Ok(_) => NonNull::dangling().as_ptr(),
        Err(_) => null_mut(),
    }
}

/// Takes over bytes that the host placed in this VM with `proxy_on_memory_allocate`.
pub(crate) fn adopt(status: u32, data: *mut u8, size: usize) -> HostResult<Vec<u8>> {
    done(status)?;
    if data.is_null() || size == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the host got `data` from our allocator with exactly this size, and gives it away.
    Ok(unsafe { Vec::from_raw_parts(data, size, size) })
}
