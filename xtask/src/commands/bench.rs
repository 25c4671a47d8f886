//! `bench`: measures what `docs/performance.md` guarantees, and prints the guarantees beside it.
//!
//! Invariant: measures release builds, in processes of its own, and leaves nothing of them; asserts
//! nothing: a number beyond its budget is marked, with the reason as far as numbers show it.
//! Failure: exit code 1 when something could not be measured, or the stack leaked.

mod controller;
mod cri;
mod deploy;
mod flood;
mod images;
mod machine;
mod plan;
mod proxy;
mod queue;
mod rows;
mod samples;
mod soak;
mod table;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::json;

use self::controller::Controller;
use self::cri::Cri;
use self::deploy::Deploy;
use self::flood::Flood;
use self::images::Images;
use self::machine::Machine;
use self::proxy::Proxy;
use self::queue::Queue;
use self::samples::Samples;
use self::soak::Soak;
use self::table::{Row, Table};
use super::build::Build;
use super::{guest, setup};
use crate::stack::Session;
use crate::{run, workspace};

/// Measures Vmlet and compares the results with its budgets.
#[derive(Debug, clap::Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Debug, clap::Subcommand)]
enum Subject {
    /// Start and operation of a machine: time, latency, memory.
    Start(Start),
    /// Latency that the CRI proxy adds to a call.
    Proxy(Proxy),
    /// Calls of a pod's life, commands, port forwarding and statistics, side by side with containerd.
    Cri(Cri),
    /// Images: root disks, pulls beside curl and containerd, lists.
    Images(Images),
    /// Virtual machines of one image beside QEMU by hand, snapshots, exports and uploads.
    Deploy(Deploy),
    /// Flood of DHCP requests of one guest: CPU of the tapmanager, leases of another guest.
    Flood(Flood),
    /// What programs hold after the lives of many pods.
    Soak(Soak),
    /// Work queue of the controller, compared with the one of controller-runtime.
    Queue(Queue),
    /// Controller with many machines: time, CPU, memory, requests.
    Controller(Controller),
}

#[derive(Debug, clap::Args)]
struct Start {
    /// Use the release builds and the guest image without building them.
    #[arg(long)]
    no_build: bool,
}

impl Bench {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        match &self.subject {
            Subject::Start(start) => start.run(),
            Subject::Proxy(proxy) => proxy.run(),
            Subject::Cri(cri) => cri.run(),
            Subject::Images(images) => images.run(),
            Subject::Deploy(deploy) => deploy.run(),
            Subject::Flood(flood) => flood.run(),
            Subject::Soak(soak) => soak.run(),
            Subject::Queue(queue) => queue.run(),
            Subject::Controller(controller) => controller.run(),
        }
    }
}

impl Start {
    fn run(&self) -> Result<ExitCode> {
        if setup::ensure(false)? != ExitCode::SUCCESS {
            return Ok(ExitCode::FAILURE);
        }
        if !self.no_build {
            println!("bench: building");
            guest::ensure()?;
            Build::RELEASE.programs()?;
            build_program(plan::PROGRAM)?;
        }
        let session = Session::up_release("bench")?;
        let measured = plan::measure(&session);
        let down = session.down();
        let samples = measured?;
        down.context("take the stack down")?;
        publish("start", &samples, &rows::all(&samples)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A program that speaks CRI and the tapmanager's protocol, which this one does not link.
fn build_program(name: &str) -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--quiet", "--release", "-p", "e2e", "--bin"]);
    run::check(cargo.arg(name))
}

/// Prints the rows and writes everything to `target/bench/SUBJECT.json`.
fn publish(subject: &str, samples: &Samples, rows: &[Row]) -> Result<()> {
    let machine = Machine::read(samples);
    println!("\n{machine}\n\n{}", Table(rows));
    let rows: Vec<_> = rows.iter().map(Row::to_json).collect();
    let document = json!({
        "machine": machine.to_json(),
        "rows": rows,
        "samples": samples.to_json(),
    });
    let path = workspace::target().join(format!("bench/{subject}.json"));
    fs::create_dir_all(path.with_file_name(""))?;
    fs::write(&path, serde_json::to_string_pretty(&document)? + "\n")
        .with_context(|| format!("write {}", path.display()))?;
    println!("\nbench: all samples are in {}", path.display());
    Ok(())
}
