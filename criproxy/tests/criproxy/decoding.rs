//! Decoding of what clients and runtimes send: any bytes, damaged messages, messages of the whole
//! API.
//!
//! Invariant: our readers never panic, and where prost reads a message with all its fields, they
//! read the same.
//! Failure: proptest shows the smallest message that breaks it.

use std::collections::BTreeMap;

use bytes::Bytes;
use cri_proto::v1;
use criproxy::wire::{
    Field, FirstId, FirstStatus, ImageRequest, ListContainers, PREFIX, PullImage, RestorePod,
    RunPodSandbox, Unreadable, fields, keep_fields, payload, tagged,
};
use proptest::prelude::*;
use prost::Message;

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z./:]{1,12}", "\\PC{1,8}"]
}

fn annotations() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map(text(), text(), 0..4)
}

fn sandbox_config() -> impl Strategy<Value = v1::PodSandboxConfig> {
    let linux = text().prop_map(|cgroup_parent| v1::LinuxPodSandboxConfig {
        cgroup_parent,
        ..Default::default()
    });
    let metadata =
        (text(), text(), any::<u32>()).prop_map(|(name, uid, attempt)| v1::PodSandboxMetadata {
            name,
            uid,
            attempt,
            ..Default::default()
        });
    (
        prop::option::of(metadata),
        text(),
        annotations(),
        annotations(),
        prop::option::of(linux),
    )
        .prop_map(
            |(metadata, hostname, labels, annotations, linux)| v1::PodSandboxConfig {
                metadata,
                hostname,
                labels: labels.into_iter().collect(),
                annotations: annotations.into_iter().collect(),
                linux,
                ..Default::default()
            },
        )
}

fn image() -> impl Strategy<Value = v1::ImageSpec> {
    (text(), annotations(), text(), text()).prop_map(
        |(image, annotations, user_specified_image, runtime_handler)| v1::ImageSpec {
            image,
            annotations: annotations.into_iter().collect(),
            user_specified_image,
            runtime_handler,
            ..Default::default()
        },
    )
}

fn run_request() -> impl Strategy<Value = v1::RunPodSandboxRequest> {
    (prop::option::of(sandbox_config()), text()).prop_map(|(config, runtime_handler)| {
        v1::RunPodSandboxRequest {
            config,
            runtime_handler,
        }
    })
}

fn container_list() -> impl Strategy<Value = v1::ListContainersResponse> {
    let container = (text(), text(), 0..4_i32, annotations()).prop_map(
        |(id, pod_sandbox_id, state, labels)| v1::Container {
            id,
            pod_sandbox_id,
            state,
            labels: labels.into_iter().collect(),
            ..Default::default()
        },
    );
    prop::collection::vec(container, 0..6)
        .prop_map(|containers| v1::ListContainersResponse { containers })
}

/// A message with a few bytes changed, cut off or put in.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..4);
    (run_request(), edits).prop_map(|(message, edits)| {
        let mut bytes = message.encode_to_vec();
        for (place, value, kind) in edits {
            let place = place.index(bytes.len() + 1);
            match (kind, bytes.get_mut(place)) {
                (0, _) => bytes.truncate(place),
                (1, _) => bytes.insert(place, value),
                (_, Some(byte)) => *byte = value,
                (_, None) => {}
            }
        }
        bytes
    })
}

/// Reads with every reader; what matters is that each returns.
fn read_all(bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut whole = Vec::new();
    let mut well = true;
    for field in fields(bytes) {
        match field {
            Ok(field) => whole.extend_from_slice(field.raw),
            Err(_) => well = false,
        }
    }
    prop_assert!(bytes.starts_with(&whole));
    prop_assert_eq!(well, whole.len() == bytes.len());
    prop_assert_eq!(keep_fields(bytes, |_| true).is_ok(), well);
    let _ = RunPodSandbox::decode(bytes);
    let _ = RestorePod::decode(bytes);
    let _ = ImageRequest::decode(bytes);
    let _ = PullImage::decode(bytes);
    let _ = ListContainers::decode(bytes);
    let _ = FirstStatus::decode(bytes);
    Ok(())
}

/// Whether a map of a sandbox's configuration has an entry of another wire type than a message's.
/// prost reads such an entry as if it were one; for the specification, the field is unknown.
fn has_odd_map(request: &[u8]) -> bool {
    let children = |message: &[u8], number| {
        let found = fields(message)
            .flatten()
            .filter(|field| field.number == number);
        let contents = found.filter_map(|field| field.content.map(<[u8]>::to_vec));
        contents.collect::<Vec<_>>()
    };
    let is_odd = |message: &[u8], maps: &[u32]| {
        let is_odd = |field: Field<'_>| maps.contains(&field.number) && field.content.is_none();
        // By its own wire type, the entry may be longer than the message.
        fields(message).any(|field| field.map_or(true, is_odd))
    };
    children(request, 1).iter().any(|config| {
        let mut linux = children(config, 8).into_iter();
        is_odd(config, &[6, 7]) || linux.any(|linux| is_odd(&linux, &[3]))
    })
}

#[test]
fn a_map_entry_of_another_wire_type_is_unknown() {
    // Field 6, a map, as a varint of 4, then field 7 as prost would read the entry's content.
    let config = [48, 4, 58, 2, 10, 0];
    let request = [&[10, 6][..], &config].concat();
    assert!(has_odd_map(&request));
    assert!(!has_odd_map(&[&[10, 4][..], &config[2..]].concat()));
    assert!(RunPodSandbox::decode(&*request).is_ok());
}

fn same_sandbox(
    ours: &RunPodSandbox,
    full: &v1::RunPodSandboxRequest,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(&ours.runtime_handler, &full.runtime_handler);
    prop_assert_eq!(ours.config.is_some(), full.config.is_some());
    if let Some(ours) = &ours.config
        && let Some(full) = &full.config
    {
        let uid = full.metadata.as_ref().map_or("", |metadata| &metadata.uid);
        prop_assert_eq!(ours.uid(), uid);
        let annotations: BTreeMap<_, _> = full.annotations.clone().into_iter().collect();
        prop_assert_eq!(&ours.annotations, &annotations);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
        read_all(&bytes)?;
    }

    #[test]
    fn damaged_messages_are_read_as_prost_reads_them(bytes in damaged()) {
        read_all(&bytes)?;
        if !has_odd_map(&bytes) && let Ok(full) = v1::RunPodSandboxRequest::decode(&*bytes) {
            same_sandbox(&RunPodSandbox::decode(&*bytes).unwrap(), &full)?;
        }
    }

    #[test]
    fn routing_fields_of_a_sandbox_are_those_of_the_whole_message(full in run_request()) {
        let bytes = full.encode_to_vec();
        same_sandbox(&RunPodSandbox::decode(&*bytes).unwrap(), &full)?;
        // Our API's file does not have this one yet: the same fields, one number higher.
        let mut restore = tagged(1, b"/checkpoint").to_vec();
        if let Some(config) = &full.config {
            restore.extend_from_slice(&tagged(2, &config.encode_to_vec()));
        }
        restore.extend_from_slice(&tagged(3, full.runtime_handler.as_bytes()));
        let restore = RestorePod::decode(&*restore).unwrap();
        let RestorePod { config, runtime_handler } = restore;
        same_sandbox(&RunPodSandbox { config, runtime_handler }, &full)?;
        // Blanking the handler leaves the rest as it is.
        let blanked = keep_fields(&bytes, |field| field.number != 2).unwrap();
        let blanked = v1::RunPodSandboxRequest::decode(blanked).unwrap();
        prop_assert_eq!(blanked.runtime_handler, "");
        prop_assert_eq!(blanked.config, full.config);
    }

    #[test]
    fn routing_fields_of_a_pull_are_those_of_the_whole_message(
        image in prop::option::of(image()),
        config in prop::option::of(sandbox_config()),
        password in text(),
    ) {
        let auth = v1::AuthConfig { password, ..Default::default() };
        let full = v1::PullImageRequest { image, auth: Some(auth), sandbox_config: config };
        let ours = PullImage::decode(&*full.encode_to_vec()).unwrap();
        prop_assert_eq!(ours.image.is_some(), full.image.is_some());
        if let Some(ours) = &ours.image && let Some(full) = &full.image {
            prop_assert_eq!(&ours.name, &full.image);
            prop_assert_eq!(&ours.runtime_handler, &full.runtime_handler);
            let annotations: BTreeMap<_, _> = full.annotations.clone().into_iter().collect();
            prop_assert_eq!(&ours.annotations, &annotations);
        }
        let uid = |config: &v1::PodSandboxConfig| config.metadata.clone().unwrap_or_default().uid;
        let expected = full.sandbox_config.as_ref().map(uid);
        prop_assert_eq!(ours.sandbox.map(|sandbox| sandbox.uid().to_owned()), expected);
    }

    #[test]
    fn lists_behind_each_other_are_one_list(first in container_list(), second in container_list()) {
        let bytes = [first.encode_to_vec(), second.encode_to_vec()].concat();
        let merged = v1::ListContainersResponse::decode(&*bytes).unwrap();
        let expected: Vec<_> = first.containers.into_iter().chain(second.containers).collect();
        prop_assert_eq!(fields(&bytes).count(), expected.len());
        for (field, container) in fields(&bytes).zip(&expected) {
            let content = field.unwrap().content.unwrap();
            prop_assert_eq!(FirstId::decode(content).unwrap().id, container.id.clone());
        }
        prop_assert_eq!(merged.containers, expected);
    }

    #[test]
    fn a_field_of_our_making_is_read_by_prost(id in text()) {
        let made = FirstId::decode(tagged(1, id.as_bytes())).unwrap();
        prop_assert_eq!(made.id, id);
    }

    #[test]
    fn a_frame_is_one_whole_message_or_refused(body: Vec<u8>, message: Vec<u8>, rest: Vec<u8>) {
        // Any bytes: whatever is taken is what the prefix announces.
        if let Ok(taken) = payload(&Bytes::from(body.clone())) {
            let prefix = if body.is_empty() { 0 } else { PREFIX };
            prop_assert_eq!(taken.len() + prefix, body.len());
        }
        let length = u32::try_from(message.len()).unwrap();
        let mut frame = vec![0];
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(&message);
        for cut in 1..frame.len() {
            let part = Bytes::copy_from_slice(&frame[..cut]);
            prop_assert_eq!(payload(&part), Err(Unreadable::Truncated));
        }
        prop_assert_eq!(&payload(&Bytes::from(frame.clone())).unwrap(), &message);
        if !rest.is_empty() {
            frame.extend_from_slice(&rest);
            prop_assert_eq!(payload(&Bytes::from(frame)), Err(Unreadable::Surplus));
        }
    }
}
