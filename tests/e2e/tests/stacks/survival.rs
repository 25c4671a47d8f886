//! kill -9 of each of our programs, and of libvirtd, under a running guest.
//!
//! Invariant: the guest never notices: its uptime and its counter continue, its log has no gap, its
//! network answers, and it can still be stopped.
//! Failure: the test names the program whose death was noticed, and how.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{Console, Cri, PodOptions, Stack, Tick, await_text, cases, eventually, ticks};
use nix::sys::signal::Signal;

const BOOT: Duration = Duration::from_secs(180);
/// How long a request of the daemon waits for libvirt.
const TIMEOUT: Duration = Duration::from_secs(5);

#[tokio::test]
#[ignore = "needs root"]
async fn guests_outlive_the_programs_of_their_node() -> Result<()> {
    let stack = Stack::up()?;
    cases!(
        &stack,
        [
            a_guest_that_powers_off_exits_at_once_and_a_killed_one_has_code_137,
            a_guest_survives_the_death_of_every_program,
            requests_fail_with_a_sentence_while_libvirt_is_away
        ]
    );
    stack.down()
}

async fn a_guest_survives_the_death_of_every_program(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let pod = PodOptions::named("survivor", stack);
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    let log = pod.log(0);
    for word in ["VMLET-GUEST-READY", "VMLET-TICK"] {
        await_text(&log, word, BOOT).await?;
    }
    let ip = cri.ip(&sandbox).await?;
    let page = format!("http://{ip}/");
    stack.fetch(&page, BOOT).await?;

    for program in ["vmlet", "vmlet-tapmanager", "libvirtd"] {
        stack.kill(program, Signal::SIGKILL).await?;
        stack.restart(program)?;
        check_alive(stack, &pod, &container, &page)
            .await
            .with_context(|| program.to_owned())?;
    }
    for program in ["vmlet", "vmlet-tapmanager", "libvirtd"] {
        stack.kill(program, Signal::SIGKILL).await?;
    }
    for program in ["libvirtd", "vmlet-tapmanager", "vmlet"] {
        stack.restart(program)?;
    }
    check_alive(stack, &pod, &container, &page)
        .await
        .context("all at once")?;

    let cri = stack.cri().await?;
    eventually(BOOT, "a stop", || async {
        Ok(cri.stop(&container, 90).await?)
    })
    .await?;
    let status = cri.container(&container).await?;
    ensure!(
        (status.exit_code, status.reason.as_str()) == (0, "Completed"),
        "{status:?}"
    );
    check_counter(&ticks(&std::fs::read_to_string(&log)?))?;
    cri.remove_pod(&sandbox).await?;
    stack.await_clean().await
}

async fn requests_fail_with_a_sentence_while_libvirt_is_away(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let pod = PodOptions::named("waiting", stack);
    let sandbox = cri.run(pod.sandbox()).await?;
    let container = Box::pin(cri.create(&sandbox, pod.container(&image, 0), pod.sandbox())).await?;
    stack.kill("libvirtd", Signal::SIGKILL).await?;
    let refused = eventually(BOOT, "an honest answer", || async {
        let answer = tokio::time::timeout(Duration::from_secs(30), cri.start(&container)).await?;
        answer.err().context("a start without libvirt succeeded")
    })
    .await?;
    ensure!(refused.code() == tonic::Code::Unavailable, "{refused:?}");
    ensure!(refused.message().contains("libvirt"), "{refused:?}");
    // The daemon need not be connected again: a request waits for that, and is refused after its
    // timeout only.
    stack.restart("libvirtd")?;
    let hasty = eventually(BOOT, "the start", || async {
        let begun = Instant::now();
        match cri.start(&container).await {
            Ok(()) => Ok(None),
            Err(refused) if begun.elapsed() < TIMEOUT => Ok(Some(refused)),
            Err(refused) => Err(refused.into()),
        }
    })
    .await?;
    ensure!(hasty.is_none(), "refused at once: {hasty:?}");
    cri.remove_pod(&sandbox).await?;
    stack.await_clean().await
}

async fn a_guest_that_powers_off_exits_at_once_and_a_killed_one_has_code_137(
    stack: &Stack,
) -> Result<()> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let pod = PodOptions::named("off", stack);
    let (sandbox, first) = cri.boot(&pod, &image).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    let page = format!("http://{}/", cri.ip(&sandbox).await?);
    stack.fetch(&page, BOOT).await?;
    Console::open(stack, &first)?.type_line("poweroff")?;
    let status = cri.await_exit(&first, BOOT).await?;
    ensure!(
        (status.exit_code, status.reason.as_str()) == (0, "Completed"),
        "{status:?}"
    );
    ensure!(
        status.finished_at >= status.started_at && status.started_at > 0,
        "{status:?}"
    );

    let created = Box::pin(cri.create(&sandbox, pod.container(&image, 1), pod.sandbox())).await?;
    cri.start(&created).await?;
    cri.stop(&created, 0).await?;
    let status = cri.container(&created).await?;
    ensure!(
        (status.exit_code, status.reason.as_str()) == (137, "Error"),
        "{status:?}"
    );
    ensure!(!status.message.is_empty(), "a kill has a message");
    cri.remove_pod(&sandbox).await?;
    stack.await_clean().await
}

pub(crate) async fn check_alive(
    stack: &Stack,
    pod: &PodOptions,
    container: &str,
    page: &str,
) -> Result<()> {
    let cri: Cri = stack.cri().await?;
    cri.await_ready().await?;
    let before = last(&pod.log(0))?;
    let after = eventually(BOOT, "the guest's next words", || async {
        let now = last(&pod.log(0))?;
        ensure!(now.count > before.count + 1, "{now:?}");
        Ok(now)
    })
    .await?;
    ensure!(
        after.uptime > before.uptime,
        "the guest started again: {before:?}, {after:?}"
    );
    check_counter(&ticks(&std::fs::read_to_string(pod.log(0))?))?;
    stack.fetch(page, BOOT).await?;
    let status = cri.container(container).await?;
    ensure!(
        status.state == e2e::v1::ContainerState::ContainerRunning as i32,
        "{status:?}"
    );
    Ok(())
}

fn last(log: &std::path::Path) -> Result<Tick> {
    ticks(&std::fs::read_to_string(log)?)
        .last()
        .copied()
        .context("no tick yet")
}

/// Every number once, in order.
fn check_counter(ticks: &[Tick]) -> Result<()> {
    for pair in ticks.windows(2) {
        ensure!(
            pair[1].count == pair[0].count + 1,
            "a gap or a double: {pair:?}"
        );
    }
    Ok(())
}
