//! Which machines are made again, and as what.
//!
//! Invariant: values only.
//! Failure: the disk, and what was said of it.

use clap::FromArgMatches as _;
use serde_json::{Value, json};

use super::*;
use crate::commands::node_manifests::KeptDisk;

const UID: &str = "6f0f2d8e-5a1b-4c77-9d3e-766d6c657401";

fn manifest() -> Value {
    json!({
        "version": 1, "uid": UID, "namespace": "ns", "name": "web",
        "labels": { "team": "blue", "vmlet.dev/paused": "devops", "vmicache.vmlet.dev/name": "c" },
        "annotations": {
            "team": "blue",
            "vmlet.dev.protected/clone-from-namespaces": "kube-system",
            "vmlet.dev.protected/admin-paused": "",
            "delete.check.vmlet.dev/x": "",
            "poweron.check.vmlet.dev/x": "",
            "vmlet.dev/disk-record": "{}",
        },
        "spec": {
            "className": "small", "imageName": "debian", "powerState": "PoweredOn",
            "nextRestartTime": "now", "currentSnapshotName": "s",
        },
        "record": { "node": "old", "disk": UID, "biosUUID": UID, "instanceUUID": UID, "image": "debian" },
    })
}

fn disk(manifest: Option<Value>) -> KeptDisk {
    KeptDisk {
        uid: UID.to_owned(),
        name: "ns/web".to_owned(),
        complete: true,
        manifest: manifest.map(|manifest| manifest.to_string()),
        ..KeptDisk::default()
    }
}

fn object(manifest: Value, has_saved_memory: bool) -> Value {
    let offer = Offer::new(disk(Some(manifest)));
    let object = object::of_manifest(offer.manifest().unwrap(), "n1", has_saved_memory);
    serde_json::to_value(object).unwrap()
}

#[test]
fn a_machine_takes_its_disk_over_and_no_right_of_anyone() {
    let made = object(manifest(), false);
    assert_eq!(made["kind"], "VirtualMachine");
    assert_eq!(made["metadata"]["labels"], json!({ "team": "blue" }));
    let annotations = made["metadata"]["annotations"].as_object().unwrap();
    let keys: Vec<_> = annotations.keys().map(String::as_str).collect();
    let expected = [
        "poweron.check.vmlet.dev/x",
        "team",
        "vmlet.dev.protected/admin-paused",
        "vmlet.dev.protected/adopt-disk",
        "vmlet.dev/disk-record",
    ];
    assert_eq!(keys, expected);
    let record = annotations["vmlet.dev/disk-record"].as_str().unwrap();
    let record = DiskRecord::from_json(record).unwrap();
    assert_eq!((record.node.as_str(), record.disk.as_str()), ("n1", UID));
    assert!(!record.suspended);
    let spec = json!({ "className": "small", "imageName": "debian", "powerState": "PoweredOn" });
    assert_eq!(made["spec"], spec);
    assert_eq!(made.get("status"), None);
}

#[test]
fn a_suspended_machine_is_left_alone_until_someone_decides() {
    let mut suspended = manifest();
    suspended["spec"]["powerState"] = json!("Suspended");
    let made = object(suspended, true);
    assert_eq!(made["spec"]["powerState"], "PoweredOn");
    let annotations = &made["metadata"]["annotations"];
    assert_eq!(annotations["vmlet.dev/paused"], "");
    let record = annotations["vmlet.dev/disk-record"].as_str().unwrap();
    assert!(DiskRecord::from_json(record).unwrap().suspended);
}

#[test]
fn a_disk_without_a_manifest_of_its_machine_is_refused_in_words() {
    let words = |disk: KeptDisk| Offer::new(disk).manifest().unwrap_err();
    assert!(words(disk(None)).contains("no manifest"));
    let incomplete = KeptDisk {
        complete: false,
        ..disk(Some(manifest()))
    };
    assert!(words(incomplete).contains("not complete"));
    let unreadable = KeptDisk {
        unreadable: "the database does not know it".to_owned(),
        ..disk(Some(manifest()))
    };
    assert!(words(unreadable).contains("does not know it"));
    for (pointer, value) in [("/name", json!("db")), ("/record/disk", json!("u-2"))] {
        let mut other = manifest();
        *other.pointer_mut(pointer).unwrap() = value;
        assert!(words(disk(Some(other))).contains("is that of machine"));
    }
    let mut later = manifest();
    later["version"] = json!(2);
    assert!(words(disk(Some(later))).contains("upgrade it"));
}

#[test]
fn a_name_that_is_taken_is_left_to_who_has_it() {
    let offer = Offer::new(disk(Some(manifest())));
    let found = |uid: &str, adopted: Value, annotations: Value| {
        let found = json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
            "metadata": { "name": "web", "uid": uid, "annotations": annotations },
            "status": { "diskUID": adopted, "nodeName": "n1" },
        });
        taken(&serde_json::from_value(found).unwrap(), &offer, "n1")
    };
    assert_eq!(found(UID, Value::Null, json!({})), Outcome::Present);
    assert_eq!(found("u-2", json!(UID), json!({})), Outcome::Present);
    let adopting = |node: &str, disk: &str| {
        let record = DiskRecord {
            node: node.to_owned(),
            disk: disk.to_owned(),
            ..offer.manifest().unwrap().record.clone()
        };
        let annotations = json!({
            "vmlet.dev.protected/adopt-disk": "", "vmlet.dev/disk-record": record.to_json(),
        });
        found("u-2", Value::Null, annotations)
    };
    let Outcome::Done(words) = adopting("n1", UID) else {
        panic!("it takes the disk over")
    };
    assert!(words.contains("takes its disk over"));
    // Another disk of the name, here or elsewhere.
    for (node, disk) in [("n1", "u-3"), ("n2", UID)] {
        let words = format!("takes over disk {disk} of node {node}");
        let refused = adopting(node, disk);
        assert!(
            matches!(&refused, Outcome::Refused(text) if text.contains(&words)),
            "{refused:?}"
        );
    }
    let odd = json!({ "vmlet.dev.protected/adopt-disk": "" });
    let odd = found("u-2", Value::Null, odd);
    assert!(matches!(odd, Outcome::Refused(words) if words.contains("no valid record")));
    let other = found("u-2", Value::Null, json!({}));
    assert!(matches!(other, Outcome::Refused(words) if words.contains("another machine")));
}

#[test]
fn names_are_with_or_without_a_namespace() {
    let offers = [Offer::new(disk(None))];
    let names = ["web", "ns/web", "db", "other/web"].map(str::to_owned);
    let names = full_names(&names, "ns");
    let missing: Vec<_> = missing(&names, &offers).into_iter().collect();
    assert_eq!(missing, ["ns/db", "other/web"]);
}

fn args(more: &[&str]) -> RecoverArgs {
    let line = ["recover", "--node", "n1"].iter().chain(more);
    let args = RecoverArgs::augment_args(clap::Command::new("recover"));
    let found = args.try_get_matches_from(line).unwrap();
    RecoverArgs::from_arg_matches(&found).unwrap()
}

#[test]
fn a_name_alone_chooses_no_machine_of_another_namespace() {
    let offer = |name: &str| {
        Offer::new(KeptDisk {
            name: name.to_owned(),
            ..disk(None)
        })
    };
    let chosen = |more: &[&str], context: &str| {
        let args = args(more);
        let names = full_names(&args.names, context);
        let offers = ["kube-system/web", "ns/web", "ns/db"]
            .map(offer)
            .into_iter();
        let chosen = offers.filter(|offer| is_chosen(offer, &args, &names));
        let chosen: Vec<_> = chosen.map(|offer| offer.name().to_owned()).collect();
        chosen.join(" ")
    };
    assert_eq!(chosen(&["web"], "ns"), "ns/web");
    assert_eq!(chosen(&["web"], "default"), "");
    assert_eq!(chosen(&["kube-system/web"], "ns"), "kube-system/web");
    assert_eq!(chosen(&["-n", "ns"], "ns"), "ns/web ns/db");
    assert_eq!(chosen(&["--all"], "ns"), "kube-system/web ns/web ns/db");
}

#[test]
fn of_two_disks_of_one_machine_the_user_chooses() {
    const NEWER: &str = "7f0f2d8e-5a1b-4c77-9d3e-766d6c657401";
    let offers = |more: &[&str]| {
        let args = args(more);
        let names = full_names(&args.names, "ns");
        let unfinished = KeptDisk {
            complete: false,
            ..disk(None)
        };
        let newer = KeptDisk {
            uid: NEWER.to_owned(),
            ..disk(None)
        };
        let all = [unfinished, disk(Some(manifest())), newer].map(Offer::new);
        let mut offers: Vec<_> = all.into_iter().collect();
        offers.retain(|offer| is_chosen(offer, &args, &names));
        counts(&offers)["ns/web"]
    };
    assert_eq!(offers(&["--all"]), 2);
    assert_eq!(offers(&["web", "--disk", NEWER]), 1);
    assert_eq!(offers(&["web", "--disk", UID]), 1);
    let refused = ambiguous(2);
    assert!(
        matches!(&refused, Some(Outcome::Refused(text)) if text.contains("2 disks")),
        "{refused:?}"
    );
    assert_eq!(ambiguous(1), None);
}

#[test]
fn a_machine_that_began_anew_elsewhere_does_not_have_the_disk() {
    let offer = Offer::new(disk(Some(manifest())));
    let found = |node: Value| {
        let found = json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
            "metadata": { "name": "web", "uid": UID }, "status": { "nodeName": node },
        });
        taken(&serde_json::from_value(found).unwrap(), &offer, "n1")
    };
    assert_eq!(found(json!("n1")), Outcome::Present);
    for (node, words) in [(json!("n2"), "on node n2"), (Value::Null, "no disk yet")] {
        let refused = found(node);
        assert!(
            matches!(&refused, Outcome::Refused(text) if text.contains(words)),
            "{refused:?}"
        );
    }
}

#[test]
fn no_machine_has_a_name_that_the_api_server_would_refuse() {
    let is_valid = |name: &str| {
        let odd = KeptDisk {
            name: name.to_owned(),
            ..disk(None)
        };
        Offer::new(odd).has_valid_name()
    };
    assert!(is_valid("ns/web") && is_valid("ns/web.example-1"));
    let long = format!("{}/web", "n".repeat(64));
    for name in [
        "",
        "web",
        "/web",
        "ns/",
        "ns/a b",
        "ns/../secrets",
        "n.s/web",
        "ns/-a",
        "ns/A",
        &long,
    ] {
        assert!(!is_valid(name), "{name:?}");
    }
}

#[test]
fn a_manifest_that_the_node_cannot_read_is_refused_in_its_words() {
    let unreadable = KeptDisk {
        manifest_error: "input/output error".to_owned(),
        ..disk(None)
    };
    let words = Offer::new(unreadable).manifest().unwrap_err();
    assert!(words.contains("input/output error"), "{words}");
}

#[test]
fn what_a_machine_takes_from_its_namespace_is_shown() {
    let mut named = manifest();
    // An annotation of the machine does not reach its pods.
    named["annotations"] = json!({ "vmlet.dev/ssh-keys-source": "secret/unread" });
    named["spec"]["template"]["metadata"]["annotations"] = json!({
        "vmlet.dev/files-from-data-source": "configmap/files",
        "VirtletSSHKeySource": "secret/keys",
        "vmlet.dev/image-tls-secret": "tls",
    });
    named["spec"]["bootstrap"] = json!({
        "cloudInit": { "userData": { "name": "login" }, "networkData": { "name": "net" } },
        "sysprep": { "secretName": "answers" },
    });
    named["spec"]["volumes"] = json!([
        { "name": "data", "persistentVolumeClaim": { "claimName": "db" } }, { "name": "odd" },
    ]);
    let shown = |manifest: Value| {
        let offer = Offer::new(disk(Some(manifest)));
        uses::list(offer.manifest().unwrap())
    };
    let expected = "secret/login,secret/net,secret/answers,secret/keys,configmap/files,secret/tls,\
                    pvc/db,image/debian";
    assert_eq!(shown(named), expected);
    assert_eq!(shown(manifest()), "image/debian");
    let mut bare = manifest();
    bare["spec"] = json!({});
    assert_eq!(shown(bare), "-");
}

#[test]
fn what_cdi_reads_for_a_machine_is_shown() {
    let shown = |spec: Value| {
        let mut named = manifest();
        named["spec"] = json!({ "dataVolumeTemplates": [{ "name": "root", "spec": spec }] });
        let offer = Offer::new(disk(Some(named)));
        let all = uses::list(offer.manifest().unwrap());
        let own = all.strip_prefix("datavolume/root").unwrap();
        own.trim_start_matches(',').to_owned()
    };
    let http = json!({ "source": { "http": {
        "url": "https://there/disk?token=x", "secretRef": "login", "certConfigMap": "ca",
        "secretExtraHeaders": ["one", "two"],
    } } });
    let names = shown(http);
    let mut names: Vec<_> = names.split(',').collect();
    names.sort_unstable();
    let expected = [
        "configmap/ca",
        "https://there/disk",
        "secret/login",
        "secret/one",
        "secret/two",
    ];
    assert_eq!(names, expected);
    let rows = [
        (
            json!({ "source": { "pvc": { "name": "prod" } } }),
            "pvc/prod",
        ),
        (
            json!({ "source": { "snapshot": { "namespace": "db", "name": "s" } } }),
            "snapshot/db/s",
        ),
        (
            json!({ "sourceRef": { "kind": "DataSource", "name": "golden" } }),
            "datasource/golden",
        ),
        (
            json!({ "pvc": { "dataSourceRef": { "kind": "VolumeSnapshot", "name": "s" } } }),
            "volumesnapshot/s",
        ),
        (json!({ "storage": { "volumeName": "pv-1" } }), "pv/pv-1"),
        (json!({ "source": { "later": { "from": "x" } } }), ""),
    ];
    for (spec, expected) in rows {
        assert_eq!(shown(spec), expected);
    }
}

#[test]
fn all_machines_of_a_node_are_recovered_only_if_that_is_said() {
    let is_bounded = |more: &[&str]| is_bounded(&args(more));
    assert!(!is_bounded(&[]));
    for more in [&["web"][..], &["-n", "ns"], &["--all"], &["--dry-run"]] {
        assert!(is_bounded(more), "{more:?}");
    }
}
