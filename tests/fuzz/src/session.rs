//! A session of SPDY whose client sends anything.
//!
//! Invariant: the session ends when its client disconnects, whatever came before; every stream that
//! it accepts can be read to its end or to an error, and written to.
//! Failure: a panic, also when the session does not end.

use std::time::Duration;

use spdy::{Limits, Session, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::task::JoinSet;

/// Longer than each time-out of the session, in tokio's own time.
const END: Duration = Duration::from_secs(24 * 3600);

/// Runs a session over these bytes.
///
/// # Panics
///
/// When the session does not end.
#[allow(clippy::expect_used, reason = "the panic is the finding")]
pub fn session(input: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let served = runtime.block_on(async { tokio::time::timeout(END, serve(input)).await });
    served.expect("the end of the session");
}

async fn serve(input: &[u8]) {
    let (near, far) = duplex(4096);
    let limits = Limits {
        streams: 4,
        ..Limits::default()
    };
    let Ok(mut session) = Session::server(far, limits) else {
        return;
    };
    let (mut answers, mut requests) = tokio::io::split(near);
    let client = async {
        for piece in crate::pieces(input) {
            if requests.write_all(piece).await.is_err() {
                break;
            }
        }
        // A session that has ended does not take it.
        let _ = requests.shutdown().await;
        let mut sink = Vec::new();
        let _ = answers.read_to_end(&mut sink).await;
    };
    let server = async {
        let mut streams = JoinSet::new();
        while let Ok(Some(stream)) = session.accept().await {
            streams.spawn(echo(stream));
        }
        drop(session);
        while streams.join_next().await.is_some() {}
    };
    tokio::join!(client, server);
}

async fn echo(stream: Stream) {
    let _ = stream.header("streamtype");
    let (mut read, mut write) = stream.split();
    let mut buffer = [0; 512];
    while let Ok(length @ 1..) = read.read(&mut buffer).await {
        if write.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
    let _ = write.shutdown().await;
}
