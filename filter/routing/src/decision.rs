//! One decision with its reasons as data.
