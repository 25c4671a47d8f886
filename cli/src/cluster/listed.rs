//! Lists of which one object may be unreadable without hiding the others.
//!
//! Invariant: every object of the answer is either returned or named.
//! Failure: the cluster's; an object that cannot be read is none, except where the caller must see
//! all.

use std::fmt::Debug;

use crds::guard::{Guarded, Unreadable};
use kube::api::{Api, ListParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::ClusterError;

/// What is said of such an object in its row.
pub(crate) fn text(unreadable: &Unreadable) -> String {
    format!("cannot be read: {unreadable}")
}

/// All objects of one request; each may be unreadable.
pub(crate) async fn each<K>(
    api: &Api<Guarded<K>>,
    params: &ListParams,
) -> Result<Vec<Guarded<K>>, ClusterError>
where
    K: Clone + Debug + DeserializeOwned,
{
    let list = api.list(params).await.map_err(ClusterError::from_api)?;
    Ok(list.items)
}

/// The objects that can be read; the others are named on standard error.
pub(crate) async fn readable<K>(
    api: &Api<Guarded<K>>,
    params: &ListParams,
) -> Result<Vec<K>, ClusterError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    Ok(left_out(each(api, params).await?))
}

fn left_out<K: Resource<DynamicType = ()>>(all: Vec<Guarded<K>>) -> Vec<K> {
    let read = all.into_iter().filter_map(|one| {
        let name = name(&one);
        let read = one.0;
        read.inspect_err(|bad| eprintln!("warning: {name} is left out, it {}", text(bad)))
            .ok()
    });
    read.collect()
}

/// The object, or an error that names it: for those who must see all.
pub(crate) fn required<K>(one: Guarded<K>) -> Result<K, ClusterError>
where
    K: Resource<DynamicType = ()>,
{
    let name = name(&one);
    one.0.map_err(|bad| ClusterError::Unreadable {
        name,
        error: bad.error,
    })
}

/// Such as `VirtualMachine default/web`.
fn name<K: Resource<DynamicType = ()>>(object: &Guarded<K>) -> String {
    let kind = K::kind(&());
    let name = object.name_any();
    match object.namespace() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use crds::VirtualMachine;
    use kube::core::ObjectList;
    use serde_json::json;

    use super::*;

    fn all() -> Vec<Guarded<VirtualMachine>> {
        let machine = |name: &str, status: &str| {
            json!({
                "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
                "metadata": { "name": name, "namespace": "default" },
                "spec": { "running": true },
                "status": { "printableStatus": status },
            })
        };
        let list = json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineList", "metadata": {},
            "items": [machine("web", "Running"), machine("new", "OfANewerVersion"), machine("db", "Stopped")],
        });
        let list = serde_json::from_str::<ObjectList<Guarded<VirtualMachine>>>(&list.to_string());
        list.unwrap().items
    }

    #[test]
    fn one_object_that_cannot_be_read_hides_no_other() {
        let place = |name: &str| format!("VirtualMachine default/{name}");
        let names: Vec<_> = all().iter().map(name).collect();
        assert_eq!(names, [place("web"), place("new"), place("db")]);
        let bad = all().remove(1).0.unwrap_err();
        assert!(text(&bad).contains("OfANewerVersion"), "{}", text(&bad));
        let left = left_out(all());
        let left: Vec<_> = left.iter().map(ResourceExt::name_any).collect();
        assert_eq!(left, ["web", "db"]);
    }

    #[test]
    fn who_must_see_all_learns_which_one_is_not_seen() {
        let seen: Result<Vec<_>, _> = all().into_iter().map(required).collect();
        let error = seen.unwrap_err().to_string();
        assert!(error.contains("VirtualMachine default/new"), "{error}");
        assert!(error.contains("OfANewerVersion"), "{error}");
    }
}
