//! The cost of a pod for a request, in milliseconds until the first token.
