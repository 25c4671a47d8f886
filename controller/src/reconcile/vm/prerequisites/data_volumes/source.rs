//! The source from which CDI fills a data volume.
//!
//! Invariant: CDI grants the controller clones from every namespace, because it may create pods
//! there. So the controller names another namespace as a source only where an admission policy has
//! recorded that the machine's author may clone from it. What a `DataSource` names is resolved
//! here and passed on, so that no later edit of it changes the source.
//! Failure: a source that the author may not use, or that does not exist, in words.

use crds::vm::DataVolumeTemplate;
use crds::{RawObject, names};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, ResourceExt};
use serde_json::{Map, Value, json};

use super::{Missing, Pass, listed};

/// Why there is no source.
pub(super) enum Refusal {
    /// For its user to mend.
    Missing(Missing),
    /// To be tried again.
    Read(kube::Error),
}

impl From<Missing> for Refusal {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

/// The `spec` of the data volume, without references to be resolved later.
pub(super) async fn resolve(
    pass: &Pass<'_>,
    template: &DataVolumeTemplate,
) -> Result<Map<String, Value>, Refusal> {
    let name = &template.name;
    let own = pass.key.namespace.as_str();
    let Some(mut spec) = template.spec.fields() else {
        let most = RawObject::MOST / 1024;
        let message = format!("DataVolume {name}: spec is larger than {most} KiB as JSON");
        return Err(Missing::new("Invalid", message).into());
    };
    for namespace in namespaces(&spec) {
        let is_allowed = namespace.as_str().is_some_and(|n| {
            n.is_empty() || n == own || listed(pass, names::CLONE_FROM_NAMESPACES).any(|l| l == n)
        });
        if !is_allowed {
            return Err(forbidden(name, namespace).into());
        }
    }
    let Some(reference) = spec.remove("sourceRef").filter(|r| !r.is_null()) else {
        return Ok(spec);
    };
    if spec.contains_key("source") {
        let message = format!("DataVolume {name}: source and sourceRef exclude each other");
        return Err(Missing::new("Invalid", message).into());
    }
    let source = data_source(pass, name, &reference).await?;
    spec.insert("source".to_owned(), source);
    Ok(spec)
}

/// Every value of a field `namespace`, at any depth and in any spelling that a reader may accept.
fn namespaces(fields: &Map<String, Value>) -> Vec<&Value> {
    let of = |(key, value): (&String, _)| {
        if is_namespace(key, value) {
            vec![value]
        } else {
            below(value)
        }
    };
    fields.iter().flat_map(of).collect()
}

fn is_namespace(key: &str, value: &Value) -> bool {
    key.eq_ignore_ascii_case("namespace") && !value.is_null()
}

fn below(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(fields) => namespaces(fields),
        Value::Array(all) => all.iter().flat_map(below).collect(),
        _ => Vec::new(),
    }
}

/// What a `DataSource` stands for, as a `source`. Nothing watches those objects.
async fn data_source(pass: &Pass<'_>, name: &str, reference: &Value) -> Result<Value, Refusal> {
    let own = pass.key.namespace.as_str();
    let text = |field: &str| reference.get(field).and_then(Value::as_str);
    let is_data_source = text("kind") == Some("DataSource");
    let Some(source) = text("name").filter(|_| is_data_source) else {
        let message = format!("DataVolume {name}: sourceRef needs kind DataSource and a name");
        return Err(Missing::new("Invalid", message).into());
    };
    let namespace = text("namespace").filter(|n| !n.is_empty()).unwrap_or(own);
    let kind = GroupVersionKind::gvk("cdi.kubevirt.io", "v1beta1", "DataSource");
    let mut resource = ApiResource::from_gvk(&kind);
    resource.plural = "datasources".to_owned();
    let api: Api<DynamicObject> =
        Api::namespaced_with(pass.ctx.client.clone(), namespace, &resource);
    let Some(found) = api.get_opt(source).await.map_err(Refusal::Read)? else {
        let message = format!("DataSource {namespace}/{source} does not exist");
        return Err(Missing::new("NotFound", message).unwatched().into());
    };
    let stands_for = found.data.pointer("/spec/source");
    let one = ["pvc", "snapshot"].into_iter().find_map(|kind| {
        let target = stands_for?.get(kind)?;
        let target_name = target.get("name")?.as_str()?;
        let within = target.get("namespace").and_then(Value::as_str);
        let within = within.filter(|n| !n.is_empty()).unwrap_or(namespace);
        Some((kind, within, target_name))
    });
    let source = format!("DataSource {namespace}/{}", found.name_any());
    let Some((kind, within, target)) = one else {
        let message = format!(
            "{source} names neither a claim nor a snapshot; name the source itself in the template"
        );
        return Err(Missing::new("Invalid", message).unwatched().into());
    };
    // Who may write a DataSource may not clone what it names.
    if within != own && within != namespace {
        let message = format!(
            "{source} names {kind} {target} of the namespace {within}; DataVolumes are made of \
             claims and snapshots of the machine's own namespace or the DataSource's: name the \
             source itself in the template"
        );
        return Err(Missing::new("Forbidden", message).unwatched().into());
    }
    Ok(json!({ kind: { "namespace": within, "name": target } }))
}

fn forbidden(name: &str, namespace: &Value) -> Missing {
    let key = names::CLONE_FROM_NAMESPACES;
    let message = format!(
        "DataVolume {name} has a source in the namespace {namespace}; a user who may create \
         datavolumes/source there adds it to the machine's annotation {key}"
    );
    Missing::new("Forbidden", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_found_at_any_depth_and_in_any_case() {
        let spec = json!({
            "source": { "pvc": { "name": "a", "namespace": "b" } },
            "storage": { "dataSourceRef": { "Namespace": "c" }, "x": [{ "NAMESPACE": { "y": 1 } }] },
            "sourceRef": { "namespace": null, "name": "namespace" },
        });
        let found = namespaces(spec.as_object().unwrap());
        assert_eq!(found, [&json!("b"), &json!("c"), &json!({ "y": 1 })]);
    }
}
