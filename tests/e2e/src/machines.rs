//! `VirtualMachine` objects for tests: what they are made of, and waiting for what they become.
//!
//! Invariant: they are plain values, so that a test changes what it is about and nothing else.
//! Failure: a machine that does not become what is awaited is shown whole, with its pod and tasks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{Cluster, eventually};

/// Every object of the group has this version.
const VERSION: &str = "vmlet.dev/v1alpha1";

/// A class with one virtual CPU.
pub fn class(name: &str, memory: &str) -> Value {
    json!({
        "apiVersion": VERSION,
        "kind": "VirtualMachineClass",
        "metadata": { "name": name },
        "spec": {
            "hardware": { "cpus": 1, "memory": memory },
            "policies": { "resources": { "requests": { "cpu": "10m" } } },
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

/// A machine of the class `tiny` from the image `guest`, with the wish that is given (`{"running": true}`, say).
pub fn machine(name: &str, wish: &Value) -> Value {
    let mut spec = json!({
        "imageName": "guest",
        "className": "tiny",
        "powerOffTimeout": "30s",
        "template": { "metadata": { "labels": { "app": name } } },
    });
    if let (Some(spec), Some(wish)) = (spec.as_object_mut(), wish.as_object()) {
        spec.extend(wish.clone());
    }
    json!({
        "apiVersion": VERSION,
        "kind": "VirtualMachine",
        "metadata": { "name": name },
        "spec": spec,
    })
}

impl Cluster {
    /// The class `tiny` and the image `guest`.
    pub fn machine_basics(&self) -> Result<()> {
        self.apply(&class("tiny", "128Mi"))?;
        self.apply(&image(self.stack().image()?))
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

    /// Waits until a machine's `printableStatus` is this word.
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
        self.kubectl(&["get", "pod", name, "-o", "jsonpath={.metadata.uid}"])
    }

    /// Everything about a machine, for errors.
    fn story(&self, name: &str) -> String {
        let tell = |arguments: &[&str]| {
            self.kubectl(arguments)
                .unwrap_or_else(|error| format!("{error:#}"))
        };
        [
            tell(&["get", "vm", name, "-o", "yaml"]),
            tell(&["get", "pods", "-o", "wide"]),
            tell(&["get", "virtualmachinetasks", "-o", "wide"]),
            tell(&["describe", "pod", name]),
        ]
        .join("\n---\n")
    }
}
