//! How `vmlet-guest` gets into a guest, beside being in its image: by cloud-init from the seed
//! image, and by a Debian package.
//!
//! Invariant: the program that serves the port is the delivered one: the agent of the image steps
//! aside in a guest whose seed image has one.
//! Failure: the program that runs, or the command that failed.

use std::fs::File;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, PodOptions, Stack, eventually, program};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(180);

#[tokio::test]
#[ignore = "needs root"]
async fn the_agent_arrives_by_cloud_init_and_by_a_package() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let image = cri.await_image(&stack).await?;
    let mut pod = PodOptions::named("delivered", &stack);
    let user_data = ("vmlet.dev/cloud-init-user-data", "runcmd: [[\"true\"]]");
    pod.annotations
        .insert(user_data.0.to_owned(), user_data.1.to_owned());
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    await_program(&cri, &container, "/var/lib/vmlet/vmlet-guest").await?;
    report(&stack, &container).await?;

    let printed = e2e::xtask(&["deb", "vmlet-guest"])?;
    let package = printed.lines().find_map(|line| line.strip_prefix("deb: "));
    install(&stack, &container, package.context("no package")?)?;
    // The loop of cloud-init's script starts what has the name now.
    let replace = "ln -sf /usr/sbin/vmlet-guest /var/lib/vmlet/vmlet-guest; \
                   (sleep 0.2; kill -9 $(pidof vmlet-guest)) >/dev/null 2>&1 &";
    cri.shell(&container, replace).await?;
    await_program(&cri, &container, "/usr/sbin/vmlet-guest").await?;

    cri.remove_pod(&sandbox).await?;
    stack.await_clean().await?;
    stack.down()
}

/// Waits until a command runs below this program.
async fn await_program(cri: &Cri, container: &str, program: &str) -> Result<()> {
    eventually(SOON, program, || async {
        let running = cri.shell(container, "readlink /proc/$PPID/exe").await?;
        ensure!(running == program, "{running}");
        Ok(())
    })
    .await
}

/// What the agent reports is in the container's verbose status.
async fn report(stack: &Stack, container: &str) -> Result<()> {
    eventually(SOON, "a report of the guest", || async {
        let inspected: Value = serde_json::from_str(&stack.crictl(&["inspect", container])?)?;
        let agent = &inspected["info"]["vm"]["guestAgent"];
        ensure!(agent["program"] == "vmlet-guest", "{agent}");
        ensure!(agent["version"] == env!("CARGO_PKG_VERSION"), "{agent}");
        ensure!(agent["memoryBytes"].as_u64() > Some(32 << 20), "{agent}");
        let seed = agent["fileSystems"].as_array().into_iter().flatten();
        let mut seed = seed.filter(|fs| fs["mountPoint"] == "/run/seed");
        let metrics = stack.crictl(&["metricsp"])?;
        for name in [
            "vmlet_guest_memory_bytes",
            "vmlet_guest_filesystem_used_bytes",
        ] {
            ensure!(metrics.contains(name), "{name}");
        }
        ensure!(
            seed.next().is_some_and(|seed| seed["type"] == "iso9660"),
            "{agent}"
        );
        Ok(())
    })
    .await
}

/// Unpacks the package in the guest, as dpkg does.
fn install(stack: &Stack, container: &str, package: &str) -> Result<()> {
    let script = "cat >/tmp/package.deb && dpkg-deb -x /tmp/package.deb / && \
                  test -x /usr/sbin/vmlet-guest && test -s /lib/udev/rules.d/60-vmlet-guest.rules && \
                  test -s /lib/systemd/system/vmlet-guest.service";
    let endpoint = stack.var("CONTAINER_RUNTIME_ENDPOINT")?;
    let mut install = stack.command("crictl");
    install.args([
        "-r", endpoint, "-i", endpoint, "exec", "-i", container, "sh", "-c", script,
    ]);
    let file = File::open(package).with_context(|| package.to_owned())?;
    let output = program::output_of(install.stdin(file))?;
    ensure!(output.status.success(), "install {package}: {output:?}");
    Ok(())
}
