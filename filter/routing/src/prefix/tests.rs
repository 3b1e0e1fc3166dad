//! The reference picker's golden rows, and what any prompt and any order of events must keep.
