//! `bench images`: what the images of a node cost, beside curl and containerd.
//!
//! Invariant: what is compared takes turns on one node, and reads the same bytes from the same
//! server.
//! Failure: the part that could not be measured, or what the stack leaked.

use std::process::ExitCode;

use anyhow::{Context, Result};

use super::samples::Samples;
use super::table::{Figure, Row};
use super::{build_program, cri, flood, plan, publish};
use crate::commands::guest;
use crate::stack::Session;
use crate::{run, workspace};

/// The measuring program; `tests/e2e` holds its source.
const PROGRAM: &str = "bench-images";
/// The program that measures the check of a disk.
const HEADER: &str = "header";
/// The part that boots Debian.
const MARKER: &str = "marker";
/// Images that are listed.
const LISTED: u32 = 1000;
/// Parts of the measuring program, and how often.
const PARTS: [(&str, u32); 4] = [
    ("clone", 20),
    ("download", 5),
    ("registry", 5),
    ("list", LISTED),
];

/// Measures images.
#[derive(Debug, clap::Args)]
pub(super) struct Images {
    /// Use the release builds and images without building them.
    #[arg(long)]
    no_build: bool,
}

impl Images {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<ExitCode> {
        if !self.no_build {
            if cri::build()? != ExitCode::SUCCESS {
                return Ok(ExitCode::FAILURE);
            }
            guest::ensure_debian()?;
            build_program(PROGRAM)?;
        }
        let header = flood::build("vmlet", HEADER)?;
        let session = Session::up_beside_containerd("bench")?;
        let measured = measure(&session);
        let down = session.down();
        let mut samples = measured?;
        down.context("take the stack down")?;
        let mut header = run::command(&header);
        header.arg(workspace::guest_image());
        samples.add(HEADER, &run::output(&mut header)?)?;
        publish("images", &samples, &rows(&samples)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn measure(session: &Session) -> Result<Samples> {
    let mut samples = Samples::default();
    for (part, count) in PARTS {
        plan::part(session, PROGRAM, part, count, part, &mut samples)?;
    }
    plan::part(session, plan::PROGRAM, MARKER, 3, MARKER, &mut samples)?;
    Ok(samples)
}

fn rows(samples: &Samples) -> Result<Vec<Row>> {
    let row = |what: &str, part, name| -> Result<Row> {
        Ok(Row::many(what, "ms", samples.series(part, name)?))
    };
    let ratio = |part, ours, other| -> Result<f64> {
        Ok(samples.series(part, ours)?.p50() / samples.series(part, other)?.p50())
    };
    let p50 = |number| Row::one("  ratio of p50", "×", number);
    let clone = p50(ratio("clone", "clone_40", "clone_1")?);
    let download = p50(ratio("download", "download_vmlet", "download_curl")?);
    let kept = ratio("download", "download_vmlet", "download_kept")?;
    let why = format!("curl keeps nothing; beside a file that is kept: {kept:.2}");
    let registry = p50(ratio("registry", "registry_vmlet", "registry_containerd")?);
    let marker = p50(ratio(MARKER, "marker_vmlet", "marker_by_hand")?);
    let shares = |what: &str, name| -> Result<Row> {
        Ok(Row::many(what, "MB/s", samples.series(MARKER, name)?))
    };
    let pace = ratio(MARKER, "share_by_hand", "share_vmlet")?;
    let pace = Row::one(
        "  time beside that of QEMU by hand, ratio of p50",
        "×",
        pace,
    );
    let lists = samples.series("list", "list")?;
    let judged = samples.series(HEADER, "judge")?;
    Ok(vec![
        row("CreateContainer, image of 1 GiB", "clone", "clone_1")?,
        row("  of 10 GiB", "clone", "clone_10")?,
        row("  of 40 GiB", "clone", "clone_40")?,
        clone.within(Figure::P50, 1.1, "a larger disk has a larger table"),
        row("512 MiB: PullImage", "download", "download_vmlet")?,
        row("  curl | sha256sum", "download", "download_curl")?,
        row("  the same with tee and sync", "download", "download_kept")?,
        download.within(Figure::P50, 1.1, why),
        row("layer of 512 MiB: Vmlet", "registry", "registry_vmlet")?,
        row("  containerd", "registry", "registry_containerd")?,
        registry.within(
            Figure::P50,
            1.1,
            "Vmlet writes the layer and then the disk in it",
        ),
        row("PullImage of 64 KiB", "list", "small")?,
        Row::many(format!("ListImages, {LISTED} images"), "ms", lists).within(
            Figure::P99,
            5.0,
            "the client and the daemon share the processors",
        ),
        Row::many("check of a header", "µs", judged),
        row("user data of Debian: Vmlet", MARKER, "marker_vmlet")?,
        row("  QEMU by hand", MARKER, "marker_by_hand")?,
        marker.within(Figure::P50, 1.1, "Vmlet limits translated code"),
        shares("virtiofs, reads of a guest: Vmlet", "share_vmlet")?,
        shares("  QEMU by hand", "share_by_hand")?,
        pace.within(Figure::P50, 1.05, "both have the same server"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_ours_over_the_other() {
        let mut samples = Samples::default();
        for (part, numbers) in [
            (
                "clone",
                serde_json::json!({ "clone_1": [10.0], "clone_10": [10.0], "clone_40": [12.0] }),
            ),
            (
                "download",
                serde_json::json!({ "download_vmlet": [10.0], "download_curl": [10.0], "download_kept": [20.0] }),
            ),
            (
                "registry",
                serde_json::json!({ "registry_vmlet": [10.0], "registry_containerd": [20.0] }),
            ),
            ("list", serde_json::json!({ "list": [1.0], "small": [9.0] })),
            (HEADER, serde_json::json!({ "judge": [1.0] })),
            (
                MARKER,
                serde_json::json!({
                    "marker_vmlet": [10.0], "marker_by_hand": [8.0],
                    "share_vmlet": [100.0], "share_by_hand": [100.0],
                }),
            ),
        ] {
            let printed = serde_json::json!({ "samples": numbers, "facts": {} }).to_string();
            samples.add(part, &printed).unwrap();
        }
        let verdicts: Vec<_> = rows(&samples)
            .unwrap()
            .iter()
            .map(Row::to_json)
            .filter(|row| row["what"] == "  ratio of p50")
            .map(|row| (row["figures"]["value"].as_f64(), row["verdict"].clone()))
            .collect();
        let expected = [
            (1.2, "over"),
            (1.0, "within"),
            (0.5, "within"),
            (1.25, "over"),
        ];
        assert_eq!(
            verdicts,
            expected.map(|(ratio, verdict)| (Some(ratio), verdict.into()))
        );
    }
}
