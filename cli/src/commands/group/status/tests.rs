use serde_json::{Value, json};

use super::*;

pub(in crate::commands::group) fn member(
    name: &str,
    power: &str,
    conditions: &[(&str, &str, &str)],
) -> Value {
    let conditions: Vec<_> = conditions
        .iter()
        .map(|(kind, reason, message)| {
            let status = if reason.is_empty() { "True" } else { "False" };
            let reason = if reason.is_empty() { "True" } else { reason };
            json!({"type": kind, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        })
        .collect();
    json!({"kind": "VirtualMachine", "name": name, "powerState": power, "conditions": conditions,
        "placement": {"node": "n1"}})
}

pub(in crate::commands::group) fn group(members: &Value) -> VirtualMachineGroup {
    let group = json!({
        "metadata": {"name": "shop", "namespace": "default", "uid": "u", "generation": 2},
        "spec": {
            "powerState": "PoweredOn",
            "bootOrder": [
                {"members": [{"name": "db"}]},
                {"members": [{"name": "web"}], "waitForReady": true},
            ],
        },
        "status": {
            "members": members,
            "powerChange": {"powerState": "PoweredOn", "time": "2026-01-01T00:00:00Z",
                "startTime": "2026-01-01T00:00:00Z", "tierTimes": ["2026-01-01T00:00:00Z"]},
            "conditions": [{"type": "Ready", "status": "False", "reason": "MembersNotReady",
                "message": "conditions of members say why: web", "observedGeneration": 2,
                "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        },
    });
    serde_json::from_value(group).unwrap()
}

#[test]
fn a_group_shows_which_member_waits_for_what() {
    let members = json!([
        member(
            "db",
            "PoweredOn",
            &[
                ("GroupLinked", "", ""),
                ("PowerStateSynced", "", ""),
                ("Ready", "NotReady", "the probe has failed")
            ]
        ),
        member(
            "web",
            "PoweredOff",
            &[
                ("GroupLinked", "", ""),
                (
                    "PowerStateSynced",
                    "Pending",
                    "it waits until the tier before it is ready"
                ),
                ("Ready", "NotReady", "it is off")
            ]
        ),
    ]);
    insta::assert_snapshot!(render(&group(&members)), @r"
    Name:       shop
    Namespace:  default
    Power:      PoweredOn
    Change:     PoweredOn, tiers at 2026-01-01T00:00:00Z, and 1 tiers wait until the tier before them is ready
    Ready:      False (MembersNotReady): conditions of members say why: web

    Members:
    TIER  MEMBER  POWER       SYNCED  READY  NODE  REASON    MESSAGE
    1     vm/db   PoweredOn   True    False  n1    NotReady  the probe has failed
    2     vm/web  PoweredOff  False   False  n1    Pending   it waits until the tier before it is ready
    ");
}
