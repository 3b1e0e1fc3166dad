//! HTTP callouts: who may be called, what a test lets them answer, and when the answer arrives.
//!
//! Checks and outcomes follow Envoy's `Context::httpCall` and its async client. Most failures look like answers (503,
//! 504); only a reset or an oversized body gives a callback without headers. Retries, circuit breakers and connection
//! pools are not imitated: a test says what happened. The nginx modules dial `host:port` instead of a cluster, resolve only
//! the names that a test adds, and show every failure as a callback without headers.

use crate::abi::{Headers, Status};
use crate::clock::{Clock, Event, VmUid};
use crate::dialect::Dialect;
use crate::host::Thread;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Largest response body that the async client buffers (`kBufferLimitForResponse`), in bytes.
pub const RESPONSE_LIMIT: usize = 32 * 1024 * 1024;

/// One `proxy_http_call` that passed the checks.
#[derive(Clone, Debug)]
pub struct Callout {
    /// Name of the plugin whose root context called.
    pub plugin: String,
    /// Where it runs.
    pub thread: Thread,
    pub cluster: String,
    pub headers: Headers,
    pub body: Vec<u8>,
    pub trailers: Headers,
    /// `None` = waits for ever.
    pub timeout: Option<Duration>,
    /// Unix time of the call.
    pub at: Duration,
}

/// What comes back from a callout.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A response after this time, or 504 if the timeout comes first.
    Reply {
        after: Duration,
        status: u16,
        headers: Headers,
        body: Vec<u8>,
    },
    /// Nothing: 504 at the timeout.
    Silence,
    /// The stream is reset: a callback without headers.
    Reset { after: Duration },
    /// Nobody listens: 503 with a text body.
    ConnectFailure { after: Duration },
    /// The call fails at once with InternalFailure and no callback follows.
    Refused,
}

impl Answer {
    /// A response without delay and with no headers but `:status`.
    pub fn reply(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self::Reply {
            after: Duration::ZERO,
            status,
            headers: Headers::default(),
            body: body.into(),
        }
    }

    /// The same answer, later.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        match &mut self {
            Self::Reply { after, .. } | Self::Reset { after } | Self::ConnectFailure { after } => *after = delay,
            Self::Silence | Self::Refused => {}
        }
        self
    }
}

/// Decides what each callout gets.
pub type Responder = Box<dyn FnMut(&Callout) -> Answer>;

/// A response as the guest sees it.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) headers: Headers,
    pub(crate) body: Vec<u8>,
}

/// Who calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) vm: VmUid,
    /// The context that gets the answer: a root, or in an nginx module a stream.
    pub(crate) context: u32,
    pub(crate) dialect: Dialect,
}

struct Open {
    context: u32,
    /// `None` = reset.
    response: Option<Response>,
    /// `:dispatch_status` of WasmX.
    ended: &'static str,
}

/// A callout that is done.
pub(crate) struct Done {
    pub(crate) context: u32,
    /// `None` = no headers.
    pub(crate) response: Option<Response>,
    /// How it ended, in a word of WasmX.
    pub(crate) ended: &'static str,
}

#[derive(Default)]
pub(crate) struct Callouts {
    clusters: BTreeSet<String>,
    responder: Option<Responder>,
    made: Vec<Callout>,
    open: BTreeMap<(VmUid, u32), Open>,
}

impl Callouts {
    pub(crate) fn add_cluster(&mut self, name: &str) {
        self.clusters.insert(name.to_owned());
    }

    pub(crate) fn remove_cluster(&mut self, name: &str) {
        self.clusters.remove(name);
    }

    pub(crate) fn set_responder(&mut self, responder: Responder) {
        self.responder = Some(responder);
    }

    pub(crate) fn made(&self) -> &[Callout] {
        &self.made
    }

    pub(crate) fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Checks a call and sends it. `token` is the caller's next free one.
    pub(crate) fn dispatch(
        &mut self,
        clock: &mut Clock,
        from: Caller,
        token: u32,
        callout: Callout,
    ) -> Result<(), Status> {
        let nginx = from.dialect.is_nginx();
        let required = [":path", ":method", ":authority"];
        // The modules take the target for the authority.
        let required = if nginx { &required[..2] } else { &required };
        let complete = required.iter().all(|name| callout.headers.bytes(name).is_some());
        if !complete || (!nginx && !self.clusters.contains(&callout.cluster)) {
            return Err(Status::BadArgument);
        }
        let resolved = !nginx || self.resolves(&callout.cluster);
        let answer = match &mut self.responder {
            _ if !resolved => Answer::Reset { after: Duration::ZERO },
            Some(responder) => responder(&callout),
            None => Answer::Silence,
        };
        let timeout = callout.timeout;
        self.made.push(callout);
        let (vm, context) = (from.vm, from.context);
        let silent = |timeout| {
            (
                timeout,
                (!nginx).then(|| text_response(504, "upstream request timeout")),
            )
        };
        let no_connection = nginx && matches!(answer, Answer::ConnectFailure { .. });
        let (after, response) = match (outcome(answer)?, timeout) {
            (Some((after, response)), Some(timeout)) if after <= timeout => (Some(after), response),
            (Some((after, response)), None) => (Some(after), response),
            (_, timeout) => silent(timeout),
        };
        let response = response.filter(|_| !no_connection);
        let ended = match (&response, after == timeout) {
            (Some(_), _) => "ok",
            (None, _) if !resolved => "resolver failure",
            (None, true) => "timeout",
            (None, false) => "broken connection",
        };
        let open = Open {
            context,
            response,
            ended,
        };
        self.open.insert((vm, token), open);
        if let Some(after) = after {
            clock.schedule(after, Event::CalloutDone { vm, token });
        }
        Ok(())
    }

    /// An address, or a name that a test added.
    fn resolves(&self, target: &str) -> bool {
        let host = target.rsplit_once(':').map_or(target, |(host, _)| host);
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        address.is_ok() || self.clusters.contains(target)
    }

    /// A callout that is done.
    pub(crate) fn take(&mut self, vm: VmUid, token: u32) -> Option<Done> {
        let open = self.open.remove(&(vm, token))?;
        Some(Done {
            context: open.context,
            response: open.response,
            ended: open.ended,
        })
    }

    /// Cancels what a VM that is gone had open.
    pub(crate) fn cancel(&mut self, vm: VmUid) {
        self.open.retain(|(owner, _), _| *owner != vm);
    }
}

type Outcome = Option<(Duration, Option<Response>)>;

/// Delay and response; `None` = never.
fn outcome(answer: Answer) -> Result<Outcome, Status> {
    Ok(match answer {
        Answer::Refused => return Err(Status::InternalFailure),
        Answer::Silence => None,
        Answer::Reset { after } => Some((after, None)),
        Answer::ConnectFailure { after } => {
            let text = "upstream connect error or disconnect/reset before headers. \
                        reset reason: remote connection failure";
            Some((after, Some(text_response(503, text))))
        }
        Answer::Reply { after, body, .. } if body.len() > RESPONSE_LIMIT => Some((after, None)),
        Answer::Reply {
            after,
            status,
            headers: rest,
            body,
        } => {
            let mut headers = Headers::default();
            headers.add(":status", status.to_string());
            for (name, value) in rest.iter() {
                headers.add(name, value);
            }
            Some((after, Some(Response { headers, body })))
        }
    })
}

fn text_response(status: u16, text: &str) -> Response {
    let mut headers = Headers::default();
    headers.add(":status", status.to_string());
    headers.add("content-length", text.len().to_string());
    headers.add("content-type", "text/plain");
    Response {
        headers,
        body: text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn call(timeout: Option<Duration>) -> Callout {
        Callout {
            plugin: String::new(),
            thread: Thread::Main,
            cluster: "pods".to_owned(),
            headers: Headers::from([(":method", "GET"), (":path", "/"), (":authority", "a")]),
            body: Vec::new(),
            trailers: Headers::default(),
            timeout,
            at: Duration::ZERO,
        }
    }

    const ENVOY: Caller = Caller {
        vm: 1,
        context: 1,
        dialect: Dialect::Envoy,
    };

    /// When the callback comes and the `:status` it shows; `None` inside = no headers.
    fn check(answer: Answer, timeout: Option<Duration>) -> Option<(Duration, Option<String>)> {
        let mut callouts = Callouts::default();
        let mut clock = Clock::new(Duration::ZERO);
        callouts.add_cluster("pods");
        callouts.set_responder(Box::new(move |_| answer.clone()));
        callouts
            .dispatch(&mut clock, ENVOY, 4, call(timeout))
            .expect("accepted");
        clock.next_due(Duration::from_secs(3600))?;
        let done = callouts.take(1, 4).expect("open");
        assert_eq!(done.context, 1);
        let status = done
            .response
            .map(|r| r.headers.get(":status").expect("status").to_owned());
        Some((clock.now(), status))
    }

    #[test]
    fn each_answer_arrives_as_envoy_shows_it() {
        let status = |text: &str| Some(text.to_owned());
        let ok = Answer::reply(200, "x").after(7 * MS);
        assert_eq!(check(ok.clone(), None), Some((7 * MS, status("200"))));
        assert_eq!(check(ok.clone(), Some(7 * MS)), Some((7 * MS, status("200"))));
        assert_eq!(check(ok, Some(6 * MS)), Some((6 * MS, status("504"))));
        assert_eq!(check(Answer::Silence, Some(9 * MS)), Some((9 * MS, status("504"))));
        assert_eq!(check(Answer::Silence, None), None);
        let refused = Answer::ConnectFailure { after: MS };
        assert_eq!(check(refused, Some(9 * MS)), Some((MS, status("503"))));
        let reset = Answer::Reset { after: MS };
        assert_eq!(check(reset, Some(9 * MS)), Some((MS, None)));
    }

    #[test]
    fn a_body_over_the_limit_is_a_reset() {
        let at = Answer::reply(200, vec![0; RESPONSE_LIMIT]);
        assert_eq!(check(at, None), Some((Duration::ZERO, Some("200".into()))));
        let over = Answer::reply(200, vec![0; RESPONSE_LIMIT + 1]);
        assert_eq!(check(over, None), Some((Duration::ZERO, None)));
    }

    #[test]
    fn calls_that_envoy_refuses_leave_nothing_open() {
        let mut callouts = Callouts::default();
        let mut clock = Clock::new(Duration::ZERO);
        let mut refuse = |callouts: &mut Callouts, call: Callout, status| {
            assert_eq!(callouts.dispatch(&mut clock, ENVOY, 4, call), Err(status));
            assert_eq!(callouts.open_count(), 0);
        };
        refuse(&mut callouts, call(None), Status::BadArgument);
        callouts.add_cluster("pods");
        for name in [":method", ":path", ":authority"] {
            let mut incomplete = call(None);
            incomplete.headers.remove(name);
            refuse(&mut callouts, incomplete, Status::BadArgument);
        }
        callouts.set_responder(Box::new(|_| Answer::Refused));
        refuse(&mut callouts, call(None), Status::InternalFailure);
    }

    #[test]
    fn an_nginx_module_dials_addresses_and_shows_each_failure_as_no_headers() {
        #[track_caller]
        fn check(target: &str, answer: Answer, status: Option<&str>, ended: &str, at: Duration) {
            let mut callouts = Callouts::default();
            let mut clock = Clock::new(Duration::ZERO);
            callouts.add_cluster("known.test:80");
            callouts.set_responder(Box::new(move |_| answer.clone()));
            let mut call = call(Some(9 * MS));
            call.cluster = target.to_owned();
            call.headers.remove(":authority");
            let from = Caller {
                dialect: Dialect::WasmX,
                ..ENVOY
            };
            callouts.dispatch(&mut clock, from, 4, call).expect("accepted");
            clock.next_due(Duration::from_secs(3600)).expect("an answer");
            let done = callouts.take(1, 4).expect("open");
            let found = done
                .response
                .map(|r| r.headers.get(":status").expect("status").to_owned());
            assert_eq!(
                (found.as_deref(), done.ended, clock.now()),
                (status, ended, at),
                "{target}"
            );
        }
        let ok = Answer::reply(200, "x").after(MS);
        check("10.0.0.1:8000", ok.clone(), Some("200"), "ok", MS);
        check("[fd00::1]:8000", ok.clone(), Some("200"), "ok", MS);
        check("known.test:80", ok.clone(), Some("200"), "ok", MS);
        check("other.test:80", ok, None, "resolver failure", Duration::ZERO);
        check("10.0.0.1:8000", Answer::Silence, None, "timeout", 9 * MS);
        let refused = Answer::ConnectFailure { after: MS };
        check("10.0.0.1:8000", refused, None, "broken connection", MS);
    }
}
