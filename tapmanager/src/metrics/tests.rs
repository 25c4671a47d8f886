//! The page over the real listener, and the names in the documentation.
//!
//! Invariant: each metric is counted once, so that the page has a series of each.
//! Failure: the names that differ.

use std::collections::BTreeSet;

use cni::Observer as _;
use service::admin_http::Endpoint;
use tapmanager::wire::{Answer, WireError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::*;

#[tokio::test]
async fn the_page_has_the_metrics_of_the_documentation() {
    let metrics = Shared::default();
    let failed = Reply::Error(WireError {
        code: ErrorCode::Plugin,
        message: String::new(),
    });
    metrics.requested(kind(&Request::List {}), Instant::now(), &failed);
    metrics.requested(
        kind(&Request::Status {}),
        Instant::now(),
        &Reply::Ok(Answer::Done),
    );
    metrics.handed_off(Some(ErrorCode::NotFound));
    metrics.refused("hand-off");
    metrics.called("bridge", "ADD", Duration::from_millis(20), true);

    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("metrics.sock");
    let endpoint = Endpoint::Unix(path.clone());
    let stop = CancellationToken::new();
    let serving = serve(&endpoint, metrics, || 3, stop.clone()).await.unwrap();
    let serving = tokio::spawn(serving);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    stop.cancel();
    serving.await.unwrap();

    for line in [
        r#"vmlet_tapmanager_requests_total{kind="list",code="plugin"} 1"#,
        r#"vmlet_tapmanager_requests_total{kind="status",code="ok"} 1"#,
        r#"vmlet_tapmanager_handoffs_total{code="not_found"} 1"#,
        r#"vmlet_tapmanager_connections_refused_total{socket="hand-off"} 1"#,
        r#"vmlet_tapmanager_cni_calls_total{plugin="bridge",command="ADD",outcome="ok"} 1"#,
        "vmlet_tapmanager_sandboxes 3",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let served: BTreeSet<_> = types
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| match kind {
            "counter" => format!("{name}_total"),
            _ => name.to_owned(),
        })
        .collect();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/observability.md");
    let page = std::fs::read_to_string(page).unwrap();
    let cells = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `vmlet_tapmanager_"));
    let documented: BTreeSet<_> = cells
        .filter_map(|rest| rest.split_once('`'))
        .map(|(name, _)| format!("vmlet_tapmanager_{name}"))
        .collect();
    assert_eq!(served, documented);
}
