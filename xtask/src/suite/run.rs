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
use super::job::{self, Job, What};
use super::kit::{Kit, Shelf};
use super::lanes::Lanes;
use super::load::Load;
use super::outcome::Outcome;
use super::part::Part;
use super::programs::{self, Built};
use super::queue::Capacity;
use super::report::Report;
use super::weights::Weights;
use super::{retry, space, speed};
use crate::commands::setup;
use crate::workspace;

/// The variable by which tests learn that they are to take their long form.
const LONG: &str = "VMLET_TEST_LONG";
/// How much of each processor is given out, in percent. Tests that wait look again and again, so
/// that more of them at a time take longer together.
const GIVEN_OUT: u64 = 110;
/// Memory that is left to everything else.
const RESERVE_MIB: u64 = 2048;
/// Processes that keep the machine busy while tests run once more.
const LOAD: usize = 2;

/// What is to be run, and how.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    /// These parts.
    pub(crate) parts: Vec<Part>,
    /// Only tests with one of these in their name; all of them when empty.
    pub(crate) names: Vec<String>,
    /// How often.
    pub(crate) repeat: usize,
    /// Busy processes beside it.
    pub(crate) load: usize,
    /// The long forms of tests.
    pub(crate) long: bool,
}

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
    let slowness = speed::factor();
    println!("deadlines of tests are multiplied by {slowness:.1}");
    let load = Load::start(order.load)?;
    let shelf = Shelf::default();
    let mut report = Report::new(slowness);
    let (demand, demanded) = mpsc::channel();
    thread::scope(|scope| {
        let shelf = &shelf;
        scope.spawn(move || shelf.fill(&order.parts, &demanded));
        let mut suite = Suite {
            order,
            shelf,
            demand,
            variables: order.variables(slowness),
        };
        suite.stages(&mut report)
    })?;
    drop(load);
    let sum = report.finish()?;
    Ok(match sum.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

impl Order {
    fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    fn matches(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|word| name.contains(word.as_str()))
    }

    fn variables(&self, slowness: f64) -> Vec<(&'static str, String)> {
        let mut variables = vec![(speed::VARIABLE, format!("{slowness:.2}"))];
        variables.extend(self.long.then(|| (LONG, "1".to_owned())));
        variables
    }
}

/// What the stages share.
#[derive(Debug)]
struct Suite<'a> {
    order: &'a Order,
    shelf: &'a Shelf,
    /// Kits that only some tests of a part need.
    demand: mpsc::Sender<Kit>,
    variables: Vec<(&'static str, String)>,
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
        let jobs = self.jobs(&built)?;
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
        report.add(frozen.changed().into_iter().map(|file| {
            let why = format!("{} was built again during the run", file.display());
            eprintln!("{why}");
            Outcome::not_run("built once", Part::Unit, &why)
        }));
        Ok(())
    }

    /// What runs, in the order in which it starts: the tests of single crates first, which need no
    /// kit and soon find what is wrong; then the longest.
    fn jobs(&self, built: &Built) -> Result<Vec<Job>> {
        let weights = weights()?;
        let mut jobs = self.crates(built)?;
        jobs.extend(self.stacks(built)?);
        if self.order.parts == Part::all() && self.order.names.is_empty() {
            weights.check(&jobs.iter().map(|job| job.name.as_str()))?;
        }
        if !self.order.long && self.order.names.is_empty() {
            let is_left_out = |job: &mut Job| weights.is_long_form(&job.name);
            for job in jobs.extract_if(.., is_left_out) {
                println!("{} runs with --long, or when it is named", job.name);
            }
        }
        for job in &mut jobs {
            job.expected = Duration::from_secs(weights.of(&job.name).seconds);
        }
        jobs.sort_by_key(|job| (!job.part.is_of_crates(), Reverse(job.expected)));
        Ok(jobs)
    }

    /// The tests of single crates, a job for each program.
    fn crates(&self, built: &Built) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        for program in &built.tests {
            for root in [false, true] {
                let part = if root {
                    program.root_part()
                } else {
                    Part::Unit
                };
                if !self.order.has(part) || part.has_stacks() {
                    continue;
                }
                let mut tests = program.list(root)?;
                let before = tests.len();
                tests.retain(|test| self.order.matches(&format!("{}::{test}", program.name)));
                if tests.is_empty() {
                    continue;
                }
                jobs.push(Job {
                    name: match root {
                        true => format!("{} as root", program.name),
                        false => program.name.clone(),
                    },
                    part,
                    expected: Duration::ZERO,
                    what: What::Tests {
                        program: program.clone(),
                        all: tests.len() == before,
                        tests,
                    },
                });
            }
        }
        Ok(jobs)
    }

    /// Each test with a whole stack is a job; and what else runs beside them.
    fn stacks(&self, built: &Built) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        for program in &built.tests {
            let part = program.root_part();
            if !part.has_stacks() || !self.order.has(part) {
                continue;
            }
            for test in program.list(true)? {
                jobs.push(Job {
                    name: format!("{}::{test}", program.name),
                    part,
                    expected: Duration::ZERO,
                    what: What::Tests {
                        program: program.clone(),
                        tests: vec![test],
                        all: false,
                    },
                });
            }
        }
        let critest = match self.order.long {
            true => Check::WholeCritest,
            false => Check::Critest,
        };
        for check in [critest, Check::Doc, Check::Deny, Check::Rules] {
            if self.order.has(check.part()) {
                jobs.push(Job::check(check));
            }
        }
        jobs.retain(|job| self.order.matches(&job.name));
        Ok(jobs)
    }

    /// Runs the jobs; when little failed, and only for deadlines that passed, that runs once more
    /// on a busy machine.
    fn with_second_runs(&self, jobs: Vec<Job>) -> Vec<Outcome> {
        let mut ended = self.lanes(jobs);
        let failed = ended.iter().filter(|(_, outcome)| outcome.count.failed > 0);
        let failures: usize = failed
            .clone()
            .map(|(_, outcome)| outcome.count.failed)
            .sum();
        let all_late = failed.clone().all(|(_, outcome)| outcome.may_run_again());
        if failures == 0 || failures > retry::MOST || !all_late || self.order.repeat > 1 {
            return ended.into_iter().map(|(_, outcome)| outcome).collect();
        }
        let again: Vec<Job> = failed.map(|(job, outcome)| job.again(outcome)).collect();
        println!("-- {failures} missed a deadline and run once more, on a busy machine");
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
            capacity: capacity(),
        };
        let weights = weights().unwrap_or_default();
        let weighted = jobs.into_iter().map(|job| (weights.of(&job.name), job));
        lanes.run(weighted.collect())
    }
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
