//! How a side of a stream moves in an nginx module. There is no filter chain: the module's callbacks run in nginx's phases.
//!
//! ```text
//! headers -> callback: Continue -> the body is read, whole -> callback (see below): Continue -> upstream
//!                      Pause    -> goes on with the answer to a pending call, or never
//! WasmX:  a body callback only where there is a body; longer than the buffer, it cannot be read
//! APISIX: a body callback only where the filter asked for it by a variable, then also without a body
//! response: each piece as it comes, through a callback; WasmX ends with an empty one
//! ```
//! Headers can be changed until the response is there. Sources: `ngx_proxy_wasm_host.c` and runs of ngx_wasm_module;
//! `resty/proxy-wasm.lua` of wasm-nginx-module and `apisix/wasm.lua`.

use super::flow::{Verdict, refuses, went_on};
use super::{Direction, Iteration, Step, StreamRef};
use crate::dialect::Dialect;
use crate::host::Host;

/// Variable of APISIX by which a filter asks for the body.
pub(crate) const WANTS_BODY: &str = "wasm_process_req_body";

impl Host {
    /// What the filter's verdict on headers leads to.
    pub(super) fn went_in_nginx(
        &mut self,
        stream: &StreamRef,
        direction: Direction,
        verdict: Verdict,
        end: bool,
    ) -> Step {
        match (verdict, direction) {
            (Verdict::Over, _) => Step::Over,
            (Verdict::Continue { called }, Direction::Request) if !end => went_on(called),
            (Verdict::Continue { called }, Direction::Request) => match self.offer_whole_body(stream) {
                Step::NotCalled => went_on(called),
                step => step,
            },
            (Verdict::Continue { called }, Direction::Response) => {
                stream.borrow_mut().response.pass_headers();
                self.settle(stream);
                went_on(called)
            }
            (Verdict::Pause | Verdict::Stop, _) => self.paused(stream, direction),
        }
    }

    pub(super) fn take_body_in_nginx(
        &mut self,
        stream: &StreamRef,
        direction: Direction,
        chunk: &[u8],
        end: bool,
    ) -> Step {
        if direction == Direction::Response {
            return self.take_piece(stream, chunk, end);
        }
        {
            let mut data = stream.borrow_mut();
            let side = &mut data.request;
            assert!(side.headers.is_some() && !side.end_seen, "a body out of order");
            side.end_seen = end;
            side.held.extend_from_slice(chunk);
            if !end || side.iteration != Iteration::Flowing {
                return Step::NotCalled;
            }
        }
        self.offer_whole_body(stream)
    }

    /// The request is complete: its body goes to the filter, if it gets it, and all of it upstream.
    fn offer_whole_body(&mut self, stream: &StreamRef) -> Step {
        let (wanted, size) = {
            let mut data = stream.borrow_mut();
            let asked = data.variables.get(WANTS_BODY).is_some_and(|value| !value.is_empty());
            let wanted = match data.dialect {
                Dialect::Apisix => asked,
                _ => !data.request.held.is_empty(),
            };
            data.request.buffering = wanted;
            (wanted, data.request.held.len() as u32)
        };
        let mut step = Step::NotCalled;
        if wanted {
            step = match self.ask(stream, Direction::Request, "proxy_on_request_body", &[size, 1]) {
                Verdict::Over => return Step::Over,
                Verdict::Continue { called } => went_on(called),
                Verdict::Pause | Verdict::Stop => return self.paused(stream, Direction::Request),
            };
        }
        self.pass_request(stream);
        step
    }

    fn pass_request(&mut self, stream: &StreamRef) {
        let mut data = stream.borrow_mut();
        let side = &mut data.request;
        side.iteration = Iteration::Flowing;
        let body = std::mem::take(&mut side.held);
        side.pass_headers();
        side.pass_body(&body);
    }

    fn take_piece(&mut self, stream: &StreamRef, chunk: &[u8], end: bool) -> Step {
        let last = end && stream.borrow().dialect == Dialect::WasmX;
        let mut step = Step::NotCalled;
        if !chunk.is_empty() || !last {
            step = self.offer_piece(stream, chunk, end && !last);
        }
        if last && !refuses(stream, Direction::Response) {
            step = self.offer_piece(stream, b"", true);
        }
        step
    }

    fn offer_piece(&mut self, stream: &StreamRef, chunk: &[u8], end: bool) -> Step {
        {
            let mut data = stream.borrow_mut();
            data.response.end_seen = end;
            data.response.chunk = Some(chunk.to_vec());
        }
        let args = [chunk.len() as u32, end.into()];
        let verdict = self.ask(stream, Direction::Response, "proxy_on_response_body", &args);
        let chunk = stream.borrow_mut().response.chunk.take().unwrap_or_default();
        let step = match verdict {
            Verdict::Over => return Step::Over,
            Verdict::Continue { called } => went_on(called),
            Verdict::Pause | Verdict::Stop => return self.paused(stream, Direction::Response),
        };
        stream.borrow_mut().response.pass_body(&chunk);
        self.settle(stream);
        step
    }

    /// Pause is for a call that waits for its answer. Else WasmX waits for ever, and APISIX takes it for such a call.
    fn paused(&mut self, stream: &StreamRef, direction: Direction) -> Step {
        let (dialect, calls) = (stream.borrow().dialect, stream.borrow().calls);
        if calls == 0 || direction == Direction::Response {
            let why = match dialect {
                Dialect::Apisix => "Pause with no call pending: a segmentation fault",
                _ => "Pause with no call pending: the request hangs",
            };
            let membership = stream.borrow().membership;
            if let super::Membership::In(uid) = membership
                && let Some(vm) = self.vm(uid)
            {
                vm.state().fault(why);
            }
        }
        stream.borrow_mut().side_mut(direction).iteration = Iteration::AllHeld;
        Step::PauseAll
    }

    /// A call of a stream was answered, and the filter heard of it: the request goes on.
    pub(crate) fn call_is_over(&mut self, stream: &StreamRef) {
        let goes_on = {
            let mut data = stream.borrow_mut();
            data.calls = data.calls.saturating_sub(1);
            let waits = data.calls == 0 && data.request.iteration == Iteration::AllHeld;
            if waits {
                data.request.iteration = Iteration::Flowing;
            }
            waits && data.request.end_seen
        };
        if goes_on && !refuses(stream, Direction::Request) {
            if stream.borrow().request.buffering {
                self.pass_request(stream);
            } else {
                self.offer_whole_body(stream);
            }
        }
    }
}
