//! One request through its phases.
//!
//! ```text
//!  headers: strip -> classify -> pass
//!                             \-> hold -> body ... end -> decide -> continue -> response -> log
//!                                   \------ bound ------/      |\-> reply
//!                                                              \-> wait until there is room, or for a reply
//! ```
//! The request's headers can only be written until the first `Continue`; what later phases need is
//! copied before. With `body.mode: hand-over` that `Continue` comes at once: a later filter waits for
//! the body instead, and finds the choice in filter state. In nginx it comes at once too: nginx itself waits for the body,
//! and headers can be written until the response is there.

use berth_filter_routing::decision::{Action as Chosen, Decision, Refusal, Why};
use berth_filter_routing::header;
use berth_filter_routing::ledger::Outcome;
use berth_filter_routing::prefix::{Blocks, Hasher};
use berth_filter_routing::request::{Api, BodyReader, Facts, Head, HeadVerdict, PassReason, asks_for_models, classify};
use berth_filter_routing::restore::Restorer;
use berth_filter_routing::view::Steering;
use berth_shared_state::dialect::Dialect;
use berth_shared_state::names;
use berth_shared_state::pod::PodAddress;
use berth_shared_state_glue::host::{self, Buffer, Map};
use berth_shared_state_glue::vm::Action;

use crate::gateway::Gateway;
use crate::known::NO_BODY_HOLD;
use crate::{outcome, rename};

mod response;

use response::Response;

/// One request.
pub struct Stream {
    id: u32,
    /// The root it came through.
    pub root: u32,
    phase: Phase,
    steering: Steering,
    /// The decision for `x-berth-decision`, kept until the response.
    explained: Option<String>,
    /// The client asked for a load report itself: the answer keeps it.
    client_asks: bool,
    /// The pod was asked for a load report.
    reports: bool,
    /// The first of the pods that it may go to.
    first: Option<PodAddress>,
    /// The name in the body was replaced: by what, and what it was.
    renamed: Option<(String, String)>,
    restorer: Option<Restorer>,
    response: Response,
}

/// Where the request is.
enum Phase {
    /// Nothing of it is Berth's business (any more).
    Passed,
    /// Headers are held, by this filter or a later one; the body is being read.
    Reading(Box<Reading>),
    /// All of it waits until a pod has room. What the client speaks.
    Waiting(Option<Api>),
    /// Sent to a pod; the ledger has it.
    Sent,
}

/// A body that is being read.
struct Reading {
    reader: BodyReader,
    prompt: Hasher,
    /// Bytes read so far.
    read: usize,
}

impl Stream {
    /// A stream that has just begun.
    pub fn new(id: u32, root: u32) -> Self {
        Self {
            id,
            root,
            phase: Phase::Passed,
            steering: Steering::default(),
            explained: None,
            client_asks: false,
            reports: false,
            first: None,
            renamed: None,
            restorer: None,
            response: Response::default(),
        }
    }

    /// Strips, classifies, and holds what has to be read.
    pub fn request_headers(&mut self, gateway: &mut Gateway, end: bool) -> Action {
        let headers = host::request_headers();
        let readable = headers.is_ok();
        let headers = headers.unwrap_or_default();
        let named: Vec<(&str, &[u8])> = headers
            .iter()
            .filter_map(|(name, value)| Some((core::str::from_utf8(name).ok()?, value.as_slice())))
            .collect();
        #[cfg(feature = "test-trap")]
        crate::trap::on(&named);
        self.steering = gateway.steering(&named);
        self.client_asks = named
            .iter()
            .any(|(name, value)| *name == names::LOAD_FORMAT && matches!(value.trim_ascii(), b"TEXT" | b"JSON"));
        for name in names::STRIPPED {
            // What cannot be read is removed unseen. The pool is, also after another filter did: only a change made
            // here takes back the route that the client's copy chose.
            let chose = name == names::POOL && gateway.has_pools();
            if !readable || chose || named.iter().any(|(key, _)| *key == name) {
                let _ = host::remove_header(Map::Request, name);
            }
        }
        let dialect = gateway.dialect;
        let head = Head {
            headers: &named,
            end_of_stream: dialect.ends(end, &named, || {
                host::variable(dialect, "server_protocol").unwrap_or_default()
            }),
        };
        if let Some((status, body)) = asks_for_models(&head).and_then(|question| gateway.models(&question)) {
            gateway.note(&format!("reply={status};reason=models"));
            return answer(status, &[("content-type", "application/json")], &body, "models");
        }
        match classify(&head, gateway.hold_bytes()) {
            HeadVerdict::Pass(reason) => self.pass(gateway, reason.as_str()),
            // The later filter would keep all of it, and the proxy would answer 413.
            HeadVerdict::Hold(_) if gateway.hands_over() && head.declares_over(gateway.hold_bytes()) => {
                self.pass(gateway, PassReason::BodyTooLarge.as_str())
            }
            HeadVerdict::Hold(reader) => self.read(gateway, reader),
        }
    }

    fn read(&mut self, gateway: &mut Gateway, reader: BodyReader) -> Action {
        let action = if gateway.hands_over() {
            if let Err(error) = host::set_state(names::STATE_WAIT, b"1") {
                log::error!("no later filter can be told to wait ({error}): requests pass");
                return self.pass(gateway, NO_BODY_HOLD);
            }
            Action::Continue
        } else if !gateway.dialect.is_envoy() {
            let asked = gateway
                .dialect
                .body_property()
                .map(|name| host::set_property(&[name], b"1"));
            if let Some(Err(error)) = asked {
                log::error!("no body can be asked for ({error}): requests pass");
                return self.pass(gateway, NO_BODY_HOLD);
            }
            Action::Continue
        } else if gateway.hold.begin(self.id, host::now()) {
            Action::Pause
        } else {
            return self.pass(gateway, NO_BODY_HOLD);
        };
        let prompt = gateway.hasher(reader.api());
        self.phase = Phase::Reading(Box::new(Reading {
            reader,
            prompt,
            read: 0,
        }));
        action
    }

    fn pass(&self, gateway: &mut Gateway, reason: &'static str) -> Action {
        gateway.note(&["pass=", reason].concat());
        gateway.passed(reason);
        Action::Continue
    }

    /// Reads what is new of the body; decides at its end or at the bound.
    pub fn request_body(&mut self, gateway: &mut Gateway, of: usize, end: bool) -> Action {
        let reading = match &mut self.phase {
            Phase::Reading(reading) => reading,
            Phase::Waiting(_) => return Action::Pause,
            Phase::Passed | Phase::Sent => return Action::Continue,
        };
        // What went on to a later filter is not shown again; what is held here is. nginx shows a body once.
        let (shown, wait) = if gateway.hands_over() || !gateway.dialect.is_envoy() {
            (0, Action::Continue)
        } else {
            if gateway.hold.body(self.id) {
                gateway.body_hold_proven();
            }
            (reading.read, Action::Pause)
        };
        // nginx has all of it, but no more is looked at than Envoy would hold.
        let size = if gateway.dialect.is_envoy() {
            of
        } else {
            of.min(reading.reader.bound())
        };
        if size > shown {
            let piece = host::buffer(Buffer::RequestBody, shown, size - shown).unwrap_or_default();
            if piece.is_empty() {
                gateway.body_unreadable(of);
            }
            reading.read += piece.len();
            reading.reader.feed(&piece, &mut reading.prompt);
        }
        if !end && reading.read.max(size) < reading.reader.bound() {
            return wait;
        }
        // What was not read may yet name a model.
        let whole = end && (gateway.dialect.is_envoy() || reading.read == of);
        self.decide_read(gateway, whole)
    }

    /// A body that ends with trailers never has its end flag.
    pub fn request_trailers(&mut self, gateway: &mut Gateway) -> Action {
        self.decide_read(gateway, true)
    }

    fn decide_read(&mut self, gateway: &mut Gateway, end: bool) -> Action {
        match core::mem::replace(&mut self.phase, Phase::Passed) {
            Phase::Reading(reading) => {
                let facts = if end {
                    reading.reader.finish()
                } else {
                    reading.reader.facts()
                };
                // The rest of a body goes on arriving, and would not be kept.
                let body = end.then_some(reading.read);
                self.decide(gateway, &facts, &reading.prompt.finish(), body)
            }
            Phase::Waiting(api) => {
                self.phase = Phase::Waiting(api);
                Action::Pause
            }
            other => {
                self.phase = other;
                Action::Continue
            }
        }
    }

    fn decide(&mut self, gateway: &mut Gateway, facts: &Facts, prompt: &Blocks, body: Option<usize>) -> Action {
        let Some(decision) = gateway.decide(self.id, facts, prompt, &core::mem::take(&mut self.steering), body) else {
            return self.pass(gateway, PassReason::BodyTooLarge.as_str());
        };
        if !matches!(decision.action, Chosen::Reply(_)) {
            self.renamed = rename::rewrite(gateway.dialect, facts, &decision.why);
        }
        if decision.action == Chosen::Hold {
            // For the log of one whose client leaves.
            gateway.note(&header::decision(&decision));
            self.phase = Phase::Waiting(facts.api);
            return Action::Pause;
        }
        self.apply(gateway, &decision, facts.api)
    }

    /// Goes on after it has waited, or is answered. To be called in its context, outside of its callbacks. `Continue`:
    /// it is to be resumed.
    pub fn go(&mut self, gateway: &mut Gateway, decision: &Decision) -> Action {
        match core::mem::replace(&mut self.phase, Phase::Passed) {
            Phase::Waiting(api) => self.apply(gateway, decision, api),
            other => {
                self.phase = other;
                Action::Pause
            }
        }
    }

    fn apply(&mut self, gateway: &mut Gateway, decision: &Decision, api: Option<Api>) -> Action {
        if gateway.has_pools() {
            // Any change of the headers makes Envoy choose the route anew: here by this one.
            let _ = host::set_header(Map::Request, names::POOL, decision.why.pool.as_bytes());
        }
        let why = header::decision(decision);
        gateway.note(&why);
        self.explained = gateway.shows_decisions().then_some(why);
        match &decision.action {
            Chosen::Route { endpoints, .. } => self.route(gateway, endpoints, &decision.why),
            Chosen::Reply(refusal) => return self.reply(refusal, api),
            Chosen::Pass(_) | Chosen::Hold => self.phase = Phase::Passed,
        }
        Action::Continue
    }

    fn route(&mut self, gateway: &mut Gateway, endpoints: &[PodAddress], why: &Why) {
        let value = header::destination(endpoints);
        let over = gateway.hands_over();
        let tell = |name: &str, state: &str, value: &[u8]| tell(gateway.dialect, over, name, state, value);
        let asked = why.asked.as_deref().or(why.model.as_deref());
        if let Some(model) = asked.and_then(header::model) {
            let _ = tell(names::MODEL_NAME, names::STATE_MODEL, model.as_bytes());
        }
        if let Some(base) = why.base.as_deref().and_then(header::model).filter(|_| !over) {
            let _ = host::set_header(Map::Request, names::BASE_MODEL_NAME, base.as_bytes());
        }
        match tell(names::DESTINATION_ENDPOINT, names::STATE_ENDPOINTS, value.as_bytes()) {
            Ok(()) => {
                self.phase = Phase::Sent;
                if let (true, Some(first)) = (over, endpoints.first()) {
                    // For a route to a cluster that nobody could patch.
                    let _ = host::set_destination(&first.to_string());
                }
                self.reports = gateway.wants_report(self.id);
                if self.reports && !self.client_asks {
                    let _ = tell(names::LOAD_FORMAT, names::STATE_REPORT, b"TEXT");
                }
                self.first = endpoints.first().copied();
                if let Some(first) = self.first {
                    gateway.dial(first);
                }
            }
            Err(error) => {
                log::error!("the pick {value} could not be set ({error}): the proxy's balancer decides");
                // Nobody knows where it went: it is not that pod's work.
                gateway.ended(self.id, Outcome::Abandoned);
            }
        }
    }

    fn reply(&mut self, refusal: &Refusal, api: Option<Api>) -> Action {
        self.renamed = None;
        let headers = header::refusal(refusal);
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_ref())).collect();
        let body = header::body(refusal, api);
        answer(refusal.status, &headers, &body, refusal.reason.as_str())
    }

    /// The stream is over, for whatever reason. Some: a pod of this pool, by its place in the config, answered all of it and
    /// has its place free again. Any other may be one of many of a connection that dies, and those that wait may be its
    /// others: they are still there, and would be sent for nothing.
    pub fn ended(&mut self, gateway: &mut Gateway) -> Option<usize> {
        gateway.hold.end(self.id);
        match core::mem::replace(&mut self.phase, Phase::Passed) {
            Phase::Sent => {}
            Phase::Waiting(_) => {
                gateway.ended(self.id, Outcome::Abandoned);
                return None;
            }
            Phase::Passed | Phase::Reading(_) => return None,
        }
        let pool = gateway.pool_of(self.id);
        // With a response it is known already: nothing is retried after its headers.
        if self.response.status == 0 {
            self.served(gateway);
        }
        let Response {
            status,
            unanswered,
            complete,
            ref error,
            ..
        } = self.response;
        gateway.ended(self.id, outcome::read(gateway.dialect, status, unanswered, error));
        pool.filter(|_| complete)
    }

    /// The host will never deliver the body: the request goes on undecided.
    pub fn let_go(&mut self) {
        self.phase = Phase::Passed;
    }
}

/// Answers the client from here. Where that cannot be, the request goes on.
fn answer(status: u16, headers: &[(&str, &str)], body: &str, details: &str) -> Action {
    match host::reply(status, headers, body.as_bytes(), details) {
        Ok(()) => Action::Pause,
        Err(error) => {
            log::error!("a reply could not be sent ({error}): the request goes on");
            Action::Continue
        }
    }
}

/// Tells what follows in the chain: by a header and filter state, or by filter state alone where the headers went by.
/// nginx has no filter state.
fn tell(dialect: Dialect, over: bool, name: &str, state: &str, value: &[u8]) -> host::HostResult<()> {
    let told = if dialect.is_envoy() {
        host::set_state(state, value)
    } else {
        Ok(())
    };
    if over {
        told
    } else {
        host::set_header(Map::Request, name, value)
    }
}
