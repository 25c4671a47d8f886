//! `VirtualMachine` objects for tests: what they are made of, and waiting for what they become.
//!
//! Invariant: they are plain values, so that a test changes what it is about and nothing else.
//! Failure: a machine that does not become what is awaited is shown whole, with its pod and tasks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use crate::{Cluster, Guest, eventually};

/// Every object of the group has this version.
const VERSION: &str = "vmlet.dev/v1alpha1";

/// A class with one virtual CPU. What it requests is all that its guests get on a busy host, and
/// ten of them must fit on two processors.
pub fn class(name: &str, memory: &str) -> Value {
    json!({
        "apiVersion": VERSION,
        "kind": "VirtualMachineClass",
        "metadata": { "name": name },
        "spec": {
            "hardware": { "cpus": 1, "memory": memory },
            "policies": { "resources": { "requests": { "cpu": "100m" } } },
        },
    })
}

/// The image `guest`, which is the test guest of the stack.
pub fn image(reference: &str) -> Value {
    json!({
        "apiVersion": VERSION,
        "kind": "VirtualMachineImage",
        "metadata": { "name": "guest" },
        "spec": { "source": { "oci": { "reference": reference } } },
    })
}

/// A machine of the class `tiny` from the image `guest`, with these fields in its specification
/// (`{"running": true}`, say).
pub fn machine(name: &str, fields: &Value) -> Value {
    let mut spec = json!({
        "imageName": "guest",
        "className": "tiny",
        "powerOffTimeout": "30s",
        "template": { "metadata": { "labels": { "app": name } } },
    });
    if let Some(spec) = spec.as_object_mut()
        && let Some(fields) = fields.as_object()
    {
        spec.extend(fields.clone());
    }
    json!({
        "apiVersion": VERSION,
        "kind": "VirtualMachine",
        "metadata": { "name": name },
        "spec": spec,
    })
}

/// The condition of an object with that type; null when there is none.
pub fn condition(object: &Value, kind: &str) -> Value {
    let all = object["status"]["conditions"].as_array();
    let found = all.into_iter().flatten().find(|c| c["type"] == kind);
    found.cloned().unwrap_or_default()
}

impl Cluster {
    /// The class `tiny` and the image `guest`.
    pub fn machine_basics(&self) -> Result<()> {
        self.apply(&class("tiny", "128Mi"))?;
        self.apply(&image(self.stack().image()?))
    }

    /// Waits until a node has read the image `guest`, and the task of that is deleted.
    pub async fn await_inspected(&self, within: Duration) -> Result<()> {
        eventually(within, "the image is read", || async {
            let image = self.get_json(&["virtualmachineimage", "guest"])?;
            let ready = condition(&image, "Ready");
            ensure!(ready["reason"] == "Available", "{}", image["status"]);
            let tasks = self.get_json(&["virtualmachinetasks"])?;
            let mut tasks = tasks["items"].as_array().into_iter().flatten();
            let inspects = |task: &Value| {
                let name = task["metadata"]["name"].as_str();
                name.is_some_and(|name| name.contains("-inspect-image-"))
            };
            ensure!(!tasks.any(inspects), "a task to read the image is left");
            Ok(())
        })
        .await
    }

    /// A machine's object.
    pub fn vm(&self, name: &str) -> Result<Value> {
        self.get_json(&["vm", name])
    }

    /// Changes a machine's spec.
    pub fn patch_vm(&self, name: &str, spec: &Value) -> Result<()> {
        let patch = json!({ "spec": spec }).to_string();
        self.kubectl(&["patch", "vm", name, "--type=merge", "-p", &patch])
            .map(drop)
    }

    /// Waits until `check` is content with a machine's object.
    pub async fn await_vm<T>(
        &self,
        name: &str,
        what: &str,
        within: Duration,
        check: impl Fn(&Value) -> Result<T>,
    ) -> Result<T> {
        eventually(within, what, || async {
            let vm = self.vm(name)?;
            check(&vm).with_context(|| format!("{name}: {}", vm["status"]))
        })
        .await
        .with_context(|| self.story(name))
    }

    /// Waits until a machine's `printableStatus` is this value.
    pub async fn await_word(&self, name: &str, word: &str, within: Duration) -> Result<()> {
        let what = format!("{name} is {word}");
        self.await_vm(name, &what, within, |vm| {
            let now = &vm["status"]["printableStatus"];
            ensure!(now == word, "{now}");
            Ok(())
        })
        .await
    }

    /// UID of the machine's pod.
    pub fn pod_uid(&self, name: &str) -> Result<String> {
        let pod = self.get_json(&["pod", name])?;
        Ok(pod["metadata"]["uid"]
            .as_str()
            .context("no UID")?
            .to_owned())
    }

    /// Waits until the log of the machine's pod shows these boots of its disk, and no others. A boot too
    /// many is an error at once.
    pub async fn await_boots(&self, name: &str, boots: &[u64], within: Duration) -> Result<()> {
        let what = format!("boots {boots:?} of {name}");
        let counted = eventually(within, &what, || async {
            let counted = counted(&self.logs(name)?);
            let is_decided = counted == boots || is_too_many(&counted, boots);
            ensure!(is_decided, "counted {counted:?}");
            Ok(counted)
        });
        let counted = counted.await?;
        ensure!(
            counted == boots,
            "{what}: counted {counted:?}: the machine was booted once more than it should"
        );
        Ok(())
    }

    /// Waits until commands run in the guest of a machine.
    pub async fn await_agent(&self, name: &str, within: Duration) -> Result<()> {
        // The status of the machine may still be that of its last instance: the guest itself
        // decides.
        let connected = "condition=VirtualMachineGuestAgent";
        self.await_condition(&format!("vm/{name}"), connected, within)?;
        self.await_commands(name, within).await
    }

    /// Waits until commands run in the guest of a pod.
    pub async fn await_commands(&self, name: &str, within: Duration) -> Result<()> {
        self.run_inside(name, &["true"], within).await.map(drop)
    }

    /// What a command in the guest of a pod prints, until it succeeds: an agent on a busy machine
    /// may be late. The command may be run twice.
    pub async fn run_inside(
        &self,
        name: &str,
        command: &[&str],
        within: Duration,
    ) -> Result<String> {
        eventually(within, &format!("{command:?} in {name}"), || async {
            Guest::in_pod(self.stack(), name)?.run(command)
        })
        .await
    }

    /// The guest powers itself off, at about the time at which this returns.
    pub fn power_off_inside(&self, name: &str) -> Result<()> {
        let script = "sh -c 'sleep 0.2; busybox poweroff -f' >/dev/null 2>&1 &";
        // A slow guest powers off before it has answered: only what comes of it counts.
        let _ = Guest::in_pod(self.stack(), name)?.run(&["sh", "-c", script]);
        Ok(())
    }

    /// The emulator's process ends, as by an accident.
    pub fn kill_emulator(&self, name: &str) -> Result<()> {
        let emulator = Guest::in_pod(self.stack(), name)?.emulator()?;
        Ok(kill(emulator, Signal::SIGKILL)?)
    }

    /// Everything about a machine, for errors.
    fn story(&self, name: &str) -> String {
        let shown = |arguments: &[&str]| {
            self.kubectl(arguments)
                .unwrap_or_else(|error| format!("{error:#}"))
        };
        [
            shown(&["get", "vm", name, "-o", "yaml"]),
            shown(&["get", "pods", "-o", "wide"]),
            shown(&["get", "virtualmachinetasks", "-o", "wide"]),
            shown(&["describe", "pod", name]),
        ]
        .join("\n---\n")
    }
}

/// The boots that a log shows, each by the number that the disk has counted up to.
fn counted(log: &str) -> Vec<u64> {
    log.lines()
        .filter_map(|line| line.split_once("VMLET-BOOTS "))
        .filter_map(|(_, count)| count.trim().parse().ok())
        .collect()
}

/// Whether there was a boot that no later look undoes. A disk counts up, so that the log of an earlier pod
/// shows none of them.
fn is_too_many(counted: &[u64], boots: &[u64]) -> bool {
    counted.iter().max() > boots.iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_too_many_is_distinguished_from_one_that_is_still_to_come() {
        let log = "VMLET-BOOTS 1\r\ntick\nx VMLET-BOOTS 2 \nVMLET-BOOTS ?\n";
        assert_eq!(counted(log), [1, 2]);
        for (counted, boots, is_over) in [
            (&[1, 2][..], &[1, 2][..], false),
            (&[1], &[1, 2], false),
            // The log of the pod before.
            (&[1, 2], &[3], false),
            (&[], &[1], false),
            (&[1, 2, 3], &[1, 2], true),
            // A guest that goes on from its memory does not boot.
            (&[4], &[], true),
            (&[], &[], false),
        ] {
            assert_eq!(
                is_too_many(counted, boots),
                is_over,
                "{counted:?} {boots:?}"
            );
        }
    }
}
