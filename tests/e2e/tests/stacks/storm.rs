//! Many clients at once, with duplicate and conflicting requests for the same pods.
//!
//! Invariant: every request ends, in success or in a valid refusal, and nothing is left in the
//! end.
//! Failure: a request that does not end within its time, or a leftover.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, PodOptions, Stack, in_time};
use tonic::{Code, Status};

const PODS: usize = 20;
const CLIENTS: usize = 4;

/// Far more than any request needs, and still bounded.
const TIMEOUT: Duration = Duration::from_secs(300);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root"]
async fn twenty_pods_start_and_stop_in_parallel() -> Result<()> {
    let stack = Arc::new(Stack::up()?);
    stack.cri().await?.await_ready().await?;
    let image = stack.image()?.to_owned();
    stack.cri().await?.pull(&image).await?;
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let stack = Arc::clone(&stack);
        let image = image.clone();
        clients.push(tokio::spawn(async move {
            let cri = stack.cri().await?;
            for pod in (client..PODS).step_by(CLIENTS) {
                let pod = PodOptions::named(&format!("storm-{pod}"), &stack);
                let life = Box::pin(full_cycle(&cri, &pod, &image));
                in_time(TIMEOUT, "the end of a life", life).await?;
            }
            Ok::<(), anyhow::Error>(())
        }));
    }
    for client in clients {
        client.await??;
    }
    let cri = stack.cri().await?;
    ensure!(cri.containers().await?.is_empty(), "containers are left");
    ensure!(cri.sandboxes().await?.is_empty(), "sandboxes are left");
    stack.await_clean().await?;
    Arc::into_inner(stack)
        .context("the stack is still shared")?
        .down()
}

/// One pod, with every request sent twice at once and some that contradict each other.
async fn full_cycle(cri: &Cri, pod: &PodOptions, image: &str) -> Result<()> {
    let (a, b) = tokio::join!(cri.run(pod.sandbox()), cri.run(pod.sandbox()));
    let sandbox = a.or(b).context("neither RunPodSandbox succeeded")?;
    let create =
        |attempt| Box::pin(cri.create(&sandbox, pod.container(image, attempt), pod.sandbox()));
    let (a, b) = tokio::join!(create(0), create(1));
    // The later attempt takes the place of the earlier one, which comes too late or has to go.
    let container = b.context("attempt 1 has its place")?;
    if let Ok(superseded) = a {
        let status = cri.container(&superseded).await?;
        ensure!(status.reason == "StartError", "never started: {status:?}");
    }
    let (a, b) = tokio::join!(cri.start(&container), cri.start(&container));
    ensure!(
        a.is_ok() || b.is_ok(),
        "neither StartContainer succeeded: {a:?}, {b:?}"
    );
    let (a, b, c) = tokio::join!(
        cri.stop(&container, 1),
        cri.stop(&container, 0),
        cri.start(&container)
    );
    a.and(b).context("StopContainer")?;
    // The third came too early or too late, and was refused, unless it was the first one.
    refused_in_order(c)?;
    let (a, b, c) = tokio::join!(
        cri.remove(&container),
        cri.stop_pod(&sandbox),
        cri.remove_pod(&sandbox)
    );
    // They may conflict; the last request decides.
    for end in [a, b, c] {
        refused_in_order(end)?;
    }
    cri.remove_pod(&sandbox).await.context("RemovePodSandbox")
}

/// An error if a request failed by anything but a refusal: a panic, say, or an error of libvirt.
fn refused_in_order(end: Result<(), Status>) -> Result<()> {
    let Err(refusal) = end else {
        return Ok(());
    };
    let is_refusal = !matches!(
        refusal.code(),
        Code::Internal | Code::Unknown | Code::DataLoss
    );
    ensure!(is_refusal, "no refusal: {refusal:?}");
    Ok(())
}
