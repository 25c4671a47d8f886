//! The admission policies, without which protected annotations are not protected.
//!
//! Invariant: a policy counts only together with a binding that denies.
//! Failure: a policy that the cluster has not checked yet is progressing.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};

use super::{conditions, names};
use crate::operator::component::Conditions;

/// A policy by name, with its binding of the same name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// Name of both.
    pub name: String,
    /// The policy.
    pub policy: Option<ValidatingAdmissionPolicy>,
    /// Its binding.
    pub binding: Option<ValidatingAdmissionPolicyBinding>,
}

/// The four conditions of all policies together.
#[must_use]
pub fn admission(policies: &[Policy]) -> Conditions {
    let which = |bad: &dyn Fn(&Policy) -> bool| {
        let bad = policies.iter().filter(|policy| bad(policy));
        names(bad.map(|policy| policy.name.as_str()))
    };
    let absent = which(&|policy| policy.policy.is_none() || policy.binding.is_none());
    let toothless = which(&|policy| {
        policy.binding.as_ref().is_some_and(|binding| {
            let actions = &binding.spec.validation_actions;
            !actions.iter().any(|action| action == "Deny")
        })
    });
    let unseen = which(&|policy| {
        policy.policy.as_ref().is_some_and(|policy| {
            let status = policy.status.as_ref();
            let seen = status.and_then(|status| status.observed_generation);
            seen < policy.metadata.generation
        })
    });
    let warnings = which(&|policy| {
        let status = policy.policy.as_ref().and_then(|p| p.status.as_ref());
        let checking = status.and_then(|status| status.type_checking.as_ref());
        checking
            .and_then(|checking| checking.expression_warnings.as_ref())
            .is_some_and(|warnings| !warnings.is_empty())
    });
    conditions(
        absent
            .map(|names| format!("policy or binding not found: {names}"))
            .or_else(|| toothless.map(|names| format!("bindings do not deny: {names}"))),
        unseen.map(|names| format!("not checked yet: {names}")),
        warnings.map(|names| format!("expressions with warnings: {names}")),
        None,
    )
}
