//! One immutable view of a table, with what a decision looks up often.
