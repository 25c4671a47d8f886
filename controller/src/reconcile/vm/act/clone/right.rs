//! Whether the API server has judged that the author of a clone may read its source.
//!
//! The policy `vmlet-data-volumes` judges it when the machine is created. An API server that has the field `source` before
//! the policy knows of it, as in the middle of an upgrade, takes every machine.
//!
//! Invariant: where the policy is installed, no disk is copied for a machine that it has not judged. Where it is not,
//! nothing is protected, as for all protected fields.
//! Failure: what to do, in words; no watch shows when it is done.

use crds::TaskKind;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;

use crate::flow::Outcome;
use crate::reconcile::answers::is_gone;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::pass::Pass;

/// The policy.
const POLICY: &str = "vmlet-data-volumes";

/// What one of its rules depends on.
const RIGHT: &str = "variables.mayClone";

/// The same for a machine that is restored from a backup, of which an earlier version does not know.
const RIGHT_TO_RESTORE: &str = "variables.mayRestore";

/// Seconds until all API servers judge by a policy that was written.
const IN_FORCE: i64 = 5;

/// Why the disk is not copied, if so.
pub(super) async fn refusal(pass: &Pass<'_>) -> Outcome<Option<String>> {
    let api: Api<ValidatingAdmissionPolicy> = Api::all(pass.ctx.client.clone());
    match api.get(POLICY).await {
        Ok(policy) => {
            let created = pass.base.metadata.creation_timestamp.as_ref();
            let right = match super::kind(pass) {
                TaskKind::RestoreBackup => RIGHT_TO_RESTORE,
                _ => RIGHT,
            };
            Ok(verdict(&policy, right, created))
        }
        Err(error) if is_gone(&error) => Ok(None),
        Err(source) => {
            let what = format!("policy {POLICY}");
            Err(Error::Read { what, source }.into())
        }
    }
}

fn verdict(
    policy: &ValidatingAdmissionPolicy,
    right: &str,
    created: Option<&Time>,
) -> Option<String> {
    let rules = policy.spec.iter().flat_map(|spec| &spec.validations);
    let mut rules = rules.flatten();
    if !rules.any(|rule| rule.expression.contains(right)) {
        return Some(format!(
            "the policy {POLICY} of the cluster is of an earlier version, which does not judge who may clone or restore: apply \
             deploy/admission, and create the machine again"
        ));
    }
    let created = created.map_or(0, |at| at.0.as_second());
    (created <= in_force(policy)).then(|| {
        format!(
            "the machine was created before the policy {POLICY} judged who may clone or restore, or before the policy was changed: \
             create the machine again"
        )
    })
}

/// The second from which on the policy judges as it is. Labels and annotations are no part of that.
fn in_force(policy: &ValidatingAdmissionPolicy) -> i64 {
    let meta = &policy.metadata;
    let writes = meta.managed_fields.iter().flatten();
    // The API server's own findings are in the status.
    let writes = writes.filter(|write| write.subresource.is_none());
    let writes = writes.filter(|write| {
        let fields = write.fields_v1.as_ref();
        fields.is_none_or(|fields| fields.0.get("f:spec").is_some())
    });
    let times = writes.filter_map(|write| write.time.as_ref());
    let times = times.chain(&meta.creation_timestamp);
    let last = times.map(|at| at.0.as_second()).max();
    last.unwrap_or_default() + IN_FORCE
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policy(expression: &str, managed: &Value) -> ValidatingAdmissionPolicy {
        serde_json::from_value(json!({
            "metadata": {
                "name": POLICY, "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": managed,
            },
            "spec": { "validations": [{ "expression": "true" }, { "expression": expression }] },
        }))
        .unwrap()
    }

    fn is_judged(policy: &ValidatingAdmissionPolicy, created: &str) -> bool {
        let created = Time(created.parse().unwrap());
        verdict(policy, RIGHT, Some(&created)).is_none()
    }

    #[test]
    fn only_a_machine_that_the_present_policy_has_judged_is_copied_for() {
        let rule = "!variables.isClone || variables.mayClone";
        let later = json!([
            { "manager": "kubectl", "time": "2026-02-01T00:00:00Z", "fieldsV1": { "f:spec": {} } },
            { "manager": "server", "subresource": "status", "time": "2026-03-01T00:00:00Z" },
            {
                "manager": "argocd", "time": "2026-04-01T00:00:00Z",
                "fieldsV1": { "f:metadata": { "f:annotations": {} } },
            },
        ]);
        let first = policy(rule, &json!([]));
        assert!(!is_judged(&first, "2025-12-31T23:59:59Z"));
        assert!(!is_judged(&first, "2026-01-01T00:00:05Z"));
        assert!(is_judged(&first, "2026-01-01T00:00:06Z"));
        let changed = policy(rule, &later);
        assert!(!is_judged(&changed, "2026-01-15T00:00:00Z"));
        assert!(is_judged(&changed, "2026-02-01T00:00:06Z"));
        assert!(verdict(&changed, RIGHT, None).is_some());
        let late = Time("2026-05-01T00:00:00Z".parse().unwrap());
        // It does not judge who may restore.
        assert!(verdict(&changed, RIGHT_TO_RESTORE, Some(&late)).is_some());
        let unknown = policy(rule, &json!([{ "time": "2026-02-01T00:00:00Z" }]));
        assert!(!is_judged(&unknown, "2026-01-15T00:00:00Z"));
        let earlier = policy("true", &json!([]));
        let why = verdict(&earlier, RIGHT, Some(&late));
        assert!(why.unwrap().contains("earlier version"));
    }

    #[test]
    fn the_policy_of_this_version_has_the_rule() {
        let text = include_str!("../../../../../../deploy/admission/data-volumes.yaml");
        assert!(text.contains(&format!("name: {POLICY}\n")));
        for right in [RIGHT, RIGHT_TO_RESTORE] {
            assert!(text.contains(&format!("|| {right}\"")), "{right}");
        }
    }
}
