//! Servers that tests answer from: HTTP, where a function makes the answers, and names.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::AUTHORIZATION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;

/// A GET: its path with the query, and its authorization.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub authorization: String,
}

type Answers = dyn Fn(&Asked) -> (u16, String) + Send;

/// An HTTP server. Dropping it stops it.
pub struct Pages {
    pub address: SocketAddr,
    answers: Arc<Mutex<Box<Answers>>>,
    task: JoinHandle<()>,
}

impl Pages {
    pub async fn start(answers: impl Fn(&Asked) -> (u16, String) + Send + 'static) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let answers: Arc<Mutex<Box<Answers>>> = Arc::new(Mutex::new(Box::new(answers)));
        let shared = Arc::clone(&answers);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answers = Arc::clone(&shared);
                tokio::spawn(async move {
                    let service = service_fn(|request| serve(Arc::clone(&answers), request));
                    let _ = http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Self { address, answers, task })
    }

    /// Answers otherwise from now on.
    pub fn answer(&self, answers: impl Fn(&Asked) -> (u16, String) + Send + 'static) {
        *self.answers.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(answers);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(answers: Arc<Mutex<Box<Answers>>>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
    let text = |value: &hyper::header::HeaderValue| value.to_str().unwrap_or_default().to_owned();
    let asked = Asked {
        path: request.uri().to_string(),
        authorization: request.headers().get(AUTHORIZATION).map(text).unwrap_or_default(),
    };
    let (status, body) = answers.lock().unwrap_or_else(PoisonError::into_inner)(&asked);
    let response = Response::builder()
        .status(status)
        .header("content-type", "application/json");
    Ok(response.body(Full::from(body))?)
}

/// A name server with one answer to every question for IPv4 addresses. Dropping it stops it.
pub struct Names {
    pub address: SocketAddr,
    records: Arc<Mutex<Vec<Ipv4Addr>>>,
    task: JoinHandle<()>,
}

impl Names {
    pub async fn start(records: &[Ipv4Addr]) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = socket.local_addr()?;
        let records = Arc::new(Mutex::new(records.to_vec()));
        let shared = Arc::clone(&records);
        let task = tokio::spawn(async move {
            let mut question = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut question).await {
                let records = shared.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(answer) = answer(&question[..length], &records) {
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        });
        Ok(Self { address, records, task })
    }

    /// Other addresses from now on.
    pub fn set(&self, records: &[Ipv4Addr]) {
        *self.records.lock().unwrap_or_else(PoisonError::into_inner) = records.to_vec();
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// RFC 1035: the head with "answer, recursion available", the question again, and the records.
fn answer(question: &[u8], records: &[Ipv4Addr]) -> Option<Vec<u8>> {
    const HEAD: usize = 12;
    let name = question.get(HEAD..)?.iter().position(|&byte| byte == 0)? + 1;
    let end = HEAD + name + 4;
    let for_ipv4 = question.get(end - 4..end)? == [0, 1, 0, 1];
    let records = if for_ipv4 { records } else { &[] };
    let mut answer = question.get(..2)?.to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::try_from(records.len()).ok()?, 0, 0, 0, 0]);
    answer.extend(question.get(HEAD..end)?);
    for record in records {
        // The name above, an address of the internet, for a second.
        answer.extend([0xC0, 0x0C, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        answer.extend(record.octets());
    }
    Some(answer)
}
