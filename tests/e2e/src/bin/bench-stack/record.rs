//! Fills the database with machines that have ended.
//!
//! Invariant: one real pod ran and was stopped; the other rows are copies of its two, with ids,
//! names and times of their own, written while no daemon runs. None has files or a network.
//! Failure: SQLite's message; the daemon stays down.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::eventually;
use nix::sys::signal::{Signal, kill};
use rusqlite::{Connection, params};

use crate::samples::Samples;
use e2e::bench::Stack;

/// For a daemon that shuts down.
const TIMEOUT: Duration = Duration::from_secs(30);

/// `?1` copies of sandbox `?2`. Ids are 56 digits that count, then the tag of all our ids.
const SANDBOXES: &str = r#"
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?1)
    INSERT INTO sandboxes (id, identity, phase, created_at, config, network)
    SELECT printf('%020x%036d766d6c74', n, 0),
           json_array(s.config ->> '$.metadata.namespace', 'recorded-' || n, 'uid-' || n, 0),
           s.phase,
           s.created_at + n,
           json_set(s.config, '$.metadata.name', 'recorded-' || n, '$.metadata.uid', 'uid-' || n),
           s.network
    FROM numbers, sandboxes s WHERE s.id = ?2"#;

/// The same for its container `?2`.
const CONTAINERS: &str = r#"
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?1)
    INSERT INTO containers
        (id, sandbox, phase, created_at, started_at, finished_at, kill_by, exit, spec)
    SELECT printf('%020x%036d766d6c74', n, 1), printf('%020x%036d766d6c74', n, 0),
           c.phase, c.created_at + n, c.started_at, c.finished_at, c.kill_by, c.exit, c.spec
    FROM numbers, containers c WHERE c.id = ?2"#;

/// Ends the daemon and records `count` machines, the real one among them.
pub(crate) async fn record(stack: &Stack, count: u32) -> Result<Samples> {
    let cri = stack.cri_with_image().await?;
    let (real, _) = stack.boot(&cri, &stack.pod("recorded")).await?;
    cri.stop(&real.container, 0)
        .await
        .context("StopContainer")?;
    cri.stop_pod(&real.sandbox)
        .await
        .context("StopPodSandbox")?;
    drop(cri);
    end_daemon(stack).await?;

    let mut database = Connection::open(stack.path("state/vmlet.db")).context("open")?;
    let transaction = database.transaction()?;
    let copies = count.saturating_sub(1);
    for (statement, template) in [(SANDBOXES, &real.sandbox), (CONTAINERS, &real.container)] {
        let written = transaction.execute(statement, params![copies, template])?;
        ensure!(written == usize::try_from(copies)?, "{written} rows");
    }
    transaction.commit()?;
    let mut samples = Samples::default();
    samples.number("recorded", count.into());
    Ok(samples)
}

/// Removes all sandboxes, of which there are `count`, through the daemon.
pub(crate) async fn clear(stack: &Stack, count: u32) -> Result<Samples> {
    let cri = stack.cri().await?;
    let sandboxes = cri.sandboxes().await?;
    ensure!(sandboxes.len() == usize::try_from(count)?);
    let mut samples = Samples::default();
    for sandbox in sandboxes {
        let begun = Instant::now();
        stack.remove(&cri, &sandbox.id).await?;
        samples.time("remove", begun.elapsed());
    }
    Ok(samples)
}

async fn end_daemon(stack: &Stack) -> Result<()> {
    let pid = stack.pid("vmlet")?;
    kill(pid, Signal::SIGTERM).context("end the daemon")?;
    eventually(TIMEOUT, "the end of the daemon", || async {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie has closed its files.
        ensure!(stat.is_empty() || stat.contains(") Z "), "it still runs");
        Ok(())
    })
    .await
}
