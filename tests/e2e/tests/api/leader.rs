//! Several controllers and one lease, against a real API server.
//!
//! Invariant: at any moment at most one of them acts; which one does is read from their own metrics
//! and logs.
//! Failure: the ends of the controllers' logs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{Control, Controller, eventually, machines};
use nix::sys::signal::Signal;
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(240);
/// No leader loses it because the host is busy for some seconds.
const LEASE: &str = "[lease]\nduration = \"20s\"\nrenew_deadline = \"15s\"\nretry = \"1s\"\n";
/// What a controller that lost its lease ends with.
const LOST: i32 = 75;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root"]
async fn of_two_controllers_one_acts_and_one_that_lost_its_lease_writes_nothing() -> Result<()> {
    let control = Control::up().await?;
    let config = control.stack().dir().join("lease.toml");
    std::fs::write(&config, LEASE)?;
    let config = config.to_string_lossy();
    let flags = ["--config", &config];
    control.cluster().apply(&machines::class("tiny", "64Mi"))?;
    let mut first = control.controller("first", &flags).await?;
    leads(&first).await?;
    let second = control.controller("second", &flags).await?;
    make(&control, "one")?;
    await_pass(&first, "default/one").await?;
    ensure!(!is_leader(&second).await?, "two lead");

    // It neither renews nor notices that it does not.
    first.signal(Signal::SIGSTOP)?;
    let begun = Instant::now();
    leads(&second).await?;
    println!("taken over after {:.1?}", begun.elapsed());
    make(&control, "two")?;
    await_pass(&second, "default/two").await?;
    let written = control.stack().writes()?.len();
    let reported = first.lines()?.len();
    first.signal(Signal::SIGCONT)?;
    let status = first.ended().await.with_context(|| first.tail())?;
    ensure!(status.code() == Some(LOST), "{status}");
    let after = control.stack().writes()?.split_off(written);
    let woken = first.lines()?.split_off(reported);
    let passes = woken.iter().filter(|line| line.outcome == "done").count();
    println!(
        "it ended after {passes} passes; {} writes since",
        after.len()
    );
    ensure!(
        first.log().contains("the lease is lost"),
        "{}",
        first.tail()
    );

    // A leader that is shut down releases the lease: the next one does not wait for its end.
    let third = control.controller("third", &flags).await?;
    ensure!(!is_leader(&third).await?, "two lead");
    let begun = Instant::now();
    let status = second.stop().await?;
    ensure!(status.success(), "{status}");
    leads(&third).await?;
    println!("handed over after {:.1?}", begun.elapsed());
    make(&control, "three")?;
    await_pass(&third, "default/three").await?;

    // An API server that is away for longer than the lease ends the holder, and nothing else does.
    let mut third = third;
    control.stop_api().await?;
    let status = third.ended().await.with_context(|| third.tail())?;
    ensure!(status.code() == Some(LOST), "{status}");
    control.start_api()?;
    control.down()
}

fn make(control: &Control, name: &str) -> Result<()> {
    let spec = json!({ "powerState": "PoweredOff" });
    control.cluster().apply(&machines::machine(name, &spec))
}

async fn is_leader(controller: &Controller) -> Result<bool> {
    Ok(controller.metric("vmlet_controller_leader").await? > 0.0)
}

async fn leads(controller: &Controller) -> Result<()> {
    eventually(TIMEOUT, "the lease", || async {
        ensure!(is_leader(controller).await?, "{}", controller.tail());
        Ok(())
    })
    .await
}

async fn await_pass(controller: &Controller, key: &str) -> Result<()> {
    eventually(TIMEOUT, "a pass", || async {
        let lines = controller.lines()?;
        let mut own = lines.iter().filter(|line| line.key == key);
        ensure!(
            own.any(|line| line.outcome == "dispatched"),
            "{}",
            controller.tail()
        );
        Ok(())
    })
    .await
}
