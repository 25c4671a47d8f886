//! The machines of a chaos run: their objects are made what is wished, also past an API server that dies.
//!
//! Invariant: wishes reach an object in their order; those of a machine whose old object still goes are kept
//! until it is gone, and only the last one of them counts.
//! Failure: what the API server said last.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::programs;
use super::script::{Change, Life, Wish};
use crate::machines::{class, image, machine};
use crate::{Cluster, eventually};

/// The API server may be dead for a while, and is slow after its birth.
pub(super) const TAKEN: Duration = Duration::from_secs(120);

/// The end of a machine mostly takes seconds; one that takes longer leaves evidence.
const SLOW: Duration = Duration::from_secs(100);
/// What a machine consists of in the API.
const KINDS: &str = "vm,pods,virtualmachinetasks";

/// All machines, by number.
#[derive(Debug)]
pub(super) struct Machines {
    wished: Vec<Wish>,
    /// Their objects do not say it yet.
    waiting: Vec<bool>,
    /// How often an object of that name may have been made.
    births: Vec<Cell<u32>>,
}

/// Name of a machine.
pub(super) fn name(machine: usize) -> String {
    format!("chaos-{machine}")
}

impl Machines {
    /// Creates classes, the image and the machines.
    pub(super) fn create(cluster: &Cluster, count: usize) -> Result<Self> {
        for (name, memory) in [("small", "112Mi"), ("large", "128Mi")] {
            cluster.apply(&class(name, memory))?;
        }
        cluster.apply(&image(cluster.stack().image()?))?;
        for number in 0..count {
            cluster.apply(&machine(&name(number), &without_nulls(Wish::FIRST.spec())))?;
        }
        Ok(Self {
            wished: vec![Wish::FIRST; count],
            waiting: vec![false; count],
            births: vec![Cell::new(1); count],
        })
    }

    /// Names and wishes.
    pub(super) fn wishes(&self) -> impl Iterator<Item = (String, Wish)> {
        self.wished.iter().enumerate().map(|(n, w)| (name(n), *w))
    }

    /// How many disks a machine of that name may have had.
    pub(super) fn births(&self) -> BTreeMap<String, u32> {
        let births = self.births.iter().enumerate();
        births.map(|(n, births)| (name(n), births.get())).collect()
    }

    /// Whether every object says what is wished.
    pub(super) fn are_told(&self) -> bool {
        !self.waiting.contains(&true)
    }

    /// Takes a change and tells the API server, again and again while that is away.
    pub(super) async fn change(&mut self, cluster: &Cluster, change: Change) -> Result<()> {
        self.wished[change.machine] = change.wish;
        self.waiting[change.machine] = true;
        self.tell(cluster, change.machine).await
    }

    /// Another wish makes up for the failed starts that the machine waits for.
    pub(super) async fn end_back_off(&mut self, cluster: &Cluster, named: &str) -> Result<()> {
        let mut wishes = self.wishes();
        let Some(machine) = wishes.position(|(name, _)| name == named) else {
            return Ok(());
        };
        drop(wishes);
        let wish = self.wished[machine];
        if !matches!(wish.life, Life::Always | Life::RerunOnFailure) {
            return Ok(());
        }
        eprintln!("chaos: {named}, {wish:?}, would wait long: PoweredOn");
        let wish = Wish {
            life: Life::On,
            ..wish
        };
        let word = wish.life.word();
        let change = Change {
            machine,
            wish,
            word,
        };
        self.change(cluster, change).await
    }

    /// Tells what could not be told before.
    pub(super) async fn tell_all(&mut self, cluster: &Cluster) -> Result<()> {
        for machine in 0..self.wished.len() {
            if self.waiting[machine] {
                self.tell(cluster, machine).await?;
            }
        }
        Ok(())
    }

    /// One step towards an object that says what is wished.
    async fn tell(&mut self, cluster: &Cluster, machine: usize) -> Result<()> {
        let wish = self.wished[machine];
        let told = eventually(TAKEN, "the API server takes a wish", || async {
            step(cluster, &name(machine), wish, &self.births[machine])
        })
        .await?;
        // Nothing is born suspended.
        self.waiting[machine] = match told {
            Told::Later => true,
            Told::Born => wish.life == Life::Suspended,
            Told::Said => false,
        };
        Ok(())
    }

    /// Deletes all of them and waits until they are gone; prints what is left whenever that changes,
    /// and calls `if_slow` once if it takes long.
    pub(super) async fn delete(
        self,
        cluster: &Cluster,
        within: Duration,
        if_slow: impl Fn() -> String,
    ) -> Result<()> {
        for (name, _) in self.wishes() {
            delete(cluster, &name)?;
        }
        let (begun, last) = (Instant::now(), RefCell::new(String::new()));
        let is_slow = Cell::new(false);
        eventually(within, "the end of every machine", || async {
            // A controller on a host that stood still may have lost its lease.
            programs::supervise(cluster.stack())?;
            let left = cluster.kubectl(&["get", KINDS, "-A", "-o", "name"])?;
            if last.replace(left.clone()) != left {
                let at = begun.elapsed().as_secs();
                eprintln!("chaos: {at:>4} s, still there:\n{left}");
            }
            if !left.is_empty() && begun.elapsed() > SLOW && !is_slow.replace(true) {
                eprintln!("chaos: a slow end: {}", if_slow());
            }
            ensure!(left.is_empty(), "still there: {left}");
            Ok(())
        })
        .await
    }
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Said,
    Born,
    /// The object of that name is still going.
    Later,
}

fn step(cluster: &Cluster, name: &str, wish: Wish, births: &Cell<u32>) -> Result<Told> {
    if wish.life == Life::Gone {
        delete(cluster, name)?;
        return Ok(Told::Said);
    }
    let found = cluster.kubectl(&["get", "vm", name, "--ignore-not-found", "-o", "json"])?;
    if found.is_empty() {
        let first = match wish.life {
            Life::Suspended => Life::On,
            other => other,
        };
        let born = Wish {
            life: first,
            ..wish
        };
        // Before the answer, which may be lost.
        births.set(births.get() + 1);
        cluster.apply(&machine(name, &without_nulls(born.spec())))?;
        return Ok(Told::Born);
    }
    let found: Value = serde_json::from_str(&found)?;
    if !found["metadata"]["deletionTimestamp"].is_null() {
        return Ok(Told::Later);
    }
    let patch = json!({ "spec": wish.spec() }).to_string();
    cluster.kubectl(&["patch", "vm", name, "--type=merge", "-p", &patch])?;
    Ok(Told::Said)
}

fn delete(cluster: &Cluster, name: &str) -> Result<()> {
    let words = ["delete", "vm", name, "--wait=false", "--ignore-not-found"];
    cluster.kubectl(&words).map(drop)
}

fn without_nulls(mut spec: Value) -> Value {
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    spec
}
