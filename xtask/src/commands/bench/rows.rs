//! Converts samples to the rows of the table, with the budgets.
//!
//! Invariant: this is the only place that knows a budget; `docs/performance.md` explains each row.
//! Failure: a sample that is missing is named.

use anyhow::Result;

use super::plan::{RECORDED, RUNNING};
use super::samples::Samples;
use super::table::{Figure, Row};

const KIB_PER_MIB: f64 = 1024.0;
const PROGRAMS: [&str; 3] = ["rss_vmlet", "rss_tapmanager", "rss_libvirtd"];

/// All rows, in the order of the page.
pub(super) fn all(samples: &Samples) -> Result<Vec<Row>> {
    let mut rows = starts(samples)?;
    rows.extend(console(samples)?);
    rows.extend(lists(samples)?);
    rows.extend(memory(samples)?);
    rows.extend(wrapper(samples)?);
    Ok(rows)
}

fn starts(samples: &Samples) -> Result<Vec<Row>> {
    let series = |name| samples.series("starts", name);
    let detour = detour(samples, "wrapped")?;
    let why = format!(
        "network {:.0} ms, CreateContainer {:.0} ms, StartContainer {:.0} ms, vmwrapper \
         {detour:.0} ms",
        series("network_ours")?.p50(),
        series("create")?.p50(),
        series("start_ours")?.p50(),
    );
    let row = |what, name| -> Result<Row> { Ok(Row::many(what, "ms", series(name)?)) };
    Ok(vec![
        Row::many("start: our share", "ms", series("ours")?.plus(detour)).within(
            Figure::P50,
            50.0,
            why,
        ),
        row("  RunPodSandbox", "run")?,
        row("    of it CNI plugins", "plugins")?,
        row("  CreateContainer", "create")?,
        row("  StartContainer", "start")?,
        row("    of it libvirt and QEMU", "libvirt")?,
    ])
}

fn console(samples: &Samples) -> Result<Vec<Row>> {
    let ours = samples.series("console", "console_vmlet")?;
    let plain = samples.series("console", "console_by_hand")?;
    let ratio = ours.p50() / plain.p50();
    let why = format!(
        "of {:.0} ms more, {:.0} ms are ours; libvirt prepares the host, starts QEMU stopped and \
         questions it first",
        ours.p50() - plain.p50(),
        samples.series("starts", "start_ours")?.p50(),
    );
    Ok(vec![
        Row::many("first console byte: Vmlet", "ms", ours),
        Row::many("first console byte: QEMU by hand", "ms", plain),
        Row::one("first console byte: ratio", "×", ratio).within(Figure::P50, 1.1, why),
    ])
}

fn lists(samples: &Samples) -> Result<Vec<Row>> {
    let methods = [
        ("ListContainers", "list_containers"),
        ("ListPodSandbox", "list_sandboxes"),
    ];
    let row = |(method, name): (&str, &str)| -> Result<Row> {
        let what = format!("{method}, {RECORDED} machines");
        let empty = samples.series("empty", name)?.percentile(99);
        let why = format!("with no machine its p99 is {empty:.2} ms");
        Ok(Row::many(what, "ms", samples.series("full", name)?).within(Figure::P99, 5.0, why))
    };
    methods.into_iter().map(row).collect()
}

/// Resident memory of an idle daemon.
pub(super) fn idle(samples: &Samples) -> Result<Row> {
    let last = |part, name| samples.last(part, name);
    let anonymous = last("empty", "anonymous_vmlet")? / KIB_PER_MIB;
    let idle = last("empty", "rss_vmlet")?;
    let why = format!(
        "{anonymous:.1} MiB are its own, the rest are pages of files: the program, libvirt and its \
         libraries"
    );
    let idle = idle / KIB_PER_MIB;
    Ok(Row::one("memory: vmlet, idle", "MiB", idle).within(Figure::P50, 25.0, why))
}

fn memory(samples: &Samples) -> Result<Vec<Row>> {
    let last = |part, name| samples.last(part, name);
    let idle = last("empty", "rss_vmlet")?;
    let recorded = (last("full", "rss_vmlet")? - idle) / f64::from(RECORDED);
    let mut running = 0.0;
    for program in PROGRAMS {
        running += samples.growth("machines", program)? / f64::from(RUNNING);
    }
    let daemon = samples.growth("machines", "rss_vmlet")? / f64::from(RUNNING);
    Ok(vec![
        self::idle(samples)?,
        Row::one("memory: vmlet, per recorded machine", "KiB", recorded).within(
            Figure::P50,
            50.0,
            "",
        ),
        Row::one("memory: vmlet, per running machine", "KiB", daemon).within(Figure::P50, 50.0, ""),
        Row::one("memory: with vmlet-tapmanager and libvirtd", "KiB", running).within(
            Figure::P50,
            KIB_PER_MIB,
            "",
        ),
        Row::one(
            "memory: vmlet-tapmanager, idle",
            "MiB",
            last("empty", "rss_tapmanager")? / KIB_PER_MIB,
        ),
    ])
}

fn wrapper(samples: &Samples) -> Result<Vec<Row>> {
    let budget = |what, name, why| {
        Ok::<_, anyhow::Error>(Row::one(what, "ms", detour(samples, name)?).within(
            Figure::P50,
            5.0,
            why,
        ))
    };
    Ok(vec![
        budget("vmwrapper: detour", "wrapped", "")?,
        budget(
            "vmwrapper: detour into a pod's cgroup",
            "wrapped_placed",
            "the kernel waits for all processors before it moves a process",
        )?,
    ])
}

/// The difference of the medians, in milliseconds.
fn detour(samples: &Samples, name: &str) -> Result<f64> {
    let direct = samples.series("wrapper", "direct")?.p50();
    Ok(samples.series("wrapper", name)?.p50() - direct)
}
