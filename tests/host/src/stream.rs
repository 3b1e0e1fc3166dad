//! One HTTP stream that passes through a filter: what arrived, what the filter holds, what went on.
//!
//! Both directions have the same shape, a `Side`. The rules by which a side moves are in `stream/flow.rs`; here are the
//! data, the handle that tests use, and what may be read of it.

use crate::abi::{Headers, MapKind};
use crate::clock::VmUid;
use crate::dialect::Dialect;
use crate::host::{Host, Plugin};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

mod flow;
mod nginx;

pub(crate) use nginx::WANTS_BODY;

/// Which way a part of the stream goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Request,
    Response,
}

/// What the filter did with one part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The part went on.
    Continue,
    /// The part is held; later parts still reach the filter.
    Pause,
    /// The part is held and nothing more reaches the filter until it resumes the stream.
    PauseAll,
    /// The filter was not asked: it holds everything, is not in the chain, or has no such callback.
    NotCalled,
    /// A local reply or a reset took over: no more of this direction is wanted.
    Over,
}

/// Why a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The response went out to its end.
    Complete,
    /// The client or the filter reset it, or an error came after the response had begun.
    Reset,
}

/// What has gone on in one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub headers: Headers,
    pub body: Vec<u8>,
    pub trailers: Option<Headers>,
    /// True once its end went on as well.
    pub end: bool,
}

/// `IterationState` of Envoy's filter manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Iteration {
    Flowing,
    /// StopSingleIteration: the filter still gets what follows.
    Held,
    /// StopAllWatermark: the filter gets nothing.
    AllHeld,
}

/// One direction of a stream.
pub(crate) struct Side {
    /// What arrived, with the filter's edits.
    pub(crate) headers: Option<Headers>,
    /// The filter may touch the headers (`request_headers_` is not null).
    pub(crate) headers_open: bool,
    pub(crate) trailers: Option<Headers>,
    pub(crate) trailers_open: bool,
    /// The filter manager's buffer.
    held: Vec<u8>,
    /// The part of the body in the filter's hands during its callback.
    chunk: Option<Vec<u8>>,
    /// The filter's last answer was StopIterationAndBuffer (`buffering_request_body_`).
    buffering: bool,
    iteration: Iteration,
    end_seen: bool,
    /// A local reply took over: nothing more is taken.
    abandoned: bool,
    sent: Option<Message>,
}

impl Side {
    fn new() -> Self {
        Self {
            headers: None,
            headers_open: false,
            trailers: None,
            trailers_open: false,
            held: Vec::new(),
            chunk: None,
            buffering: false,
            iteration: Iteration::Flowing,
            end_seen: false,
            abandoned: false,
            sent: None,
        }
    }

    /// The body that `proxy_get_buffer_bytes` shows.
    pub(crate) fn body(&self) -> &[u8] {
        match (&self.chunk, self.buffering) {
            (_, true) => &self.held,
            (Some(chunk), false) => chunk,
            (None, false) => &[],
        }
    }

    /// The body that `proxy_set_buffer_bytes` edits; `None` = there is none now.
    pub(crate) fn body_mut(&mut self) -> Option<&mut Vec<u8>> {
        match self.buffering {
            true => Some(&mut self.held),
            false => self.chunk.as_mut(),
        }
    }
}

/// How a stream relates to the plugin's VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    /// Its context lives in this VM.
    In(VmUid),
    /// The filter is left out (FAIL_OPEN and no VM to be had).
    Bypassed,
    /// The filter is in the chain and has no VM: the request is refused.
    NoVm,
}

pub(crate) struct StreamData {
    pub(crate) plugin: Rc<Plugin>,
    pub(crate) membership: Membership,
    pub(crate) root: u32,
    pub(crate) context: u32,
    pub(crate) request: Side,
    pub(crate) response: Side,
    pub(crate) properties: BTreeMap<String, Vec<u8>>,
    pub(crate) filter_state: BTreeMap<String, Vec<u8>>,
    pub(crate) route_cache_clears: u32,
    pub(crate) details: Option<String>,
    pub(crate) started: Duration,
    /// The access log phase: maps are the final ones, and read-only.
    pub(crate) logging: bool,
    pub(crate) dialect: Dialect,
    /// The instance of the VM that its context lives in.
    instance: u32,
    /// Variables of an nginx that there are, by name.
    pub(crate) variables: BTreeMap<String, Vec<u8>>,
    /// HTTP calls of this stream, in an nginx, that wait for an answer.
    pub(crate) calls: u32,
    local_reply: bool,
    end: Option<End>,
    /// Stream buffer limit, bytes.
    limit: usize,
}

pub(crate) type StreamRef = Rc<RefCell<StreamData>>;

impl StreamData {
    pub(crate) fn side(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Request => &self.request,
            Direction::Response => &self.response,
        }
    }

    pub(crate) fn side_mut(&mut self, direction: Direction) -> &mut Side {
        match direction {
            Direction::Request => &mut self.request,
            Direction::Response => &mut self.response,
        }
    }

    /// `getConstMap`: open maps, or the final ones while logging.
    pub(crate) fn readable(&self, kind: MapKind) -> Option<&Headers> {
        let (request, response) = (&self.request, &self.response);
        let open = |side: &Side| side.headers_open || self.logging || self.dialect.is_nginx();
        match kind {
            MapKind::RequestHeaders if open(request) => request.headers.as_ref(),
            MapKind::ResponseHeaders if open(response) => response.headers.as_ref(),
            MapKind::RequestTrailers if request.trailers_open => request.trailers.as_ref(),
            MapKind::ResponseTrailers if response.trailers_open || self.logging => response.trailers.as_ref(),
            _ => None,
        }
    }

    /// The head of the response is out.
    pub(crate) fn has_answered(&self) -> bool {
        self.response.sent.is_some()
    }

    /// The body is in a file, where no filter of WasmX can read it.
    pub(crate) fn is_spooled(&self, direction: Direction) -> bool {
        let longer = self.request.held.len() > self.limit;
        self.dialect == Dialect::WasmX && direction == Direction::Request && longer
    }

    /// `getMap`: only open maps.
    pub(crate) fn writable(&mut self, kind: MapKind) -> Option<&mut Headers> {
        let (request, response) = (&mut self.request, &mut self.response);
        match kind {
            MapKind::RequestHeaders if request.headers_open => request.headers.as_mut(),
            MapKind::ResponseHeaders if response.headers_open => response.headers.as_mut(),
            MapKind::RequestTrailers if request.trailers_open => request.trailers.as_mut(),
            MapKind::ResponseTrailers if response.trailers_open => response.trailers.as_mut(),
            _ => None,
        }
    }
}

/// A handle on one stream. The steps take the host; what came of them can be read at any time.
#[derive(Clone)]
pub struct Stream(StreamRef);

impl Stream {
    pub(crate) fn new(plugin: Rc<Plugin>, membership: Membership, root: u32, started: Duration, limit: usize) -> Self {
        Self(Rc::new(RefCell::new(StreamData {
            plugin,
            membership,
            root,
            context: 0,
            request: Side::new(),
            response: Side::new(),
            properties: BTreeMap::new(),
            filter_state: BTreeMap::new(),
            route_cache_clears: 0,
            details: None,
            started,
            logging: false,
            dialect: Dialect::Envoy,
            instance: 0,
            variables: BTreeMap::new(),
            calls: 0,
            local_reply: false,
            end: None,
            limit,
        })))
    }

    pub(crate) fn be_nginx(&self, dialect: Dialect, instance: u32) {
        let mut data = self.0.borrow_mut();
        data.dialect = dialect;
        data.instance = instance;
        let made: Vec<String> = data.plugin.variables.clone();
        data.variables.extend(made.into_iter().map(|name| (name, Vec::new())));
        let known = [("pid", "4711"), ("server_protocol", "HTTP/1.1")];
        let known = known.map(|(name, value)| (name.to_owned(), value.into()));
        data.variables.extend(known);
        if dialect == Dialect::Apisix {
            data.variables.insert(nginx::WANTS_BODY.to_owned(), Vec::new());
        }
    }

    /// The request's headers arrive; `end` = there is no body.
    pub fn request_headers(&self, host: &mut Host, headers: impl Into<Headers>, end: bool) -> Step {
        host.take_headers(&self.0, Direction::Request, headers.into(), end)
    }

    /// A part of the request's body arrives.
    pub fn request_body(&self, host: &mut Host, chunk: &[u8], end: bool) -> Step {
        host.take_body(&self.0, Direction::Request, chunk, end)
    }

    /// The request's trailers arrive and end it.
    pub fn request_trailers(&self, host: &mut Host, trailers: impl Into<Headers>) -> Step {
        host.take_trailers(&self.0, Direction::Request, trailers.into())
    }

    /// Headers and body of a request in one go, the body as one chunk and, like HTTP/1, an empty end. A request that was
    /// refused on the way gets no more of it. The result is that of the last part.
    pub fn request(&self, host: &mut Host, headers: impl Into<Headers>, body: &[u8]) -> Step {
        let first = self.request_headers(host, headers, body.is_empty());
        if body.is_empty() || self.is_refused() {
            return first;
        }
        let second = self.request_body(host, body, false);
        if self.is_refused() {
            return second;
        }
        self.request_body(host, b"", true)
    }

    /// The upstream's response headers arrive.
    ///
    /// # Panics
    /// If the request's headers have not gone upstream: nobody can have answered.
    pub fn response_headers(&self, host: &mut Host, headers: impl Into<Headers>, end: bool) -> Step {
        assert!(
            self.0.borrow().request.sent.is_some() || self.is_over(),
            "a response to a request that the filter still holds"
        );
        host.take_headers(&self.0, Direction::Response, headers.into(), end)
    }

    /// A part of the response's body arrives.
    pub fn response_body(&self, host: &mut Host, chunk: &[u8], end: bool) -> Step {
        host.take_body(&self.0, Direction::Response, chunk, end)
    }

    /// The response's trailers arrive and end it.
    pub fn response_trailers(&self, host: &mut Host, trailers: impl Into<Headers>) -> Step {
        host.take_trailers(&self.0, Direction::Response, trailers.into())
    }

    /// A whole response: status, headers and one chunk. With it the stream ends, unless the filter holds it.
    pub fn respond(&self, host: &mut Host, status: u16, headers: impl Into<Headers>, body: &[u8]) {
        let mut all = Headers::default();
        all.add(":status", status.to_string());
        for (name, value) in headers.into().iter() {
            all.add(name, value);
        }
        self.response_headers(host, all, body.is_empty());
        if !body.is_empty() {
            self.response_body(host, body, true);
        }
    }

    /// The client goes away.
    pub fn reset(&self, host: &mut Host) {
        host.reset_stream(&self.0);
    }

    /// What the upstream has got; `None` while the filter holds the headers or after it refused the request.
    pub fn upstream(&self) -> Option<Message> {
        self.0.borrow().request.sent.clone()
    }

    /// What the client has got.
    pub fn downstream(&self) -> Option<Message> {
        self.0.borrow().response.sent.clone()
    }

    /// Status that the client got.
    pub fn status(&self) -> Option<u32> {
        let data = self.0.borrow();
        crate::property::status_of(&data.response.sent.as_ref()?.headers)
    }

    /// True while the filter holds the request's headers.
    pub fn is_held(&self) -> bool {
        let data = self.0.borrow();
        let arrived = data.request.headers.is_some() && data.end.is_none();
        arrived && data.request.sent.is_none() && !data.request.abandoned
    }

    /// True once a local reply took over.
    pub fn is_refused(&self) -> bool {
        self.0.borrow().local_reply
    }

    /// True once the stream ended and its context was deleted.
    pub fn is_over(&self) -> bool {
        self.end().is_some()
    }

    /// How the stream ended.
    pub fn end(&self) -> Option<End> {
        self.0.borrow().end
    }

    /// Response code details of a local reply or reset.
    pub fn details(&self) -> Option<String> {
        self.0.borrow().details.clone()
    }

    /// Request headers as the filter has left them, sent or not.
    pub fn request_headers_now(&self) -> Headers {
        self.0.borrow().request.headers.clone().unwrap_or_default()
    }

    /// Bytes of the request's body that wait in the proxy.
    pub fn held_bytes(&self) -> usize {
        self.0.borrow().request.held.len()
    }

    /// Filter state under its full name, such as `wasm.x`.
    pub fn filter_state(&self, name: &str) -> Option<Vec<u8>> {
        self.0.borrow().filter_state.get(name).cloned()
    }

    /// How often the filter made the proxy choose the route again.
    pub fn route_cache_clears(&self) -> u32 {
        self.0.borrow().route_cache_clears
    }

    /// Id of the stream's context in its VM; 0 before the headers.
    pub fn context_id(&self) -> u32 {
        self.0.borrow().context
    }

    /// A variable of an nginx.
    pub fn variable(&self, name: &str) -> Option<Vec<u8>> {
        self.0.borrow().variables.get(name).cloned()
    }

    /// Gives a variable of an nginx its value. There it is from now on, and can be read.
    pub fn set_variable(&self, name: &str, value: impl Into<Vec<u8>>) {
        self.0.borrow_mut().variables.insert(name.to_owned(), value.into());
    }

    /// Sets what `get_property` gives, in all phases, until it is set again.
    pub fn set_property(&self, path: &[&str], value: impl Into<Vec<u8>>) {
        let path = path.join("\0");
        self.0.borrow_mut().properties.insert(path, value.into());
    }

    /// The same for a number: eight bytes, little-endian. Durations are nanoseconds.
    pub fn set_number_property(&self, path: &[&str], value: i64) {
        self.set_property(path, value.to_le_bytes());
    }
}
