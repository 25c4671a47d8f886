//! The order in which things are measured.
//!
//! Invariant: memory is compared between daemons of the same age: freshly started, after the same
//! calls.
//! Failure: the part that could not be measured, with what the measuring program reported.

use anyhow::{Context, Result};

use super::samples::Samples;
use crate::stack::Session;
use crate::{run, workspace};

/// The measuring program; `tests/e2e` holds its source.
pub(super) const PROGRAM: &str = "bench-stack";

/// Machines that are recorded while lists are measured.
pub(super) const RECORDED: u32 = 1000;
/// Machines that run at once while memory is measured.
pub(super) const RUNNING: u32 = 5;

/// Parts of the measuring program, how often, and under which name the samples are kept.
const FRESH: &[(&str, u32, &str)] = &[
    ("lists", 1000, "empty"),
    ("starts", 20, "starts"),
    ("console", 10, "console"),
    ("wrapper", 200, "wrapper"),
    ("machines", RUNNING, "machines"),
    ("record", RECORDED, "record"),
];
const FULL: &[(&str, u32, &str)] = &[("lists", 1000, "full"), ("clear", RECORDED, "clear")];

/// Measures everything in a fresh stack.
pub(super) fn measure(session: &Session) -> Result<Samples> {
    let mut samples = Samples::default();
    parts(session, FRESH, &mut samples)?;
    // The last part has ended the daemon.
    restart(session)?;
    parts(session, FULL, &mut samples)?;
    Ok(samples)
}

/// Starts the daemon again.
pub(super) fn restart(session: &Session) -> Result<()> {
    let mut restart = run::myself_as_root()?;
    restart
        .args(["restart", "--dir"])
        .arg(session.layout().dir());
    run::output(restart.arg("vmlet")).map(drop)
}

fn parts(session: &Session, parts: &[(&str, u32, &str)], samples: &mut Samples) -> Result<()> {
    for (part, count, name) in parts {
        self::part(session, PROGRAM, part, *count, name, samples)?;
    }
    Ok(())
}

/// Runs a part of a measuring program; its samples get `name`.
pub(super) fn part(
    session: &Session,
    program: &str,
    part: &str,
    count: u32,
    name: &str,
    samples: &mut Samples,
) -> Result<()> {
    println!("bench: {part} ({count})");
    let program = workspace::target().join("release").join(program);
    let program = program.to_str().context("the path is not UTF-8")?;
    let mut command = session.command(program);
    command.arg("--dir").arg(session.layout().dir());
    command.arg("--count").arg(count.to_string()).arg(part);
    samples.add(name, &run::output(&mut command)?)
}
