//! The poller: a state machine of (event, now) -> effects.
