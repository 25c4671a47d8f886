//! A session of connections to ports of a guest.
//!
//! Invariant: each connection has an error stream and a data stream with one request id. Each half
//! of a connection ends separately over SPDY. Channels of WebSocket have no ends of the server, and only the
//! newest ones have ends of the client, so there a connection ends with the guest's half, and the session with
//! its last connection. A connection that fails disturbs no other one. Connections come from the node's namespace, and leave it by the
//! link that leads to the pod (docs/adr/0074).
//! Failure: text on the error stream of the connection.

use std::collections::HashMap;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use spdy::{Session, Stream};
use tapmanager::wire::PodRoute;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// Time for a guest to accept a connection at one of its addresses.
const CONNECT: Duration = Duration::from_secs(10);
/// Most connections whose second stream has not been opened.
const MOST_HALF_OPEN: usize = 64;

/// One stream of a connection whose other one is awaited.
#[derive(Debug)]
enum Half {
    Error(Stream),
    Data(Stream),
}

/// Serves connections until the client ends the session, or `only` so many.
pub(super) async fn run(
    mut session: Session,
    addresses: Vec<PodRoute>,
    only: Option<usize>,
) -> Result<(), String> {
    let mut ended = 0;
    let has_halves = only.is_none();
    let addresses = Arc::new(addresses);
    let mut waiting: HashMap<String, Half> = HashMap::new();
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = session.accept() => match accepted {
                Ok(Some(stream)) => stream,
                Ok(None) => return Ok(()),
                Err(error) => return Err(crate::one_line(&error)),
            },
            Some(_) = connections.join_next() => {
                ended += 1;
                if only == Some(ended) {
                    return session.close().await.map_err(|e| crate::one_line(&e));
                }
                continue;
            }
        };
        let id = request_id(&stream);
        let half = match stream.header("streamtype") {
            Some("error") => Half::Error(stream),
            Some("data") => Half::Data(stream),
            other => return Err(format!("port-forward has no stream {other:?}")),
        };
        match (waiting.remove(&id), half) {
            (None, half) if waiting.len() < MOST_HALF_OPEN => {
                waiting.insert(id, half);
            }
            (Some(Half::Error(error)), Half::Data(data))
            | (Some(Half::Data(data)), Half::Error(error)) => {
                let addresses = Arc::clone(&addresses);
                connections.spawn(connection(error, data, addresses, has_halves));
            }
            (Some(_), _) => return Err(format!("request {id} opened a stream twice")),
            (None, _) => return Err("too many connections lack their second stream".to_owned()),
        }
    }
}

/// Old clients send no request id: their error stream comes right before the data stream.
fn request_id(stream: &Stream) -> String {
    match stream.header("requestid") {
        Some(id) => id.to_owned(),
        None if stream.header("streamtype") == Some("data") => {
            stream.id().saturating_sub(2).to_string()
        }
        None => stream.id().to_string(),
    }
}

/// Carries one connection.
async fn connection(error: Stream, data: Stream, addresses: Arc<Vec<PodRoute>>, has_halves: bool) {
    let port = data.header("port").map(str::to_owned).unwrap_or_default();
    let (mut from_client, mut to_client) = data.split();
    let ended = async {
        let guest = connect(&port, &addresses).await?;
        let (mut from_guest, mut to_guest) = guest.into_split();
        let upward = async {
            // A client that ends its half before it has sent everything is no error of the guest,
            // which reads the end of the connection in any case.
            tokio::io::copy(&mut from_client, &mut to_guest).await.ok();
            to_guest.shutdown().await.ok();
            Ok(())
        };
        let downward = async {
            let copied = tokio::io::copy(&mut from_guest, &mut to_client).await;
            to_client.shutdown().await?;
            copied.map(drop)
        };
        // A connection that the guest breaks off ends at once, whatever the client still sends.
        let ended = if has_halves {
            tokio::try_join!(upward, downward).map(drop)
        } else {
            let upward = upward.then(|_: io::Result<()>| pending());
            tokio::select! {
                ended = downward => ended,
                ended = upward => ended,
            }
        };
        ended.map_err(|e| format!("connection to port {port}: {e}"))
    };
    let ended = ended.await;
    // The client waits for the end of the data, also when there was no connection.
    let _ = to_client.shutdown().await;
    let (_, mut report) = error.split();
    if let Err(text) = ended {
        // A client that has disconnected needs no report.
        let _ = report.write_all(text.as_bytes()).await;
    }
    let _ = report.shutdown().await;
}

/// Connects to the first address that accepts.
async fn connect(port: &str, addresses: &[PodRoute]) -> Result<TcpStream, String> {
    let number = port.parse().ok().filter(|number| *number > 0);
    let number: u16 = number.ok_or_else(|| format!("{port:?} is no port"))?;
    let mut failure = "the pod has no address".to_owned();
    for PodRoute { address, link } in addresses {
        let address = SocketAddr::new(*address, number);
        let connected = connect_over(link.as_deref(), address);
        match tokio::time::timeout(CONNECT, connected).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failure = format!("connect to {address}: {error}"),
            Err(_) => failure = format!("connect to {address}: no answer in {CONNECT:?}"),
        }
    }
    Err(failure)
}

/// Connects over a link of the node and no other, whatever its routes are by now. A kernel before 5.7
/// binds for privileged programs only: there the route that was checked has to do.
async fn connect_over(link: Option<&str>, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if let Some(link) = link {
        match socket.bind_device(Some(link.as_bytes())) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            bound => bound?,
        }
    }
    socket.connect(address).await
}
