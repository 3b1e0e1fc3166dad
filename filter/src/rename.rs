//! The target of a rewrite in the place of the client's name, in a body that is held.

use berth_filter_routing::decision::Why;
use berth_filter_routing::request::Facts;
use berth_filter_routing::rewrite::patched;
use berth_shared_state::dialect::Dialect;
use berth_shared_state_glue::host::{self, Buffer, Map};

/// Puts the target of a rewrite into the body; every other byte of it stays. The name that stands there now, and the one
/// before.
pub fn rewrite(dialect: Dialect, facts: &Facts, why: &Why) -> Option<(String, String)> {
    let (asked, target, at) = (why.asked.as_ref()?, why.model.as_ref()?, facts.model_at?);
    // What is replaced is all that is shown, or no more than the start.
    let shown = host::buffer(Buffer::RequestBody, 0, dialect.whole(at.end)).unwrap_or_default();
    let (start, rest) = shown.split_at_checked(at.end).unwrap_or_default();
    let patched = patched(start, at, target).ok_or(host::NOT_FOUND);
    let length = host::header(Map::Request, "content-length").unwrap_or_default();
    let length = core::str::from_utf8(&length)
        .ok()
        .and_then(|length| length.parse::<usize>().ok());
    let written = patched.and_then(|patched| {
        // First the header: where it cannot be written, the body must stay.
        set_length(length.map(|length| length.saturating_add(patched.len()).saturating_sub(at.end)))?;
        let patched = [&patched, rest].concat();
        host::replace_start(Buffer::RequestBody, dialect.whole(at.end), &patched).or_else(|error| {
            set_length(length)?;
            Err(error)
        })
    });
    match written {
        Ok(()) => {
            // A packed answer could not be read.
            let _ = host::remove_header(Map::Request, "accept-encoding");
            Some((target.clone(), asked.clone()))
        }
        Err(error) => {
            log::error!("a body could not be rewritten ({error}): the pod gets the client's name");
            None
        }
    }
}

/// Declares another length, where one was declared.
fn set_length(length: Option<usize>) -> host::HostResult<()> {
    let Some(length) = length else { return Ok(()) };
    host::set_header(Map::Request, "content-length", length.to_string().as_bytes())
}
