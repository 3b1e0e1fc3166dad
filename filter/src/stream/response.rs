//! What a request learns of its answer: who served it, when it began, and whether it failed. And the client's name for the model is
//! put back into it.

use berth_filter_routing::restore::{Format, Restorer};
use berth_shared_state::dialect::Dialect;
use berth_shared_state::names;
use berth_shared_state::pod::PodAddress;
use berth_shared_state_glue::host::{self, Buffer, Map};

use super::{Phase, Stream};
use crate::gateway::Gateway;
use crate::outcome;

/// Bytes of an error body that are looked at, to tell a context-length error from a failing pod.
const ERROR_BODY_BYTES: usize = 4096;

/// What is known of the response.
#[derive(Default)]
pub(super) struct Response {
    pub status: u16,
    pub streams: bool,
    pub first_byte: bool,
    /// All of it went by.
    pub complete: bool,
    /// The proxy made it: no pod answered.
    pub unanswered: bool,
    pub error: Vec<u8>,
}

impl Stream {
    /// Learns who answered, and whether the answer is a stream.
    pub fn response_headers(&mut self, gateway: &mut Gateway, end: bool) {
        if let Some(explained) = self.explained.take() {
            let _ = host::set_header(Map::Response, names::DECISION, explained.as_bytes());
        }
        let header = |name| host::header(Map::Response, name).unwrap_or_default();
        let sent = matches!(self.phase, Phase::Sent);
        if !sent && self.renamed.is_none() {
            return;
        }
        let kind = header("content-type");
        if self.renamed.is_some() {
            self.restore_from(&kind, &header("content-encoding"), end);
        }
        if !sent {
            return;
        }
        self.response.status = outcome::status(gateway.dialect);
        self.response.unanswered = !gateway.dialect.is_envoy() && outcome::is_unanswered(gateway.dialect);
        self.response.streams = kind.starts_with(b"text/event-stream");
        let pod = self.served(gateway);
        self.report(gateway, pod);
        if let Some(cookie) = pod
            .filter(|_| (200..300).contains(&self.response.status))
            .and_then(|pod| gateway.cookie(self.id, pod))
        {
            let _ = host::add_header(Map::Response, "set-cookie", cookie.as_bytes());
        }
        if end {
            self.response.first_byte = true;
            self.response.complete = true;
        }
    }

    /// Makes ready to put the client's name for the model back into the answer, if it was replaced.
    fn restore_from(&mut self, kind: &[u8], coding: &[u8], end: bool) {
        let (Some((target, asked)), Some(format)) = (self.renamed.take(), Format::of(kind)) else {
            return;
        };
        let plain = coding.is_empty() || coding.eq_ignore_ascii_case(b"identity");
        // Its length changes, and is known only at the end.
        if plain && !end && host::remove_header(Map::Response, "content-length").is_ok() {
            self.restorer = Some(Restorer::new(format, &target, &asked));
        }
    }

    pub(super) fn served(&self, gateway: &mut Gateway) -> Option<PodAddress> {
        let dialect = gateway.dialect;
        if gateway.hops() {
            return self.first;
        }
        let pod = outcome::serving_pod(dialect)?;
        if dialect == Dialect::WasmX && !gateway.knows(self.id, pod) {
            // Kong, not named in the config: its second hop.
            return self.first;
        }
        gateway.served(self.id, pod, || outcome::attempts(dialect));
        Some(pod)
    }

    /// Passes the pod's load report on, and keeps it from a client that did not ask.
    fn report(&self, gateway: &mut Gateway, pod: Option<PodAddress>) {
        if !self.reports {
            return;
        }
        let Ok(value) = host::header(Map::Response, names::LOAD_REPORT) else {
            return;
        };
        if let Some(pod) = pod {
            gateway.reported(self.id, pod, &value);
        }
        if !self.client_asks {
            let _ = host::remove_header(Map::Response, names::LOAD_REPORT);
        }
    }

    /// The first bytes of a stream are its first token. Later pieces cost the time and two look-ups.
    pub fn response_body(&mut self, gateway: &mut Gateway, size: usize, end: bool) {
        if matches!(self.phase, Phase::Sent) {
            self.learn(gateway, size);
            self.response.complete = end;
        }
        self.restore(gateway.dialect, size, end);
    }

    fn learn(&mut self, gateway: &mut Gateway, size: usize) {
        if self.response.status == 500 && self.response.error.len() < ERROR_BODY_BYTES {
            let piece = host::buffer(Buffer::ResponseBody, 0, ERROR_BODY_BYTES).unwrap_or_default();
            self.response.error.extend(piece);
        }
        if !self.response.first_byte && size > 0 {
            self.response.first_byte = true;
            gateway.first_bytes(self.id, self.response.status, self.response.streams);
        } else if self.response.streams && size > 0 {
            gateway.token(self.id);
        }
    }

    fn restore(&mut self, dialect: Dialect, size: usize, end: bool) {
        let Some(mut restorer) = self.restorer.take() else {
            return;
        };
        let piece = host::buffer(Buffer::ResponseBody, 0, size).unwrap_or_default();
        let mut restored = restorer.feed(&piece);
        if end {
            restored.extend(restorer.finish());
        } else {
            self.restorer = Some(restorer);
        }
        if restored != piece
            && let Err(error) = host::replace_start(Buffer::ResponseBody, dialect.whole(piece.len()), &restored)
        {
            log::error!("an answer could not be written ({error}): it keeps the pod's name for the model");
        }
    }
}
