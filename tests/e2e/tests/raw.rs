//! Bytes on a socket, where an HTTP client would be too clever: a pod that accepts upgrades, and a client that speaks
//! as it is told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Bytes of a message head that are read at most.
const HEAD_MAX: usize = 64 << 10;

/// A pod that knows no model. It answers an upgrade with 101 and echoes from then on; everything else with 404.
pub struct RawPod {
    pub address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl RawPod {
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let heads = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heads);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&log)));
            }
        });
        Ok(Self { address, heads, task })
    }

    /// The heads of all requests so far, pages that Berth reads apart.
    pub fn heads(&self) -> Vec<String> {
        let mut heads = self.heads.lock().expect("no test panics with it").clone();
        heads.retain(|head| !head.starts_with("GET /metrics") && !head.starts_with("GET /v1/models"));
        heads
    }
}

impl Drop for RawPod {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, log: Arc<Mutex<Vec<String>>>) -> Result<()> {
    loop {
        let head = head(&mut stream).await?;
        log.lock().expect("no test panics with it").push(head.clone());
        if head.to_ascii_lowercase().contains("\r\nupgrade: websocket\r\n") {
            let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
            stream.write_all(switch.as_bytes()).await?;
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await?;
            return Ok(());
        }
        stream
            .write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nraw\n")
            .await?;
    }
}

/// Reads one message head, up to and with the empty line.
pub async fn head(stream: &mut TcpStream) -> Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_MAX {
        head.push(stream.read_u8().await.context("the other side closed")?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Sends bytes and reads the head of the answer.
pub async fn exchange(stream: &mut TcpStream, request: &str) -> Result<String> {
    stream.write_all(request.as_bytes()).await?;
    head(stream).await
}
