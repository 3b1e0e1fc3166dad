//! The wasm filter: one request to one pod.
//!
//! `gateway` is a configured root that ticks and decides, `stream` carries one request through its
//! phases, `outcome` reads how it ended. They gather facts, ask the pure crates, and apply the answer.

mod gateway;
mod known;
mod outcome;
mod rename;
mod stream;
#[cfg(feature = "test-trap")]
mod trap;

use berth_shared_state_glue::export_vm;
use berth_shared_state_glue::vm::{Action, Resume, Vm};
use hashbrown::HashMap;

use gateway::Gateway;
use stream::Stream;

/// The filter's VM: its configured roots and the streams in flight.
#[derive(Default)]
struct Filter {
    gateways: HashMap<u32, Gateway>,
    streams: HashMap<u32, Stream>,
}

impl Filter {
    /// The stream and the gateway it came through.
    fn stream(&mut self, id: u32) -> Option<(&mut Stream, &mut Gateway)> {
        let stream = self.streams.get_mut(&id)?;
        let gateway = self.gateways.get_mut(&stream.root)?;
        Some((stream, gateway))
    }
}

impl Vm for Filter {
    fn configure(&mut self, root: u32, document: &[u8]) -> bool {
        match Gateway::configure(document) {
            Some(gateway) => {
                self.gateways.insert(root, gateway);
                true
            }
            None => false,
        }
    }

    fn tick(&mut self, root: u32) -> Vec<Resume> {
        let Some(gateway) = self.gateways.get_mut(&root) else {
            return Vec::new();
        };
        gateway.tick();
        let mut resumed = gateway.release_unheld(&mut self.streams);
        resumed.extend(gateway.release(None, &mut self.streams));
        resumed
    }

    fn answered(&mut self, token: u32, headers: usize) {
        #[cfg(feature = "test-trap")]
        trap::on_answer();
        for gateway in self.gateways.values_mut() {
            gateway.poller.answered(token, headers);
        }
    }

    fn opened(&mut self, stream: u32, root: u32) {
        self.streams.insert(stream, Stream::new(stream, root));
    }

    fn request_headers(&mut self, stream: u32, end: bool) -> Action {
        self.stream(stream).map_or(Action::Continue, |(stream, gateway)| {
            stream.request_headers(gateway, end)
        })
    }

    fn request_body(&mut self, stream: u32, size: usize, end: bool) -> Action {
        self.stream(stream).map_or(Action::Continue, |(stream, gateway)| {
            stream.request_body(gateway, size, end)
        })
    }

    fn request_trailers(&mut self, stream: u32) -> Action {
        self.stream(stream)
            .map_or(Action::Continue, |(stream, gateway)| stream.request_trailers(gateway))
    }

    fn response_headers(&mut self, stream: u32, end: bool) -> Action {
        if let Some((stream, gateway)) = self.stream(stream) {
            stream.response_headers(gateway, end);
        }
        Action::Continue
    }

    fn response_body(&mut self, stream: u32, size: usize, end: bool) -> Action {
        if let Some((stream, gateway)) = self.stream(stream) {
            stream.response_body(gateway, size, end);
        }
        Action::Continue
    }

    fn logged(&mut self, stream: u32) -> Vec<Resume> {
        let Some((stream, gateway)) = self.stream(stream) else {
            return Vec::new();
        };
        let (freed, root) = (stream.ended(gateway), stream.root);
        // Whatever else has ended shows at the next tick.
        match (freed, self.gateways.get_mut(&root)) {
            (Some(pool), Some(gateway)) => gateway.release(Some(pool), &mut self.streams),
            _ => Vec::new(),
        }
    }

    fn deleted(&mut self, context: u32) {
        // A stream that was never logged must not stay in the ledger.
        if let Some((stream, gateway)) = self.stream(context) {
            stream.ended(gateway);
        }
        self.streams.remove(&context);
        if let Some(mut gateway) = self.gateways.remove(&context) {
            gateway.poller.release();
        }
    }
}

export_vm!(Filter, Filter::default());
