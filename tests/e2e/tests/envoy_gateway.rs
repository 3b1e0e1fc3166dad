//! The folder `envoy-gateway/`.
