//! `deploy/admission/` agrees with itself and with the types.
//!
//! Invariant: all policies have the same privileged principals, and our programs and the role for people
//! have the right that makes one; each policy has a binding that denies.
//! Failure: the name of the policy that differs.

use std::error::Error;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Policies that make no difference between users.
const FOR_EVERYBODY: [&str; 3] = ["vmlet-removal", "vmlet-removal-allowed", "vmlet-pods"];

fn of_kind(kind: &str) -> Result<Vec<Value>, Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/admission");
    let mut all = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let text = fs::read_to_string(entry?.path())?;
        for part in text.split("\n---\n") {
            all.push(serde_saphyr::from_str::<Value>(part)?);
        }
    }
    all.retain(|document| document["kind"] == kind);
    Ok(all)
}

#[test]
fn all_policies_have_the_same_privileged_principals() {
    let mut policies = of_kind("ValidatingAdmissionPolicy").unwrap();
    policies
        .retain(|policy| !FOR_EVERYBODY.contains(&policy["metadata"]["name"].as_str().unwrap()));
    let privileged = |policy: &Value| {
        let variables = policy["spec"]["variables"].as_array().unwrap().clone();
        let mut named = variables
            .into_iter()
            .filter(|one| one["name"] == "privileged");
        named.next().unwrap()["expression"].clone()
    };
    let first = privileged(&policies[0]);
    assert_eq!(policies.len(), 5, "policies with principals");
    for name in [
        "vmlet-controller",
        "vmlet-agent",
        "kubernetes-admin",
        "system:masters",
        "authorizer.group('vmlet.dev.protected').resource('fields').check('write')",
    ] {
        assert!(first.as_str().unwrap().contains(name), "{first}");
    }
    for policy in &policies {
        assert_eq!(privileged(policy), first, "{}", policy["metadata"]["name"]);
    }
}

/// In a namespace of another name no policy knows the accounts by their names.
#[test]
fn controller_agents_and_a_role_for_people_have_the_right_of_privileged_users() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    for (file, role) in [
        ("controller/serviceaccount.yaml", "vmlet-controller"),
        ("agent/serviceaccount.yaml", "vmlet-agent"),
        ("users.yaml", "vmlet-privileged"),
    ] {
        let text = fs::read_to_string(deploy.join(file)).unwrap();
        let documents = text.split("\n---\n");
        let documents = documents.map(|part| serde_saphyr::from_str::<Value>(part).unwrap());
        let mut roles =
            documents.filter(|one| one["kind"] == "ClusterRole" && one["metadata"]["name"] == role);
        let rules = roles.next().unwrap()["rules"].as_array().unwrap().clone();
        let right = serde_json::json!({
            "apiGroups": ["vmlet.dev.protected"], "resources": ["fields"], "verbs": ["write"],
        });
        assert!(rules.contains(&right), "{file}: {rules:?}");
    }
}

#[test]
fn every_policy_has_a_binding_that_denies_and_is_watched() {
    let bindings = of_kind("ValidatingAdmissionPolicyBinding").unwrap();
    let mut names: Vec<String> = Vec::new();
    for policy in of_kind("ValidatingAdmissionPolicy").unwrap() {
        let name = policy["metadata"]["name"].as_str().unwrap().to_owned();
        assert_eq!(policy["spec"]["failurePolicy"], "Fail");
        let mut own = bindings
            .iter()
            .filter(|one| one["spec"]["policyName"] == name.as_str());
        let binding = own.next().unwrap();
        assert_eq!(binding["metadata"]["name"], name.as_str());
        assert_eq!(binding["spec"]["validationActions"][0], "Deny");
        names.push(name);
    }
    names.sort();
    let mut watched = crds::VmletWatch::default().admission_policies;
    watched.sort();
    assert_eq!(watched, names);
}

#[test]
fn the_keys_of_a_policy_are_those_of_names() {
    let text: String = of_kind("ValidatingAdmissionPolicy")
        .unwrap()
        .iter()
        .map(Value::to_string)
        .collect();
    use crds::names as n;
    for key in [
        n::RECONCILE_PRIORITY,
        n::POWER_ON_CHECK_PREFIX,
        n::DELETE_CHECK_PREFIX,
        n::PAUSED_LABEL,
        n::VM_DISK,
        n::RESTORE,
        n::INSTANCE_UUID,
        n::BIOS_UUID,
        n::VM_UID_LABEL,
        n::POD_ROLE_LABEL,
        n::GENERATION,
        n::REVISION,
        n::GUEST_FACTS,
        n::REMOVAL,
        n::REMOVAL_ALLOWED,
    ] {
        assert!(text.contains(&format!("'{key}")), "{key}");
    }
    assert!(n::FINALIZER.starts_with(n::PREFIX) && text.contains("startsWith('vmlet.dev/')"));
}
