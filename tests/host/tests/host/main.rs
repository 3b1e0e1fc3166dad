//! The host judged by small guests written in WebAssembly text.

mod callouts;
mod dialects;
mod failures;
mod guest;
mod lifecycle;
mod shared_data;
mod streams;
mod ticks;
