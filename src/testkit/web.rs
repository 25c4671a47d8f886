//! Three disks on a loopback web server, one of which only UEFI boots, and another of which only one half
//! arrives.
//!
//! Invariant: every request for another file is answered with a whole file, or 404.
//! Failure: a connection that breaks is the client's to notice.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

pub(super) struct FakeWeb {
    /// `host:port`.
    pub(super) authority: String,
    requests: Arc<AtomicUsize>,
    _serving: AbortOnDropHandle<()>,
}

impl FakeWeb {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let authority = format!("localhost:{}", listener.local_addr().unwrap().port());
        let requests = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&requests);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(answer(stream));
            }
        });
        Self {
            authority,
            requests,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// Number of requests so far: each has a connection of its own.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

async fn answer(stream: TcpStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    stream.read_line(&mut request).await?;
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 2 {
        line.clear();
    }
    let path = request.split(' ').nth(1);
    let (status, body) = match path {
        Some("/disk") => ("200 OK", vec![1; 4096]),
        Some("/other") => ("200 OK", vec![2; 4096]),
        Some("/efi") => ("200 OK", of_uefi()),
        Some("/half") => ("200 OK", vec![3; 4096]),
        _ => ("404 Not Found", Vec::new()),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    if path == Some("/half") {
        stream.write_all(&body[..length / 2]).await?;
        return std::future::pending().await;
    }
    stream.write_all(&body).await?;
    stream.shutdown().await
}

/// A partition table without boot code.
fn of_uefi() -> Vec<u8> {
    let mut disk = vec![0; 4096];
    disk[512..520].copy_from_slice(b"EFI PART");
    disk
}
