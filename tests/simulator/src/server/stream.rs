//! The body of a streamed answer: one chunk per token, as the engine makes them.

use super::pod::Ticket;
use super::reply::Writer;
use crate::engine::EventKind;
use axum::body::Bytes;
use hyper::body::{Body, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Dropped by the server when the client leaves, and with it the ticket: that cancels the request.
pub(super) struct TokenStream {
    ticket: Ticket,
    writer: Writer,
    /// The first event, awaited before the answer's head was sent.
    first: Option<EventKind>,
    ended: bool,
}

impl TokenStream {
    pub(super) fn new(ticket: Ticket, writer: Writer, first: EventKind) -> Self {
        Self {
            ticket,
            writer,
            first: Some(first),
            ended: false,
        }
    }
}

impl Body for TokenStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = match self.first.take() {
            Some(event) => Some(event),
            None => ready!(self.ticket.events.poll_recv(context)),
        };
        let text = match event {
            Some(EventKind::FirstToken { .. } | EventKind::Token { .. }) => self.writer.token(),
            Some(EventKind::Finished(done)) => {
                self.ended = true;
                self.writer.end(done.cached_tokens)
            }
            Some(EventKind::Rejected(_)) | None => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(text)))))
    }
}
