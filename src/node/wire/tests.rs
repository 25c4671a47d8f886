//! Requests, right and wrong.
//!
//! Invariant: what is accepted is bounded.
//! Failure: proptest shows the smallest request that breaks it.

use proptest::prelude::*;

use super::*;

const UID: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

fn request(kind: Option<v1::run_task_request::Kind>) -> v1::RunTaskRequest {
    v1::RunTaskRequest {
        uid: UID.to_owned(),
        vm_uid: UID.to_owned(),
        kind,
    }
}

#[test]
fn a_request_that_cannot_be_meant_names_its_field() {
    use v1::run_task_request::Kind;
    let wanted = |image: &str, size_bytes| {
        Some(Kind::Provision(v1::Provision {
            image: image.to_owned(),
            size_bytes,
            ..v1::Provision::default()
        }))
    };
    let of_url = |image: &str, url: &str| {
        Some(Kind::Provision(v1::Provision {
            image: image.to_owned(),
            image_url: url.to_owned(),
            ..v1::Provision::default()
        }))
    };
    let url = "http://h/Disk?v=1";
    let name = podspec::url_image_name(url);
    let save = Some(Kind::Save(v1::Save {}));
    let cases = [
        (request(None), "kind"),
        (request(wanted("", 0)), "provision.image"),
        (request(wanted("host/a b", 0)), "provision.image"),
        (
            request(wanted("host/disk", u64::MAX)),
            "provision.size_bytes",
        ),
        (request(wanted(&name, 0)), "provision.image_url"),
        (request(of_url("host/disk", url)), "provision.image_url"),
        (
            v1::RunTaskRequest {
                uid: "../x".to_owned(),
                ..request(save.clone())
            },
            "uid",
        ),
        (
            v1::RunTaskRequest {
                vm_uid: UID.to_uppercase(),
                ..request(save.clone())
            },
            "vm_uid",
        ),
    ];
    for (request, field) in cases {
        assert_eq!(task(request).unwrap_err().field, field);
    }
    assert_eq!(task(request(save)).unwrap().2, Work::Save);
    assert!(task(request(wanted("host/disk", 1 << 30))).is_ok());
    let (.., work) = task(request(of_url(&name, url))).unwrap();
    assert!(matches!(work, Work::Provision { url: Some(given), .. } if given == url));
}

#[test]
fn stored_work_and_its_request_have_one_name_for_the_kind() {
    use strum::VariantNames as _;
    use v1::run_task_request::Kind;
    let provision = v1::Provision {
        image: "host/disk".to_owned(),
        ..v1::Provision::default()
    };
    let power_off = v1::PowerOff {
        pod_uid: UID.to_owned(),
        ..v1::PowerOff::default()
    };
    let inspect = v1::InspectImage {
        image: "host/disk".to_owned(),
        ..v1::InspectImage::default()
    };
    let pull = v1::PullImage {
        image: "host/disk".to_owned(),
        ..v1::PullImage::default()
    };
    let probe = v1::SetProbe {
        pod_uid: UID.to_owned(),
        probe: None,
    };
    let all = [
        Kind::Provision(provision),
        Kind::DeleteDisk(v1::DeleteDisk::default()),
        Kind::GuestShutdown(v1::GuestShutdown::default()),
        Kind::GuestReboot(v1::GuestReboot::default()),
        Kind::Reset(v1::Reset::default()),
        Kind::Save(v1::Save::default()),
        Kind::Restore(v1::Restore::default()),
        Kind::Pause(v1::Pause::default()),
        Kind::Unpause(v1::Unpause::default()),
        Kind::PowerOff(power_off),
        Kind::InspectImage(inspect),
        Kind::PullImage(pull),
        Kind::SetProbe(probe),
        Kind::Promote(v1::Promote { online: true }),
        Kind::Snapshot(v1::Snapshot {
            uid: UID.to_owned(),
            quiesce_seconds: 0,
            memory: true,
        }),
        Kind::Revert(v1::Revert {
            uid: UID.to_owned(),
            memory: true,
        }),
        Kind::DeleteSnapshot(v1::DeleteSnapshot {
            uid: UID.to_owned(),
        }),
        Kind::Freeze(v1::Freeze {
            uid: UID.to_owned(),
            seconds: 60,
        }),
        Kind::Adopt(v1::Adopt {
            vm_name: "default/vm".to_owned(),
        }),
        Kind::CloneDisk(v1::CloneDisk {
            source_vm_uid: "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9bff".to_owned(),
            vm_name: "default/vm".to_owned(),
            ..v1::CloneDisk::default()
        }),
        Kind::Backup(v1::Backup {
            uid: UID.to_owned(),
            target: "nfs".to_owned(),
            vm_name: "default/vm".to_owned(),
            ..v1::Backup::default()
        }),
        Kind::VerifyBackup(v1::VerifyBackup {
            uid: UID.to_owned(),
            target: "nfs".to_owned(),
            vm_name: "default/vm".to_owned(),
            sha256: String::new(),
        }),
        Kind::DeleteBackup(v1::DeleteBackup {
            uid: UID.to_owned(),
            target: "nfs".to_owned(),
            vm_name: "default/vm".to_owned(),
        }),
        Kind::RestoreBackup(v1::RestoreBackup {
            uid: UID.to_owned(),
            target: "nfs".to_owned(),
            source_vm_uid: "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9bff".to_owned(),
            vm_name: "default/vm".to_owned(),
            ..v1::RestoreBackup::default()
        }),
    ];
    let requested: Vec<&str> = all.iter().map(Into::into).collect();
    assert_eq!(requested, Kind::VARIANTS);
    for (kind, name) in all.into_iter().zip(requested) {
        let (.., work) = task(request(Some(kind))).unwrap();
        assert_eq!(work.kind(), name);
        let stored = serde_json::to_value(&work).unwrap();
        assert_eq!(stored["kind"], name);
    }
}

proptest! {
    #[test]
    fn an_accepted_request_is_bounded_and_on_one_line(
        uid in prop_oneof![Just(UID.to_owned()), "[0-9a-fA-F-]{30,40}", any::<String>()],
        image in "(https?://)?[a-z0-9./:@-]{0,20}",
        url in prop_oneof![Just(String::new()), "https?://[a-z0-9./:@?-]{0,20}"],
        vm_name in any::<String>(),
        size_bytes: u64,
        mode: i32,
        bytes in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        use v1::run_task_request::Kind;
        // Bytes of any kind, and what is nearly right.
        let any = <v1::RunTaskRequest as prost::Message>::decode(&*bytes);
        let provision = v1::Provision {
            image, image_url: url, vm_name, size_bytes, mode, image_tls_secret: String::new(),
        };
        let near = v1::RunTaskRequest {
            uid: uid.clone(),
            vm_uid: uid.clone(),
            kind: Some(Kind::Provision(provision)),
        };
        for request in any.into_iter().chain([near]) {
            let Ok((task, vm, work)) = task(request.clone()) else { continue };
            prop_assert_eq!(task.to_string(), request.uid.to_lowercase());
            prop_assert_eq!(vm.to_string(), request.vm_uid.to_lowercase());
            if let Work::Provision { image, url, size, name, .. } = work {
                prop_assert!(name.len() <= NAME && !name.contains(char::is_control));
                prop_assert!(i64::try_from(size).is_ok() && !image.is_empty());
                prop_assert!(url.is_none_or(|url| url.starts_with("http") && !url.contains('@')));
            }
        }
    }
}

#[test]
fn a_request_about_a_snapshot_is_bounded_and_names_it() {
    use v1::run_task_request::Kind;
    let with = |uid: &str, quiesce_seconds, memory| {
        Kind::Snapshot(v1::Snapshot {
            uid: uid.to_owned(),
            quiesce_seconds,
            memory,
        })
    };
    let take = |uid: &str, quiesce_seconds| with(uid, quiesce_seconds, false);
    let freeze = |uid: &str, seconds| {
        let uid = uid.to_owned();
        Kind::Freeze(v1::Freeze { uid, seconds })
    };
    let uid = "x".to_owned();
    let revert = v1::Revert {
        uid: uid.clone(),
        memory: true,
    };
    let cases = [
        (take("", 0), "snapshot.uid"),
        (take(UID, 601), "snapshot.quiesce_seconds"),
        (with(UID, 1, true), "snapshot.quiesce_seconds"),
        (Kind::Revert(revert), "revert.uid"),
        (freeze("", 1), "freeze.uid"),
        (freeze(UID, 0), "freeze.seconds"),
        (freeze(UID, 601), "freeze.seconds"),
        (
            Kind::DeleteSnapshot(v1::DeleteSnapshot { uid }),
            "delete_snapshot.uid",
        ),
    ];
    for (kind, field) in cases {
        assert_eq!(task(request(Some(kind))).unwrap_err().field, field);
    }
    let (.., work) = task(request(Some(take(UID, 600)))).unwrap();
    assert!(matches!(work, Work::Snapshot { quiesce: 600, .. }));
}
