//! The machines of a chaos run: what is wished of each, and whether it came true.
//!
//! Invariant: a wish is known here only after the API server has taken it.
//! Failure: the machines that are not as wished, with what their objects say.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use serde_json::{Value, json};

use crate::machines::{class, image, machine};
use crate::{Cluster, eventually};

/// The API server may be dead for a while, and is slow after its birth.
const TAKEN: Duration = Duration::from_secs(120);
const RUNNING: Duration = Duration::from_secs(300);

/// What a machine shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    On,
    Off,
    Suspended,
    /// On, and a class of another size.
    Small,
    /// On, and the first class.
    Large,
}

impl Wish {
    /// Any of them; machines are on most of the time.
    pub(super) fn any(rng: &mut Rng) -> Self {
        match rng.u8(..10) {
            0..=3 => Self::On,
            4..=6 => Self::Off,
            7 => Self::Suspended,
            8 => Self::Small,
            _ => Self::Large,
        }
    }

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Suspended => "suspended",
            Self::Small => "small class",
            Self::Large => "large class",
        }
    }

    const fn power_state(self) -> &'static str {
        match self {
            Self::Off => "PoweredOff",
            Self::Suspended => "Suspended",
            Self::On | Self::Small | Self::Large => "PoweredOn",
        }
    }

    fn spec(self) -> Value {
        let mut spec = json!({ "powerState": self.power_state() });
        match self {
            Self::Small => spec["className"] = json!("small"),
            Self::Large => spec["className"] = json!("large"),
            Self::On | Self::Off | Self::Suspended => {}
        }
        spec
    }
}

/// All machines, by name.
#[derive(Debug)]
pub(super) struct Machines {
    wished: BTreeMap<String, Wish>,
}

impl Machines {
    /// Creates them and waits until all have run.
    pub(super) async fn create(cluster: &Cluster, count: usize) -> Result<Self> {
        for (name, memory) in [("small", "112Mi"), ("large", "128Mi")] {
            cluster.apply(&class(name, memory))?;
        }
        cluster.apply(&image(cluster.stack().image()?))?;
        let wish = json!({ "className": "large", "powerState": "PoweredOn" });
        let wished: BTreeMap<String, Wish> = (0..count)
            .map(|n| (format!("chaos-{n}"), Wish::On))
            .collect();
        for name in wished.keys() {
            cluster.apply(&machine(name, &wish))?;
        }
        let machines = Self { wished };
        machines.await_wishes(cluster, RUNNING).await?;
        Ok(machines)
    }

    pub(super) fn pick(&self, rng: &mut Rng) -> String {
        let index = rng.usize(..self.wished.len());
        self.wished.keys().nth(index).cloned().unwrap_or_default()
    }

    /// Writes a wish, again and again while the API server is away. What the rules refuse (a machine that
    /// is off cannot be suspended) stays as it was.
    pub(super) async fn wish(&mut self, cluster: &Cluster, name: &str, wish: Wish) -> Result<()> {
        let off = self.wished.get(name) == Some(&Wish::Off);
        if wish == Wish::Suspended && off {
            return Ok(());
        }
        let patch = json!({ "spec": wish.spec() }).to_string();
        eventually(TAKEN, "the API server takes a wish", || async {
            cluster.kubectl(&["patch", "vm", name, "--type=merge", "-p", &patch])
        })
        .await?;
        self.wished.insert(name.to_owned(), wish);
        Ok(())
    }

    /// Waits until every machine is as wished.
    pub(super) async fn await_wishes(&self, cluster: &Cluster, within: Duration) -> Result<()> {
        eventually(within, "every machine is as its object says", || async {
            let wrong = self.wrong(cluster)?;
            ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
            Ok(())
        })
        .await
    }

    fn wrong(&self, cluster: &Cluster) -> Result<Vec<String>> {
        let list = cluster.get_json(&["vm"])?;
        let found: BTreeMap<&str, &Value> = list["items"]
            .as_array()
            .context("items")?
            .iter()
            .filter_map(|vm| Some((vm["metadata"]["name"].as_str()?, vm)))
            .collect();
        let mut wrong = Vec::new();
        for (name, wish) in &self.wished {
            let Some(vm) = found.get(name.as_str()) else {
                wrong.push(format!("{name} does not exist"));
                continue;
            };
            let status = &vm["status"];
            let word = status["printableStatus"].as_str().unwrap_or_default();
            let expected = match wish {
                Wish::Off => "Stopped",
                Wish::Suspended => "Suspended",
                Wish::On | Wish::Small | Wish::Large => "Running",
            };
            if status["powerState"] != wish.power_state() || word != expected {
                wrong.push(format!("{name}: wished {wish:?}, status {status}"));
            }
        }
        Ok(wrong)
    }

    /// Deletes all of them and waits until they are gone.
    pub(super) async fn delete(self, cluster: &Cluster, within: Duration) -> Result<()> {
        for name in self.wished.keys() {
            cluster.kubectl(&["delete", "vm", name, "--wait=false"])?;
        }
        eventually(within, "the end of every machine", || async {
            let left = cluster.kubectl(&["get", "vm", "-o", "name"])?;
            ensure!(left.is_empty(), "still there: {left}");
            let pods = cluster.kubectl(&["get", "pods", "-o", "name"])?;
            ensure!(pods.is_empty(), "still there: {pods}");
            Ok(())
        })
        .await
    }
}

/// Whether every task came to an end.
pub(super) async fn ended(cluster: &Cluster) -> Result<bool> {
    eventually(TAKEN, "the end of every task", || async {
        let list = cluster.get_json(&["virtualmachinetasks", "-A"])?;
        let open: Vec<&Value> = list["items"]
            .as_array()
            .context("items")?
            .iter()
            .filter(|task| {
                !matches!(
                    task["status"]["state"].as_str(),
                    Some("Success" | "Error" | "Cancelled")
                )
            })
            .collect();
        ensure!(open.is_empty(), "open tasks: {open:?}");
        Ok(true)
    })
    .await
}
