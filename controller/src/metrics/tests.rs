//! Metrics as a collector reads them.
//!
//! Invariant: each test has a registry of its own.
//! Failure: the assertion shows the whole text.

use std::time::Duration;

use crds::conditions::{CACHE_FILES_READY, CREATED, READY, Status, set};
use crds::{VirtualMachine, VirtualMachineImage, VirtualMachineImageCache};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::watcher::Event;
use serde_json::json;
use workqueue::{Class, Metrics as _, Tally};

use super::Metrics;
use crate::stores::Stores;

fn machine(conditions: &[(&str, Status, &str)]) -> VirtualMachine {
    let mut vm = VirtualMachine::new("vm", Default::default());
    vm.metadata.namespace = Some("default".to_owned());
    let status = vm.status.insert(Default::default());
    let now = Time(jiff::Timestamp::UNIX_EPOCH);
    for (kind, value, reason) in conditions {
        set(&mut status.conditions, kind, *value, reason, "", None, &now);
    }
    vm
}

#[test]
fn a_machine_has_the_series_of_its_present_conditions_and_no_others() {
    let (stores, mut feeds) = Stores::new();
    let metrics = Metrics::with_stores(&stores);
    let pending = machine(&[(READY, Status::False, "NotReady")]);
    feeds.vms.apply(Event::Apply(pending));
    let text = metrics.text();
    let old = "vmlet_vm_status_condition_status{vm_name=\"vm\",vm_namespace=\"default\",\
               condition_type=\"Ready\",condition_reason=\"NotReady\"} 0";
    assert!(text.contains(old), "{text}");
    assert!(text.contains("phase=\"Creating\"} 1"), "{text}");
    let made = machine(&[(CREATED, Status::True, "")]);
    feeds.vms.apply(Event::Apply(made.clone()));
    let text = metrics.text();
    assert!(!text.contains("NotReady"), "{text}");
    assert!(text.contains("phase=\"Created\"} 1"), "{text}");
    feeds.vms.apply(Event::Delete(made));
    let text = metrics.text();
    assert!(!text.contains("vm_name"), "{text}");
}

#[test]
fn an_image_has_series_for_its_source_and_for_its_files_until_it_is_gone() {
    let (stores, mut feeds) = Stores::new();
    let metrics = Metrics::with_stores(&stores);
    let condition = |kind: &str| {
        json!([{
            "type": kind, "status": "True", "reason": "x", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }])
    };
    let image: VirtualMachineImage = serde_json::from_value(json!({
        "metadata": { "name": "debian", "namespace": "ns", "uid": "i" },
        "spec": { "source": {} },
        "status": { "conditions": condition(READY) },
    }))
    .unwrap();
    feeds.images.apply(Event::Apply(image.clone()));
    let series = |name: &str, value: u8| {
        format!("vmlet_{name}{{vmi_name=\"debian\",vmi_namespace=\"ns\"}} {value}")
    };
    let text = metrics.text();
    assert!(text.contains(&series("vmi_resource_resolve", 1)), "{text}");
    assert!(text.contains(&series("vmi_content_sync", 0)), "{text}");
    let cache: VirtualMachineImageCache = serde_json::from_value(json!({
        "metadata": { "name": "c", "namespace": "vmlet-system" },
        "spec": {
            "image": { "kind": "VirtualMachineImage", "namespace": "ns", "name": "debian", "uid": "i" },
            "providerID": "d", "providerVersion": "",
        },
        "status": { "conditions": condition(CACHE_FILES_READY) },
    }))
    .unwrap();
    feeds.image_caches.apply(Event::Apply(cache));
    let text = metrics.text();
    assert!(text.contains(&series("vmi_content_sync", 1)), "{text}");
    assert!(
        !text.contains("vmi_up_to_date{"),
        "it follows no tag: {text}"
    );
    let mut follows = image.clone();
    follows.spec.update = Some(crds::ImageUpdate::default());
    for (kind, value) in [(READY, 0), ("UpToDate", 1)] {
        let status = json!({ "conditions": condition(kind) });
        follows.status = Some(serde_json::from_value(status).unwrap());
        feeds.images.apply(Event::Apply(follows.clone()));
        let text = metrics.text();
        assert!(text.contains(&series("vmi_up_to_date", value)), "{text}");
    }
    feeds.images.apply(Event::Delete(image));
    assert!(!metrics.text().contains("vmi_name"));
}

#[test]
fn passes_are_counted_by_how_they_ended() {
    let metrics = Metrics::default();
    let mut sink = metrics.queue.clone();
    sink.reconciled(Tally::Panic, Duration::from_millis(3));
    let mut images = metrics.images.clone();
    images.reconciled(Tally::Success, Duration::from_millis(3));
    sink.dispatched(Class::Level(100), Duration::from_millis(2), false);
    let text = metrics.text();
    for series in [
        "vmlet_controller_reconcile_total{controller=\"virtualmachine\",result=\"error\"} 1",
        "vmlet_controller_reconcile_total{controller=\"virtualmachine\",result=\"success\"} 0",
        "vmlet_controller_reconcile_panics_total{controller=\"virtualmachine\"} 1",
        "vmlet_controller_reconcile_total{controller=\"virtualmachineimage\",result=\"success\"} 1",
        "vmlet_controller_reconcile_panics_total{controller=\"virtualmachineimage\"} 0",
        "vmlet_workqueue_adds_total{name=\"virtualmachineimage\",controller=\"virtualmachineimage\"} 0",
        "priority=\"100\"} 1",
    ] {
        assert!(text.contains(series), "{series} is not in\n{text}");
    }
}

#[test]
fn a_pass_that_runs_is_counted_until_it_ends() {
    let metrics = Metrics::default();
    let series =
        |n| format!("vmlet_controller_active_workers{{controller=\"virtualmachine\"}} {n}");
    let pass = metrics.queue.active();
    assert!(metrics.text().contains(&series(1)));
    drop(pass);
    assert!(metrics.text().contains(&series(0)));
}
