//! Measures the load of a node's programs and of kubelet's relists while nothing happens.
//!
//! Invariant: differences of counters that the kernel and kubelet keep; looking costs nearly
//! nothing itself.
//! Failure: a program that does not run, or a metric that kubelet does not have.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::unistd::{SysconfVar, sysconf};

use crate::{Cluster, Stack};

/// The time of kubelet's relists, a histogram.
const RELIST: &str = "kubelet_pleg_relist_duration_seconds";

/// The counters at one moment.
#[derive(Debug)]
pub struct Load {
    at: Instant,
    /// Processor time of each program, user and system.
    programs: Vec<(&'static str, Duration)>,
    relists: Relists,
}

/// What happened between two moments.
#[derive(Debug)]
pub struct Quiet {
    /// How long it was.
    pub time: Duration,
    /// Each program's share of one processor.
    pub shares: Vec<(&'static str, f64)>,
    /// How many relists.
    pub relists: f64,
    /// Mean time of one.
    pub relist: Duration,
    /// A bound that 99 of 100 kept.
    pub relist_p99: Duration,
}

#[derive(Debug, Default)]
struct Relists {
    sum: f64,
    count: f64,
    /// Upper bounds in seconds, and how many were within them.
    buckets: Vec<(f64, f64)>,
}

impl Load {
    /// Reads the counters of the first node.
    pub fn read(cluster: &Cluster, programs: &[&'static str]) -> Result<Self> {
        let stack = cluster.stack();
        let node = stack.var("VMLET_CLUSTER_NODE")?;
        let metrics = format!("/api/v1/nodes/{node}/proxy/metrics");
        let relists = Relists::read(&cluster.kubectl(&["get", "--raw", &metrics])?)?;
        let time = |program: &&'static str| Ok((*program, processor_time(stack, program)?));
        Ok(Self {
            at: Instant::now(),
            programs: programs.iter().map(time).collect::<Result<_>>()?,
            relists,
        })
    }

    /// What happened since an earlier moment.
    pub fn since(&self, earlier: &Self) -> Result<Quiet> {
        let time = self.at - earlier.at;
        let relists = self.relists.since(&earlier.relists);
        ensure!(relists.count > 0.0, "no relist in {time:?}");
        let both = self.programs.iter().zip(&earlier.programs);
        let share = |((name, now), (_, then)): (&(&'static str, Duration), &(_, Duration))| {
            let used = now.saturating_sub(*then);
            (*name, used.as_secs_f64() / time.as_secs_f64())
        };
        Ok(Quiet {
            time,
            shares: both.map(share).collect(),
            relists: relists.count,
            relist: Duration::from_secs_f64(relists.sum / relists.count),
            relist_p99: relists.within(0.99),
        })
    }
}

impl Relists {
    fn read(metrics: &str) -> Result<Self> {
        let mut relists = Self::default();
        for line in metrics.lines() {
            let Some(rest) = line.strip_prefix(RELIST) else {
                continue;
            };
            let (what, value) = rest.rsplit_once(' ').context("a metric without a value")?;
            let value: f64 = value.parse().context("a metric's value")?;
            if what == "_sum" {
                relists.sum = value;
            } else if what == "_count" {
                relists.count = value;
            } else if let Some(bound) = what.split('"').nth(1) {
                let bound = bound.parse().unwrap_or(f64::INFINITY);
                relists.buckets.push((bound, value));
            }
        }
        ensure!(relists.count > 0.0, "kubelet has no {RELIST}");
        Ok(relists)
    }

    fn since(&self, earlier: &Self) -> Self {
        let both = self.buckets.iter().zip(&earlier.buckets);
        Self {
            sum: self.sum - earlier.sum,
            count: self.count - earlier.count,
            buckets: both.map(|(now, then)| (now.0, now.1 - then.1)).collect(),
        }
    }

    /// The smallest bound that this part kept.
    fn within(&self, part: f64) -> Duration {
        let kept = |(_, within): &&(f64, f64)| *within >= self.count * part;
        let bound = self.buckets.iter().find(kept).map_or(f64::MAX, |(b, _)| *b);
        Duration::try_from_secs_f64(bound).unwrap_or(Duration::MAX)
    }
}

fn processor_time(stack: &Stack, program: &str) -> Result<Duration> {
    let pid = stack.pid(program)?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("{program} does not run"))?;
    // The name, in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u32 = ticks.filter_map(|field| field.parse::<u32>().ok()).sum();
    let second = sysconf(SysconfVar::CLK_TCK)?.context("clock ticks")?;
    Ok(Duration::from_secs(1) * ticks / u32::try_from(second)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(fast: u32, all: u32, sum: f64) -> Relists {
        let text = format!(
            "# HELP {RELIST} x\n{RELIST}_bucket{{le=\"0.005\"}} {fast}\n\
             {RELIST}_bucket{{le=\"+Inf\"}} {all}\n{RELIST}_sum {sum}\n{RELIST}_count {all}\n"
        );
        Relists::read(&text).unwrap()
    }

    #[test]
    fn relists_are_counted_between_two_moments() {
        let between = metrics(9, 10, 3.0).since(&metrics(4, 5, 2.5));
        assert_eq!((between.count, between.sum), (5.0, 0.5));
        assert_eq!(between.within(0.99), Duration::from_millis(5));
        let slow = metrics(9, 11, 3.0).since(&metrics(9, 10, 2.5));
        assert_eq!(slow.within(0.99), Duration::MAX);
    }
}
