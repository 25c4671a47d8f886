//! Rows S: the content of the status.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use serde_json::{Value, json};

use super::bench::*;
use crate::config::Config;

fn no_resize() -> Config {
    let mut config = Config::default();
    config.machines.resize = false;
    config
}

async fn without_class_on_record(mut bench: Bench) -> Bench {
    bench.running(json!({})).await;
    bench.edit(
        VMS,
        "vm",
        json!({ "status": { "class": null, "classRevision": null } }),
    );
    bench.settle().await.ok();
    bench
}

#[tokio::test]
async fn s1a_a_machine_without_a_class_has_none_on_record() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    assert_eq!(bench.status().class.as_deref(), Some("small"));
    let own = json!({ "className": null, "hardware": { "cpus": 1, "memory": "512Mi" } });
    bench.edit(VMS, "vm", json!({ "spec": own }));
    bench.settle().await.ok();
    assert_eq!(bench.status().class, None);
    assert_eq!(
        bench.condition_text("VirtualMachineClassConfigurationSynced"),
        "-"
    );
}

#[tokio::test]
async fn s1b_without_resizing_an_empty_record_is_filled() {
    let bench = without_class_on_record(Bench::with(no_resize())).await;
    assert_eq!(bench.status().class.as_deref(), Some("small"));
}

#[tokio::test]
async fn s1c_with_resizing_only_what_was_applied_is_recorded() {
    let mut bench = Bench::new();
    bench.put(CLASSES, class("big", 4));
    bench.running(json!({})).await;
    bench.edit(
        VMS,
        "vm",
        json!({
            "spec": { "className": "big" },
            "status": { "class": null, "classRevision": null, "classSpec": null },
        }),
    );
    bench.settle().await.ok();
    // What it runs with is not what the class specifies.
    assert_eq!(bench.status().class, None);
    assert_eq!(bench.status().hardware.unwrap().cpus, 1);
    let says = |bench: &Bench| bench.condition_text("VirtualMachineClassConfigurationSynced");
    assert_eq!(says(&bench), "False/ClassNameChanged");
    bench.edit(VMS, "vm", json!({ "spec": { "className": "none" } }));
    bench.settle().await.ok();
    assert_eq!(says(&bench), "Unknown/ClassNotFound");
    // The next start takes the class over.
    let off = json!({ "className": "big", "runStrategy": "Halted" });
    bench.edit(VMS, "vm", json!({ "spec": off }));
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    assert_eq!(bench.status().class.as_deref(), Some("big"));
    assert_eq!(bench.status().hardware.unwrap().cpus, 4);
}

async fn addresses(list: Value) -> (Option<String>, Option<String>) {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.facts(json!({ "power": "On", "agent": "Connected", "interfaces": [
        { "name": "eth0", "addresses": list, "source": "GuestAgent" },
    ]}));
    bench.settle().await.ok();
    let network = bench.status().network.unwrap_or_default();
    (network.primary_ip4, network.primary_ip6)
}

#[tokio::test]
async fn s2a_an_ipv4_address_is_primary() {
    let seen = addresses(json!(["127.0.0.1/8", "10.1.0.7/24"])).await;
    assert_eq!(seen, (Some("10.1.0.7".to_owned()), None));
}

#[tokio::test]
async fn s2b_an_ipv6_address_alone_is_primary() {
    let seen = addresses(json!(["fe80::1/64", "fd00::7/64"])).await;
    assert_eq!(seen, (None, Some("fd00::7".to_owned())));
}

#[tokio::test]
async fn s2c_a_link_local_address_is_not() {
    assert_eq!(
        addresses(json!(["fe80::1/64", "169.254.0.9/16"])).await,
        (None, None)
    );
}

#[tokio::test]
async fn s2d_an_agent_that_is_gone_takes_the_addresses_along() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let one = json!([{ "name": "eth0", "addresses": ["10.1.0.7/24"] }]);
    bench.facts(json!({ "power": "On", "agent": "Connected", "interfaces": one }));
    bench.settle().await.ok();
    assert_eq!(
        bench.condition_text("VirtualMachineGuestNetworkConfigSynced"),
        "True/Synced"
    );
    bench.facts(json!({ "power": "On", "agent": "NotRunning" }));
    bench.settle().await.ok();
    let network = bench.status().network.unwrap();
    assert_eq!((network.primary_ip4, network.primary_ip6), (None, None));
    assert_eq!(network.config.unwrap().addresses, ["10.1.0.7"]);
    let vm = bench.vm();
    let facts = crate::intake::facts(&vm, &bench.ctx.stores);
    let rules = bench.ctx.config.priority.rules();
    assert_eq!(rules.of_requeue(&facts), Some(97), "it waits again");
    assert_eq!(
        bench.condition_text("VirtualMachineGuestAgent"),
        "False/GuestAgentNotRunning"
    );
}

#[tokio::test]
async fn an_image_may_vouch_for_the_pods_address() {
    let mut bench = Bench::new();
    bench.edit(
        IMAGES,
        "debian",
        json!({ "spec": { "ipAssurance": "PodIP" } }),
    );
    bench.running(json!({})).await;
    let network = bench.status().network.unwrap();
    assert_eq!(network.primary_ip4.as_deref(), Some("10.1.0.7"));
}

#[tokio::test]
async fn both_families_come_from_the_same_interface() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.facts(json!({ "power": "On", "interfaces": [
        { "name": "eth0", "addresses": ["fe80::1/64"] },
        { "name": "eth1", "addresses": ["10.2.0.1/24"] },
        { "name": "eth2", "addresses": ["fd00::2/64", "10.3.0.1/24"] },
    ]}));
    bench.settle().await.ok();
    let network = bench.status().network.unwrap();
    assert_eq!(network.primary_ip4.as_deref(), Some("10.2.0.1"));
    assert_eq!(network.primary_ip6, None);
}

#[tokio::test]
async fn s3a_the_paused_label_shows_the_cause() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.edit(
        VMS,
        "vm",
        json!({ "metadata": { "labels": { "vmlet.dev/paused": "devops" } } }),
    );
    bench.settle().await.ok();
    let condition = bench.condition("VirtualMachineReconcileReady").unwrap();
    assert_eq!(
        (&*condition.status, &*condition.message),
        ("False", "paused by devops")
    );
    bench.edit(VMS, "vm", json!({ "metadata": { "labels": null } }));
    bench.settle().await.ok();
    // The label is privileged: who paused is who unpauses.
    assert_eq!(
        bench.condition_text("VirtualMachineReconcileReady"),
        "True/NotPaused"
    );
}

/// The controller reads no user data: the node does, and its agent writes what cloud-init ignores.
#[tokio::test]
async fn what_the_node_could_not_give_is_told_as_long_as_the_machine_runs() {
    let mut bench = Bench::new();
    let lost = "cloud-init ignores the user data: a byte order mark stands before the first line";
    bench.running(json!({})).await;
    assert_eq!(bench.condition_text("UnsupportedFeatures"), "-");
    bench.facts(json!({ "power": "On", "unsupported": [lost, "no \u{7}bell"] }));
    bench.settle().await.ok();
    let condition = bench.condition("UnsupportedFeatures").unwrap();
    assert_eq!(
        (&*condition.status, &*condition.reason),
        ("True", "NotGiven")
    );
    assert_eq!(
        condition.message,
        format!("reported by the node: {lost}; no bell")
    );
    assert_eq!(
        bench.condition_text("VirtualMachineBootstrapReady"),
        "-",
        "what is missing for a start is another matter"
    );

    bench.edit(VMS, "vm", json!({ "spec": { "suspendMode": "Hard" } }));
    bench.settle().await.ok();
    let condition = bench.condition("UnsupportedFeatures").unwrap();
    assert_eq!(&*condition.reason, "NotImplemented");
    let fields = condition.message.find("suspendMode");
    let reported = condition.message.find(lost);
    assert!(
        fields.is_some() && fields < reported,
        "{}",
        condition.message
    );

    bench.edit(VMS, "vm", json!({ "spec": { "suspendMode": null } }));
    bench.facts(json!({ "power": "On" }));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("UnsupportedFeatures"), "-");
}

#[tokio::test]
async fn s3b_a_part_that_fails_does_not_stop_the_others() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    bench.settle().await.ok();
    bench.run("n1");
    let facts = json!({ "metadata": { "annotations": { "vmlet.dev/guest-facts": "{" } } });
    bench.edit(PODS, "vm", facts);
    assert!(failure(&bench.pass().await).contains("guest facts"));
    let status = bench.status();
    assert_eq!(status.power_state, Some(crds::PowerState::PoweredOn));
    assert_eq!(status.zone.as_deref(), Some("z1"));
    assert_eq!(
        bench.condition_text("VirtualMachinePowerStateSynced"),
        "True/Synced"
    );
}
