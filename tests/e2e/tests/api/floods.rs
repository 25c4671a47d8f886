//! A pod that floods the controller's listeners, and kubelet's probes beside it.
//!
//! Invariant: the flood has another address than the probe, as a pod has another one than its node.
//! Failure: the first probe that failed.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Control, eventually, in_time};
use tokio::net::{TcpSocket, TcpStream};

/// More than a listener serves at a time.
const HELD: usize = 200;
/// Connections of a flood before the first probe, and between two of them.
const SURGE: usize = 500;
const SOON: Duration = Duration::from_secs(60);

/// A connection from a pod's address.
async fn connect(to: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 2], 0)))?;
    Ok(socket.connect(to).await?)
}

pub(super) async fn probes_succeed_while_a_pod_floods_the_controller(
    control: &Control,
) -> Result<()> {
    let controller = control.controller("flooded", &[]).await?;
    let (metrics, probes) = controller.addresses();
    let mut held = Vec::new();
    for _ in 0..HELD {
        held.push(connect(metrics).await?);
    }
    let stop = Arc::new(AtomicBool::default());
    let count = Arc::new(AtomicUsize::new(0));
    let flood = tokio::spawn({
        let stop = Arc::clone(&stop);
        let count = Arc::clone(&count);
        async move {
            let mut open = VecDeque::new();
            while !stop.load(Ordering::Relaxed) {
                open.push_back(connect(probes).await?);
                if open.len() > HELD {
                    open.pop_front();
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        }
    });
    for round in 1..=10 {
        eventually(SOON, "the flood", || async {
            ensure!(count.load(Ordering::Relaxed) >= round * SURGE);
            Ok(())
        })
        .await?;
        for path in ["/readyz", "/healthz"] {
            in_time(SOON, path, controller.probe(path)).await?;
        }
    }
    in_time(SOON, "metrics", controller.page("/metrics")).await?;
    stop.store(true, Ordering::Relaxed);
    flood.await??;
    drop(held);
    ensure!(controller.stop().await?.success());
    Ok(())
}
