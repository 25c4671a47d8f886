//! What tests look at: objects of the API server.
//!
//! Invariant: a look changes nothing, and shows what no pass may have seen yet.
//! Failure: panics with the objects that are there.

use crds::VirtualMachine;
use crds::conditions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;

use super::{Bench, PODS, SYSTEM_TASKS, TASKS, VMS};

impl Bench {
    pub(in crate::reconcile::vm::tests) fn try_get(
        &self,
        collection: &str,
        name: &str,
    ) -> Option<Value> {
        let place = (collection.to_owned(), name.to_owned());
        self.server.lock().unwrap().objects.get(&place).cloned()
    }

    pub(in crate::reconcile::vm::tests) fn get(&self, collection: &str, name: &str) -> Value {
        let found = self.try_get(collection, name);
        found.unwrap_or_else(|| panic!("there is no {collection}/{name}: {:?}", self.names()))
    }

    pub(in crate::reconcile::vm::tests) fn names(&self) -> Vec<String> {
        let server = self.server.lock().unwrap();
        server
            .objects
            .keys()
            .map(|(c, n)| format!("{}/{n}", c.rsplit('/').next().unwrap()))
            .collect()
    }

    pub(in crate::reconcile::vm::tests) fn vm(&self) -> VirtualMachine {
        serde_json::from_value(self.get(VMS, "vm")).unwrap()
    }

    pub(in crate::reconcile::vm::tests) fn status(&self) -> crds::VirtualMachineStatus {
        self.vm().status.unwrap_or_default()
    }

    pub(in crate::reconcile::vm::tests) fn pod(&self) -> Value {
        self.get(PODS, "vm")
    }

    pub(in crate::reconcile::vm::tests) fn has_pod(&self) -> bool {
        self.try_get(PODS, "vm").is_some()
    }

    /// The task of that kind; panics unless there is exactly one.
    pub(in crate::reconcile::vm::tests) fn task(&self, kind: &str) -> Value {
        let all = self.tasks(kind);
        assert_eq!(all.len(), 1, "{kind}: {:?}", self.names());
        all[0].clone()
    }

    pub(in crate::reconcile::vm::tests) fn tasks(&self, kind: &str) -> Vec<Value> {
        let server = self.server.lock().unwrap();
        let is_task = |c: &str| c == TASKS || c == SYSTEM_TASKS;
        let all = server.objects.iter().filter(|((c, _), _)| is_task(c));
        all.map(|(_, t)| t.clone())
            .filter(|t| t["spec"]["kind"] == kind)
            .collect()
    }

    pub(in crate::reconcile::vm::tests) fn condition(&self, kind: &str) -> Option<Condition> {
        conditions::find(&self.status().conditions, kind).cloned()
    }

    /// Status and reason of a condition, `-` when it is not there.
    pub(in crate::reconcile::vm::tests) fn condition_text(&self, kind: &str) -> String {
        self.condition(kind)
            .map_or("-".to_owned(), |c| format!("{}/{}", c.status, c.reason))
    }
}
