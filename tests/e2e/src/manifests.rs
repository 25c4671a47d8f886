//! The pods that cluster tests are made of.
//!
//! Invariant: they are plain values, so that a test changes what it is about and nothing else.
//! Failure: none here; the API server reports what it refuses.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// A file of `examples`.
pub fn example(name: &str) -> Result<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let path = folder.join(name);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// A pod that is a virtual machine: the test guest with one vCPU, by RuntimeClass.
pub fn vm_pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "runtimeClassName": "vmlet",
            "terminationGracePeriodSeconds": 30,
            "containers": [{
                "name": "vm",
                "image": "vmlet.dev/hello",
                "imagePullPolicy": "IfNotPresent",
                "ports": [{ "containerPort": 80 }],
                // Ready means that the guest answers. Under software emulation each answer is a tenth of a
                // second of processor time, more than all else that an idle guest does.
                "readinessProbe": {
                    "httpGet": { "path": "/", "port": 80 },
                    "periodSeconds": 5,
                    "failureThreshold": 1,
                    "timeoutSeconds": 20,
                },
                "resources": {
                    "requests": { "cpu": "50m", "memory": "96Mi" },
                    "limits": { "memory": "128Mi" },
                },
            }],
        },
    })
}

/// An ordinary pod that runs a shell script in the tool image; it ends at once on SIGTERM.
pub fn container_pod(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "box",
                "image": "localhost/tools:1",
                "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", script],
            }],
        },
    })
}

/// A Service of the pods with this label `app`, on port 80.
pub fn service(app: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": app },
        "spec": { "selector": { "app": app }, "ports": [{ "port": 80 }] },
    })
}
