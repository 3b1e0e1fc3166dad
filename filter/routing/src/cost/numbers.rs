//! Numbers compared in one step. [`f64::max`] and [`f64::min`] have a rule for what is no number, and are functions of their own in
//! wasm: a tenth of a price.

/// The larger of two numbers; the second is one.
#[must_use]
pub(crate) const fn most(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// The smaller of two numbers; the second is one.
#[must_use]
pub(crate) const fn least(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}
