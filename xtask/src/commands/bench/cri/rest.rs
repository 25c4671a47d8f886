//! Rows about everything but the calls of a pod's life.
//!
//! Invariant: a ratio is ours over the other's, of the medians of one run.
//! Failure: a sample that is missing is named.

use anyhow::Result;

use super::super::rows;
use super::super::samples::Samples;
use super::super::table::{Figure, Row};

/// Round trips of a command that ends at once.
pub(super) fn commands(samples: &Samples) -> Result<Vec<Row>> {
    let series = |name| samples.series("exec", name);
    let ratio = series("exec_agent")?.p50() / series("exec_runc")?.p50();
    let ratio = Row::one("  ratio of p50, vmlet-guest", "×", ratio);
    Ok(vec![
        Row::many("ExecSync true: vmlet-guest", "ms", series("exec_agent")?),
        Row::many("  containerd and runc", "ms", series("exec_runc")?),
        ratio.within(Figure::P50, 0.5, "the guest forks under software emulation"),
        Row::many("  QEMU guest agent", "ms", series("exec_qemu")?),
    ])
}

/// Throughput of a forwarded port.
pub(super) fn forward(samples: &Samples) -> Result<Vec<Row>> {
    let series = |name| samples.series("forward", name);
    let ratio = series("forward_containerd")?.p50() / series("forward_vmlet")?.p50();
    let ratio = Row::one("  time beside containerd's, ratio of p50", "×", ratio);
    let row = |what, name| -> Result<Row> { Ok(Row::many(what, "MB/s", series(name)?)) };
    Ok(vec![
        row("port-forward: vmlet", "forward_vmlet")?,
        row("  containerd", "forward_containerd")?,
        ratio.within(Figure::P50, 1.0, "both clients are the same crictl"),
        row("  plain TCP to the pod of vmlet", "plain_vmlet")?,
        row("  plain TCP to the pod of containerd", "plain_containerd")?,
    ])
}

/// Memory of an idle daemon, and the first byte on a console.
pub(super) fn idle(samples: &Samples) -> Result<Vec<Row>> {
    let mut all = vec![rows::idle(samples)?];
    let ours = samples.series("console", "console_vmlet")?;
    let plain = samples.series("console", "console_by_hand")?;
    let waited = samples.series("monitor", "until_cont")?.p50();
    let ratio = Row::one("  ratio of p50", "×", ours.p50() / plain.p50());
    let why = format!("libvirt lets the guest run {waited:.0} ms after QEMU was executed");
    all.push(Row::many("first console byte: Vmlet", "ms", ours));
    all.push(Row::many("  QEMU by hand", "ms", plain));
    all.push(ratio.within(Figure::P50, 1.1, why));
    Ok(all)
}

/// What libvirt says to QEMU before the guest runs.
pub(super) fn monitor(samples: &Samples) -> Result<Vec<Row>> {
    let series = |name: &str| samples.series("monitor", name);
    let mut all = vec![
        Row::many("QEMU executed until cont", "ms", series("until_cont")?),
        Row::many("  until its first answer", "ms", series("until_first")?),
        Row::many(
            "  commands after that and before cont",
            "",
            series("round_trips")?,
        ),
        Row::many("  waiting for their answers", "ms", series("waited")?),
    ];
    for command in samples.names("monitor", "took ") {
        let calls = series(&format!("calls {command}"))?.p50();
        let what = format!("    {command} ({calls:.0})");
        all.push(Row::many(what, "ms", series(&format!("took {command}"))?));
    }
    all.push(Row::many("  cont", "ms", series("cont")?));
    Ok(all)
}

/// Statistics of many recorded machines.
pub(super) fn stats(samples: &Samples) -> Result<Vec<Row>> {
    let entries = samples.fact("stats", "entries").unwrap_or("unknown");
    let row = |method, name| -> Result<Row> {
        let what = format!("{method}, {} recorded: {entries}", super::RECORDED);
        Ok(Row::many(what, "ms", samples.series("stats", name)?))
    };
    Ok(vec![
        row("ListContainerStats", "container_stats")?,
        row("ListPodSandboxStats", "sandbox_stats")?,
    ])
}
