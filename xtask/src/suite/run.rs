//! A run of the suite, stage by stage.
//!
//! Invariant: a part that fails keeps no other from running.
//! Failure: only what no part can run without, such as the packages.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::checks::Check;
use super::frozen::Frozen;
use super::host::Host;
use super::job::{self, Job};
use super::kit::{Kit, Shelf};
use super::lanes::{FirstStack, Lanes};
use super::load::Load;
use super::manifest::{self, Manifest};
use super::order::{Order, manifest_of};
use super::outcome::Outcome;
use super::part::Part;
use super::programs::{self, Built};
use super::queue::Capacity;
use super::report::{self, Report};
use super::unsteady::{self, History};
use super::weights::Weights;
use super::{retry, space, speed};
use crate::commands::setup;
use crate::{stack, workspace};

/// How much of each processor is given out, in percent: with 110 a tenth of their time stayed idle. Tests
/// that wait look again and again, so that more of them at a time take longer together.
const GIVEN_OUT: u64 = 120;
/// Memory that is left to everything else.
const RESERVE_MIB: u64 = 2048;
/// Processes that keep the machine busy while tests run once more.
const LOAD: usize = 2;

/// Runs the suite.
pub(crate) fn run(order: &Order) -> Result<ExitCode> {
    if setup::ensure(false)? != ExitCode::SUCCESS {
        return Ok(ExitCode::FAILURE);
    }
    space::check(order)?;
    for folder in [job::logs(), job::failures()] {
        if folder.exists() {
            fs::remove_dir_all(&folder).context("remove what an earlier run left")?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    }
    report::remove_earlier(&workspace::target())?;
    let host = Host::here();
    println!("{host}");
    let slowness = speed::factor();
    println!("deadlines of tests are multiplied by {slowness:.1}");
    let load = Load::start(order.load)?;
    let shelf = Shelf::default();
    let mut report = Report::new(host, slowness, history()?);
    let (demand, demanded) = mpsc::channel();
    thread::scope(|scope| {
        let shelf = &shelf;
        scope.spawn(move || shelf.fill(&order.parts, &demanded));
        let mut suite = Suite {
            order,
            shelf,
            demand,
            variables: order.variables(slowness),
            first_stack: FirstStack::from_now(),
        };
        suite.stages(&mut report)
    })?;
    drop(load);
    let sum = report.finish()?;
    // A run without a test says nothing.
    Ok(match (sum.passed, sum.failed) {
        (1.., 0) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// What the stages share.
#[derive(Debug)]
struct Suite<'a> {
    order: &'a Order,
    shelf: &'a Shelf,
    /// Kits that only some tests of a part need.
    demand: mpsc::Sender<Kit>,
    variables: Vec<(&'static str, String)>,
    first_stack: FirstStack,
}

impl Suite<'_> {
    fn stages(&mut self, report: &mut Report) -> Result<()> {
        let is_chosen = |part| self.order.has(part) && self.order.names.is_empty();
        let builds = self.order.parts.iter().any(|part| part.needs_programs());
        let lints = is_chosen(Part::Clippy);
        for (is_run, stage, checks) in [
            (is_chosen(Part::Fmt), "fmt", vec![Check::Fmt]),
            (
                is_chosen(Part::Doc) && self.order.long,
                "rustdoc",
                vec![Check::Rustdoc],
            ),
            (
                lints && !builds,
                "clippy",
                vec![Check::Clippy, Check::Features],
            ),
        ] {
            if is_run {
                let jobs = checks.into_iter().map(Job::check).collect();
                report.stage(stage, |report| report.add(self.side_by_side(jobs)));
            }
        }
        let built: Result<Built> = if builds {
            report.stage("build", |report| {
                let built = programs::built(lints)?;
                report.add(lints.then(|| built.lints()));
                Ok(built)
            })
        } else {
            Ok(Built::default())
        };
        let built = match built {
            Ok(built) => built,
            Err(error) => {
                let why = format!("{error:#}");
                report.add([Outcome::not_run("build", Part::Unit, &why)]);
                return Ok(());
            }
        };
        let frozen = Frozen::new(built.files.iter().cloned());
        let jobs = self.jobs(&built, report)?;
        ensure!(
            self.order.names.is_empty() || !jobs.is_empty(),
            "no test has {} in its name",
            self.order.names.join(" or ")
        );
        let demands: BTreeSet<Kit> = jobs
            .iter()
            .filter_map(|job| Kit::of_test(&job.name))
            .collect();
        for kit in demands {
            // No receiver means that no part of this run has kits.
            let _ = self.demand.send(kit);
        }
        for _ in 0..self.order.repeat {
            if !jobs.is_empty() {
                let run = |report: &mut Report| report.add(self.with_second_runs(jobs.clone()));
                report.stage("tests", run);
            }
        }
        if self.order.keep {
            jobs.iter()
                .flat_map(kept)
                .for_each(|note| report.note(note));
        }
        report.first_stack(self.first_stack.seconds());
        report.add(frozen.changed().into_iter().map(|file| {
            let why = format!("{} was built again during the run", file.display());
            eprintln!("{why}");
            Outcome::not_run("built once", Part::Unit, &why)
        }));
        Ok(())
    }

    /// What runs, in the order in which it starts.
    fn jobs(&self, built: &Built, report: &mut Report) -> Result<Vec<Job>> {
        let weights = weights()?;
        let mut jobs = self.order.crates(built)?;
        jobs.extend(self.order.stacks(built)?);
        if self.order.parts == Part::all() && self.order.names.is_empty() {
            let names = jobs.iter().map(|job| job.name.as_str());
            report.add(difference("weights", weights.check(&names)));
            let compared = compare(&jobs, report);
            report.add(difference("manifest", compared));
        }
        if !self.order.long && self.order.names.is_empty() {
            let is_left_out = |job: &mut Job| weights.is_long_form(&job.name);
            for job in jobs.extract_if(.., is_left_out) {
                println!("{} runs with --long, or when it is named", job.name);
            }
        }
        for job in &mut jobs {
            job.expected = Duration::from_secs(weights.for_job(&job.name).seconds);
        }
        jobs.sort_by_key(|job| (rank(job.part), Reverse(job.expected)));
        if self.order.selection.is_some() {
            // After a change the first result is awaited, and in a whole run the last one.
            jobs.sort_by_key(|job| (rank(job.part), job.expected));
        }
        Ok(jobs)
    }

    /// Runs the jobs; when little failed, and only because programs that are not ours were late, that
    /// runs once more on a busy machine.
    fn with_second_runs(&self, jobs: Vec<Job>) -> Vec<Outcome> {
        let mut ended = self.lanes(jobs);
        let failed = ended.iter().filter(|(_, outcome)| outcome.count.failed > 0);
        let failures: usize = failed
            .clone()
            .map(|(_, outcome)| outcome.count.failed)
            .sum();
        let all_late = failed.clone().all(|(_, outcome)| outcome.may_run_again());
        let is_first_only = self.order.repeat > 1 || self.order.keep;
        if failures == 0 || failures > retry::MOST || !all_late || is_first_only {
            return ended.into_iter().map(|(_, outcome)| outcome).collect();
        }
        let again: Vec<Job> = failed.map(|(job, outcome)| job.again(outcome)).collect();
        println!(
            "-- {failures} failed because a program which is not ours was late, and run once more on a \
             busy machine"
        );
        let load = Load::start(LOAD);
        let second = self.lanes(again);
        drop(load);
        for (job, outcome) in &second {
            if let Some((_, first)) = ended.iter_mut().find(|(other, _)| other.name == job.name) {
                first.add_second(outcome);
            }
        }
        ended.into_iter().map(|(_, outcome)| outcome).collect()
    }

    fn side_by_side(&self, jobs: Vec<Job>) -> Vec<Outcome> {
        let ended = self.lanes(jobs).into_iter();
        ended.map(|(_, outcome)| outcome).collect()
    }

    fn lanes(&self, jobs: Vec<Job>) -> Vec<(Job, Outcome)> {
        let lanes = Lanes {
            shelf: self.shelf,
            variables: &self.variables,
            show: !self.order.names.is_empty(),
            first_stack: &self.first_stack,
            capacity: capacity(),
        };
        let weights = weights().unwrap_or_default();
        let weighted = jobs
            .into_iter()
            .map(|job| (weights.for_job(&job.name), job));
        lanes.run(weighted.collect())
    }
}

/// The stacks that a job has left running, and how to use and to remove them.
fn kept(job: &Job) -> Vec<String> {
    let dirs = stack::existing_of_list(&job.stacks()).into_iter();
    let notes = dirs.map(|dir| {
        let name = &job.name;
        format!(
            "the stack of {name} stays: `. {dir}/env.sh`; `cargo xtask down --dir {dir}` removes it"
        )
    });
    notes.collect()
}

/// When jobs of a part start. The documentation keeps one processor busy for minutes, which nothing else would
/// use at the end; the tests of single crates need no kit, and soon find what is wrong.
fn rank(part: Part) -> u8 {
    match part {
        Part::Doc => 0,
        Part::Unit | Part::Integration => 1,
        _ => 2,
    }
}

/// An error if a test of the manifest is missing.
fn compare(jobs: &[Job], report: &mut Report) -> Result<()> {
    let current = manifest_of(jobs);
    let file = workspace::target().join(manifest::CURRENT);
    fs::write(&file, current.to_string()).with_context(|| format!("write {}", file.display()))?;
    let listed = workspace::root().join(manifest::FILE);
    let listed =
        fs::read_to_string(&listed).with_context(|| format!("read {}", listed.display()))?;
    let listed = Manifest::parse(&listed)?;
    let unlisted = listed.unlisted(&current);
    if unlisted > 0 {
        report.note(format!(
            "{unlisted} tests are not in {}: run `cargo xtask manifest`",
            manifest::FILE
        ));
    }
    listed.check(&current)
}

/// The failure of a run whose tests differ from a list of the repository; all that is there runs.
fn difference(list: &str, compared: Result<()>) -> Option<Outcome> {
    let why = format!("{:#}", compared.err()?);
    eprintln!("{why}");
    Some(Outcome::not_run(list, Part::Unit, &why))
}

fn history() -> Result<History> {
    let path = workspace::root().join(unsteady::FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    History::parse(&text)
}

fn weights() -> Result<Weights> {
    let path = workspace::root().join("tests/e2e/weights.tsv");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    Weights::parse(&text)
}

fn capacity() -> Capacity {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| {
        let kib = line
            .strip_prefix("MemAvailable:")?
            .trim()
            .strip_suffix(" kB")?;
        kib.parse::<u64>().ok()
    });
    Capacity {
        percent: GIVEN_OUT * u64::try_from(processors).unwrap_or(1),
        memory_mib: (available.unwrap_or(0) / 1024).saturating_sub(RESERVE_MIB),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::count::Count;

    #[test]
    fn a_row_of_the_manifest_without_its_test_fails_the_run_and_leaves_the_others() {
        let listed = Manifest::parse("vmlet\t2\nvmlet as root\t1\n").unwrap();
        let one_less = Manifest::parse("vmlet\t1\nvmlet as root\t1\n").unwrap();
        let mut report = Report::new(Host::here(), 1.0, History::default());
        report.add(difference("manifest", listed.check(&listed)));
        assert_eq!(report.sum().failed, 0);
        report.add(difference("manifest", listed.check(&one_less)));
        report.add([Outcome {
            count: Count::passed(1),
            failures: Vec::new(),
            ..Outcome::not_run("vmlet", Part::Unit, "")
        }]);
        let sum = report.sum();
        assert_eq!((sum.passed, sum.failed), (1, 1));
        let text = report.to_string();
        assert!(text.contains("failed: manifest"), "{text}");
        assert!(text.contains("vmlet: 1 of 2"), "{text}");
        assert!(!text.contains("as root"), "{text}");
    }
}
