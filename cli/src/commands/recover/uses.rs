//! What a machine takes from its cluster: a node that has it gets the contents.
//!
//! Invariant: each Secret, ConfigMap and claim that Vmlet reads for a machine is shown, however many a node has
//! written, and so is each data volume: of what CDI reads for one, the fields of `cdi.kubevirt.io/v1beta1`
//! are shown.
//! Failure: none; what is no name is not shown, and the API server refuses it.

use crds::backup::MachineManifest;
use podspec::Key;
use serde_json::Value;

/// Annotations of a pod with an object: `secret/keys`, `configmap/files`.
const SOURCES: [Key; 5] = [
    Key::UserDataSource,
    Key::NetworkConfigSource,
    Key::SshKeysSource,
    Key::FilesSource,
    Key::SysprepSource,
];

/// The objects that a manifest names, Secrets first.
pub(super) fn list(manifest: &MachineManifest) -> String {
    let spec = &manifest.spec;
    let data = &spec["bootstrap"]["cloudInit"];
    let secrets = [
        &data["userData"]["name"],
        &data["networkData"]["name"],
        &spec["bootstrap"]["sysprep"]["secretName"],
    ];
    let secrets = secrets.into_iter().filter_map(Value::as_str);
    let mut all: Vec<_> = secrets.map(|name| format!("secret/{name}")).collect();
    annotated(&spec["template"]["metadata"]["annotations"], &mut all);
    for template in spec["dataVolumeTemplates"].as_array().into_iter().flatten() {
        if let Some(name) = template["name"].as_str() {
            all.push(format!("datavolume/{name}"));
        }
        imported(&template["spec"], &mut all);
    }
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    let claims = volumes.filter_map(|one| one["persistentVolumeClaim"]["claimName"].as_str());
    all.extend(claims.map(|name| format!("pvc/{name}")));
    let images = [&spec["imageName"], &spec["image"]["name"]];
    let images = images.into_iter().filter_map(Value::as_str);
    all.extend(images.map(|name| format!("image/{name}")));
    if all.is_empty() {
        all.push("-".to_owned());
    }
    all.join(",")
}

/// What the annotations of the machine's pods name, under our names and the predecessor's.
fn annotated(annotations: &Value, all: &mut Vec<String>) {
    let values = |key: Key| {
        let (ours, alias) = key.names();
        let names = [Some(ours), alias].into_iter().flatten();
        names.filter_map(move |name| annotations[name].as_str())
    };
    all.extend(SOURCES.into_iter().flat_map(values).map(str::to_owned));
    let secrets = values(Key::ImageTlsSecret);
    all.extend(secrets.map(|name| format!("secret/{name}")));
}

/// What the specification of a data volume names, wherever it does.
fn imported(spec: &Value, all: &mut Vec<String>) {
    match spec {
        Value::Array(values) => values.iter().for_each(|value| imported(value, all)),
        Value::Object(fields) => {
            for (field, value) in fields {
                all.extend(named(field, value));
                imported(value, all);
            }
        }
        _ => {}
    }
}

/// What one field of a data volume names.
fn named(field: &str, value: &Value) -> Vec<String> {
    let of_kind = |kind: &str| -> Vec<String> {
        let name = value.as_str().map(|name| format!("{kind}/{name}"));
        name.into_iter().collect()
    };
    match field {
        "secretRef" => of_kind("secret"),
        "certConfigMap" | "extraArgs" => of_kind("configmap"),
        "volumeName" => of_kind("pv"),
        "secretExtraHeaders" => {
            let names = value.as_array().into_iter().flatten();
            let names = names.filter_map(Value::as_str);
            names.map(|name| format!("secret/{name}")).collect()
        }
        // What follows may be a secret.
        "url" | "initImageURL" => {
            let url = value.as_str().and_then(|url| url.split(['?', '#']).next());
            url.map(str::to_owned).into_iter().collect()
        }
        "pvc" | "snapshot" => object(field, value),
        "sourceRef" | "dataSource" | "dataSourceRef" => {
            let kind = value["kind"].as_str().unwrap_or("object");
            object(&kind.to_ascii_lowercase(), value)
        }
        _ => Vec::new(),
    }
}

/// An object by its name, of another namespace perhaps.
fn object(kind: &str, value: &Value) -> Vec<String> {
    let place = match value["namespace"].as_str() {
        Some(namespace) => format!("{kind}/{namespace}/"),
        None => format!("{kind}/"),
    };
    let name = value["name"].as_str();
    let shown = name.map(|name| format!("{place}{name}"));
    shown.into_iter().collect()
}
