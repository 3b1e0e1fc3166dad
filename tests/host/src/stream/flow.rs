//! How a side of a stream moves: Envoy's filter manager with one filter and the router behind it.
//!
//! ```text
//! headers -> callback: Continue -----------------------------------> Flowing
//!                      Pause, flag on  -> Held    (body callbacks go on, cumulative buffer)
//!                      Pause, flag off -> AllHeld (no callback until resumed; no limit but back-pressure)
//! body    -> callback: Continue: Flowing stays; Held = headers and buffer go on (`commonContinue`)
//!                      Pause: Held, buffered up to the limit, over it 413
//! resume  -> Held: headers and buffer go on; AllHeld: headers go on, then the buffer reaches the filter
//! ```
//! Sources: `filter_manager.cc` (commonHandleAfterDataCallback, commonContinue, sendLocalReply) and the wasm extension's
//! `context.cc` (decodeData, failStream).

use super::{Direction, End, Iteration, Membership, Message, Side, Step, StreamRef};
use crate::abi::{Headers, LogLevel};
use crate::dialect::Dialect;
use crate::host::{FailurePolicy, Host};
use crate::vm::{Action, Called, LocalReply};

/// What the filter wants done with a part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Continue {
        called: bool,
    },
    Pause,
    /// Any other value, or a local reply: hold and do not keep the part.
    Stop,
    /// The stream failed or ended meanwhile.
    Over,
}

impl Host {
    pub(crate) fn take_headers(
        &mut self,
        stream: &StreamRef,
        direction: Direction,
        headers: Headers,
        end: bool,
    ) -> Step {
        if refuses(stream, direction) {
            return Step::NotCalled;
        }
        let count = headers.len() as u32;
        {
            let mut data = stream.borrow_mut();
            let side = data.side_mut(direction);
            side.headers = Some(headers);
            side.headers_open = true;
            side.end_seen = end;
        }
        if direction == Direction::Request {
            self.create_context(stream);
        }
        let export = match direction {
            Direction::Request => "proxy_on_request_headers",
            Direction::Response => "proxy_on_response_headers",
        };
        let dialect = stream.borrow().dialect;
        if dialect.is_nginx() {
            // APISIX lists none in advance and knows no body yet; ngx_wasm_module knows no end.
            let told = match dialect {
                Dialect::Apisix => [0, 1],
                _ => [count, 0],
            };
            let verdict = self.ask(stream, direction, export, &told);
            return self.went_in_nginx(stream, direction, verdict, end);
        }
        let verdict = self.ask(stream, direction, export, &[count, end.into()]);
        let mut data = stream.borrow_mut();
        let flag = data.plugin.allow_on_headers_stop_iteration;
        let side = data.side_mut(direction);
        let step = match verdict {
            Verdict::Over => return Step::Over,
            Verdict::Continue { called } => {
                side.headers_open = false;
                side.pass_headers();
                went_on(called)
            }
            Verdict::Pause if flag => {
                side.iteration = Iteration::Held;
                Step::Pause
            }
            Verdict::Pause | Verdict::Stop => {
                side.iteration = Iteration::AllHeld;
                Step::PauseAll
            }
        };
        drop(data);
        self.settle(stream);
        step
    }

    pub(crate) fn take_body(&mut self, stream: &StreamRef, direction: Direction, chunk: &[u8], end: bool) -> Step {
        if refuses(stream, direction) {
            return Step::NotCalled;
        }
        if stream.borrow().dialect.is_nginx() {
            return self.take_body_in_nginx(stream, direction, chunk, end);
        }
        {
            let mut data = stream.borrow_mut();
            let side = data.side_mut(direction);
            assert!(side.headers.is_some() && !side.end_seen, "a body out of order");
            side.end_seen = end;
            if side.iteration == Iteration::AllHeld {
                side.held.extend_from_slice(chunk);
                return Step::NotCalled;
            }
        }
        self.offer_body(stream, direction, chunk.to_vec(), end)
    }

    fn offer_body(&mut self, stream: &StreamRef, direction: Direction, mut chunk: Vec<u8>, end: bool) -> Step {
        let mut data = stream.borrow_mut();
        let limit = data.limit;
        let side = data.side_mut(direction);
        if side.buffering {
            side.held.append(&mut chunk);
            if side.held.len() > limit {
                drop(data);
                return self.too_large(stream, direction);
            }
        }
        side.chunk = Some(chunk);
        let size = side.body().len() as u32;
        drop(data);
        let export = match direction {
            Direction::Request => "proxy_on_request_body",
            Direction::Response => "proxy_on_response_body",
        };
        let verdict = self.ask(stream, direction, export, &[size, end.into()]);
        let mut data = stream.borrow_mut();
        let side = data.side_mut(direction);
        side.buffering = false;
        let chunk = side.chunk.take().unwrap_or_default();
        let step = match verdict {
            Verdict::Over => return Step::Over,
            Verdict::Continue { called } if side.iteration == Iteration::Flowing => {
                // Resumed earlier, from outside: the part is in the buffer and goes on with it.
                let mut body = std::mem::take(&mut side.held);
                body.extend(chunk);
                side.pass_body(&body);
                went_on(called)
            }
            Verdict::Continue { called } => {
                side.held.extend(chunk);
                let over = side.held.len() > limit;
                drop(data);
                if over {
                    return self.too_large(stream, direction);
                }
                self.resume(stream, direction);
                return went_on(called);
            }
            Verdict::Pause => {
                side.iteration = Iteration::Held;
                side.buffering = true;
                side.held.extend(chunk);
                if side.held.len() > limit {
                    drop(data);
                    return self.too_large(stream, direction);
                }
                Step::Pause
            }
            Verdict::Stop => {
                side.iteration = Iteration::Held;
                Step::Pause
            }
        };
        drop(data);
        self.settle(stream);
        step
    }

    pub(crate) fn take_trailers(&mut self, stream: &StreamRef, direction: Direction, trailers: Headers) -> Step {
        if refuses(stream, direction) {
            return Step::NotCalled;
        }
        {
            let mut data = stream.borrow_mut();
            let side = data.side_mut(direction);
            assert!(side.headers.is_some() && !side.end_seen, "trailers out of order");
            side.end_seen = true;
            side.trailers = Some(trailers);
            if side.iteration == Iteration::AllHeld {
                return Step::NotCalled;
            }
        }
        self.offer_trailers(stream, direction)
    }

    fn offer_trailers(&mut self, stream: &StreamRef, direction: Direction) -> Step {
        let count = {
            let mut data = stream.borrow_mut();
            let side = data.side_mut(direction);
            side.trailers_open = true;
            side.trailers.as_ref().map_or(0, Headers::len) as u32
        };
        let export = match direction {
            Direction::Request => "proxy_on_request_trailers",
            Direction::Response => "proxy_on_response_trailers",
        };
        let verdict = self.ask(stream, direction, export, &[count]);
        let mut data = stream.borrow_mut();
        let side = data.side_mut(direction);
        match verdict {
            Verdict::Over => Step::Over,
            Verdict::Continue { called } => {
                side.trailers_open = false;
                let held = side.iteration != Iteration::Flowing;
                if !held {
                    side.pass_trailers();
                }
                drop(data);
                if held {
                    self.resume(stream, direction);
                } else {
                    self.settle(stream);
                }
                went_on(called)
            }
            Verdict::Pause | Verdict::Stop => {
                side.iteration = Iteration::Held;
                Step::Pause
            }
        }
    }

    /// `commonContinue`: what is held goes on.
    fn resume(&mut self, stream: &StreamRef, direction: Direction) {
        if refuses(stream, direction) {
            return;
        }
        let mut data = stream.borrow_mut();
        let side = data.side_mut(direction);
        if side.iteration == Iteration::Flowing {
            drop(data);
            self.complain(stream, "continue_stream on a stream that is not paused");
            return;
        }
        let through_filter = side.iteration == Iteration::AllHeld;
        side.iteration = Iteration::Flowing;
        side.pass_headers();
        let ends = side.end_seen && side.trailers.is_none();
        let end_owed = ends && !side.has_ended();
        if !side.held.is_empty() || end_owed {
            let body = std::mem::take(&mut side.held);
            if through_filter {
                drop(data);
                self.offer_body(stream, direction, body, ends);
                data = stream.borrow_mut();
            } else {
                side.pass_body(&body);
            }
        }
        let side = data.side_mut(direction);
        let trailers_wait = side.trailers.is_some() && !side.has_ended();
        if trailers_wait && side.iteration == Iteration::Flowing && !side.abandoned {
            if through_filter {
                drop(data);
                self.offer_trailers(stream, direction);
            } else {
                side.pass_trailers();
                drop(data);
            }
        } else {
            drop(data);
        }
        self.settle(stream);
    }

    /// `proxy_on_context_create`, once, with the headers.
    pub(super) fn create_context(&mut self, stream: &StreamRef) {
        let (membership, root) = {
            let data = stream.borrow();
            (data.membership, data.root)
        };
        let Membership::In(uid) = membership else {
            return;
        };
        if let Some(context) = self.allocate_stream_context(uid, stream) {
            stream.borrow_mut().context = context;
            self.enter(uid, context, "proxy_on_context_create", &[context, root]);
        }
    }

    /// Calls the filter about a part. A dead VM fails the stream before the call or after it.
    pub(super) fn ask(
        &mut self,
        stream: &StreamRef,
        direction: Direction,
        export: &'static str,
        args: &[u32],
    ) -> Verdict {
        let (membership, context, policy) = {
            let data = stream.borrow();
            (data.membership, data.context, data.plugin.failure_policy)
        };
        let called = match membership {
            Membership::Bypassed => return Verdict::Continue { called: false },
            Membership::NoVm => Called::Failed,
            Membership::In(uid) if self.is_orphaned(stream, uid) => Called::Failed,
            Membership::In(uid) => {
                let mut all = vec![context];
                all.extend(args);
                self.enter(uid, context, export, &all)
            }
        };
        match called {
            Called::Failed if policy == FailurePolicy::LegacyOpen => Verdict::Continue { called: false },
            Called::Failed => {
                self.fail_stream(stream);
                Verdict::Over
            }
            _ if refuses(stream, direction) => Verdict::Over,
            Called::Missing => Verdict::Continue { called: false },
            Called::Returned { stop: true, .. } => Verdict::Stop,
            Called::Returned { value: 0, .. } => Verdict::Continue { called: true },
            Called::Returned { value: 1, .. } => Verdict::Pause,
            Called::Returned { .. } => Verdict::Stop,
        }
    }

    /// Runs what a host call put off until the guest returned.
    pub(crate) fn perform(&mut self, action: Action) {
        match action {
            Action::Resume(stream, direction) => self.resume(&stream, direction),
            Action::Reply(stream, reply) => self.reply(&stream, reply),
            Action::Reset(stream) => self.reset_stream(&stream),
        }
    }

    /// `sendLocalReply`: through the filter's response callbacks if no response has come yet, past them if one has, and
    /// a reset if its headers are already out.
    fn reply(&mut self, stream: &StreamRef, reply: LocalReply) {
        let mut data = stream.borrow_mut();
        if data.end.is_some() {
            return;
        }
        if data.response.sent.is_some() {
            drop(data);
            return self.reset_stream(stream);
        }
        let through_filter = data.response.headers.is_none();
        data.request.abandoned = true;
        data.local_reply = true;
        data.details = Some(reply.details.clone());
        let headers = reply_headers(&reply);
        if !through_filter {
            data.response.abandoned = true;
            data.response.headers = Some(headers.clone());
            data.response.sent = Some(Message {
                headers,
                body: reply.body,
                trailers: None,
                end: true,
            });
            drop(data);
            return self.settle(stream);
        }
        drop(data);
        let no_body = reply.body.is_empty();
        self.take_headers(stream, Direction::Response, headers, no_body);
        if !no_body {
            self.take_body(stream, Direction::Response, &reply.body, true);
        }
    }

    /// The VM is dead: 503 without asking it, or a reset if the response has begun.
    fn fail_stream(&mut self, stream: &StreamRef) {
        {
            let mut data = stream.borrow_mut();
            if data.response.headers.is_none() {
                // Keeps the reply away from the dead filter.
                data.response.headers = Some(Headers::default());
            }
        }
        let status = stream.borrow().dialect.failure_status();
        self.reply(stream, LocalReply::plain(status, "", "wasm_fail_stream"));
    }

    fn too_large(&mut self, stream: &StreamRef, direction: Direction) -> Step {
        let reply = match direction {
            Direction::Request => LocalReply::plain(413, "Payload Too Large", "request_payload_too_large"),
            Direction::Response => LocalReply::plain(500, "Internal Server Error", "response_payload_too_large"),
        };
        self.reply(stream, reply);
        Step::Over
    }

    /// Ends the stream without a (complete) response.
    pub(crate) fn reset_stream(&mut self, stream: &StreamRef) {
        self.finish(stream, End::Reset);
    }

    /// Its context went with the instance that it lived in.
    pub(super) fn is_orphaned(&self, stream: &StreamRef, uid: crate::clock::VmUid) -> bool {
        let instance = self.vm(uid).map(|vm| vm.state().instance);
        stream.borrow().dialect.is_nginx() && instance != Some(stream.borrow().instance)
    }

    /// Ends the stream if its response is out.
    pub(super) fn settle(&mut self, stream: &StreamRef) {
        let complete = stream.borrow().response.has_ended();
        if complete {
            self.finish(stream, End::Complete);
        }
    }

    /// `proxy_on_log`, `proxy_on_done`, `proxy_on_delete`, each once.
    fn finish(&mut self, stream: &StreamRef, end: End) {
        let (membership, context) = {
            let mut data = stream.borrow_mut();
            if data.end.is_some() {
                return;
            }
            data.end = Some(end);
            data.logging = true;
            (data.membership, data.context)
        };
        if let Membership::In(uid) = membership
            && context != 0
            && !self.is_orphaned(stream, uid)
        {
            if stream.borrow().dialect != Dialect::Apisix {
                self.enter(uid, context, "proxy_on_log", &[context]);
            }
            stream.borrow_mut().logging = false;
            self.enter(uid, context, "proxy_on_done", &[context]);
            self.enter(uid, context, "proxy_on_delete", &[context]);
            self.forget_context(uid, context);
        }
        stream.borrow_mut().logging = false;
    }

    fn complain(&self, stream: &StreamRef, text: &str) {
        if let Membership::In(uid) = stream.borrow().membership
            && let Some(vm) = self.vm(uid)
        {
            vm.state().log(LogLevel::Error, text, true);
        }
    }
}

impl LocalReply {
    fn plain(status: u32, body: &str, details: &str) -> Self {
        Self {
            status,
            headers: Headers::default(),
            body: body.into(),
            details: details.to_owned(),
        }
    }
}

/// Headers of a local reply (`Utility::prepareLocalReply`): a body decides about content-length and content-type.
fn reply_headers(reply: &LocalReply) -> Headers {
    let mut headers = Headers::default();
    headers.add(":status", reply.status.to_string());
    for (name, value) in reply.headers.iter() {
        headers.add(name, value);
    }
    if reply.body.is_empty() {
        headers.remove("content-length");
        headers.remove("content-type");
    } else {
        headers.set("content-length", reply.body.len().to_string());
        if headers.bytes("content-type").is_none() {
            headers.add("content-type", "text/plain");
        }
    }
    headers
}

pub(super) fn refuses(stream: &StreamRef, direction: Direction) -> bool {
    let data = stream.borrow();
    data.end.is_some() || data.side(direction).abandoned
}

pub(super) fn went_on(called: bool) -> Step {
    if called { Step::Continue } else { Step::NotCalled }
}

impl Side {
    pub(super) fn has_ended(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.end)
    }

    /// Headers go on once; with them the end, if nothing else is to come.
    pub(super) fn pass_headers(&mut self) {
        if self.sent.is_none() {
            self.sent = Some(Message {
                headers: self.headers.clone().unwrap_or_default(),
                body: Vec::new(),
                trailers: None,
                end: self.end_seen && self.held.is_empty() && self.trailers.is_none(),
            });
        }
    }

    pub(super) fn pass_body(&mut self, body: &[u8]) {
        let end = self.end_seen && self.trailers.is_none();
        if let Some(sent) = &mut self.sent {
            sent.body.extend_from_slice(body);
            sent.end |= end;
        }
    }

    fn pass_trailers(&mut self) {
        let trailers = self.trailers.clone();
        if let Some(sent) = &mut self.sent {
            sent.trailers = trailers;
            sent.end = true;
        }
    }
}
