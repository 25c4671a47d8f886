//! Invariant: every answer comes over a real connection.
//! Failure: the answer is shown.

use std::io::Write;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::*;

const SOON: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const PATIENT: Limits = Limits {
    connections: 1,
    head: HOUR,
    life: HOUR,
};

async fn server(limits: Limits, stop: &CancellationToken) -> (SocketAddr, JoinHandle<()>) {
    let server = Server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = server.address().unwrap();
    let pages = |path: &str| match path {
        "/healthz" => Some(Page::ok()),
        "/metrics" => Some(Page::metrics("# EOF\n".to_owned())),
        _ => None,
    };
    let serving = tokio::spawn(server.serve(limits, stop.clone(), pages));
    (address, serving)
}

async fn request(address: SocketAddr, request: &str) -> String {
    // The server, which shares this thread, gets no turn before all is said: its deadline is not
    // the test's.
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut stream = TcpStream::from_std(stream).unwrap();
    let mut answer = String::new();
    let reading = stream.read_to_string(&mut answer);
    tokio::time::timeout(SOON, reading).await.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn pages_are_had_by_get_and_nothing_else_is() {
    let stop = CancellationToken::new();
    let (address, serving) = server(PATIENT, &stop).await;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let healthy = request(address, &get("/healthz")).await;
    assert!(healthy.starts_with("HTTP/1.1 200") && healthy.ends_with("\r\n\r\nok\n"));
    let metrics = request(address, &get("/metrics")).await;
    assert!(metrics.contains(OPEN_METRICS) && metrics.ends_with("# EOF\n"));
    let unknown = request(address, &get("/secrets")).await;
    assert!(unknown.starts_with("HTTP/1.1 404"), "{unknown}");
    let post = "POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let refused = request(address, post).await;
    assert!(refused.starts_with("HTTP/1.1 405"), "{refused}");
    stop.cancel();
    tokio::time::timeout(SOON, serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_idle_reader_loses_its_place_to_the_next() {
    let stop = CancellationToken::new();
    let (address, _serving) = server(PATIENT, &stop).await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    let healthy = request(address, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(healthy.starts_with("HTTP/1.1 200"), "{healthy}");
    let end = tokio::time::timeout(SOON, silent.read_u8()).await;
    assert!(end.unwrap().is_err());
}

#[tokio::test]
async fn idle_readers_do_not_delay_the_shutdown() {
    let stop = CancellationToken::new();
    let server = Server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = server.address().unwrap();
    let mut serving = Box::pin(server.serve(PATIENT, stop.clone(), |_| None));
    let silent = TcpStream::connect(address);
    let connected = tokio::select! {
        () = &mut serving => None,
        silent = silent => Some(silent.unwrap()),
    };
    // It is taken now, and the next one would have to wait.
    let taken = tokio::time::timeout(Duration::from_millis(100), &mut serving).await;
    assert!(taken.is_err() && connected.is_some());
    stop.cancel();
    tokio::time::timeout(SOON, serving).await.expect("it ends");
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let first = Server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = first.address().unwrap();
    let error = Server::bind(address).await.unwrap_err();
    assert_eq!(error.to_string(), format!("listen on {address}"));
}

#[tokio::test]
async fn a_page_is_had_through_a_unix_socket_which_goes_with_the_server() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("run/metrics.sock");
    let endpoint: Endpoint = path.display().to_string().parse().unwrap();
    let server = Server::listen(&endpoint).await.unwrap();
    assert_eq!(server.address(), None);
    let stop = CancellationToken::new();
    let page = |path: &str| (path == "/metrics").then(Page::ok);
    let serving = tokio::spawn(server.serve(PATIENT, stop.clone(), page));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    let reading = stream.read_to_string(&mut answer);
    tokio::time::timeout(SOON, reading).await.unwrap().unwrap();
    assert!(answer.ends_with("ok\n"), "{answer}");
    stop.cancel();
    tokio::time::timeout(SOON, serving).await.unwrap().unwrap();
    assert!(!path.exists());
}
