//! From an answer about a pool's pods to the set of pods. Static lists and Envoy's admin page.
