//! The controller's writes about machines, and their causes.
//!
//! What it makes and removes for a start is always the same. How often it writes a status is not:
//! where everything is slow, others report in several steps what they report in one elsewhere, and
//! each step is a change.
//!
//! Invariant: every write makes a version with a new content, so that a write without a cause
//! shows; and there are more of them than usual only by as many as there are more of the others'.
//! Failure: the writes, or the version that says nothing new.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Cluster;
use crate::audit::Write;

const CONTROLLER: &str = ":vmlet-controller";
const NAMESPACE: &str = "default";
const MACHINES: &str = "/apis/vmlet.dev/v1alpha1/namespaces/default/virtualmachines";
/// Longer than any test.
const WATCHED: &str = "watch=true&timeoutSeconds=36000";

/// Every version of the machines in the namespace `default`, and who wrote meanwhile, from its
/// beginning on.
#[derive(Debug)]
pub struct History<'a> {
    cluster: &'a Cluster,
    kubectl: Child,
    events: PathBuf,
    written: usize,
}

impl<'a> History<'a> {
    /// Begins; there must be no machine.
    pub fn begin(cluster: &'a Cluster) -> Result<Self> {
        let written = cluster.stack().writes()?.len();
        let list: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", MACHINES])?)?;
        ensure!(list["items"] == Value::Array(Vec::new()), "{list}");
        let version = list["metadata"]["resourceVersion"].as_str();
        let version = version.context("a list without a version")?;
        let path = format!("{MACHINES}?{WATCHED}&resourceVersion={version}");
        let events = cluster.stack().dir().join("log/machines-watch.json");
        let mut kubectl = cluster.kubectl_command(&["get", "--raw", &path])?;
        let kubectl = kubectl
            .stdout(File::create(&events)?)
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self {
            cluster,
            kubectl,
            events,
            written,
        })
    }

    /// Where [`Self::since`] is to begin for what happens from now on.
    pub fn mark(&self) -> Result<usize> {
        Ok(self.cluster.stack().writes()?.len())
    }

    /// All writes of objects in the namespace since a mark.
    pub fn since(&self, mark: usize) -> Result<Vec<Write>> {
        let mut writes = self.cluster.stack().writes()?.split_off(mark);
        writes.retain(|write| write.namespace() == NAMESPACE);
        Ok(writes)
    }

    /// An error unless every write of a machine so far has made a version with a new content.
    pub fn check_versions(&self) -> Result<()> {
        let versions = self.versions()?;
        let writes = self.since(self.written)?;
        let is_of_machine = |write: &&Write| {
            is_taken(write) && write.resource().split('/').next() == Some("virtualmachines")
        };
        let writes: Vec<_> = writes.iter().filter(is_of_machine).collect();
        ensure!(
            writes.len() == versions.len(),
            "{} versions by {} writes: {}",
            versions.len(),
            writes.len(),
            shown(writes)
        );
        for pair in versions.windows(2) {
            let same = essence(&pair[0]) == essence(&pair[1]);
            ensure!(!same, "differ in nothing but times: {:#}", pair[1]);
        }
        Ok(())
    }

    /// Oldest first.
    fn versions(&self) -> Result<Vec<Value>> {
        let text = fs::read_to_string(&self.events)?;
        // The last line may be half there.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let events = whole.lines().map(serde_json::from_str::<Value>);
        let mut versions = Vec::new();
        for event in events {
            let mut event = event.context("parse the watch of machines")?;
            ensure!(event["type"] != "ERROR", "{event}");
            versions.push(event["object"].take());
        }
        Ok(versions)
    }
}

impl Drop for History<'_> {
    fn drop(&mut self) {
        // It ends by itself when the API server does.
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

/// Writes, by whose they are and what they do.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// What the controller did other than to write statuses of machines and images, and how often:
    /// `create pods`.
    pub acts: BTreeMap<String, usize>,
    /// How many statuses of machines it wrote.
    pub statuses: usize,
    /// How often others wrote.
    pub others: usize,
}

impl Tally {
    /// Of these writes, as far as they were taken.
    pub fn from_writes(writes: &[Write]) -> Self {
        let mut tally = Self::default();
        for write in writes.iter().filter(|write| is_taken(write)) {
            match (write.user().ends_with(CONTROLLER), &*write.resource()) {
                (false, _) => tally.others += 1,
                (true, "virtualmachines/status") => tally.statuses += 1,
                // Once, when the first disk is made from an image, and what nodes say of it.
                (true, "virtualmachineimages/status") => {}
                (true, resource) => {
                    let act = format!("{} {resource}", write.verb);
                    *tally.acts.entry(act).or_insert(0) += 1;
                }
            }
        }
        tally
    }
}

fn is_taken(write: &Write) -> bool {
    write.code() < 400
}

fn shown<'w>(writes: impl IntoIterator<Item = &'w Write>) -> String {
    let lines = writes.into_iter().map(|write| format!("\n  {write}"));
    lines.collect()
}

/// A version without its times and without its identifiers.
fn essence(version: &Value) -> Value {
    let mut version = version.clone();
    if let Some(metadata) = version["metadata"].as_object_mut() {
        metadata.retain(|key, _| key != "managedFields" && key != "resourceVersion");
    }
    without_times(&mut version);
    version
}

fn without_times(value: &mut Value) {
    match value {
        Value::String(text) if text.parse::<jiff::Timestamp>().is_ok() => text.clear(),
        Value::Array(all) => all.iter_mut().for_each(without_times),
        Value::Object(all) => all.values_mut().for_each(without_times),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn write(who: &str, what: &str, code: u16) -> Write {
        let (verb, resource) = what.split_once(' ').unwrap();
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let write = json!({
            "verb": verb,
            "user": { "username": format!("system:serviceaccount:vmlet-system:{who}") },
            "objectRef": { "resource": resource, "subresource": subresource, "namespace": "default" },
            "responseStatus": { "code": code },
        });
        serde_json::from_value(write).unwrap()
    }

    #[test]
    fn writes_are_distinguished_by_field_manager() {
        let writes = [
            write("vmlet-controller", "create pods", 201),
            write("vmlet-controller", "create pods", 201),
            write("vmlet-controller", "patch virtualmachines", 409),
            write("vmlet-controller", "patch virtualmachines/status", 200),
            write("vmlet-agent", "patch pods/status", 200),
        ];
        let tally = Tally {
            acts: BTreeMap::from([("create pods".to_owned(), 2)]),
            statuses: 1,
            others: 1,
        };
        assert_eq!(Tally::from_writes(&writes), tally);
    }

    #[test]
    fn a_difference_in_times_and_versions_is_no_change() {
        let version = |number: &str, time: &str, reason: &str| {
            json!({
                "metadata": { "resourceVersion": number, "managedFields": [number] },
                "status": { "conditions": [{ "lastTransitionTime": time, "reason": reason }] },
            })
        };
        let one = version("1", "2026-01-02T03:04:05Z", "Running");
        let same = version("2", "2026-01-02T03:04:06Z", "Running");
        let other = version("2", "2026-01-02T03:04:06Z", "Stopped");
        assert_eq!(essence(&one), essence(&same));
        assert_ne!(essence(&one), essence(&other));
    }
}
