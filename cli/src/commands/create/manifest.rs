//! Creates the manifest of a machine from options.
//!
//! Invariant: a field is there only when an option gives it.
//! Failure: none; the server checks the values.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Map, Value, json};

use super::VmArgs;

pub(super) fn manifest(args: &VmArgs) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".into(), json!(args.name));
    if let Some(namespace) = &args.cluster.namespace {
        metadata.insert("namespace".into(), json!(namespace));
    }
    if !args.label.is_empty() {
        metadata.insert("labels".into(), args.label.iter().cloned().collect());
    }
    json!({
        "apiVersion": format!("{}/{}", crds::GROUP, crds::VERSION),
        "kind": "VirtualMachine",
        "metadata": metadata,
        "spec": spec(args),
    })
}

fn spec(args: &VmArgs) -> Value {
    let mut spec = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        spec.extend(value.map(|value| (key.to_owned(), value)));
    };
    put(
        "runStrategy",
        Some(json!(format!("{:?}", args.run_strategy))),
    );
    put("imageName", args.image.as_ref().map(|name| json!(name)));
    put("className", args.class.as_ref().map(|name| json!(name)));
    put(
        "hardware",
        args.memory
            .as_ref()
            .map(|memory| json!({"cpus": args.cpus, "memory": Quantity(memory.clone())})),
    );
    put(
        "bootDiskCapacity",
        args.disk_size.as_ref().map(|size| json!(size)),
    );
    put(
        "storageClass",
        args.storage_class.as_ref().map(|name| json!(name)),
    );
    put("volumes", volumes(args));
    put("bootstrap", bootstrap(args));
    put("network", network(args));
    put(
        "readinessProbe",
        args.readiness_probe.as_ref().map(|probe| json!(probe)),
    );
    Value::Object(spec)
}

fn volumes(args: &VmArgs) -> Option<Value> {
    let root = args.root_claim.iter().map(|claim| {
        json!({"name": "root", "persistentVolumeClaim": {"claimName": claim, "root": true}})
    });
    let more = args
        .volume
        .iter()
        .map(|(name, claim)| json!({"name": name, "persistentVolumeClaim": {"claimName": claim}}));
    let all: Vec<_> = root.chain(more).collect();
    (!all.is_empty()).then(|| json!(all))
}

fn bootstrap(args: &VmArgs) -> Option<Value> {
    let mut cloud_init = Map::new();
    if let Some(secret) = &args.user_data {
        let reference = match secret.split_once('/') {
            Some((name, key)) => json!({"name": name, "key": key}),
            None => json!({"name": secret}),
        };
        cloud_init.insert("userData".into(), reference);
    }
    if !args.ssh_key.is_empty() {
        cloud_init.insert("sshKeys".into(), json!(args.ssh_key));
    }
    (!cloud_init.is_empty()).then(|| json!({"cloudInit": cloud_init}))
}

fn network(args: &VmArgs) -> Option<Value> {
    let mut network = Map::new();
    if args.no_network {
        network.insert("disabled".into(), json!(true));
    }
    if let Some(name) = &args.hostname {
        network.insert("hostName".into(), json!(name));
    }
    if args.mac.is_some() || !args.network.is_empty() {
        let mut first = json!({"name": "eth0"});
        if let Some(mac) = &args.mac {
            first["macAddr"] = json!(mac);
        }
        let more = args.network.iter().enumerate();
        let more = more
            .map(|(i, network)| json!({"name": format!("eth{}", i + 1), "networkRef": network}));
        let all: Vec<_> = std::iter::once(first).chain(more).collect();
        network.insert("interfaces".into(), json!(all));
    }
    (!network.is_empty()).then_some(Value::Object(network))
}
