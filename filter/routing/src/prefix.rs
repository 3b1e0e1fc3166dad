//! What is likely in whose prefix cache: from a prompt to the part of it that each pod still holds.
//!
//! ```text
//!  prompt bytes -> Hasher -> Blocks -> chains (model, salt) -> Index::look_up -> part cached, per pod
//!                                                    \-------> Index::write, at dispatch
//! ```
//!
//! Engines reuse a prefix block by block, so a prompt becomes a chain of block hashes, compatible
//! with the reference picker's. The [`Index`] keeps the chains sent lately and is shared by all
//! workers of the process through shared data, in *pages*:
//!
//! - A chain is cut into spans of 32, 64, 128, ... blocks ([`SPANS`]). A span's page is found by the
//!   hash of the span's first block, so whoever shares a prefix meets in the same pages, a
//!   request reads as many pages as the logarithm of its length, and writes only those that have
//!   something new: as a rule the last one.
//! - A page holds *runs*: the fingerprints of a span's blocks, and who was sent how many of them.
//!   Runs that diverge stand side by side. There is a fixed number of pages of bounded size; a full
//!   one forgets the oldest run of whoever has the most.
//! - Who was sent something is a tag of pod and incarnation: a restart voids it without a sweep.
//!   When is the pod's own clock, the tokens it was sent so far: what is older than its KV cache
//!   is large was evicted there, too.
//!
//! A pod that holds a block holds everything before it, since engines evict from the end; so the
//! deepest block found is enough. Losing a page or a race loses some of this memory and nothing else.
//!
//! Deliberately not here: what engines report of their caches (events come without a proxy's
//! help only from some), answers (their text is never read), and what a match is worth ([`crate::cost`]).

mod beginnings;
mod chain;
mod index;
mod page;

#[cfg(test)]
mod tests;

pub use beginnings::{Beginning, Beginnings};
pub use chain::{Blocks, Chains, Hasher, seed};
pub use index::{Found, Index, Living, SPANS, Written, tag};
