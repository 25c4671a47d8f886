//! `bench deploy`: virtual machines of one image beside QEMU by hand, snapshots and backups of a running guest, disks that
//! leave the node and files that reach it.
//!
//! Invariant: what is compared is measured in one part, on one node; a part runs alone, too, and its rows need no other.
//! Failure: the part that could not be measured, or what the stack leaked. What was measured before is printed.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::samples::Samples;
use super::table::{Figure, Row};
use super::{build_program, plan, publish};
use crate::commands::build::Build;
use crate::commands::{guest, setup};
use crate::stack::Session;

/// The program that measures images and disks without guests.
const IMAGES: &str = "bench-images";
const DEPLOY: &str = "deploy";
const SNAPSHOTS: &str = "snapshots";
const BACKUPS: &str = "backups";
const DISKS: &str = "disks";
const TRANSFER: &str = "transfer";

/// What is measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Linked and direct disks of images of three sizes.
    Disks,
    /// Export and upload of a disk.
    Transfer,
    /// Snapshots of a running guest, reverts and clones.
    Snapshots,
    /// Backups of a running guest.
    Backups,
    /// Virtual machines of one image, one and many.
    Guests,
}

/// Measures virtual machines of one image.
#[derive(Debug, clap::Args)]
pub(super) struct Deploy {
    /// Parts to measure [default: all of them].
    #[arg(value_name = "PART")]
    parts: Vec<Part>,
    /// Use the release builds and the guest image without building them.
    #[arg(long)]
    no_build: bool,
    /// Number of machines of the large rounds.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=100))]
    machines: u32,
}

impl Deploy {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<ExitCode> {
        if setup::ensure(false)? != ExitCode::SUCCESS {
            return Ok(ExitCode::FAILURE);
        }
        if !self.no_build {
            println!("bench: building");
            guest::ensure()?;
            Build::RELEASE.programs()?;
            build_program(plan::PROGRAM)?;
            build_program(IMAGES)?;
        }
        let session = Session::up_release("bench")?;
        let mut samples = Samples::default();
        let mut measured = Vec::new();
        let mut outcome = Ok(());
        for part in Part::value_variants()
            .iter()
            .filter(|part| self.has(**part))
        {
            outcome = self.measure(&session, *part, &mut samples);
            if outcome.is_err() {
                break;
            }
            measured.push(*part);
        }
        let down = session.down();
        publish(DEPLOY, &samples, &rows(&samples, &measured, self.machines)?)?;
        outcome?;
        down.context("take the stack down")?;
        Ok(ExitCode::SUCCESS)
    }

    fn has(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }

    fn measure(&self, session: &Session, part: Part, samples: &mut Samples) -> Result<()> {
        let (program, name, count) = match part {
            Part::Disks => (IMAGES, DISKS, 10),
            Part::Transfer => (IMAGES, TRANSFER, 5),
            Part::Snapshots => (plan::PROGRAM, SNAPSHOTS, 10),
            Part::Backups => (plan::PROGRAM, BACKUPS, 3),
            Part::Guests => (plan::PROGRAM, DEPLOY, self.machines),
        };
        plan::part(session, program, name, count, name, samples)
    }
}

fn rows(samples: &Samples, parts: &[Part], machines: u32) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for part in parts {
        rows.extend(match part {
            Part::Disks => disks(samples)?,
            Part::Transfer => transfers(samples)?,
            Part::Snapshots => snapshots(samples)?,
            Part::Backups => backups(samples)?,
            Part::Guests => [guests(samples, 1)?, guests(samples, machines)?]
                .into_iter()
                .flatten()
                .collect(),
        });
    }
    Ok(rows)
}

/// A row of milliseconds.
fn row(samples: &Samples, what: &str, part: &str, name: &str) -> Result<Row> {
    Ok(Row::many(what, "ms", samples.series(part, name)?))
}

/// The medians of two series, one by the other.
fn ratio(samples: &Samples, part: &str, ours: &str, other: &str) -> Result<f64> {
    Ok(samples.series(part, ours)?.p50() / samples.series(part, other)?.p50())
}

fn guests(samples: &Samples, machines: u32) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (what, name) in [
        ("by hand, only boots", "by_hand_boot"),
        ("by hand, qemu-img convert", "by_hand_convert"),
        ("by hand, curl and qemu-img convert", "by_hand_fetch"),
        ("linked, warm", "linked_warm"),
        ("linked, cold", "linked_cold"),
        ("direct, warm", "direct_warm"),
        ("direct, cold", "direct_cold"),
    ] {
        let what = format!("guests up, {machines}: {what}");
        rows.push(row(samples, &what, DEPLOY, &format!("{name}_{machines}"))?);
    }
    let compared = |ours: &str, other: &str| {
        let ours = format!("{ours}_{machines}");
        ratio(samples, DEPLOY, &ours, &format!("{other}_{machines}"))
    };
    let boots = compared("linked_warm", "by_hand_boot")?;
    let boots = Row::one("  linked, warm beside only boots", "×", boots);
    rows.push(match machines {
        1 => boots,
        _ => boots.within(Figure::P50, 1.3, "each guest also has a network of its own"),
    });
    for (what, ours, other) in [
        (
            "  linked, warm beside convert",
            "linked_warm",
            "by_hand_convert",
        ),
        (
            "  direct, warm beside convert",
            "direct_warm",
            "by_hand_convert",
        ),
        (
            "  linked, cold beside curl and convert",
            "linked_cold",
            "by_hand_fetch",
        ),
        (
            "  direct, cold beside curl and convert",
            "direct_cold",
            "by_hand_fetch",
        ),
    ] {
        rows.push(Row::one(what, "×", compared(ours, other)?));
    }
    Ok(rows)
}

fn disks(samples: &Samples) -> Result<Vec<Row>> {
    let flat = ratio(samples, DISKS, "linked_40", "linked_1")?;
    let flat = Row::one("  linked, 40 GiB beside 1 GiB", "×", flat);
    Ok(vec![
        row(samples, "linked disk, image of 1 GiB", DISKS, "linked_1")?,
        row(samples, "  of 10 GiB", DISKS, "linked_10")?,
        row(samples, "  of 40 GiB", DISKS, "linked_40")?,
        flat.within(Figure::P50, 1.1, "a larger disk has a larger table"),
        row(samples, "direct disk, image of 1 GiB", DISKS, "direct_1")?,
        row(samples, "  of 40 GiB", DISKS, "direct_40")?,
    ])
}

fn snapshots(samples: &Samples) -> Result<Vec<Row>> {
    let number = |name| samples.last(SNAPSHOTS, name);
    let taken = samples.series(SNAPSHOTS, "snapshot")?;
    // All snapshots of the part, and one that is not counted.
    let stopped = number("stopped")? / f64::from(u32::try_from(taken.len() + 1)?);
    let longest = |name| -> Result<f64> { Ok(samples.series(SNAPSHOTS, name)?.p50()) };
    let held = (longest("write_with")? - longest("write_without")?).max(0.0);
    let why = "the guest's writes wait while QEMU switches to the new layer";
    Ok(vec![
        Row::many("snapshot of a running guest", "ms", taken),
        Row::one("  guest stopped by QEMU, each", "ms", stopped).within(Figure::P50, 100.0, ""),
        row(
            samples,
            "  longest write of the guest without",
            SNAPSHOTS,
            "write_without",
        )?,
        row(
            samples,
            "  longest write of the guest during one",
            SNAPSHOTS,
            "write_with",
        )?,
        Row::one("  difference", "ms", held).within(Figure::P50, 100.0, why),
        row(
            samples,
            "snapshot with memory, 256 MiB",
            SNAPSHOTS,
            "memory",
        )?,
        Row::many(
            "  guest stopped by QEMU",
            "ms",
            samples.series(SNAPSHOTS, "memory_stopped")?,
        ),
        row(samples, "revert", SNAPSHOTS, "revert")?,
        row(samples, "clone of a snapshot", SNAPSHOTS, "clone")?,
    ])
}

fn backups(samples: &Samples) -> Result<Vec<Row>> {
    let read = samples.series(BACKUPS, "read")?.p50();
    let read = Row::one("  read of the disk, beside what was changed", "×", read);
    let why = "what is read is whole clusters, and the tables of the layer";
    Ok(vec![
        row(
            samples,
            "full backup of a running guest, 10 GiB",
            BACKUPS,
            "full",
        )?,
        row(
            samples,
            "incremental, 64 MiB changed",
            BACKUPS,
            "incremental",
        )?,
        read.within(Figure::P50, 2.0, why),
    ])
}

fn transfers(samples: &Samples) -> Result<Vec<Row>> {
    let beside = |name| -> Result<Row> {
        let ratio = ratio(samples, TRANSFER, name, "curl")?;
        Ok(Row::one("  time beside curl", "×", ratio))
    };
    let copied = "the node makes a whole file of the disk first";
    let checked = "the node checks the whole file, and syncs it";
    Ok(vec![
        row(samples, "256 MiB: curl, sync and digest", TRANSFER, "curl")?,
        row(samples, "  export by the node API", TRANSFER, "export")?,
        beside("export")?.within(Figure::P50, 1.25, copied),
        row(samples, "  upload by the node API", TRANSFER, "upload")?,
        beside("upload")?.within(Figure::P50, 1.25, checked),
    ])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn add(samples: &mut Samples, part: &str, numbers: &Value) {
        let printed = json!({ "samples": numbers, "facts": {} }).to_string();
        samples.add(part, &printed).unwrap();
    }

    /// Machines take ten times as long as one; Vmlet takes `ours` times as long as by hand.
    fn samples(ours: f64, stopped: f64) -> Samples {
        let mut samples = Samples::default();
        let mut numbers = serde_json::Map::new();
        for (machines, factor) in [(1, 1.0), (20, 10.0)] {
            for name in ["boot", "convert", "fetch"] {
                let key = format!("by_hand_{name}_{machines}");
                numbers.insert(key, json!([100.0 * factor]));
            }
            for name in ["linked_warm", "linked_cold", "direct_warm", "direct_cold"] {
                let key = format!("{name}_{machines}");
                numbers.insert(key, json!([100.0 * factor * ours]));
            }
        }
        add(&mut samples, DEPLOY, &Value::Object(numbers));
        let disks = json!({
            "linked_1": [10.0], "linked_10": [10.0], "linked_40": [10.0 * ours],
            "direct_1": [90.0], "direct_40": [90.0],
        });
        add(&mut samples, DISKS, &disks);
        let snapshots = json!({
            "snapshot": [50.0], "stopped": [stopped], "write_without": [40.0], "write_with": [60.0],
            "memory": [240.0], "memory_stopped": [90.0], "revert": [30.0], "clone": [70.0],
        });
        add(&mut samples, SNAPSHOTS, &snapshots);
        let backups = json!({ "full": [500.0], "incremental": [200.0], "read": [1.8 * ours] });
        add(&mut samples, BACKUPS, &backups);
        let transfer = json!({ "curl": [100.0], "export": [100.0 * ours], "upload": [100.0] });
        add(&mut samples, TRANSFER, &transfer);
        samples
    }

    fn verdicts(samples: &Samples) -> Vec<(String, String)> {
        let rows = rows(samples, Part::value_variants(), 20).unwrap();
        let rows = rows.iter().map(Row::to_json);
        let judged = rows.filter(|row| row["verdict"] != "");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        judged
            .map(|row| (text(&row["what"]), text(&row["verdict"])))
            .collect()
    }

    #[test]
    fn a_run_within_its_budgets_has_no_row_over_them() {
        let verdicts = verdicts(&samples(1.0, 20.0));
        assert_eq!(verdicts.len(), 7, "{verdicts:?}");
        assert!(
            verdicts.iter().all(|(_, verdict)| verdict == "within"),
            "{verdicts:?}"
        );
    }

    #[test]
    fn each_budget_is_about_its_own_figure() {
        let over = verdicts(&samples(1.4, 400.0)).into_iter();
        let over = over.filter(|(_, verdict)| verdict == "over");
        let over: Vec<_> = over.map(|(what, _)| what).collect();
        let expected = [
            "  linked, 40 GiB beside 1 GiB",
            "  time beside curl",
            "  guest stopped by QEMU, each",
            "  read of the disk, beside what was changed",
            "  linked, warm beside only boots",
        ];
        assert_eq!(over, expected);
    }

    #[test]
    fn a_part_alone_has_its_rows_and_needs_no_other() {
        let all = samples(1.0, 20.0);
        let mut alone = Samples::default();
        add(
            &mut alone,
            DISKS,
            &json!({
                "linked_1": [10.0], "linked_10": [10.0], "linked_40": [10.0],
                "direct_1": [90.0], "direct_40": [90.0],
            }),
        );
        let count = |samples: &Samples, part| rows(samples, &[part], 20).map(|rows| rows.len());
        assert_eq!(
            count(&alone, Part::Disks).unwrap(),
            count(&all, Part::Disks).unwrap()
        );
        assert!(count(&alone, Part::Backups).is_err());
    }
}
