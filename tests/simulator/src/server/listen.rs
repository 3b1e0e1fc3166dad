//! Accepting connections, and refusing them on demand: a web framework's own loop cannot drop live connections.

use super::pod::Pod;
use axum::Router;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How often to try for the port again when someone took it meanwhile.
const REBIND_PAUSE: Duration = Duration::from_millis(10);

/// Serves until dropped. Connections end with it.
pub(super) async fn serve(pod: &Arc<Pod>, listener: TcpListener, address: SocketAddr, router: Router) {
    let mut refuse = pod.refuse.subscribe();
    let mut connections = JoinSet::new();
    let mut listener = Some(listener);
    loop {
        match &listener {
            Some(open) => tokio::select! {
                accepted = open.accept() => if let Ok((stream, _)) = accepted {
                    connections.spawn(connection(stream, router.clone(), pod.refuse.subscribe()));
                },
                Some(_) = connections.join_next() => {}
                _ = refuse.wait_for(|refuse| *refuse) => listener = None,
            },
            None => {
                pod.listening.send_replace(false);
                let _ = refuse.wait_for(|refuse| !*refuse).await;
                listener = Some(rebind(address).await);
                pod.listening.send_replace(true);
            }
        }
    }
}

async fn rebind(address: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => {
                eprintln!("cannot listen on {address} again: {error}");
                tokio::time::sleep(REBIND_PAUSE).await;
            }
        }
    }
}

/// Serves one connection until it ends or is to be dropped. One that is just steering the pod may finish its answer.
async fn connection(stream: TcpStream, router: Router, mut refuse: watch::Receiver<bool>) {
    // Tokens are small; Nagle's algorithm would hold them back. A failure here costs only time.
    let _ = stream.set_nodelay(true);
    let steering = Arc::new(AtomicBool::new(false));
    let inner = TowerToHyperService::new(router);
    let flag = Arc::clone(&steering);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        flag.store(request.uri().path().starts_with("/sim/"), Ordering::Relaxed);
        inner.call(request)
    });
    let builder = Builder::new(TokioExecutor::new());
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = refuse.wait_for(|refuse| *refuse) => {}
    }
    if steering.load(Ordering::Relaxed) {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}
