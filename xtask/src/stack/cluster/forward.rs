//! The API server's door on the host: a port on loopback that leads into the first node's
//! namespace.
//!
//! Invariant: the port is the same on both sides, so that one kubeconfig serves for both.
//! Failure: a connection that cannot be made on the inner side is closed on the outer one.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::stack::{Layout, netns};

/// Starts forwarding on `port`, or on a free one if that is 0; returns the port.
pub(crate) fn serve(layout: &Layout, port: u16) -> Result<u16> {
    let outside = TcpListener::bind(("127.0.0.1", port)).context("listen on loopback")?;
    let port = outside.local_addr()?.port();
    let netns: PathBuf = layout.netns_path();
    std::thread::Builder::new()
        .name("forward".to_owned())
        .spawn(move || {
            for client in outside.incoming().flatten() {
                let netns = netns.clone();
                std::thread::spawn(move || {
                    // No server listens while the API server is stopped; the client sees its
                    // connection end.
                    let _ = relay(client, &netns, port);
                });
            }
        })?;
    Ok(port)
}

fn relay(client: TcpStream, netns: &Path, port: u16) -> Result<()> {
    let server = netns::inside(netns, || Ok(TcpStream::connect(("127.0.0.1", port))?))?;
    let back = (server.try_clone()?, client.try_clone()?);
    let answers = std::thread::spawn(move || copy(back.0, back.1));
    copy(client, server);
    // It has nothing to say beyond the end of its connection.
    let _ = answers.join();
    Ok(())
}

/// One direction, to its end.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
